"""`./plumb references propose` and `accept_and_print`: references from perflogs.

One YAML file a family, in the form that ReFrame reads. `propose_references` writes it
beside the file that people accepted, as `<family>.proposed.yaml`, and shows
the difference; `accept_and_print` takes it over (acceptance.py). The rules:

- The centre is the median over runs of the median within each run.
- A judged metric (family.yaml) may be worse than its centre by its
  tolerance (spread.py); better is never a fault. All other metrics
  are written down open.
- A tolerance wider than its max tolerance could not judge: the metric is
  written open, and stands in `$no_reference` with about how many more runs it
  needs; 0: none would do. Where a derived metric is judged instead, that has
  the tolerance, and the metric is open without standing in `$no_reference`
  (progress.py).
- `worst_ratio` stands for the whole curve: the worst ratio of all points to the
  proposed curve.
- `$from` says what an entry was made of, and `tolerances` what was written as
  [centre, tolerance]: a line that differs was set by hand, and stays.
- Failed, guarded, xfailed, emulated and made-up runs, runs with a metric that is
  no number are never used. Program source is part of the key, so metrics of
  two sources never meet.
"""
from __future__ import annotations

import argparse
import datetime
import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from ruamel.yaml.comments import CommentedMap

from config import places
from config import references as grammar
from config.commandline import Parser
from config.console import count_with_noun
from config.families import all_metrics
from config.places import CALIBRATE, site_option
from config.records.columns import MADE_UP
from config.sessions.judged import metric_key

from .. import options
from ..files import write_files_atomically
from ..records import METRICS, PerflogError
from ..records import read as read_records
from . import acceptance, editing
from .acceptance import Refused, TooFewSessions
from .progress import (
    KEYS,
    add_edition_column,
    day_of_each_session,
    families_with_separate_versions,
    median_per_session,
    tolerances_and_sessions_needed,
    usable_records,
)
from .spread import ENOUGH_DAYS, FEWEST_RUNS, FLOORS

PATH = """\
The steps are:
  ./plumb references calibrate   measures until references can be made
  ./plumb references propose     or: makes them from the records that exist
  (read the difference that is shown)
  ./plumb references accept      takes them into the accepted files

Then commit the files. With `complete: true` at the top of a file a test case
without a reference fails.
"""

PROPOSE = """\
Proposes references from the records of sessions, for a person to accept.

For each benchmark family the command writes FAMILY.proposed.yaml beside the
accepted FAMILY.yaml, and prints how they differ. Sessions that their reference
failed are left out, if --new-level is not given.

Exit codes: 0 written; 1 refused, because there are too few sessions; 2 wrong
usage, or unreadable files.
"""

ACCEPT = """\
Takes proposed references into the accepted reference files.

Comments, `complete: true`, lines that were set by hand and entries that are
not in the proposal are kept. What is not accepted stays in the proposal. A
centre that is worse than the old one by more than its tolerance is a new
level: it is refused without --reason.

Exit codes: 0 accepted; 1 something was refused; 2 wrong usage, or unreadable
files.
"""


