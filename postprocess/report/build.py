"""`./plumb report`: one page of results and plots from the perflogs.

The page contains style, script and plots, and needs no network.
"""
from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from config import places, strict
from config.commandline import Parser
from config.console import print_lines
from config.regular import write_files_atomically

from .. import debts, options, records, results
from ..records import series
from ..regressions.events import Verdict
from ..regressions.judging import judge_session
from .page import build_page

HELP = """\
Writes a page with results and plots from the perflogs.

The page needs no other file and no network. `./plumb plot` writes its plots as
files.

Exit codes: those of `plumb verdict`, without 3.
"""


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb report', text=HELP, example='./plumb report '
                 '--site mycluster --last 10 --output /srv/www/mycluster')
    options.add_record_options(cmd).add_argument(
        '--last', type=options.parse_positive_number, metavar='N',
        help='show only the newest N sessions (default: all)')
    output = cmd.add_argument_group('output')
    output.add_argument('--output', default=places.report_folder(), metavar='DIR',
                        type=Path, help='write index.html to this folder '
                        '(default: report)')
    output.add_argument('--title', metavar='TEXT',
                        help='the heading of the page')
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    args = parser().parse_args(argv)
    made = write_page(args.perflogs, args.output, args.site, args.last, args.title)
    if made.verdict:
        print_lines([made.verdict.headline])
    return made.code


class Written(NamedTuple):
    """The results of the command."""
    code: int
    #: The records that the page was made from.
    records: pd.DataFrame
    #: Verdict on the newest session; None if no page was made.
    verdict: Verdict | None = None


def write_page(folder: str, output: Path, site: str = '', last: int | None = None,
               title: str | None = None, summary: bool = True, selected: str = ''
               ) -> Written:
    """Writes the page.

    :param folder: of the perflogs
    :param output: folder that gets index.html
    :param site: only its records; '': all
    :param last: only so many sessions, the newest
    :param summary: whether to print its path and what it counts
    :param selected: a site whose commands it prints, by name or path; '': `site`
    """
    try:
        frame, sessions, decided, faults = debts.read(folder)
        options.print_faults('report', faults)
        frame = options.records_of_site(frame, site)
        # By the whole history, whatever is shown.
        judged = judge_session(
            frame, decisions=decided, sessions=sessions, perflogs=folder,
            site=selected or site
        ) if len(frame) else None
    except ValueError as err:
        frame, _ = records.read(folder, on_error='collect')
        return _print_error_and_return_failure(frame, str(err))
    if last:
        runs = list(dict.fromkeys(frame.sort_values('time')['session']))
        frame = frame[frame['session'].isin(runs[-last:])]
    if judged is None or frame.empty:
        return _print_error_and_return_failure(
            frame, f'no records in {folder}: run `./plumb run` first, or name another '
            'folder with --perflogs')
    over_time = series.read_series_of_newest_runs(frame)
    options.print_faults('report', over_time.faults)
    faults += over_time.faults
    known = len(faults)
    try:
        made = build_page(frame, faults, title, over_time, judged)
    except strict.Fault as err:
        return _print_error_and_return_failure(frame, str(err))
    options.print_faults('report', faults[known:])
    counts = made.counts
    try:
        write_files_atomically(output, {'index.html': made.text.encode()})
    except OSError as err:
        return _print_error_and_return_failure(
            frame, f'{err.filename or output}: cannot be written ({err.strerror}); the '
            'earlier page is unchanged')
    if summary:
        print_lines([
            f"{output / 'index.html'}: "
            + results.tally_text(Counter(
                {name: counts[name] for name in results.ORDER}).elements(),
                made.verdict.again) + ', ' + results.sessions_text(frame)
            + f"; {counts['judged']} with a tolerance"
            + (f", {counts['no_tolerance']} with a metric that lacks one"
               if counts['no_tolerance'] else '')])
    return Written(results.exit_code_of_state(made.verdict.state), frame, made.verdict)


def _print_error_and_return_failure(frame: pd.DataFrame, reason: str) -> Written:
    print(f'plumb report: {reason}', file=sys.stderr)
    return Written(2, frame)


if __name__ == '__main__':
    sys.exit(main())
