"""TaoBench's logs: the original's own answers, and what it does not say.

golden/server_v1.log is in the format of the real server; .json and
variants.json are what the original's parser (DCPerf, 2025-06) makes of it
and of VARIANTS.
"""
from __future__ import annotations

import io
import json
import re

import pytest

from checks.core.parsers import ParseError
from checks.taobench import parser as tao
from cli.session.parse import convert_output_to_csv
from config import families
from tests.conftest import ROOT, each

GOLDEN = ROOT / 'tests' / 'taobench' / 'golden'
LOG = (GOLDEN / 'server_v1.log').read_text()
LINES = LOG.splitlines()
OOM = 'OUT OF MEMORY when allocating item on slow path.\n'
MEMTIER = (ROOT / 'tests' / 'keyvalue' / 'golden'
           / 'memtier-2.3.0.get.txt').read_text()


def edit(*changes, text=LOG):
    """The log with changes (line from 1, old, new)."""
    lines = text.splitlines()
    for number, old, new in changes:
        assert old in lines[number - 1], (number, old)
        lines[number - 1] = lines[number - 1].replace(old, new, 1)
    return '\n'.join(lines) + '\n'


def at(number, place, what):
    """The log with a text within a line, as a buffer's end cuts it."""
    lines = LOG.splitlines(keepends=True)
    where = lines[number - 1].index(place)
    lines[number - 1] = (lines[number - 1][:where] + what
                         + lines[number - 1][where:])
    return ''.join(lines)


VARIANTS = {
    'crlf': LOG.replace('\n', '\r\n'),
    'old_mac': LOG.replace('\n', '\r'),
    'blanks': LOG.replace('fast_qps', '  fast_qps').replace('\n', ' \t\n'),
    'banner': ('Max item size = 65536 B.\nInitialized item generators.\n'
               f'{LOG}Signal handled: Terminated.\n'),
    'older_build': LOG.replace(', nanosleeps_per_sec = 210000.00', '').replace(
        ', nanosleeps_per_sec = 100.00', ''),
    'oldest_build': LOG.replace(', nanosleeps_per_sec = 210000.00', ''
                                ).replace('slow_qps_oom =  0.0, ', ''),
    'some_older': LOG.replace(', nanosleeps_per_sec = 210000.00', '', 150),
    'oom_between': at(150, 'fast_qps', OOM * 3),
    'oom_within': at(150, 'slow_qps =', OOM),
    'oom_in_a_number': at(150, '.', OOM),
    'oom_before_the_last_digit': at(150, '0\n', OOM),
    'no_end': '\n'.join(LINES[:192])[:-3],
    'no_last_field': '\n'.join(LINES[:192])[:-45],
    'dip': edit((160, 'hit_rate = 0.', 'hit_rate = 0.1')),
    'barely': edit(*((n, LINES[n - 1].split(', ')[1], 'hit_rate = 0.880')
                     for n in range(150, 160))),
    'too_low': edit(*((n, LINES[n - 1].split(', ')[1], 'hit_rate = 0.879')
                      for n in range(150, 160))),
    'few': '\n'.join(LINES[:120]) + '\n',
    'cold': '\n'.join(LINES[:50]) + '\n',
    'idle': '\n'.join(LINES[192:]) + '\n',
    'new_field': LOG.replace('\n', ', new_one = 7.1\n'),
    'other_order': LOG.replace('wh_qps = 0.0, curr_it', 'curr_it').replace(
        'slow_th', 'wh_qps = 0.0, slow_th'),
}


def summary(text, *more):
    log, = tao.parse_server_logs(text)
    return tao.summarise_log(log, *more)


def values(text):
    one = summary(text)
    return {name: getattr(one, name) for name in tao.UNITS}


def parse_cli(tmp_path, monkeypatch, *texts):
    """`plumb parse tao` on files of these texts."""
    monkeypatch.chdir(tmp_path)
    names = [f'{number}.log' for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes)
                                      else text.encode())
    out, err = io.StringIO(), io.StringIO()
    code = convert_output_to_csv('taobench', names, out, err)
    return code, out.getvalue().splitlines()[1:], err.getvalue().splitlines()


