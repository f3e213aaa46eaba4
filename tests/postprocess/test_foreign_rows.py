"""Rows of other suites, as their formats of ReFrame's file handler make them."""
from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip('pandas')
from postprocess import records  # noqa: E402
from postprocess.report import build as report  # noqa: E402

#: As ReFrame 4.10 writes it: result, time, and attributes of the check.
STOCK = [
    'result|job_completion_time|environ|info|jobid|job_nodelist|name|'
    'num_tasks|partition|perfvalues_of|system|triad_value|triad_unit|'
    'triad_ref|triad_lower_thres|triad_upper_thres|copy_value|copy_unit|'
    'copy_ref|copy_lower_thres|copy_upper_thres',
    'pass|2026-11-01T03:00:00+01:00|gnu|Stream %size=8 /0123abcd @x:cpu+gnu|'
    '77|n1|Stream %size=8|4|cpu|null|x|100.5|MB/s|100|-0.1|None|90.5|MB/s|0|'
    'None|None',
    'fail|2026-11-02T03:00:00+01:00|gnu|Stream %size=8 /0123abcd @x:cpu+gnu|'
    '78|n1|Stream %size=8|4|cpu|null|x|80.0|MB/s|100|-0.1|None|null|MB/s|0|'
    'None|None']


def read(file: Path, text: str):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return records.read(file, on_error='collect')


def lines(*texts: str) -> str:
    return ''.join(f'{text}\n' for text in texts)


def test_stock_format(tmp_path):
    frame, faults = read(tmp_path / 'x' / 'cpu' / 'Stream.log',
                         lines(*STOCK))
    assert not faults
    first = frame[frame['metric'] == 'triad'].iloc[0]
    assert first['time'] == pd.Timestamp('2026-11-01T02:00Z')
    assert (first['system'], first['partition'], first['environ']) == (
        'x', 'cpu', 'gnu')
    assert (first['check'], first['params']) == ('Stream', 'size=8')
    assert (first['value'], first['unit'], first['reference'],
            first['lower']) == (100.5, 'MB/s', 100.0, -0.1)
    assert pd.isna(first['upper']) and first['better'] == 'higher'
    assert first['job'] == '77' and first['num_tasks'] == 4
    assert set(frame['session']) == {'2026-11-01', '2026-11-02'}
    # A metric that was not measured is a failure, and no gap.
    bad = frame[frame['metric'] == 'completed'].iloc[0]
    assert (bad['value'], bad['result'], bad['guard']) == (
        0.0, 'fail', 'no_value')


@pytest.mark.parametrize('between', [',', ';', ' || ', '\t'])
def test_other_separators(tmp_path, between):
    frame, faults = read(tmp_path / 'Stream.log', lines(
        *(text.replace('|', between) for text in STOCK)))
    assert not faults and len(frame) == 4


def test_multiline(tmp_path):
    frame, faults = read(tmp_path / 'a' / 'b' / 'Hpl.log.h0', lines(
        'job_completion_time|display_name|system|partition|perf_var|'
        'perf_value|perf_unit|perf_ref|perf_lower_thres|perf_upper_thres',
        '2026-11-01T03:00:00Z|Hpl %n=1|a|b|rate|5.5|Gflop/s|5|-0.2|None',
        '2026-11-01T03:00:00Z|Hpl %n=1|a|b|walltime|9|s|5|None|0.2'))
    assert not faults
    assert sorted(frame['metric']) == ['rate', 'walltime']
    assert frame['better'].tolist() == ['higher', 'lower']
    assert frame['result'].tolist() == ['pass', 'fail']
    assert set(frame['system']) == {'a'} and set(frame['partition']) == {'b'}
    assert set(frame['params']) == {'n=1'}


def test_excalibur(tmp_path):
    frame, faults = read(tmp_path / 'Sombrero.log', lines(
        'job_completion_time|version|info|jobid|flops_value|flops_unit|'
        'flops_ref|flops_lower_thres|flops_upper_thres|spack_spec|'
        'display_name|system|partition|environ|extra_resources',
        '2023-08-23T11:36:02|reframe 4.3.2|Sombrero %tasks=1 /52e1ce98 '
        '@archer2:compute+default|43|0.67|Gflops/seconds|1.2|-0.2|None|'
        'sombrero@2021-08-16|Sombrero %tasks=1|archer2|compute|default|{}'))
    [row] = frame.itertuples()
    assert not faults
    assert (row.check, row.params, row.program, row.version, row.reframe) \
        == ('Sombrero', 'tasks=1', 'sombrero', '2021-08-16', '4.3.2')
    assert (row.metric, row.value, row.result, row.better) == (
        'flops', 0.67, 'fail', 'higher')


