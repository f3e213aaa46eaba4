"""Forms of saved output that public reports show."""
from __future__ import annotations

import json
import re

import pytest

from checks.core.parsers import ParseError
from checks.taobench import parser as tao
from tests.conftest import ROOT

PUBLIC = ROOT / 'tests' / 'data' / 'public' / 'taobench'
REPORT = (PUBLIC / 't2b-report-good.txt').read_text()


@pytest.mark.parametrize('name, want', [
    ('t2b-report-good.txt', {'total_qps': 1349833.7, 'fast_qps': 1200000.5,
                             'slow_qps': 149833.2, 'score': 1.976}),
    ('t3-client-window.log', {'operations all': 31003.76, 'operations get': 28182.42}),
])
def test_public_output_is_read(name, want):
    values = {f'{record.metric} {record.params.partition("operation=")[2]}'.strip():
              record.value for record in tao.parse((PUBLIC / name).read_text())}
    assert want.items() <= values.items()


def test_a_report_on_one_line_is_read():
    """benchpress prints it so if it does not print to a terminal."""
    begin, end = REPORT.index('{'), REPORT.rindex('}') + 1
    text = ''.join((REPORT[:begin], json.dumps(json.loads(REPORT[begin:end])),
                    REPORT[end:]))
    assert [one._replace(line=0) for one in tao.parse(text)] == [
        one._replace(line=0) for one in tao.parse(REPORT)]
    with pytest.raises(ParseError, match='cut off'):
        tao.parse(text[:text.rindex('}')])


def test_jobs_with_other_memory_are_other_test_cases():
    """The name of the machine and of its interface are those of one run."""
    job, other, host = ({one.params for one in tao.parse_log(text)} for text in (
        REPORT, REPORT.replace('--memsize=0', '--memsize=64'),
        REPORT.replace('"--real"', '"--real",\n "--server-hostname=n1"')))
    assert job == host == {
        'job=autoscale client_nodes=1 options=--num-servers=0_--memsize=0_'
        '--test-time=720_--real'}
    assert {one.replace('=64', '=0') for one in other} == job != other


def test_a_report_of_a_client_is_read():
    """benchpress prints it on a client's machine, of the test after the warm-up."""
    text = re.sub('"metrics": {[^}]*}', '"metrics": {"qps": 22206.16, "role": '
                  '"client", "set_qps": 0.0}', REPORT)
    [one] = tao.parse(text)
    assert (one.program, one.metric, one.value, one.params) == (
        'tao_bench_client', 'operations', 22206.16, 'operation=get')
    with pytest.raises(ParseError, match='a client has no qps: its test did not end'):
        tao.parse(text.replace('"qps": 22206.16, ', ''))


@pytest.mark.parametrize('text, reason', [
    ((PUBLIC / 't2-report-zero.txt').read_text(), 'nothing was measured'),
    (REPORT.replace('"hit_ratio"', '"hits"'), 'lacks hit_ratio'),
    (REPORT.replace('149833.2', '14983.2'), 'not the sum'),
    (REPORT.partition('"metrics"')[0], 'cut off'),
])
def test_a_report_without_values_is_refused(text, reason):
    with pytest.raises(ParseError, match=reason):
        tao.parse(text)
    assert 'benchmark_args' in text


def test_what_a_script_prints_is_read_as_a_report():
    metrics = REPORT[REPORT.index('  "metrics"'):REPORT.index('  "run_id"')]
    text = 'Spawn server instance: x\n{\n' + '\n'.join(
        line for line in metrics.splitlines()[1:-1] if '"score"' not in line) + '\n}\n'
    values = {one.metric: one.value for one in tao.parse(text)}
    assert values['score'] == pytest.approx(values['total_qps'] / 683000)
    assert values['spawned_instances'] == 2
    with pytest.raises(ParseError, match='DCPerf printed no result'):
        tao.parse_report('Spawn server instance: x\n')