def parser() -> Parser:
    """The command line."""
    top = Parser(prog='plumb references',
                 text=f'Makes references from perflogs.\n\n{PATH}')
    commands = top.add_subparsers(dest='command', required=True)
    cmd = commands.add_parser(
        'propose', help='make references from the perflogs', text=PROPOSE,
        example='./plumb references propose --site mycluster --last 8')
    accept = commands.add_parser(
        'accept', help='take proposed references into the reference files',
        text=ACCEPT, example='./plumb references accept --site mycluster '
        '--family osu --reason "firmware 2.1"')
    groups = [command_parser.add_argument_group('which references')
              for command_parser in (cmd, accept)]
    for group in groups:
        # Not of type system_name: the folder of the site is needed, too.
        group.add_argument('--site', default=places.default_site(), metavar='SITE',
                           help='a folder of site-configs/, or the path of '
                           'one (default: PLUMBLINE_SITE, or local, this '
                           'machine)')
        group.add_argument('--family', action='append', metavar='NAME',
                           help='only this benchmark family; may be repeated')
    groups[1].add_argument('--case', action='append', type=_parse_regex, default=[],
                           metavar='REGEX', help='only test cases whose '
                           'check, keys or parameters match; may be repeated')
    records = cmd.add_argument_group('which records')
    options.add_perflogs_option(records)
    which = records.add_mutually_exclusive_group()
    which.add_argument('--sessions', metavar='FIRST:LAST',
                       help='use the sessions from FIRST to LAST: names or '
                       'unique beginnings of names; one may be left out')
    which.add_argument('--last', type=options.parse_positive_number, metavar='N',
                       help='use only the newest N sessions')
    which.add_argument('--first', type=options.parse_positive_number, metavar='N',
                       help='use only the oldest N sessions')
    records.add_argument('--new-level', action='store_true',
                         help='after a known change: also use sessions that '
                         'only their reference failed')
    rules = cmd.add_argument_group('rules')
    rules.add_argument('--min-sessions', type=int, default=FEWEST_RUNS,
                       metavar='N', help='sessions that an entry needs, at '
                       f'least {FEWEST_RUNS} (default: {FEWEST_RUNS})')
    rules.add_argument('--tolerance', action='append', default=[],
                       type=_parse_tolerance_option, metavar='[METRIC=]X',
                       help='the smallest tolerance, as a fraction (default: '
                       '0.05, worst_ratio=0.2); may be repeated')
    accept.add_argument_group('why').add_argument(
        '--reason', metavar='TEXT', default='',
        help='the cause of a new, worse level, or the ticket')
    for command_parser in (cmd, accept):
        output = command_parser.add_argument_group('output')
        output.add_argument('--output', metavar='DIR',
                            help='the folder of the reference files (default: '
                            'the references of the site)')
        if command_parser is cmd:
            output.add_argument('--dry-run', action='store_true',
                                help='print the files, and write nothing')
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    top = parser()
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        top.print_help()
        return 0
    args = top.parse_args(argv)
    if args.command == 'propose' and args.min_sessions < FEWEST_RUNS:
        top.error(f'--min-sessions is {args.min_sessions}; the smallest '
                  f'number is {FEWEST_RUNS}')
    run = _run_propose_command if args.command == 'propose' else _run_accept_command

    def run_in_reference_folder() -> int:
        folder = Path(args.output) if args.output else places.reference_folder_of_site(
            places.existing_site_folder(args.site),
            os.environ.get('RFM_REFERENCE_PREFIX'))
        args.site = options.system_name(args.site)
        return run(args, folder)

    return run_and_print_errors(run_in_reference_folder)


def run_and_print_errors(command: Callable[[], int]) -> int:
    """The exit code of a command; prints why it failed."""
    try:
        return command()
    except Refused as err:
        print(f'plumb references: {err}', file=sys.stderr)
        return 1
    except (PerflogError, OSError, ValueError) as err:
        print(f'plumb references: {err}', file=sys.stderr)
        return 2


def _run_accept_command(args: argparse.Namespace, folder: Path) -> int:
    """Accepts the proposals that the options name."""
    def is_chosen(keys: tuple) -> bool:
        text = ' '.join(map(str, keys))
        return not args.case or any(one.search(text) for one in args.case)

    return accept_and_print(
        folder, _chosen_proposals(folder, args.family, args.site), is_chosen,
        args.reason
    )


def _chosen_proposals(folder: Path, families: list[str] | None, site: str
            ) -> dict[str, CommentedMap]:
    """The proposals of these families; None: all.

    :raises Refused: there is none
    """
    existing = acceptance.read_proposals(folder)
    command = f'make one: ./plumb references propose{site_option(site)}'
    for name in families or []:
        if name not in existing:
            raise Refused(
                f'{folder}: no proposal of family {name!r} '
                f'(proposals: {", ".join(existing) or "none"}); {command}'
            )
    if not existing:
        raise Refused(f'{folder}: no proposal; {command}')
    return {name: proposal for name, proposal in existing.items()
            if not families or name in families}


def accept_and_print(folder: Path, proposed: dict[str, CommentedMap],
                     is_chosen: Callable[[tuple], bool], reason: str = '') -> int:
    """Accepts proposals and prints what was done; the exit code."""
    messages, refused = acceptance.accept_proposals(folder, proposed, is_chosen, reason)
    print(*messages, sep='\n')
    for line in refused:
        print(f'plumb references: {line}', file=sys.stderr)
    return 1 if refused else 0


