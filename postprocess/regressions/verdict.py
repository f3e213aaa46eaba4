"""`./plumb verdict`: regressions and failures of a session.

All sessions that began on one date (UTC) count as one session. Each metric
with a better side is compared with its own history (sessions.py, detect.py),
with or without a reference. A test case fails because of a reference, a limit
or a guard, as in `plumb report` (postprocess/results.py).

**Together.** For each test case, program, stack, partition, system and, from
the nodes of each job, node and switch, the mean of its cases' z each session
is a series of its own, whose spread and autocorrelation hold what its members
have in common: a loss of 1 % that 25 metrics share shows there in a session or
two. Of all groups that alarm, or most of whose test cases do, the one that
explains most comes first: the largest n * mean(z)^2 of n test cases, which a
group of all that is worse and of nothing else has. Its test cases are taken
out, and the rest judged again; what is left are single metrics. So a bad
switch is one line.

**The baseline** of a metric never follows a regression. It is told every
session, with the session it began, until it is over or somebody accepts it
(postprocess/regressions/decisions.py).

**A line** says what is worse and where, since when, how much with an interval
of 95 %, what else changed that session, and what to do.

**An incident** is a single session far outside of what the baseline explains. It does
not fail: the nightly session measures its test cases again, and four measurements
within a session decide.
"""
from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from config import places
from config.commandline import Parser, add_require_compared_option
from config.sites import topology

from .. import options, records, results
from ..files import git_commit_hint
from ..references.level import FEWEST_METRICS, Level, session_levels
from ..results import RECENT, exit_code_of_state
from . import decisions, telling
from .finding import Regression, Verdict
from .judging import judge_session, select_session
from .sessions import session_dates

SITES = Path(__file__).resolve().parents[2] / 'site-configs'

HELP = """\
Lists regressions: where, since when, and how much.

Each metric is compared with its own history, with or without a reference. The
verdict also lists test cases that failed, changes of the environment, and test
cases that have too few sessions.

If a change was intended, `plumb verdict accept ID` makes the new level the
baseline. If a problem is known, `plumb verdict mute ID` marks it until a date.
A regression in a single session is not certain. This command measures its
test cases again. Run it three more times: four sessions on one day are enough
for a decision.
  ./plumb run --site SITE $(./plumb verdict --site SITE --print-rerun-options)

Exit codes: 0 good; 1 something regressed or failed, the level of a system is
out of tolerance, or the perflogs have damaged places; 2 wrong usage, or no
records; 3 nothing was compared, with --require-compared.
"""

ACCEPT = """\
Makes the new level of a regression the baseline.

`plumb verdict` shows the ID in brackets. The baseline begins with the first
session of the regression. A later change is compared with the new level.

Exit codes: 0 accepted; 2 wrong usage, or an unknown ID.
"""

MUTE = """\
Marks a regression as a known problem until a date.

`plumb verdict` shows the ID in brackets. Until the end of that day the verdict
lists the regression as muted, and does not fail because of it. After the date
it is a regression again.

Exit codes: 0 muted; 2 wrong usage, a date that is over, or an unknown ID.
"""


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb verdict', text=HELP,
                 example='./plumb verdict --site mycluster --json v.json')
    _add_common_options(cmd)
    output = cmd.add_argument_group('output')
    output.add_argument('--json', metavar='FILE', help='write the verdict as '
                        'JSON to FILE; - prints it, and nothing else')
    output.add_argument('--junit', metavar='FILE', help='write JUnit XML with '
                        'one test per test case to FILE; - prints it, and '
                        'nothing else')
    output.add_argument('--all', action='store_true', help='also list the test cases '
                        'that are worth measuring again, or have too few sessions')
    add_require_compared_option(cmd.add_argument_group('exit code'))
    output.add_argument('--power', action='store_true', help='print the smallest '
                        'change that is found in each test case within 3 and 6 '
                        'sessions, nine times in ten, and what hides changes')
    output.add_argument('--print-rerun-options', action='store_true',
                        help='print the test cases to measure again, and those that '
                        'did not run because their session ended early, as `plumb '
                        'run` takes them')
    return cmd


