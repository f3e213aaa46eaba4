"""A verdict as JUnit XML."""
from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from config.families import printed_name

from ..results import Result, exit_code_of_state
from .finding import Verdict
from .telling import failure_line, regression_lines, verdict_headline

#: What XML 1.0 cannot have, not even escaped.
_NOT_XML = re.compile('[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')


def junit_xml(verdict: Verdict) -> str:
    """JUnit XML: one test per test case, and one per level. It fails if the test
    case failed or is part of a regression. It is skipped if the test case is
    inconclusive, or has neither a reference nor enough sessions to be judged by its
    history; and if a level is not judged. A further test fails if the session is not
    good for another reason, so that XML and exit code agree.
    """
    failures = {(f.test_case, f.copy): f for f in verdict.failures}
    regressions = {one.id: one for one in verdict.regressions}
    bad = sum(not result.is_good for result in verdict.results) + len(
        verdict.failed_levels)
    other = not bad and exit_code_of_state(verdict.state) > 0
    few = {case.test_case for case in verdict.not_enough}

    def skip_message(result: Result) -> str:
        if result.is_good and result.result == 'inconclusive':
            return ('inconclusive: '
                    + (result.reason or 'the values cannot be compared'))
        if result.is_good and result.result == 'no_reference' \
                and result.test_case in few:
            return ('no_reference, and too few sessions for a comparison '
                    'with the history')
        return ''

    root = ET.Element('testsuites', name='plumb verdict')
    suite = ET.SubElement(
        root, 'testsuite', name=f'session {verdict.session}: {verdict.state.upper()}',
        tests=str(len(verdict.results) + len(verdict.levels) + other),
        failures=str(bad + other),
        errors='0',
        skipped=str(sum(bool(skip_message(one)) for one in verdict.results)
                    + sum(level.tolerance is None for level in verdict.levels)))
    for result in verdict.results:
        classname, name = _junit_class_and_name(result)
        test = ET.SubElement(suite, 'testcase', classname=classname,
                             name=name)
        if result.is_good:
            if why := skip_message(result):
                ET.SubElement(test, 'skipped', message=why)
            elif result.result in ('no_reference', 'xfail'):
                ET.SubElement(test, 'system-out').text = result.result
            continue
        texts = [text for ident in result.regressions
                 for text in regression_lines(regressions[ident])]
        failure = failures.get((result.test_case, result.copy))
        if failure:
            texts.insert(0, failure_line(failure))
        ET.SubElement(
            test, 'failure', message=texts[0] if texts else result.result,
            type=result.result if failure else 'regressed'
        ).text = '\n'.join(texts)
    for level in verdict.levels:
        test = ET.SubElement(suite, 'testcase', classname=level.system,
                             name='level of all metrics together')
        if level.is_failed:
            ET.SubElement(test, 'failure', message=level.text,
                          type='fail').text = '\n'.join(level.lines)
        elif level.tolerance is None:
            ET.SubElement(test, 'skipped', message=level.text)
    if other:
        ET.SubElement(ET.SubElement(
            suite, 'testcase', classname='session', name='state of the session'),
            'failure', message=verdict_headline(verdict), type=verdict.state)
    ET.indent(root)
    text = ET.tostring(root, encoding='unicode')
    return _NOT_XML.sub('\N{REPLACEMENT CHARACTER}', text) + '\n'


def _junit_class_and_name(result: Result) -> tuple[str, str]:
    """Class name and name of a test case in JUnit."""
    return (f'{result.system}.{result.partition}.{result.family}',
            ' '.join(filter(None, [
                printed_name(result.check, result.source), result.params,
                result.settings, f'@{result.environ}', result.copy])))
