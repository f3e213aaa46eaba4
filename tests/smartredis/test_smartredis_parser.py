"""Output of tensorload: real, broken, and what is made of it."""
from __future__ import annotations

import argparse
import csv
import io
import statistics

import pandas as pd
import pytest

from checks.core.parsers import ParseError
from checks.smartredis import parser
from cli.session.parse import convert_output_to_csv
from config import families
from postprocess import records
from postprocess.records import samples
from tests.conftest import ROOT

GOLDEN = ROOT / 'tests' / 'smartredis' / 'golden'
#: What tensorload prints.
LINES = """\
# tensorload 1.0 throughput
# client embedded
# ranks 2 iterations 10 bytes 65536
# verified 20
# end
""".splitlines(keepends=True)


def test_output_of_tensorload():
    ucx = '[1795706670.278181] [vm:446  :0] tcp_iface.c:984  UCX  ERROR scandir\n'
    run = parser.parse_run('\n' + ucx + ''.join(LINES) + ucx)
    assert run == parser.Run('throughput', 'embedded', 2, 10, 65536,
                             20)
    tagged = ''.join(f'[1,0]<stdout>: {line}' for line in LINES)
    assert parser.parse_run(ucx + tagged) == run
    with pytest.raises(ParseError, match='the run failed: .*Segmentation fault'):
        parser.parse_run(''.join(LINES) + '[n1:4711] Segmentation fault: 11\n')
    with pytest.raises(ParseError, match='a message of UCX') as caught:
        parser.parse_run(ucx.join(LINES))
    assert caught.value.line == 1