def _run_propose_command(args: argparse.Namespace, folder: Path) -> int:
    """Writes or prints the proposals, then how they differ."""
    frame, faults = _read_records(args.perflogs)
    frame = select_records(frame, args.site, args.family, args.sessions,
                           args.first, args.last)
    proposed, notes = propose_references(frame, args.min_sessions, dict(args.tolerance),
                                         args.new_level)
    notes += faults
    if args.dry_run:
        # What is printed is YAML, and nothing else.
        for family, document in proposed.items():
            print(f'# {grammar.proposal_file_name(family)}\n'
                  + editing.dump_yaml(document).decode(), end='')
        print(*_difference_lines(folder, proposed), sep='\n', file=sys.stderr)
        _print_notes(notes)
    else:
        write_proposals(folder, proposed, notes, args.site)
    return 0


def _read_records(perflogs_: str) -> tuple[pd.DataFrame, list[str]]:
    """All records, and lines on values that are left out.

    :raises PerflogError: damaged perflogs
    """
    frame, faults = read_records(perflogs_, on_error='collect')
    for fault in faults:
        # A metric that is not a number is left out; all else may hide more.
        if 'not a finite number' not in fault.reason:
            raise fault
    return frame, [f'left out: {fault}' for fault in faults]


def make_and_write_system_proposals(perflogs_: str, system: str, folder: Path, site: str
              ) -> dict[str, CommentedMap]:
    """Proposes references from all records of a system, writes the files and
    prints how they differ; the proposals.

    :raises Refused: no record can become a reference
    :raises ValueError: damaged perflogs or references
    """
    frame, faults = _read_records(perflogs_)
    proposed, notes = propose_references(select_records(frame, system))
    write_proposals(folder, proposed, notes + faults, site)
    return proposed


def write_proposals(folder: Path, proposed: dict[str, CommentedMap], notes: list[str],
                    site: str) -> None:
    """Writes proposals, and prints how they differ from accepted files."""
    print(*_difference_lines(folder, proposed), sep='\n')
    write_files_atomically(
        folder,
        {
            grammar.proposal_file_name(family): editing.dump_yaml(document)
            for family, document in proposed.items()
        },
    )
    _print_notes([*notes, *_provisional_note(proposed)])
    for family in proposed:
        print(f'{folder / grammar.proposal_file_name(family)}: proposed; check the '
              'difference above, then run ./plumb references accept '
              f'--site {site} --family {family}')


def _difference_lines(folder: Path, proposed: dict[str, CommentedMap]
                 ) -> list[str]:
    return [line for family, document in proposed.items()
            for line in acceptance.difference_lines(family, document,
                                                    folder / f'{family}.yaml')]


def _provisional_note(proposed: dict[str, CommentedMap]) -> list[str]:
    """A line if entries are of few days."""
    days = min(entry['$from']['days'] for document in proposed.values()
               for _, entry in grammar.iterate_reference_entries(document))
    if days >= ENOUGH_DAYS:
        return []
    return [f'from {count_with_noun(days, "day")}: provisional. The tolerances assume '
            'that half of the variance is common to a day; ./plumb nightly narrows '
            f'them after {ENOUGH_DAYS} days']


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        print(f'plumb references: {note}', file=sys.stderr)


def select_records(frame: pd.DataFrame, system: str,
                   families: list[str] | None = None, runs: str | None = None,
                   first: int | None = None, last: int | None = None
           ) -> pd.DataFrame:
    """The records of a system, its families and a stretch of its runs.

    :param runs: 'FIRST:LAST', identifiers or unique beginnings, inclusive
    :raises ValueError: no such system, family or run
    """
    frame = _filter_records(frame, 'system', [system])
    frame = _filter_records(frame, 'family', families or [])
    order = list(dict.fromkeys(frame.sort_values('time')['session']))
    if runs is not None:
        start, colon, end = runs.partition(':')
        if not colon:
            end = start
        order = order[_session_position(order, start) if start else 0:
                      _session_position(order, end) + 1 if end else None]
        if not order:
            raise ValueError(f'--sessions {runs}: LAST is before FIRST')
    elif first:
        order = order[:first]
    elif last:
        order = order[-last:]
    return frame[frame['session'].isin(order)]


