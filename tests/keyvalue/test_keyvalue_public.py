"""Forms of saved output that public reports show."""
from __future__ import annotations

import re

import pytest

from checks.core.parsers import ParseError
from checks.keyvalue import parser as keyvalue
from tests.conftest import ROOT

PUBLIC = ROOT / 'tests' / 'data' / 'public' / 'keyvalue'


def test_each_test_of_redis_benchmark_is_kept():
    values = {record.params: record.value for record in keyvalue.parse(
        (PUBLIC / 'k10-set-get.csv').read_text()) if record.metric == 'operations'}
    assert values['operation=set'] == 68493.15
    assert values['operation=get'] == 37383.18
    assert values['operation=lpush'] == 30769.23


@pytest.mark.parametrize('name, line, reason', [
    ('k1-memtier-nan.json', 289, '-nan, as memtier_benchmark 2.1 and older'),
    ('k6-memtier-1.3.txt', 8, 'memtier_benchmark 1.3'),
    ('k7-memtier-resets.txt', 5, 'Connection reset by peer'),
])
def test_public_output_is_refused_with_its_cause(name, line, reason):
    with pytest.raises(ParseError, match=reason) as err:
        keyvalue.parse((PUBLIC / name).read_text())
    assert err.value.line == line


def test_memtier_1_2_is_named():
    with pytest.raises(ParseError, match='memtier_benchmark 1.3 or older') as err:
        keyvalue.parse('16        Threads\n4         Connections per thread\n'
                       '15000     Requests per thread\nType        Ops/sec\n')
    assert err.value.line == 3


QUIET = ('SET: {set:.2f} requests per second, p50=0.151 msec\n'
         'GET: {get:.2f} requests per second, p50=0.199 msec\n\n')


def text_of(name: str) -> str:
    return (ROOT / 'tests' / 'keyvalue' / 'golden' / name).read_bytes().decode()


def rates(text: str) -> list:
    return [(record.program, f'{output.params} {record.params}'.strip(), record.value)
            for output in keyvalue.parse_log(text) for record in output.records
            if record.metric == 'operations']


def test_runs_of_redis_benchmark_with_other_options_are_other_test_cases():
    """Only the command lines name the connections and the requests in flight."""
    text = ('$ redis-benchmark -t set,get -c 50 -P 16 -q\n'
            + QUIET.format(set=70000, get=71000)
            + 'cd /opt && ./redis-benchmark -t set,get -c 100 -d 1024 -q | tee b.txt\n'
            + QUIET.format(set=60000, get=61000))
    name = 'redis-benchmark'
    assert rates(text) == [
        (name, 'operation=set connections=50 pipeline=16', 70000),
        (name, 'operation=get connections=50 pipeline=16', 71000),
        (name, 'operation=set connections=100 pipeline=1 payload=1024', 60000),
        (name, 'operation=get connections=100 pipeline=1 payload=1024', 61000)]
    assert {record.size for record in keyvalue.parse(text)} == {None, 1024}


def test_a_variable_in_a_command_is_no_parameter():
    text = ('$ redis-benchmark -c 50 -q\n' + QUIET.format(set=70000, get=71000)
            + 'for c in 9 8; do redis-benchmark -c $c -q; done\n'
            + QUIET.format(set=60000, get=61000))
    assert [params for _, params, _ in rates(text)] == [
        'operation=set connections=50 pipeline=1',
        'operation=get connections=50 pipeline=1', 'operation=set', 'operation=get']


def test_progress_may_have_lines_of_its_own():
    """As logs of CI have it, or after `tr '\\r' '\\n'`."""
    text = text_of('redis-benchmark-7.0.15.quiet.txt')
    assert '\rGET: rps' in text
    lines = text.replace('\r', '\n')
    assert rates(lines) == rates(text)
    for other, why in (('', 'GET has progress but no'), (
            'INCR: 9.50 requests per second, p50=0.199 msec\n', 'GET before another')):
        with pytest.raises(ParseError, match=why):
            keyvalue.parse(re.sub('(?m)^GET: [0-9.]+ req.*\n', other, lines))


def test_threads_of_redis_benchmark_make_another_test_case():
    text = text_of('redis-benchmark-6.2.14.pipeline.txt')
    assert 'threads: 2' in text
    assert rates(text)[0][1] == (
        'operation=set connections=20 client_threads=2 payload=128')


@pytest.mark.parametrize('printed, other, expected', [
    ('keep alive: 1', 'keep alive: 0', 'keep_alive=0'),
    ('"appendonly": no', '"appendonly": yes', 'appendonly=yes'),
    ('"save": \n', '"save": 3600 1 300 100\n', 'save=3600_1_300_100'),
    ('  host', '  cluster mode: yes (3 masters)\n  host', 'cluster=3'),
    ('RPS', 'RPS', 'rate_limit=1000.00'),
    ('', '$ redis-benchmark --tls -r 1000000 -s /run/r.sock -d 64\n',
     'keys=1000000 tls=true unix_socket=true')])
def test_what_redis_benchmark_prints_of_its_run(printed, other, expected):
    text = text_of('redis-benchmark-7.0.15.precision.txt')
    if printed == 'RPS':
        other, printed = ('\nRPS Summary:\n  target RPS: 1000.00\n\nLatency by perc',
                          '\nLatency by perc')
    changed = text.replace(printed, other, 1)
    before, after = (set(rates(one)[0][1].split()) for one in (text, changed))
    assert before == {'operation=get', 'connections=20', 'payload=3'}
    # A command line says that there was no pipeline.
    assert after - {'pipeline=1'} == before | {*expected.split()}


