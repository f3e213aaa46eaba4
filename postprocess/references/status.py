"""`plumb references status`: test cases without a reference or a tolerance."""
from __future__ import annotations

import argparse
import functools
import math
import os
import sys
from collections.abc import Iterator

from config import console, places
from config import references as grammar
from config.commandline import SITE_HELP, Parser
from config.places import CALIBRATE, site_option

from .. import options
from ..names import short_name
from ..records import PerflogError
from ..records import read as read_records
from ..results import newest_records
from .progress import (
    Judgement,
    Progress,
    progress_by_test_case,
    progress_of_test_cases,
)

HELP = """\
Lists the test cases that have no reference, and the metrics without a tolerance.

For each of them the command prints how many sessions the reference lacks, or why a
metric has no tolerance. It compares the newest records of each test case with the
reference files of the site.

Exit codes: 0 listed; 2 wrong usage, or unreadable files.
"""


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb references status', text=HELP,
                 example='./plumb references status --site mycluster')
    group = cmd.add_argument_group('which references')
    group.add_argument('--site', default=places.default_site(), metavar='SITE',
                       help=SITE_HELP)
    options.add_perflogs_option(group)
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    args = parser().parse_args(argv)
    try:
        return print_status(args)
    except (PerflogError, OSError, ValueError) as err:
        print(f'plumb references: {err}', file=sys.stderr)
        return 2


def print_status(args: argparse.Namespace) -> int:
    """Print the test cases that lack something, and their number; return 0.

    :raises ValueError: a reference file is broken, or the site has no records
    """
    folder = places.reference_folder_of_site(
        places.existing_site_folder(args.site), os.environ.get('RFM_REFERENCE_PREFIX'))
    frame, faults = read_records(args.perflogs, on_error='collect')
    options.print_faults('references', faults)
    frame = options.records_of_site(frame, options.system_name(args.site))
    read = functools.cache(lambda family: grammar.read(folder / f'{family}.yaml'))
    test_cases = progress_by_test_case(
        newest_records(frame), progress_of_test_cases(frame))
    entries = [
        (kind, short_name(one.check, one.params, one.settings, one.test_case, one.source
                          ) + f' {one.partition}+{one.environ}', [text])
        for one in test_cases.values()
        for kind, text in lacks_of_test_case(one, read(one.family))]
    console.print_entries(sorted(entries))
    kinds = [kind for kind, *_ in entries]
    site = site_option(args.site)
    console.print_lines([
        f'{console.count_with_noun(len(test_cases), "test case")}: '
        f'{kinds.count("no reference")} without a reference, '
        f'{kinds.count("no tolerance")} with a metric without a tolerance',
        *[f'Next: {CALIBRATE}{site}'] * bool(entries)])
    return 0


def lacks_of_test_case(one: Progress, file: grammar.File) -> Iterator[tuple[str, str]]:
    """What a test case lacks: `no reference` or `no tolerance`, and what it needs."""
    levels = {'$system': one.system, '$partition': f'{one.system}:{one.partition}',
              '$environ': one.environ, 'source': one.source, 'version': one.edition,
              'params': one.params, 'settings': one.settings}
    index = file.checks.get(one.check, {}).get('$index', ())
    entry = None if one.is_mixed else next(file.matching_entries(
        one.check, [levels.get(level) for level in index], one.settings), None)
    if entry is None:
        yield 'no reference', one.obstacle or f'{one.runs} sessions are enough'
    else:
        judgements = {judgement.metric: judgement for judgement in one.judgements}
        if without := grammar.metrics_without_tolerance(
                one.family, entry.values, judgements):
            yield 'no tolerance', '; '.join(
                f'{metric}: {_missing_tolerance_text(judgements.get(metric))}'
                for metric in without)


def _missing_tolerance_text(judgement: Judgement | None) -> str:
    """Why a metric has no tolerance.

    :param judgement: None: another metric is judged instead
    """
    if judgement is None or judgement.is_narrow_enough:
        return 'calibrate again'
    if judgement.tolerance == math.inf:
        return 'too few sessions, or a median of 0'
    return (f'varies too much: the tolerance would be {judgement.tolerance:.0%}, and '
            f'at most {judgement.max_tolerance:.0%} is allowed')