def propose_references(frame: pd.DataFrame, min_runs: int = FEWEST_RUNS,
                       floors: dict[str, float] | None = None,
                       include_reference_failures: bool = False
            ) -> tuple[dict[str, CommentedMap], list[str]]:
    """References from records.

    :param frame: as records.read gives it
    :param floors: metric -> least threshold, a fraction; '': any other
    :param include_reference_failures: also runs that nothing but their reference failed
    :returns: {family: file}, and lines on what was left out
    :raises TooFewSessions: all that could have a reference have too few sessions
    :raises Refused: no record can become a reference
    """
    floors = FLOORS | (floors or {})
    made_up = frame['source'] == MADE_UP
    good, notes = usable_records(frame[~made_up], include_reference_failures)
    if made_up.any():
        notes.append(f"{frame['session'][made_up].nunique()} sessions left out: made "
                     'up by `./plumb demo`')
    #: Family -> of each entry its check and keys, and its records.
    entries: dict[str, list[tuple[list[str], pd.DataFrame]]] = defaultdict(list)
    missing: Counter[tuple] = Counter()
    clashes: list[str] = []
    for case_key, case in add_edition_column(good).groupby(KEYS, observed=True):
        (family, check, system, partition, environ, source, edition,
         params, settings, _) = case_key
        runs = case['session'].nunique()
        shapes = case[['program', 'num_nodes', 'num_tasks']].drop_duplicates()
        if len(shapes) > 1:
            clashes.append(f'{check} {params} {settings}: left out, because its '
                           'records have several programs or numbers of ranks')
        elif runs < min_runs:
            missing[family, runs] += 1
        else:
            versions = [edition] * (family in families_with_separate_versions())
            entries[family].append((
                [check, f'{system}:{partition}', environ, source, *versions, params,
                 settings],
                case))
    for (family, runs), count in sorted(missing.items()):
        more, site = min_runs - runs, site_option(str(good['system'].iloc[0]))
        notes.append(
            f"{count} test case{'s have' if count > 1 else ' has'} {runs} of "
            f'{min_runs} sessions (family {family}); '
            f"run `./plumb run{site}` {more} more time{'s' * (more > 1)}, or "
            f'`{CALIBRATE}{site}`')
    notes += clashes
    if not entries:
        raise (TooFewSessions if missing else Refused)('; '.join(notes) or 'no records')
    return {family: _reference_file_content(family, entries[family], min_runs, floors)
            for family in sorted(entries)}, notes


def _filter_records(frame: pd.DataFrame, column: str,
                    values: list[str]) -> pd.DataFrame:
    """Records with one of these values; all must occur. []: all records."""
    known = sorted(frame[column].unique())
    for name in values:
        if name not in known:
            raise ValueError(f'no records of {column} {name!r} (the records '
                             f"have: {', '.join(known) or 'none'})")
    return frame[frame[column].isin(values)] if values else frame


def _session_position(runs: list[str], name: str) -> int:
    positions = [n for n, run in enumerate(runs) if run.startswith(name)]
    if name in runs:
        positions = [runs.index(name)]
    if len(positions) != 1:
        message = (f'{len(positions)} sessions begin' if positions
                   else 'no session begins')
        raise ValueError(
            f'--sessions: {message} with {name!r}; the records have '
            f'{len(runs)} sessions from {runs[0]} to {runs[-1]}'
        )
    return positions[0]


def _parse_tolerance_option(text: str) -> tuple[str, float]:
    """'METRIC=X' or 'X' -> (metric or '', fraction)."""
    metric, _, number = text.rpartition('=')
    if metric and metric not in all_metrics():
        raise argparse.ArgumentTypeError(
            f'{metric!r} is not a metric ({METRICS})')
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{number!r} is not a fraction '
                                         'above 0, like 0.05')
    return metric, value


def _parse_regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as err:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a regular expression: {err}') from None


def _escape_reframe_key(text: str) -> str:
    """A key that ReFrame matches with this text (it takes keys as regular
    expressions when none is equal)."""
    return re.sub(r'[][*+?(){}|^$\\]', r'\\\g<0>', text)