def _add_common_options(cmd: Parser) -> None:
    options.add_record_options(cmd).add_argument(
        '--session', metavar='SESSION', help='judge this session, or all '
        'sessions of this date; the beginning of a name is enough (default: '
        'the newest)')
    cmd.add_argument_group('decisions').add_argument(
        '--references', metavar='DIR', default=places.machine_reference_folder(),
        help='also use verdict/decisions.yaml '
        'in this folder, besides those of site-configs/')


def decision_parser(action: str) -> Parser:
    """The command line of `accept` or `mute`."""
    mute = action == 'mute'
    example = 'mute 3f2a91c0 --until 2027-05-01 --reason "cable, ticket 43"' \
        if mute else 'accept 3f2a91c0 --reason "firmware 2.1, ticket 42"'
    cmd = Parser(prog=f'plumb verdict {action}',
                 text=MUTE if mute else ACCEPT,
                 example=f'./plumb verdict {example}')
    cmd.add_argument('id', metavar='ID', help='the ID of the regression, or '
                     'the beginning of the ID')
    decision = cmd.add_argument_group('decision')
    decision.add_argument('--reason', required=mute, metavar='TEXT',
                          type=_parse_nonempty_text, help='the cause, or the ticket')
    if mute:
        decision.add_argument('--until', required=True, metavar='DATE',
                              type=_parse_date, help='the last day on which it is '
                              'muted, for example 2027-05-01')
    _add_common_options(cmd)
    return cmd


def _parse_nonempty_text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError('the text is empty')
    return text


def _parse_date(text: str) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, '%Y-%m-%d').date()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a date like 2027-05-01') from None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    words = list(sys.argv[1:] if argv is None else argv)
    action = words[0] if words[:1] in (['accept'], ['mute']) else ''
    args = (decision_parser(action).parse_args(words[1:]) if action
            else parser().parse_args(words))
    try:
        verdict, faults = verdict_of_perflogs(args.perflogs, args.session,
                                              args.references, args.site)
        options.print_faults('verdict', faults)
        if action:
            return _accept_or_mute_regression(action, args, verdict)
        return _write_output(args, verdict, len(faults))
    except (OSError, ValueError) as err:
        print(f'plumb verdict: {err}', file=sys.stderr)
        return 2


def verdict_of_perflogs(folder: str, session: str | None = None,
                        references: str | None = None, site: str = ''
                ) -> tuple[Verdict, records.Faults]:
    """The verdict of a folder's perflogs, and what is damaged in them.

    :raises ValueError: no records, no such session, or a damaged file beside
        the references
    """
    frame, sessions, faults = records.read_with_sessions(folder)
    if frame.empty:
        raise ValueError('; '.join(map(str, faults[:1]))
                         or f'no records in {folder}: run `./plumb run` '
                         'first, or name another folder with --perflogs')
    frame = results.add_missing_records(frame, sessions)
    return verdict_of_records(options.records_of_site(frame, site), session,
                              references, sessions), faults


def verdict_of_records(frame: pd.DataFrame, session: str | None = None,
                       references: str | None = None,
                       sessions: pd.DataFrame | None = None) -> Verdict:
    """The verdict on records that were read already.

    :param frame: as records.read and results.add_missing_records give it
    :param sessions: as records.sessions gives them; None: none was cut short
    """
    systems = sorted(map(str, frame['system'].unique()))
    folders_of_decisions = {Path(references)} if references else set()
    folders_of_decisions |= {decisions.references_folder(system) for system in systems}
    verdict = judge_session(
        frame, session,
        decisions=[one for place in sorted(folders_of_decisions)
                   for one in decisions.load_decisions(place)],
        switches={system: above for system in systems
                  if (above := _read_switches_by_node(system))})
    levels = session_levels(*select_session(frame, session)[1:]) if session \
        else newest_levels(frame)
    return dataclasses.replace(
        verdict, levels=levels, ended_early=sessions is not None and _is_cut_short(
            sessions[sessions['system'].isin(systems)], verdict.session if session
            else ''))


