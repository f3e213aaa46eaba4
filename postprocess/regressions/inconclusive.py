"""Events of test cases that are inconclusive: how many for which cause, and what to do.

The cause is read from the reason in the record, as the checks write it.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from config.console import count_with_noun

from ..results import MAX_UNCOMPARED, Result
from .events import Event, shortened_lines, test_case_text

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
    (re.compile('other programs used .* during the job'),
     'other programs used the CPUs',
     'end these programs, or give the jobs whole nodes (--exclusive in access); if the '
     'machine is never idle, see docs/how-to/troubleshooting.md'))


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
    evidence = []
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