@pytest.mark.parametrize('number', range(len(LINES)))
def test_a_missing_cut_or_additional_line_is_refused(number):
    before, after = LINES[:number], LINES[number + 1:]
    for middle in ([], [LINES[number][:len(LINES[number]) // 2]],
                   [LINES[number], 'rank 3 says hello\n' if after else LINES[0]]):
        with pytest.raises(ParseError, match='expected one output of tensorload'):
            parser.parse_run(''.join([*before, *middle, *after]))


def test_the_times_of_one_rank_are_refused():
    with pytest.raises(ParseError, match='name the folder'):
        parser.parse((GOLDEN / 'throughput.size65536.0.ranks'
                      / 'rank_0_timing.csv').read_text())


def test_times_of_real_runs():
    sessions, _ = parser.parse_folder(GOLDEN)
    known = families.all_metrics()
    values = {}
    for _, output in sessions:
        for record in output.records:
            assert known[record.metric]['unit'] == record.unit
            assert (record.size, record.metric) not in values
            values[record.size, record.metric] = record.value
    # Two ranks; each moved twice its bytes in its own loop.
    times = [dict(row.split(',')[1:] for row in file.read_text().splitlines())
             for file in GOLDEN.glob('throughput*/*')]
    moved = sum(2 * 65536 * 10 / float(rank['loop_time']) / 1e6 for rank in times)
    assert values[65536, 'bandwidth'] == pytest.approx(moved)
    assert values[65536, 'one_way_bandwidth'] == pytest.approx(moved / 2)
    assert values[65536, 'client_time'] == pytest.approx(
        sum(float(rank['client()']) for rank in times) / 2 * 1e3)
    assert {metric for size, metric in values if size == 3072} == {
        'client_time', 'warmup_time', 'put_tensor', 'put_tensor_p99', 'run_script',
        'run_model', 'run_model_p99', 'unpack_tensor', 'unpack_tensor_p99',
        'loop_time'}


# Folders of the original ---------------------------------------------------

CFG = """[run]
name = throughput-sess
smartredis_version = 0.3.1
[attributes]
client_total = 2
tensor_bytes = 1000
"""


def session(folder, rows=None, cfg=CFG):
    folder.mkdir(parents=True)
    (folder / 'run.cfg').write_text(cfg)
    for rank in range(2):
        (folder / f'rank_{rank}_timing.csv').write_text(''.join(
            f'{rank},{function},{seconds}\n' for function, seconds in rows or [
                ('client()', 0.5 + rank), ('put_tensor', 0.1),
                ('unpack_tensor', 0.1), ('put_tensor', 0.3),
                ('unpack_tensor', 0.1), ('loop_time', 0.8 / (rank + 1)),
                ('main()', 2)]))
    return folder


def parsed(*files):
    out, err = io.StringIO(), io.StringIO()
    code = convert_output_to_csv('smartredis', map(str, files), out, err)
    return code, list(csv.DictReader(out.getvalue().splitlines())), \
        err.getvalue()


def test_a_folder_of_the_original(tmp_path):
    session(tmp_path / 'run-1' / 'throughput-sess-cpp-N1-T2-DBN1-TB1000-x')
    code, rows, err = parsed(tmp_path)
    assert (code, err) == (0, '')
    result = {row['metric']: float(row['value']) for row in rows}
    # Every client() row counts; the original drops the first of each file.
    assert result['client_time'] == 1000
    assert result['put_tensor'] == pytest.approx(2e5)
    # 2 puts of 1000 B in 0.8 s, and in 0.4 s.
    assert result['one_way_bandwidth'] == pytest.approx(7.5e-3)
    assert result['bandwidth'] == pytest.approx(15e-3)
    assert {(row['size'], row['version'], row['program']) for row in rows
            } == {('1000', '0.3.1', 'smartsim-scaling')}
    # Sessions of other arrangements are other test cases.
    assert {row['params'] for row in rows} == {'client_total=2'}


def test_the_size_may_be_in_the_name(tmp_path):
    session(tmp_path / 'x-TB4096-y', cfg='[run]\n')
    assert {row['size'] for row in parsed(tmp_path)[1]} == {'4096'}


def test_a_real_run_is_read_as_its_own_output(tmp_path):
    session(tmp_path / 'inference', [('put_tensor', 1), ('run_model', 2),
                                     ('loop_time', 3), ('main()', 4)],
            cfg='[run]\n')
    code, rows, _ = parsed(tmp_path)
    assert code == 0
    assert {row['metric']: row['value'] for row in rows}['run_model'] == '2000'


@pytest.mark.parametrize('rows, words', [
    ([('put_tensor', 'nan')], "rank_0_timing.csv:1: 'nan' is not a time"),
    ([('put_tensor', -1)], "'-1' is not a time"),
    ([('put_tensor', '1,2')], 'expected 0,FUNCTION,SECONDS'),
    ([('put_tensor', '0.' + 200_000 * '1')], 'expected 0,FUNCTION,SECONDS'),
    ([('put_tensor', 1)], 'unfinished: the file ends before the row of main()'),
    ([('main()', 1)], 'lack the times of all functions')])
def test_a_broken_session_is_refused(tmp_path, rows, words):
    session(tmp_path / 'x', rows)
    code, result, err = parsed(tmp_path)
    assert code == 1 and not result and words in err
    assert len(err.splitlines()) == 2
    assert '0 of 1 sessions are read' in err


def test_a_folder_without_sessions_is_refused(tmp_path):
    assert 'no rank_N_timing.csv' in parsed(tmp_path)[2]


def cut_file(folder):
    file = folder / 'rank_1_timing.csv'
    file.write_text(file.read_text()[:-3])


@pytest.mark.parametrize('damage, words', [
    (cut_file, 'rank_1_timing.csv:7: unfinished: the file ends before the row of'),
    (lambda folder: (folder / 'rank_1_timing.csv').unlink(),
     'unfinished: 1 ranks have a rank_N_timing.csv instead of ranks 0 to 1'),
    (lambda folder: [path.unlink() for path in folder.glob('rank_*')],
     'unfinished: 0 ranks have a rank_N_timing.csv instead of ranks 0 to 0'),
    (lambda folder: (folder / 'rank_2_timing.csv').write_text('2,main(),1\n'),
     '3 ranks have a rank_N_timing.csv instead of ranks 0 to 1'),
    (lambda folder: (folder / 'rank_1_timing.csv').write_text(
        '1,put_tensor,1\n1,main(),1\n'),
     'unfinished: rank 1 has 0 calls of client(), but rank 0 has 1'),
    (lambda folder: (folder / 'rank_1_timing.csv').write_text(''),
     'rank_1_timing.csv:1: unfinished'),
    (lambda folder: (folder / 'run.cfg').write_text('x'), 'run.cfg:1: File contains'),
])
def test_an_unfinished_session_does_not_void_the_others(tmp_path, damage, words):
    run = tmp_path / 'run-2023-07-05-21:26:18'
    damage(session(run / 'throughput-sess-a'))
    session(run / 'throughput-sess-b')
    code, rows, err = parsed(tmp_path)
    assert code == 1
    assert {row['file'] for row in rows} == {str(run / 'throughput-sess-b')}
    first, second = err.splitlines()
    assert first.startswith(f'{run}/throughput-sess-a') and words in first
    assert '1 of 2 sessions are read' in second


def test_the_folder_of_a_run_and_a_producer_are_no_sessions(tmp_path):
    """The original's producer writes no times; run.cfg of a run is above."""
    run = tmp_path / 'run-2023-07-05-21:26:18'
    session(run / 'throughput-sess-a')
    for folder in (run, run / 'aggregate-sess-prod-cpp-N1'):
        folder.mkdir(exist_ok=True)
        (folder / 'run.cfg').write_text(CFG)
    assert parsed(tmp_path)[0] == 0


def test_a_consumer_is_one_rank(tmp_path):
    folder = session(tmp_path / 'aggregate-sess-cons', [
        ('get_list', 1), ('poll_list', 1), ('loop_time', 2), ('main()', 3)])
    (folder / 'rank_1_timing.csv').unlink()
    assert parsed(tmp_path)[0] == 0


def test_a_row_per_session_rank_and_function(tmp_path):
    session(tmp_path / 'r' / 'run-1' / 'a')
    session(tmp_path / 'r' / 'run-1' / 'b', cfg=CFG + 'database_nodes = 4\n')
    parsed_folder(tmp_path / 'r', statistics=tmp_path / 'all.csv')
    rows = list(csv.DictReader((tmp_path / 'all.csv').open()))
    assert len(rows) == 2 * 2 * 5
    assert [*rows[0]] == [
        'session', 'name', 'smartredis_version', 'client_total', 'tensor_bytes',
        'database_nodes', 'rank', 'function', 'calls', 'mean', 'min', 'max', 'median',
        'std']
    row = next(row for row in rows if row['session'] == 'run-1/b'
               and row['rank'] == '1' and row['function'] == 'put_tensor')
    assert (row['database_nodes'], row['calls'], row['median']) == ('4', '2', '0.2')
    assert float(row['std']) == pytest.approx(statistics.stdev([0.1, 0.3]))
    # An attribute that a session lacks, and the deviation of one call.
    assert rows[0]['database_nodes'] == rows[0]['std'] == ''


def parsed_folder(folder, **options):
    given = {'statistics': None, 'perflogs': None, 'files': [str(folder)], **options}
    return parser.parse_folder(folder, argparse.Namespace(**given))


def test_perflogs_of_a_result_folder(tmp_path):
    run = tmp_path / 'results' / 'run-2023-07-05-21:26:18'
    for size, name in ((1000, 'a'), (8000, 'b'), (8000, 'c')):
        session(run / name, cfg=CFG.replace('1000', str(size)) + 'colocated = 0\n'
                'database_nodes = 4\nnode_feature = {\'constraint\': \'P100\'}\n')
    parsed_folder(tmp_path / 'results', perflogs=tmp_path / 'perflogs')
    frame, faults = records.read(tmp_path / 'perflogs', on_error='collect')
    assert not faults
    assert set(frame['params']) == {
        'deployment=standard client_total=2 db_nodes=4 '
        "node_feature={'constraint':_'P100'}"}
    assert set(frame['time'].dt.strftime('%Y-%m-%dT%H:%M:%S')) == {
        '2023-07-05T21:26:18'}
    # Equal sessions are repetitions, with their median.
    put = frame[frame['metric'] == 'put_tensor']
    assert sorted(zip(put['point'], put['repetition'], strict=True)) == [
        (1000, 0), (8000, 0), (8000, 1), (8000, 2)]
    record = next(frame.itertuples())
    calls = samples.read_samples_of_record(record, faults)
    assert not faults
    assert calls[calls['call'] == 'put_tensor/8000B']['seconds'].tolist() == (
        2 * [0.1, 0.3] + 2 * [0.1, 0.3])
    with pytest.raises(ValueError, match='is not empty'):
        parsed_folder(tmp_path / 'results', perflogs=tmp_path / 'perflogs')


def test_many_calls_keep_their_distribution_and_extremes(tmp_path):
    times = [('put_tensor', n) for n in range(1, 4001)]
    session(tmp_path / 'x', [*times, ('loop_time', 1), ('main()', 2)])
    parsed_folder(tmp_path, perflogs=tmp_path / 'perflogs')
    calls = pd.read_csv(next(tmp_path.rglob('samples-*.csv')))
    put = calls[calls['call'] == 'put_tensor/1000B']['seconds']
    assert len(put) == 1500
    assert (put.min(), put.max()) == (1, 4000)
    assert put.median() == pytest.approx(2000.5, rel=2e-3)
    assert put.mean() == pytest.approx(2000.5, rel=2e-3)


def test_options_of_folders_need_one_folder(tmp_path):
    with pytest.raises(ValueError, match='accept one folder of timings only'):
        parsed_folder(tmp_path, perflogs=tmp_path / 'x', files=['a', 'b'])
