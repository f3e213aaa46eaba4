"""Events of test cases that are inconclusive: how many for which cause, and what to do.

The cause is read from the reason in the record, as the checks write it.
"""
from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from config.console import count_with_noun, shortened_list_text

from ..results import MAX_UNCOMPARED, Result
from .events import Event, shortened_lines, test_case_text

#: Reason of interference: the share of the CPUs in %, and the programs.
_OTHERS = re.compile(r'other programs used .*? during the job, '
                     r'(\d+)\s?% of the CPUs of this test case: ([^;]*)')
#: A program in it, and its CPU time in seconds.
_PROGRAM = re.compile(r'(?:^|, )(?:(.+?) \([^()]*, process \d+\)'
                      r'|(processes that have ended or are not visible)) ([\d.]+) s')
OTHERS = 'other programs used the CPUs'
#: Pattern of a reason -> the cause, and what to do. A test case that has several counts
#: once, for the first one of this list: what a person cannot end stands before what
#: passes by itself.
CAUSES = (
    (re.compile('too few CPUs|threads shared'), 'too few CPUs',
     'use a machine or a partition with more cores per node'),
    (re.compile('limited by the load generator'), 'limited by the load generator',
     'give the clients more CPUs or nodes'),
    (re.compile(r'ranks .*shared .*GPU'), 'ranks shared a GPU',
     'use at most one rank per GPU'),
    (_OTHERS, OTHERS, ''))
#: Names of programs that an advice has.
NAMES = 3
#: Step of the limits that an advice has. Unit: %.
STEP = 5


def inconclusive_events(outcomes: Sequence[Result]) -> Iterator[Event]:
    """An event for each system and cause, the most test cases first.

    :param outcomes: the results of test cases
    """
    groups: dict[tuple[str, str, str], dict[str, Result]] = {}
    for one in outcomes:
        if one.result == 'inconclusive':
            groups.setdefault((one.system, *_cause_and_advice(one.reason)), {}
                              )[one.test_case] = one
    for (system, cause, todo), cases in sorted(
            groups.items(), key=lambda item: -len(item[1])):
        yield _event(system, cause, todo, [*cases.values()], len(
            {one.test_case for one in outcomes if one.system == system}))


def short_reason(reason: str) -> str:
    """The cause of a reason, without its numbers; a reason without a known cause as it
    is.

    >>> short_reason('4 threads shared 2 cores')
    'too few CPUs'
    """
    return _cause_and_advice(reason)[0]


def _cause_and_advice(reason: str) -> tuple[str, str]:
    for pattern, cause, todo in CAUSES:
        if pattern.search(reason):
            return cause, todo
    return reason or 'without a reason', ''


def _event(system: str, cause: str, todo: str, cases: Sequence[Result], number: int
           ) -> Event:
    known = [one for one in cases if one.uncompared]
    shares, programs = _interference(cases)
    evidence = []
    if shares:
        evidence.append(
            f'they used {_range_text(shares)} of the CPUs of a test case: '
            + shortened_list_text(programs, NAMES))
        todo = _interference_advice(system, shares)
    if known:
        evidence.append(f'{len(known)} of these have a reference'
                        if len(cases) > 1 else 'it has a reference')
        evidence += shortened_lines([
            f'{test_case_text(one)}: not compared in '
            f'{count_with_noun(one.uncompared, "session")}'
            for one in known if one.uncompared >= MAX_UNCOMPARED])
    where = (test_case_text(cases[0]) if len(cases) == 1 else
             f'{system}: {len(cases)} of {count_with_noun(number, "test case")}')
    return Event('inconclusive', f'{where}: {cause}',
                 [one.test_case for one in cases], system, evidence=evidence, todo=todo,
                 group=cause, result='inconclusive')


def _interference(cases: Iterable[Result]) -> tuple[list[int], list[str]]:
    """The shares of CPUs that other programs used, in %, and their names, the busiest
    first."""
    shares: list[int] = []
    seconds: dict[str, float] = defaultdict(float)
    for one in cases:
        if match := _OTHERS.search(one.reason):
            shares.append(int(match[1]))
            for name, unseen, time in _PROGRAM.findall(match[2]):
                seconds[name or unseen] += float(time)
    return shares, sorted(seconds, key=lambda name: -seconds[name])


def _range_text(shares: Sequence[int]) -> str:
    low, high = min(shares), max(shares)
    return f'{low} %' if low == high else (
        f'{low} to {high} % (median {statistics.median_high(shares)} %)')


def _interference_advice(system: str, shares: Sequence[int]) -> str:
    """What to do against other programs."""
    if system != 'local':
        return ('end these programs, or give the jobs whole nodes (--exclusive in '
                'access)')
    # Above the share, which is rounded to 1 %.
    half, all_of = (f'{(share // STEP + 1) * STEP / 100:g}'
                    for share in (statistics.median_high(shares), max(shares)))
    return ('end these programs and run again; on a machine that is never idle accept '
            f'their noise: PLUMBLINE_OTHERS_LIMIT={all_of} accepts all of these'
            + f', {half} half of them' * (half != all_of))