def _is_cut_short(sessions: pd.DataFrame, label: str) -> bool:
    """Whether the newest session of a system was cut short.

    :param label: only this session, or the sessions that began on this date; '': all
    """
    chosen = sessions[~sessions['running'] & (
        (sessions['session'] == label)
        | (sessions['started'].dt.strftime('%Y-%m-%d') == label) | (not label))]
    return bool(chosen.drop_duplicates('system', keep='last')['cut_short'].any())


def newest_levels(frame: pd.DataFrame) -> list[Level]:
    """The level of each system in its newest session that has one.

    A session has a level if FEWEST_METRICS metrics with a tolerance ran to their end.
    As for regressions, the newest RECENT sessions of the system are looked at.

    :param frame: as records.read gives it
    """
    levels = []
    ended = frame[~frame['result'].isin(['missing', 'not_run'])]
    for _, of_system in ended.groupby('system', observed=True):
        dates = of_system['session'].astype(str).map(session_dates(of_system))
        # A session without references needs no closer look.
        numbers = dates[of_system['reference'] > 0].value_counts()
        for date in sorted(dates.unique(), reverse=True)[:RECENT]:
            if numbers.get(date, 0) >= FEWEST_METRICS and (level := session_levels(
                    of_system[dates <= date],
                    {*of_system['session'][dates == date]})):
                levels += level
                break
    return levels


def _read_switches_by_node(system: str) -> dict[str, list[str]]:
    """Node -> the switches above it, by the site's topology.yaml."""
    path = SITES / system / topology.NAME
    if not path.is_file():
        return {}
    try:
        return topology.switches_above_nodes(topology.load_switches(path))
    except topology.TopologyError as err:
        raise ValueError(str(err)) from None


def _write_output(
    args: argparse.Namespace, verdict: Verdict, faults: int
) -> int:
    """Prints and writes what was asked for."""
    if args.json:
        options.write_text_answer(args.json, verdict.json())
    if args.junit:
        options.write_text_answer(args.junit, telling.junit_xml(verdict))
    if args.print_rerun_options:
        print(*dict.fromkeys(
            one.test_case for one in [*verdict.cut_short, *verdict.rerun]))
        return 0
    if args.power:
        telling.print_power_table(verdict)
    elif '-' not in (args.json, args.junit):
        telling.print_verdict(verdict, args.all)
    code = exit_code_of_state(verdict.state, args.require_compared)
    return 1 if faults else code


def _accept_or_mute_regression(
    action: str, args: argparse.Namespace, verdict: Verdict
) -> int:
    """Accepts or mutes a regression; the exit code.

    :raises ValueError: unknown ID, or a date that is too early
    """
    line = _find_regression(args.id, [*verdict.regressions, *verdict.muted])
    today = datetime.datetime.now(datetime.timezone.utc).date()
    until = getattr(args, 'until', None)
    if until and until < today:
        raise ValueError(f'--until {until} is in the past: today is {today}')
    system = line.members[0].system
    folder = decisions.references_folder(system)
    if not folder.parent.is_dir() or system == 'local':
        folder = Path(args.references)
    names = [decisions.decision_target_names(one.test_case, one.metric, one.point)
             for one in line.members]
    whole = line.kind not in ('metric', 'case')
    metrics = dict.fromkeys(name[2 if whole else 1] for name in names)
    path = decisions.add_decision(folder, decisions.Decision(
        line.id, 'muted' if until else 'accepted',
        datetime.date.fromisoformat(line.since), until, args.reason or '',
        today, tuple(metrics)))
    print(f'{path}: {line.id} is ' + (
        f'muted until {until}' if until else
        f'accepted: the baseline begins on {line.since}')
          + git_commit_hint(path))
    return 0


def _find_regression(ident: str, known: list[Regression]) -> Regression:
    """The regression with an ID, or with the only one that begins so.

    :raises ValueError: there is none, or several; names those that exist
    """
    matching = [one for one in known if ident and one.id.startswith(ident)]
    if len(matching) == 1:
        return matching[0]
    names = '; '.join(
        telling.regression_detail_lines(one)[0] for one in matching or known
    )
    if matching:
        raise ValueError(f'several regressions begin with {ident!r}: {names}')
    raise ValueError(f'no regression has the ID {ident!r}: '
                     + (f'the verdict has {names}' if names else
                        'the verdict has no regression'))
