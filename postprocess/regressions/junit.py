"""A verdict as JUnit XML."""
from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from config.families import printed_name

from ..results import Result, exit_code_of_state
from .events import Verdict, failure_text

#: What XML 1.0 cannot have, not even escaped.
_NOT_XML = re.compile('[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')


def junit_xml(verdict: Verdict) -> str:
    """JUnit XML: one test per test case. It fails if the test case failed or is part
    of a regression. It is skipped if the test case is inconclusive, or has neither a
    reference nor enough sessions to be judged by its history. A further test fails if
    the session is not good for another reason, so that XML and exit code agree.
    """
    few = {name for one in verdict.events_of('few sessions') for name in one.cases}
    bad = verdict.events_of('failure', 'missing', 'cut short', 'regression')
    # Class and name, kind and type of the result, and its lines.
    tests: list[tuple[tuple[str, str], str, str, list[str]]] = []
    for result in verdict.results:
        lines = [line for one in bad if result.test_case in one.cases for line in (
            one.lines if not one.failed else
            [failure_text(result), f'  to do: {one.todo}'] * (result in one.failed))]
        kind, texts = '', []
        if not result.is_good:
            kind, texts = 'failure', lines or [result.result]
        elif result.result == 'inconclusive':
            kind, texts = 'skipped', [
                f'inconclusive: {result.reason or "the values cannot be compared"}']
        elif result.result == 'no_reference' and result.test_case in few:
            kind, texts = 'skipped', ['no_reference, and too few sessions for a '
                                      'comparison with the history']
        elif result.result in ('no_reference', 'xfail'):
            kind, texts = 'system-out', [result.result]
        tests.append((_junit_class_and_name(result), kind, result.result
                      if result.is_failed else 'regressed', texts))
    if exit_code_of_state(verdict.state) and not any(
            kind == 'failure' for _, kind, *_ in tests):
        tests.append((('session', 'state of the session'), 'failure',
                      verdict.state, [verdict.headline]))
    root = ET.Element('testsuites', name='plumb verdict')
    kinds = [kind for _, kind, *_ in tests]
    suite = ET.SubElement(
        root, 'testsuite', name=f'session {verdict.session}: {verdict.state.upper()}',
        tests=str(len(tests)), failures=str(kinds.count('failure')), errors='0',
        skipped=str(kinds.count('skipped')))
    for (classname, name), kind, type_, texts in tests:
        test = ET.SubElement(suite, 'testcase', classname=classname, name=name)
        if kind:
            part = ET.SubElement(test, kind)
            if kind != 'system-out':
                part.set('message', texts[0])
            if kind == 'failure':
                part.set('type', type_)
            if kind != 'skipped':
                part.text = '\n'.join(texts)
    ET.indent(root)
    text = ET.tostring(root, encoding='unicode')
    return _NOT_XML.sub('\N{REPLACEMENT CHARACTER}', text) + '\n'


def _junit_class_and_name(result: Result) -> tuple[str, str]:
    """Class name and name of a test case in JUnit."""
    return (f'{result.system}.{result.partition}.{result.family}',
            ' '.join(filter(None, [
                printed_name(result.check, result.source), result.params,
                result.settings, f'@{result.environ}', result.copy])))
