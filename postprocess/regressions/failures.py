"""Events of test cases that failed or did not run."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from config.console import count_with_noun
from config.sites import topology

from ..printed import PrintedCommands
from ..records.folders import Folders, folders_of_measurements, log_of_failure
from ..results import Result
from .events import (
    Event,
    failure_text,
    session_name,
    shortened_lines,
)

#: Result or guard of a failure, or `guard` or `value` -> why test cases failed
#: together, and what to do.
FAILURES = {
    'xpass': ('passed, although $xfail marks them as known faults',
              'remove $xfail from the reference file'),
    'flaky': ('failed, and passed when they were measured again, guard {guard}',
              'nothing now: the test case passed when it was measured again; check '
              'its nodes if this repeats'),
    'missing': ('missing: earlier sessions of the same mode measured them',
                'find out why it was not selected: site, environment or check; to '
                'measure it: {run}; if it was removed on purpose: {retire}'),
    'open': ('failed before, and have not passed on the same nodes since',
             'measure it on these nodes: {run_pinned}; measure it: {run}; if the '
             'problem is known: {mute}; if a node left the site: {retire_node}'),
    'reference': ('failed, guard {guard}',
                  'make a reference: {calibrate}'),
    'guard': ('failed, guard {guard}',
              'read the log; to measure it again: {run}'),
    'value': ('out of tolerance, {metric}',
              'run the test case again, and check what changed; after an intended '
              'change: {calibrate} --new-level')}


def failure_events(outcomes: Sequence[Result], commands: PrintedCommands
                   ) -> Iterator[Event]:
    """The events of the results of test cases, in the newest session of each."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for one in outcomes:
        if one.is_failed and not one.is_cut_short:
            groups.setdefault((one.system, one.result, one.guard, one.metric), []
                              ).append(one)
    folders = folders_of_measurements(
        one.file for failed in groups.values() for one in failed)
    yield from sorted((_failed_for_one_reason(failed, folders, commands)
                       for failed in groups.values()),
                      key=lambda one: (one.kind, -len(one.failed)))
    if cut_short := [one for one in outcomes if one.is_cut_short]:
        again = commands.measure_again(one.system for one in cut_short)
        yield Event('cut short', '. '.join([*(
            f'The session of {session_name(run)} was cut short: '
            f'{count_with_noun(number, "test case")} did not run'
            for run, number in sorted(Counter(one.session for one in cut_short).items())
            ), *[f'To resume: {again}'] * bool(again)]),
            [*dict.fromkeys(one.test_case for one in cut_short)])


def _failed_for_one_reason(failed: list[Result], folders: Folders,
                           commands: PrintedCommands) -> Event:
    first = failed[0]
    common, todo = FAILURES[
        first.result if first.result in FAILURES else
        'value' if not first.guard else
        first.guard if first.guard in FAILURES else 'guard']
    shared = topology.fold_host_list(frozenset.intersection(
        *(one.nodes for one in failed)))
    cases = [*dict.fromkeys(one.test_case for one in failed)]
    title, evidence = failure_text(first), _log_lines(first, folders)
    if len(failed) > 1:
        families = {one.family for one in failed}
        is_place = shared and (first.is_open or len({one.nodes for one in failed}) > 1)
        title = (f'{shared} of ' * bool(is_place) + f'{first.system}: '
                 + count_with_noun(len(failed), f'{first.family} test case'
                                   if len(families) == 1 else 'test case')
                 + f' {common.format(guard=first.guard, metric=first.metric)}')
        logs = [_log_lines(one, folders) for one in failed]
        is_one = all(log == logs[0] for log in logs)
        evidence = shortened_lines(['; '.join([
            failure_text(one), *log * (not is_one)]) for one, log in zip(
                failed, logs, strict=True)]) + logs[0] * is_one
    return Event(
        'missing' if first.result == 'missing' else 'failure', title, cases,
        first.system, evidence=evidence, failed=failed, result=first.result,
        todo=_advice_text(todo, first.system, cases, commands,
                          _nodes_to_measure(failed)), nodes=shared)


def _nodes_to_measure(failed: Sequence[Result]) -> str:
    """The nodes of open failures, as -P pinned_nodes takes them; '': they differ, or
    jobs of the test cases need more."""
    nodes = failed[0].nodes
    return '+'.join(sorted(nodes)) if all(
        one.is_open and one.nodes == nodes and len(nodes) == one.width
        for one in failed) else ''


def _advice_text(text: str, system: str, cases: Sequence[str],
                 commands: PrintedCommands, nodes: str) -> str:
    """What to do, without the parts whose command is about a site that does not exist,
    or about nodes that cannot be chosen.

    :param text: of FAILURES; its parts are between semicolons
    :param cases: short ids of test cases
    :param nodes: as of `_nodes_to_measure`
    """
    ident = cases[0] if len(cases) == 1 else 'ID'
    run = commands.measure('run', system, ' '.join(cases[:3]))
    words = {
        'run': run * (not nodes),
        'run_pinned': f'{run} -P pinned_nodes={nodes}' * bool(run and nodes),
        'calibrate': commands.measure('references calibrate', system),
        'mute': commands.decide('mute', ident, system),
        'retire': commands.decide('retire', ident, system),
        'retire_node': commands.decide('retire', 'NODE', system)}
    missing = [f'{{{name}}}' for name, command in words.items() if not command]
    return '; '.join(part.format(**words) for part in text.split('; ')
                     if not any(name in part for name in missing))


def _log_lines(one: Result, folders: Folders) -> list[str]:
    """A line with the log of a measurement that failed; empty: it is not on this
    machine."""
    log = log_of_failure(folders, one.measurement, one.file)
    return [f'log {log}'] * bool(log)