@pytest.mark.parametrize('name, value', [
    ('key_pattern', '"S:S"'), ('tls', '"true"'), ('random_data', '"true"'),
    ('data_size_range', '"32:512"'), ('data_size_list', '"32:50,64:50"'),
    ('key_maximum', '1000'), ('protocol', '"resp3"'), ('reconnect_interval', '10')])
def test_what_memtier_writes_of_its_run(name, value):
    text = text_of('memtier-2.3.0.mixed.json')
    [before], [after] = (keyvalue.parse_log(one) for one in (
        text, re.sub(rf'("{name}": +)[^\n]+', rf'\g<1>{value}', text)))
    values = value.strip('"')
    assert (f'{name}={values}' in after.params.split()
            and f'{name}={values}' not in before.params.split())


def test_options_of_memtier_above_its_text():
    text = ('+ memtier_benchmark -s n1 --pipeline=16 --ratio 1:1 -d 256 --cluster-mode '
            '--tls -P resp3 --key-pattern=S:S --key-maximum=1000\n'
            + text_of('memtier-2.3.0.get.txt'))
    [output] = keyvalue.parse_log(text)
    assert output.params == (
        'connections=10 pipeline=16 payload=256 ratio=1:1 protocol=resp3 '
        'cluster_mode=true tls=true key_maximum=1000 key_pattern=S:S')
    assert {record.size for record in output.records} == {256}


def test_outputs_of_several_programs_in_a_text():
    text = (text_of('redis-benchmark-7.0.15.csv') + text_of('memtier-2.3.0.get.txt')
            + '=== third ===\n' + text_of('valkey-benchmark-8.1.1.quiet.txt'))
    assert [program for program, _, _ in rates(text)] == [
        *['redis-benchmark'] * 3, 'memtier_benchmark', *['redis-benchmark'] * 2]
    for record in keyvalue.parse(text):
        line = text.split('\n')[record.line - 1]
        if record.metric == 'operations':
            assert f'{record.value:.2f}' in line


@pytest.mark.parametrize('name', ['best', 'runs', 'mixed'])
def test_a_row_below_a_table_of_memtier_is_damage(name):
    """Tables below it were left out without a word."""
    text = text_of(f'memtier-2.3.0.{name}.txt')
    totals = next(line for line in text.split('\n') if line.startswith('Totals'))
    with pytest.raises(ParseError, match="'Totals .* were lost or doubled"):
        keyvalue.parse_log(text.replace(totals, f'{totals}\n{totals}'))


def test_what_others_print_beside_a_json_document():
    text = text_of('memtier-2.3.0.mixed.json')
    for around in (f'Json file x\n{text}\ndone\n', f'{{"level": "info"}}\n{text}',
                   text_of('memtier-2.3.0.mixed.txt') + text):
        assert rates(around) == rates(text)
    plain = text_of('memtier-2.3.0.get.txt')
    assert rates('{"level": "info"}\n' + plain) == rates(plain)


def test_a_document_has_the_time_of_its_run():
    [output] = keyvalue.parse_log(text_of('memtier-2.3.0.mixed.json'))
    assert f'{output.time:%Y-%m-%dT%H:%M:%S%z}' == '2026-11-21T11:31:26+0000'


OLD_REPORT = '''====== SET ======
  100000 requests completed in 1.18 seconds
  50 parallel clients
  3 bytes payload
  keep alive: 1
{config}
99.24% <= 1 milliseconds
100.00% <= 2 milliseconds
84745.77 requests per second

'''


@pytest.mark.parametrize('text, line', [
    (OLD_REPORT.format(config=''), 7),
    (OLD_REPORT.format(config='  host configuration "save": \n'
                       '  host configuration "appendonly": no\n'
                       '  multi-thread: no\n'), 10),
    ('SET: 84745.77 requests per second\n', 1), ('"SET","84745.77"\n', 1)])
def test_old_versions_of_redis_benchmark_are_named(text, line):
    with pytest.raises(ParseError, match='redis-benchmark 6.0 or older') as err:
        keyvalue.parse(text)
    assert err.value.line == line


@pytest.mark.parametrize('text', [
    '[OVERALL], RunTime(ms), 10110\n[READ], AverageLatency(us), 610.2\n',
    '#type       avg     std     min\nread       98.5    40.1    51.2\n'
    'Total QPS = 98765.4 (493827 / 5.0s)\n',
    'servers : 127.0.0.1:11211\nset proportion: set_prop=0.10\n', '\n', 'OSU\n'])
def test_the_output_of_another_program_is_refused(text):
    with pytest.raises(ParseError, match='of redis-benchmark, valkey-benchmark or '
                       'memtier_benchmark'):
        keyvalue.parse(text)


def test_a_header_without_rows_is_refused():
    header = text_of('redis-benchmark-7.0.15.csv').split('\n')[0]
    for text in (f'{header}\n', f'{header}\n{text_of("redis-benchmark-7.0.15.csv")}'):
        with pytest.raises(ParseError, match='the header has no row below it') as err:
            keyvalue.parse(text)
        assert err.value.line == 1
