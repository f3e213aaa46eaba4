"""A verdict in words, and as JUnit."""
from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from config.sites import topology

from ..results import Result
from .finding import Case, Changed, Failure, Regression, Verdict

#: Lines of a kind; the rest is counted.
MAXIMUM = 20
#: What XML 1.0 cannot have, not even escaped.
_NOT_XML = re.compile('[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')


def lines(found: Verdict) -> list[str]:
    """What people read, the worst first."""
    return list(_lines(found))


def headline(found: Verdict) -> str:
    """All of it in a sentence."""
    said = [_count(len(found.regressions), 'regression')
            + _of_cases(found.regressions) if found.regressions else '',
            _count(len(found.failures), 'case') + ' failed'
            if found.failures else '',
            _count(len(found.improved), 'improvement')
            if found.improved else '',
            f'{len(found.muted)} muted' if found.muted else '',
            _count(len(found.changed), 'change') + ' of the environment'
            if found.changed else '']
    said = [one for one in said if one] or ['nothing is worse']
    return (f'Night {found.session}: {found.verdict.upper()}: '
            f"{', '.join(said)}. {_count(found.cases, 'case')} ran, "
            f"{_count(found.judged, 'metric')} judged by "
            f"{'its' if found.judged == 1 else 'their'} history")


def _lines(found: Verdict) -> Iterator[str]:
    yield headline(found)
    for title, rows in (('Worse:', found.regressions),
                        ('Muted:', found.muted),
                        ('Better:', found.improved)):
        if rows:
            yield title
        for one in rows[:MAXIMUM]:
            yield from (f'  {text}' for text in regression(one))
        yield from _more(len(rows))
    if found.failures:
        yield 'Failed:'
    for failure in found.failures[:MAXIMUM]:
        yield f'  {failed(failure)}'
        yield f'    to do: {failure.todo}'
    yield from (f'  {text}' for text in in_common(found.failures))
    yield from _more(len(found.failures))
    if found.changed:
        yield 'Changed environment:'
    for change in found.changed[:MAXIMUM]:
        yield f'  {changed(change)}'
    yield from _more(len(found.changed))
    for title, cases in (
            ('Worth measuring again (./plumb run $(./plumb verdict '
             '--print-rerun-options)):', found.rerun),
            ('Not run for longer than others:', found.stale),
            ('Too few nights to judge:', found.not_enough)):
        if cases:
            yield title
        for case in cases[:MAXIMUM]:
            yield f'  {place(case)}: {case.why}'
        yield from _more(len(cases))


def regression(one: Regression) -> list[str]:
    """A change: what, where, since when, how much, how sure, what to do."""
    what, *more = details(one)
    return [f'{what}, {more[0]}', *(f'  {line}' for line in more[1:])]


def details(one: Regression) -> list[str]:
    """The same: what and how much; where, since when and how sure; and what
    else is known."""
    what = one.metric or ', '.join(one.metrics)
    if one.point:
        what += f' at {one.point}'
    where = place(one) if one.kind in ('metric', 'case') else one.group
    if len(one.cases) > 1:
        where += f' ({len(one.cases)} cases)'
    found = [
        f'[{one.id}] {what}: {_ratio(one)}',
        f'{where}, since {one.since} ({_count(one.sessions, "session")}), '
        f'{min(100 * one.sure, 99.99):.4g} % sure{_on(one)}',
    ]
    if one.reason:
        found.append(f'muted until {one.until}: {one.reason}')
    if one.cause:
        found.append(f'changed that night: {one.cause}')
    if one.todo and not one.reason:
        found.append(f'to do: {one.todo}')
    return found


def _ratio(one: Regression) -> str:
    """How much: `+5.0 % (+4.1 to +5.9 %)`."""
    if one.ratio is None or one.low is None or one.high is None:
        return f'{one.before:g} -> {one.now:g} {one.unit}'.strip()
    if not 0.5 <= one.ratio <= 2:
        text = f'{one.ratio:.3g} x ({one.low:.3g} to {one.high:.3g})'
    else:
        text = '{:+.1f} % ({:+.1f} to {:+.1f} %)'.format(
            *(100 * (part - 1) for part in (one.ratio, one.low, one.high)))
    if one.before is not None and one.now is not None:
        text += f', {one.before:.4g} -> {one.now:.4g} {one.unit}'.rstrip()
    return text + ('' if one.better else ' as bad')