def _reference_file_content(family: str, entries: list[tuple[list[str], pd.DataFrame]],
                            min_runs: int, floors: dict[str, float]) -> CommentedMap:
    """The reference file of a family."""
    used = pd.concat([records for _, records in entries])
    document = CommentedMap()
    index = ['$partition', '$environ', 'source',
             *['version'] * (family in families_with_separate_versions()),
             'params', 'settings']
    for (check, *keys), records in sorted(entries, key=lambda entry: entry[0]):
        place = document.setdefault(
            editing.quote_yaml_string(check),
            CommentedMap({'$index': editing.flow_style_list(index)}))
        *levels, last = (editing.quote_yaml_string(_escape_reframe_key(key))
                         for key in keys)
        for name in levels:
            place = place.setdefault(name, CommentedMap())
        place[last] = _reference_entry(family, records, min_runs, floors)
    document.yaml_set_start_comment('\n'.join([
        f'References of family {family}: [centre, lower, upper, unit], '
        'thresholds are fractions.',
        '$from: the sessions of an entry. $no_reference: about how many more '
        'sessions a metric',
        'needs until it has a tolerance; 0: no number would suffice.',
        'Proposed by `./plumb references propose` on '
        f'{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}.',
        f"suite: {_distinct_texts(used, 'commit')}; "
        f"ReFrame: {_distinct_texts(used, 'reframe')}",
        f"programs: {_distinct_texts(used, 'program', 'version', 'spec')}",
        f"stacks: {_distinct_texts(used, 'stack')}",
        f"nodes: {_distinct_texts(used, 'nodes')}"]))
    return document


def _distinct_texts(records: pd.DataFrame, *columns: str) -> str:
    """The distinct texts of these columns together."""
    texts = records[list(columns)].drop_duplicates().astype(str)
    return ', '.join(sorted({' '.join(filter(None, row))
                             for row in texts.itertuples(index=False)}))


def _reference_entry(family: str, records: pd.DataFrame, min_runs: int,
                     floors: dict[str, float]) -> CommentedMap:
    """The entry of a test case: $from, $no_reference, metrics.

    A metric with fewer than `min_runs` runs is left out.
    """
    metrics: dict[tuple[str, int | None], dict[str, float]] = {}
    for metric, size, run, value in median_per_session(
            records[~records['metric'].isin(['worst_ratio', 'completed'])],
            []).itertuples(index=False):
        point = None if math.isnan(size) else int(size)
        metrics.setdefault((metric, point), {})[run] = value
    metrics = {point: runs for point, runs in metrics.items()
               if len(runs) >= min_runs}
    days = dict(zip(records['session'], day_of_each_session(records), strict=True))
    judgement_of = {j.metric: j for j in tolerances_and_sessions_needed(
        family, metrics, days, floors)}
    tolerances = {
        name: (j.centre, editing.limit_tolerance_for_reframe(name, j.tolerance))
        for name, j in judgement_of.items()
        if j.needs == 0
    }
    entry = CommentedMap({'$from': editing.flow_style_mapping({
        'runs': int(records['session'].nunique()),
        'days': len({date for date, _ in days.values()}),
        'first': records['time'].min().date(),
        'last': records['time'].max().date(),
        'suite': editing.quote_yaml_string(_distinct_texts(records, 'commit')),
        'tolerances': editing.flow_style_mapping({
            name: editing.flow_style_list(
                [editing.round_to_six_digits(centre), tolerance])
            for name, (centre, tolerance) in tolerances.items()})})})
    open_ = {name: j.needs or 0 for name, j in judgement_of.items()
             if name not in tolerances}
    if open_:
        entry['$no_reference'] = editing.flow_style_mapping(open_)
    for (metric, size), runs in metrics.items():
        name = metric_key(metric, size)
        entry[name] = editing.reference_yaml_entry(
            name, float(np.median(list(runs.values()))),
            tolerances[name][1] if name in tolerances else None)
    if 'worst_ratio' in tolerances:
        entry['worst_ratio'] = editing.reference_yaml_entry('worst_ratio', 1.0,
                                                            tolerances['worst_ratio'][1])
    return entry