@pytest.mark.parametrize(('bad', 'reason'), [
    (STOCK[1] + '|more', '22 columns, not 21'),
    ('half a line', '1 columns, not 21'),
    (STOCK[1].replace('100.5', '1e999'), 'not a finite number'),
    (STOCK[1].replace('100.5', 'fast'), 'not a finite number'),
    (STOCK[1].replace('2026-11', '2026-13'), 'is not a time'),
    (STOCK[1].replace('gnu', '\0'), 'not text'),
])
def test_bad_lines_are_told_and_cost_no_other(tmp_path, bad, reason):
    frame, faults = read(tmp_path / 'Stream.log',
                         lines(STOCK[0], bad, *STOCK[1:]))
    assert faults and {fault.line for fault in faults} == {2}
    assert reason in str(faults[0])
    assert {'triad', 'completed'} <= set(frame['metric'])


@pytest.mark.parametrize('text', [
    'hello\n', '\xff\xfe\n', 'a|b\n1|2\n', 'job_completion_time|x\n1|2\n',
    'job_completion_time|a_value|a_value\n', '{}\n', 'x' * 100_000])
def test_hostile_files(tmp_path, text):
    frame, faults = read(tmp_path / 'x.log', text)
    assert faults and not len(frame)
    assert all('\n' not in str(fault) for fault in faults)


#: As EESSI writes it: no name, and the name with hash and place in `info`.
EESSI = [
    'job_completion_time|version|unique_name|info|jobid|nodelist|extra_resources|'
    'flops_value|flops_unit|flops_ref|flops_lower_thres|flops_upper_thres',
    '2026-11-01T03:00:00+01:00|4.6.0|EESSI_X_1|EESSI_X %scale=2_nodes %module=X/1.2 '
    '/0123abcd @snellius:rome+default|12|n1|{}|5.5|Gflop/s|0|None|None']
#: As CSCS writes it: `key=value` in cells.
CSCS = [
    'job_completion_time|reframe version|info|jobid=jobid|num_tasks=num_tasks|'
    'perf_var=perf_value|ref=perf_ref (l=perf_lower_thres, u=perf_upper_thres)|'
    'perf_unit',
    '2026-11-01T03:00:00+01:00|reframe 4.10.4|Latency %kind=cpu /66a5438d '
    '@alpha:compute+gnu|jobid=27134|num_tasks=2|latency=2.5|ref=1.8 (l=null, u=0.1)|us',
    '2026-11-01T03:00:00+01:00|reframe 4.10.4|Latency %kind=cpu /66a5438d '
    '@alpha:compute+gnu|jobid=27134|num_tasks=2|rate=24000.5|ref=0 (l=null, u=null)|'
    'MB/s']
#: The default of ReFrame's documentation.
DEFAULT = [
    'job_completion_time|version|display_name|system|partition|environ|jobid|result|'
    'time_value|time_unit|time_ref|time_lower_thres|time_upper_thres',
    '2026-11-01T03:00:00+01:00|4.10.4|Hello %n=1|sys|part|gnu|12|pass|'
    '3.5|s|4|None|0.1']


@pytest.mark.parametrize('text, place, test, values', [
    (EESSI, ('snellius', 'rome', 'default'), ('EESSI_X', 'scale=2_nodes module=X/1.2'),
     [('flops', 5.5, 'no_reference')]),
    (CSCS, ('alpha', 'compute', 'gnu'), ('Latency', 'kind=cpu'),
     [('latency', 2.5, 'fail'), ('rate', 24000.5, 'no_reference')]),
    (DEFAULT, ('sys', 'part', 'gnu'), ('Hello', 'n=1'), [('time', 3.5, 'pass')])])
def test_formats_of_other_suites(tmp_path, text, place, test, values):
    frame, faults = read(tmp_path / 'x.log', lines(*text))
    assert not faults
    assert [*frame[['metric', 'value', 'result']].itertuples(
        index=False, name=None)] == values
    for row in frame.itertuples():
        assert (row.system, row.partition, row.environ) == place
        assert (row.check, row.params, row.source) == (*test, '')
        assert row.job in ('12', '27134') and not row.reframe.startswith('reframe')


def test_each_measurement_of_a_day_counts(tmp_path):
    """Their rows name no session."""
    later = [text.replace('T03:00', 'T05:00').replace('2.5', '1.9')
             for text in CSCS[1:]]
    frame, faults = read(tmp_path / 'x.log', lines(*CSCS, *later))
    assert not faults
    assert sorted(frame['value'][frame['metric'] == 'latency']) == [1.9, 2.5]
    assert frame['session'].nunique() == 1


def test_what_a_header_lacks_is_named(tmp_path):
    _, [fault] = read(tmp_path / 'x.log', lines(
        'job_completion_time|display_name|system|flops_value', '2026|a|b|1'))
    assert 'its header has no column partition;' in str(fault)