def failed(one: Failure) -> str:
    """A test case that failed: where, why, and on which nodes."""
    text = f'{place(one)}: '
    if one.result == 'xpass':
        return text + 'a known fault is gone'
    if one.guard:
        return text + _guarded(one) + _on(one)
    if one.value is None:
        return text + 'it did not run to its end' + _on(one)
    at = f' at {one.point}' if one.point else ''
    return text + (f'{one.metric}{at}: {one.value:.4g} {one.unit}, '
                   + (f'reference {one.reference:.4g}'
                      if one.reference is not None else 'a limit')) + _on(one)


def _guarded(one: Failure) -> str:
    """The guard and its words, which mostly begin with its name."""
    if not one.reason:
        return one.guard
    return one.reason if one.reason.startswith(f'{one.guard}:') \
        else f'{one.guard}: {one.reason}'


def _on(one: Failure | Regression) -> str:
    return f' [ran on {one.nodes}]' if one.nodes else ''


def in_common(failures: Sequence[Failure]) -> Iterator[str]:
    """The nodes that test cases which ran on different ones have in common: of
    those that one guard refused, and of those that were too slow."""
    kinds: dict[tuple[str, str], list[set[str]]] = defaultdict(list)
    for one in failures:
        if one.nodes:
            kinds[one.system, one.guard].append(
                set(topology.of_record(one.nodes)))
    for (system, guard), ran_on in kinds.items():
        shared = set.intersection(*ran_on)
        if shared and len(set(map(frozenset, ran_on))) > 1:
            how = f' by {guard}' if guard else ''
            yield (f'{len(ran_on)} cases on {system} failed{how}, and all of '
                   f'them ran on {", ".join(sorted(shared))}')


def changed(one: Changed) -> str:
    """A change of the environment, and what runs in it."""
    where = ', '.join(one.where[:3]) + ', ...' * (len(one.where) > 3)
    return f'{one.what}: {_count(len(one.cases), "case")} on {one.system} ' \
        f'({where})'


def place(one: Regression | Failure | Case | Result) -> str:
    """A test case and where it ran."""
    return ' '.join(filter(None, [
        one.check, one.params, f'on {one.system}:{one.partition}',
        one.environ, getattr(one, 'speed', '').strip('-')]))


def junit(found: Verdict) -> str:
    """JUnit XML: one test per test case. It fails if the test case failed or
    is part of a regression. It is skipped if the test case is inconclusive,
    or has neither a reference nor enough sessions to be judged by its history.
    """
    failures = {f.key: f for f in found.failures}
    names = Counter(map(_test, found.results))
    told = {one.id: one for one in found.regressions}
    bad = sum(not one.good for one in found.results)
    few = {one.key for one in found.not_enough}

    def skipped(one: Result) -> str:
        if one.good and one.result == 'inconclusive':
            return f'inconclusive: {one.reason or "it cannot be compared"}'
        if one.good and one.result == 'no_reference' and one.key in few:
            return 'no_reference, and too few nights for its history'
        return ''

    root = ET.Element('testsuites', name='plumb verdict')
    suite = ET.SubElement(
        root, 'testsuite', name=f'night {found.session}',
        tests=str(len(found.results)), failures=str(bad), errors='0',
        skipped=str(sum(bool(skipped(one)) for one in found.results)))
    for one in found.results:
        classname, name = _test(one)
        if names[classname, name] > 1:
            name += f' [{one.program} {one.source}]'
        test = ET.SubElement(suite, 'testcase', classname=classname,
                             name=name)
        if one.good:
            if why := skipped(one):
                ET.SubElement(test, 'skipped', message=why)
            elif one.result in ('no_reference', 'xfail'):
                ET.SubElement(test, 'system-out').text = one.result
            continue
        texts = [text for ident in one.regressions
                 for text in regression(told[ident])]
        failure = failures.get(one.key)
        if failure:
            texts.insert(0, failed(failure))
        ET.SubElement(
            test, 'failure', message=texts[0] if texts else one.result,
            type=one.result if failure else 'regressed'
        ).text = '\n'.join(texts)
    ET.indent(root)
    text = ET.tostring(root, encoding='unicode')
    return _NOT_XML.sub('\N{REPLACEMENT CHARACTER}', text) + '\n'


def _test(one: Result) -> tuple[str, str]:
    """Class and name of a test case's test."""
    return (f'{one.system}.{one.partition}.{one.family}',
            f'{one.check} {one.params} @{one.environ}'.strip())


def _of_cases(rows: list[Regression]) -> str:
    cases = {(m.key, m.case) for one in rows for m in one.members}
    return f" of {_count(len(cases), 'case')}"


def _more(count: int) -> Iterator[str]:
    if count > MAXIMUM:
        yield f'  and {count - MAXIMUM} more: --json'


def _count(number: int, what: str) -> str:
    return f'{number} {what}{"" if number == 1 else "s"}'
