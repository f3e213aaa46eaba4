"""Forms of saved output that public reports show."""
from __future__ import annotations

import csv
import io
import json
import re

import pytest

from checks.core.parsers import ParseError
from checks.taobench import parser as tao
from cli.session.parse import convert_output_to_csv
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


def test_each_report_in_a_text_is_an_output(tmp_path):
    """Also of other forms: saved by benchpress, printed by a script."""
    bare = REPORT[REPORT.index('{'):REPORT.rindex('}') + 1]
    script = '{\n' + ',\n'.join(
        f'  "{name}": {value}' for name, value in json.loads(bare)['metrics'].items()
        if name != 'role') + '\n}\n'
    file = tmp_path / 'reports.txt'
    for texts in ([REPORT, REPORT], [REPORT, bare + '\n', script], [bare, '\n', bare]):
        out, err = io.StringIO(), io.StringIO()
        changed = [text.replace('1349833.7', f'1349833.{8 - number}')
                   for number, text in enumerate(texts)]
        file.write_text(''.join(changed))
        assert convert_output_to_csv('taobench', [str(file)], out, err) == 0
        values = [(row['output'], row['value']) for row in csv.DictReader(
            io.StringIO(out.getvalue())) if row['metric'] == 'total_qps']
        assert values == [(str(number), re.search(r'1349833\.\d', text)[0])
                          for number, text in enumerate(filter(str.strip, changed), 1)]


@pytest.mark.parametrize('damage, of_report, reason', [
    (('"total_qps": 1349833.7', '"total_qps": x'), 39, 'the report is incomplete'),
    (('"total_qps"', '"total"'), 30, 'the report lacks total_qps'),
    (('\n}\nFinished', '\nFinished'), 2, 'the report is cut off'),
])
def test_a_damaged_second_report_is_refused_with_its_line(damage, of_report, reason,
                                                          tmp_path):
    file, out, err = tmp_path / 'reports.txt', io.StringIO(), io.StringIO()
    file.write_text(REPORT + REPORT.replace(*damage))
    assert convert_output_to_csv('taobench', [str(file)], out, err) == 1
    line = of_report + REPORT.count('\n')
    assert err.getvalue().startswith(f'{file}:{line}: {reason}')