# The original's rule -------------------------------------------------------

def test_the_original_has_the_same_values():
    expected = json.loads((GOLDEN / 'server_v1.log.json').read_text())
    assert {one.metric: one.value for one in tao.parse(LOG)} == pytest.approx(
        {name: expected[name] for name in (*tao.UNITS, 'score')}, rel=1e-12)


@each(VARIANTS)
def test_the_original_has_the_same_values_of_a_variant(name):
    expected = json.loads((GOLDEN / 'variants.json').read_text())[name]
    # Python 3.12 and newer round the sum of floats only once.
    assert values(VARIANTS[name]) == pytest.approx(
        {name: expected[name] for name in tao.UNITS}, rel=1e-12)


def test_the_file_has_every_variant_and_they_differ():
    expected = json.loads((GOLDEN / 'variants.json').read_text())
    assert set(expected) == set(VARIANTS)
    assert len({json.dumps(one) for one in expected.values()}) == 8


@pytest.mark.parametrize('window, interval, expected', [
    (360, 5, 62), (720, 5, 134), (36, 0.5, 62), (20, 1, 18), (10, 1, 9), (1, 5, 1)])
def test_expected_points(window, interval, expected):
    assert tao.expected_point_count(window, interval) == expected


def test_a_short_window_takes_fewer_points():
    assert (
        tao.counted_window_seconds(720) == 360
        and tao.counted_window_seconds(20) == 20
    )
    one = summary(LOG, 100, 5)
    assert one.num_data_points == one.max_points == 18
    assert one.counted[-1].line == 192


# What is left out ----------------------------------------------------------

@each([
    (LOG, ['1: no load: fast_qps is not above 1', '2: hit_rate is below 0.88',
           '106: hit_rate is below 0.88', '107: the point is before the last 62 points',
           '130: the point is before the last 62 points',
           '193: no load: fast_qps is not above 1']),
    (VARIANTS['oom_between'], ['150: out of memory: an item had no room',
                               '152: out of memory: an item had no room']),
    (VARIANTS['oom_within'], ['150: the line is cut in two by OUT OF MEMORY',
                              '151: this is only a part of a line of']),
    (VARIANTS['no_last_field'], ['192: the line is cut or damaged: it has no nanosl']),
    (edit((150, 'hit_rate = 0', 'hit_rate = 2')), ['150: hit_rate = 2.']),
    (edit((150, 'wh_qps = 0.0', 'slow_qps = 1.0')), ['150: slow_qps occurs twice']),
    (edit((150, 'fast_qps = ', 'fast_qps = 1_')), ["150: fast_qps = '1_"])])
def test_lines_that_are_not_counted_have_a_reason(text, expected):
    one = summary(text)
    output = [f'{point.line}: {why}' for point in one.log.points
              if (why := one.why_left_out(point))]
    for words in expected:
        assert any(line.startswith(words) for line in output), output


@pytest.mark.parametrize('name, why', [
    ('older_build', 'nanosleeps_per_sec missing: an older build'),
    ('cold', 'hit_rate is below 0.88')])
def test_a_log_without_a_counted_line_is_refused(name, why):
    with pytest.raises(ParseError, match=f'no line of this server is counted.*{why}'):
        tao.parse(VARIANTS[name])


@pytest.mark.parametrize('number', ['nan', '-5.0', '1e30', '99999999999999'
                                    '9999.0', 'inf', '', '٣'])
@pytest.mark.parametrize('name', ['fast_qps', 'slow_qps'])
def test_a_number_that_no_server_prints_never_counts(name, number):
    field = next(part for part in LINES[149].split(', ')
                 if part.startswith(name))
    text = edit((150, field, f'{name} = {number}'))
    without = '\n'.join(LINES[:149] + LINES[150:]) + '\n'
    assert values(text) == values(without)


def test_every_line_is_counted_or_has_a_reason():
    for text in VARIANTS.values():
        one = summary(text)
        assert [p for p in one.log.points if not one.why_left_out(p)] == list(
            one.counted)