def test_the_page_shows_foreign_records(tmp_path, capsys):
    read(tmp_path / 'p' / 'x' / 'cpu' / 'Stream.log', lines(*STOCK))
    assert report.main(['--perflogs', str(tmp_path / 'p'), '--output',
                        str(tmp_path / 'out')]) == 1
    assert 'Stream' in (tmp_path / 'out' / 'index.html').read_text()


@pytest.mark.parametrize('at', [0, 5, 20])
def test_a_cell_too_many_is_told_where_the_last_one_is_empty(tmp_path, at):
    """DuckDB alone drops an empty cell beyond the last column."""
    cells = [*STOCK[1].split('|')[:-1], '']
    bad = '|'.join([*cells[:at], 'more', *cells[at:]])
    frame, [fault] = read(tmp_path / 'Stream.log', lines(
        STOCK[0], '|'.join(cells), bad))
    assert fault.line == 3 and len(frame) == 2
    assert '22 columns, not 21' in fault.reason


#: As LUMI writes it: short names, one cell per value, a delimiter at the end.
LUMI = [
    'job_completion_time\tsystem:partition\tshort_name\thashcode\tenviron\tmodules\tjobid\t'
    'num_nodes\tnum_tasks\tlat_var=lat_value lat_unit\tbw_var=bw_value bw_unit\t',
    '2026-11-01T03:00:00+01:00\tlumi:gpu\tLatency_0123abcd\t0123abcd\tgnu\tgcc,mpi\t12\t'
    '2\t2\tlat=2.5 us\tbw=24000.5 MB/s\t']
#: The default of ReFrame 3, without a header.
REFRAME_3 = [
    '2021-05-01T10:00:00+02:00|reframe 3.5.0|Stream on daint:gpu using gnu|jobid=12|'
    'num_tasks=4|copy=80.5|ref=100 (l=-0.1, u=None)|MB/s',
    '2021-05-01T10:00:00+02:00|reframe 3.5.0|Stream on daint:gpu using gnu|jobid=12|'
    'num_tasks=4|triad=90|ref=0 (l=None, u=None)|MB/s']


@pytest.mark.parametrize('text, place, test, values', [
    (LUMI, ('lumi', 'gpu', 'gnu'), 'Latency_0123abcd',
     [('lat', 2.5, 'us', 'no_reference'), ('bw', 24000.5, 'MB/s', 'no_reference')]),
    (REFRAME_3, ('daint', 'gpu', 'gnu'), 'Stream',
     [('copy', 80.5, 'MB/s', 'fail'), ('triad', 90, 'MB/s', 'no_reference')]),
    ([line.replace('num_tasks=4|', '') for line in REFRAME_3],
     ('daint', 'gpu', 'gnu'), 'Stream',
     [('copy', 80.5, 'MB/s', 'fail'), ('triad', 90, 'MB/s', 'no_reference')])
], ids=['LUMI', 'ReFrame 3', 'ReFrame 3 without ranks'])
def test_more_formats_of_other_suites(tmp_path, text, place, test, values):
    frame, faults = read(tmp_path / 'x.log', lines(*text))
    assert not faults
    assert sorted(frame[['metric', 'value', 'unit', 'result']].itertuples(
        index=False, name=None)) == sorted(values)
    for row in frame.itertuples():
        assert (row.system, row.partition, row.environ, row.check) == (*place, test)
        assert row.job == '12'


def test_files_that_came_from_windows(tmp_path):
    text = '\ufeff' + ''.join(f'{line}\r\n' for line in STOCK)
    (tmp_path / 'Stream.log').write_bytes(text.encode())
    frame, faults = records.read(tmp_path / 'Stream.log', on_error='collect')
    assert not faults
    assert set(frame['metric']) == {'triad', 'copy', 'completed'}


def test_another_header_gives_no_value_a_wrong_name(tmp_path):
    frame, [fault] = read(tmp_path / 'Stream.log', lines(
        *STOCK, STOCK[0].replace('copy_', 'add_'), STOCK[1]))
    assert fault.line == 4 and 'another header' in fault.reason
    assert (frame['metric'] == 'copy').sum() == 1


@pytest.mark.parametrize('text', [
    '{"check_name": "Stream", "check_perf_value": 1.5}\n',
    'job_completion_time", "name": "name", "value": perf_value}\n'
    '{"time": "2026-11-01T03:00:00Z", "name": "Stream", "value": 1.5}\n'])
def test_json_is_named(tmp_path, text):
    frame, [fault] = read(tmp_path / 'x.log', text)
    assert not len(frame) and 'it is JSON' in str(fault) and fault.line == 1