@pytest.mark.parametrize('prefix', [
    '0: ', '[1,0]<stdout>: ', 'Nov 28 06:{:02}:{:02} n1 tao[17]: ', '  ',
    '2026-11-28T06:{:02}:{:02}Z '])
def test_prefixes_are_removed(prefix):
    tagged = ''.join(prefix.format(*divmod(number, 60)) + line + '\n'
                     for number, line in enumerate(LINES))
    assert values(tagged) == values(LOG)
    assert values('srun: job 7 started\n' + tagged) == values(LOG)


# Nothing to trust ----------------------------------------------------------

@pytest.mark.parametrize('text, line, reason', [
    ('', 1, 'the output is empty'),
    ('\n \n', 1, 'the output is empty'),
    ('garbage\nmore of it\n', 1, 'has no statistics'),
    (''.join(f'0: {line}\n1: {line}1\n' for line in LINES), 5, 'servers alternate'),
    (f'0: {LINES[100]}\nx\n', 1, 'only a part of a line'),
    (OOM * 3, 1, 'no line of statistics is complete; .* out of memory'),
    ('fast_qps = 12.0, hit_ra', 1, 'cut or damaged: it has no hit_rate'),
    ('x\nfast_qps = nan, hit_rate = nan\n', 2, 'no line of statistics'),
    (LOG + 'ALL STATS\n', 196, 'parse them separately'),
])
def test_what_cannot_be_trusted(text, line, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        tao.parse(text)
    assert caught.value.line == line


@pytest.mark.parametrize('text, line, reason', [
    # Of a number with a comma the original takes what stands before it.
    (LOG.replace('.', ','), 1, 'a number contains a comma'),
    *((edit((150, old, new)), 150, 'a number contains a comma') for old, new in (
        ('fast_qps = 6', 'fast_qps = 6,'), ('slow_qps = 8', 'slow_qps = 8,'),
        ('.', ','), ('curr_it = 17.', 'curr_it = 17,'))),
    # A line, a part or the whole of a log that was copied.
    (LOG.replace(LINES[149], f'{LINES[149]}\n{LINES[149]}'), 151, 'same as line 150'),
    ('\n'.join([*LINES[:150], *LINES[140:]]) + '\n', 151, 'same as line 141'),
    (LOG + LOG, 197, 'same as line 2: the file has two copies'),
    (f'Initialized item generators.\n{LOG}' * 2, 199, 'same as line 3'),
    # More answers of the slow path than there were misses.
    *((edit((150, old, new)), 150, 'exceeds the misses of .* at hit_rate') for
      old, new in (('slow_qps = 8', 'slow_qps = 38'), ('fast_qps = 6', 'fast_qps = '),
                   ('hit_rate = 0.8', 'hit_rate = 0.9')))])
def test_a_line_that_lies(text, line, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        tao.parse(text)
    assert caught.value.line == line
    assert caught.value.text == text.splitlines()[line - 1]


def test_what_is_in_flight_between_two_lines_is_no_lie():
    """Few requests of many connections: most answers came a line later."""
    line = ('fast_qps = 100.0, hit_rate = 0.890, slow_qps = 60.0, wh_qps = '
            '0.0, curr_it = 1.00M, slow_qps_oom =  0.0, crnt_conn = {}, '
            'slow_th = 3, slow_reqs = 1, slow_resp = 1, '
            'nanosleeps_per_sec = 1.00\n')
    assert values(line.format(50))['slow_qps'] == 60
    with pytest.raises(ParseError, match='exceeds the misses'):
        tao.parse(line.format(2))


def test_logs_of_several_servers_are_not_mixed():
    """The first words of each tell them apart."""
    other = LOG.replace('nanosleeps_per_sec = 2', 'nanosleeps_per_sec = 3')
    start = 'Initialized item generators.\n'
    text = start + LOG + start + other
    assert {(record.metric, record.params): record.value for record in tao.parse(text)
            if record.metric != 'score'} == {
        (name, f'server={number}'): value
        for number in (1, 2) for name, value in values(LOG).items()}


def embedded(qps):
    return ('tao_server 1.0 (embedded) on 127.0.0.1 port 1: 1 fast threads\n'
            + ''.join(f'fast_qps = {qps:.1f}, hit_rate = 0.890, slow_qps = '
                      f'{qps / 10:.1f}, wh_qps = 0.0, curr_it = 0.03M, '
                      f'slow_qps_oom =  0.0, nanosleeps_per_sec = {line}.00\n'
                      for line in range(5)))


def test_an_embedded_server_says_what_it_is_and_has_no_score():
    result = tao.parse(embedded(1000))
    assert {(one.program, one.version) for one in result} == {
        ('tao_server', '1.0')}
    assert {one.metric for one in result} == set(tao.UNITS)
    assert {one.metric for one in tao.parse(LOG)} == {*tao.UNITS, 'score'}
    both = {one.params: one.value for one in tao.parse(
        embedded(1000) + embedded(3000)) if one.metric == 'fast_qps'}
    assert both == {'server=1': 1000, 'server=2': 3000}


# A client's log ------------------------------------------------------------

def client_log(*runs, head='warm up phase ...\n'):
    return head + ''.join(
        f'/p/tao_bench_client -s h -p 11211 --test-time=7\n'
        f'thread create: regular load generator thread.\n{run}'
        for run in runs) + 'execution phase ...\n'


def test_a_client_is_its_second_run():
    slow = MEMTIER.replace('23415.20', '11111.20')
    iperf = ('Connecting to host h, port 5201\n[  5]   0.00-1.00  sec\n'
             '- - - - -\n[SUM]  0.00-10.00 sec\niperf Done.\n')
    for text in (client_log(slow, MEMTIER),
                 client_log(slow, MEMTIER, head=iperf),
                 client_log(slow, MEMTIER).replace('\n', '\r\n')):
        result = {record.metric: record.value for record in tao.parse(text)}
        assert result['operations'] == 23415.20


@pytest.mark.parametrize('runs, reason', [
    ([MEMTIER], 'the test did not end'),
    ([MEMTIER] * 3, '3 runs'),
    ([MEMTIER, MEMTIER[:-200]], 'the row|cut|missing'),
    ([MEMTIER, MEMTIER[:300]], 'line .10 +Conn|did not finish'),
    ([MEMTIER, 'TLS connection error: (null)\n' + MEMTIER], 'TLS connection'),
])
def test_a_client_that_cannot_be_trusted(runs, reason):
    with pytest.raises(ParseError, match=reason):
        tao.parse(client_log(*runs).removesuffix('execution phase ...\n'))


# The command line ----------------------------------------------------------

def test_units_are_those_of_the_table():
    table = families.all_metrics()
    for name, unit in tao.UNITS.items():
        assert table[name]['unit'] == unit
    assert {'spawned_instances', 'successful_instances'} <= set(table)


def test_a_file_is_a_summary(tmp_path, monkeypatch):
    code, rows, output = parse_cli(tmp_path, monkeypatch, LOG)
    assert code == 0 and len(rows) == 6
    place = '0.log,1,taobench,tao_bench_server,,,,,,'
    rows = [re.sub(r',\d{4}-[^,]*Z', '', row) for row in rows]     # time of the file
    assert rows[2] == f'{place}total_qps,760279.764516129,1/s'
    assert rows[4] == f'{place}num_data_points,62,1'
    assert not output


@pytest.mark.parametrize('text, expected', [
    (b'fast_qps = \xff\xfe', 2), (b'garbage', 1)])
def test_what_is_no_log(tmp_path, monkeypatch, text, expected):
    code, rows, output = parse_cli(tmp_path, monkeypatch, text)
    assert (code, rows, len(output)) == (expected, [], 1)


# All servers ---------------------------------------------------------------

def test_servers_are_added_up_as_the_original_does():
    one, other = summary(LOG), summary(VARIANTS['few'])
    both = tao.combine_summaries([one, None, other])
    assert both['total_qps'] == one.total_qps + other.total_qps
    assert both['num_data_points'] == 76
    assert both['hit_ratio'] == (one.hit_ratio + other.hit_ratio) / 2
    assert both['spawned_instances'] == 3
    assert both['successful_instances'] == 2
    assert tao.combine_summaries([None])['total_qps'] == 0
