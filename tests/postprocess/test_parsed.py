"""Saved results without perflogs: plot, compare and sql read their CSV."""
from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pathlib
import re
import statistics
import sys

import duckdb
import pytest

pytest.importorskip('pandas')
pytest.importorskip('matplotlib')
import pandas as pd

from cli.session import parse
from config.records.columns import PARSED
from postprocess import compare, export, records
from postprocess.records import parsed, sql
from postprocess.report import plot
from tests.conftest import ROOT
from tests.data import perflogs_factory

#: The question of the how-to.
STATISTICS = re.search(r'plumb sql "(SELECT system[^`]*?)" --csv groups',
                       (ROOT / 'docs' / 'how-to' / 'sql.md').read_text()
                       )[1].replace('\\"', '"')
STUDY = ROOT / 'tests' / 'data' / 'osu-study'
LOG = STUDY / 'run4-crd-metrics-20x-4-0.json'


@pytest.fixture(autouse=True)
def no_perflogs(tmp_path, monkeypatch):
    """Saved results are added to the perflogs; here are none."""
    monkeypatch.setenv('PLUMBLINE_PERFLOGS', str(tmp_path / 'no-perflogs'))


class Json:
    json = True


def csv_of_study(files) -> str:
    out, err = io.StringIO(), io.StringIO()
    assert parse.convert_output_to_csv('osu', map(str, files), out, err, Json) == 0
    return out.getvalue()


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """CSV of a log of the study, of three allocations of 4 nodes and one of 8.

    The latter are the log with other numbers of nodes and times.
    """
    folder = tmp_path_factory.mktemp('saved')
    files = [LOG]
    for nodes, number in ((4, 1), (4, 2), (8, 3), (8, 4), (8, 5)):
        text = LOG.read_text().replace('across 4 nodes', f'across {nodes} nodes')
        text = text.replace('-np 4 ', f'-np {nodes} ').replace(
            'with 4 proc', f'with {nodes} proc').replace(
            'nprocs: 4,', f'nprocs: {nodes},')
        assert json.loads(text)
        files.append(folder / f'{number}.json')
        files[-1].write_text(text.replace('0m0.', f'0m{number}.'))
    file = folder / 'cloud.csv'
    file.write_text(csv_of_study(files))
    return file


@pytest.fixture(scope='module')
def few(saved) -> pathlib.Path:
    """The rows of five of its programs."""
    head, *rows = saved.read_text().splitlines(keepends=True)
    programs = ('osu_allreduce', 'osu_ibarrier', 'osu_mbw_mr', 'osu_hello',
                'osu_cas_latency')
    file = saved.parent / 'few' / 'cloud.csv'
    file.parent.mkdir()
    file.write_text(head + ''.join(row for row in rows if any(
        f',{name},' in row for name in programs)))
    return file


def read(*files) -> pd.DataFrame:
    with parsed.perflogs_of_saved_results(map(str, files), pytest.fail) as folder:
        return records.read(folder)


def test_records_have_all_values_of_the_csv(saved):
    rows = list(csv.DictReader(io.StringIO(saved.read_text())))
    frame = read(saved)
    assert sorted(frame['value']) == sorted(float(row['value']) for row in rows)
    assert set(frame['session']) == {row['file'] for row in rows}
    assert set(frame['system']) == {'cloud'}
    one = frame[(frame['program'] == 'osu_allreduce') & (frame['point'] == 1024)]
    assert set(one['num_nodes']) == {4, 8} and set(one['tasks_per_node']) == {1}


def test_outputs_of_one_file_are_repetitions(tmp_path):
    hello = '# OSU MPI Init Test v5.8\nnprocs: 2, min: 1 ms, max: 9 ms, avg: {} ms\n'
    (tmp_path / 'log').write_text(''.join(hello.format(n) for n in (2, 3, 7)))
    out = io.StringIO()
    parse.convert_output_to_csv('osu', [str(tmp_path / 'log')], out, sys.stderr)
    (tmp_path / 'a.csv').write_text(out.getvalue())
    frame = read(tmp_path / 'a.csv')
    means = frame[frame['metric'] == 'init_time'].set_index('repetition')['value']
    assert means.to_dict() == {1: 2.0, 2: 3.0, 3: 7.0, 0: 3.0}


@pytest.mark.parametrize('change, reason', [
    (lambda text: text.replace('file,output', 'file,number'), ':1: not the CSV'),
    (lambda text: text[:-20], 'cells: is the file cut off?'),
    (lambda text: re.sub('(,latency,.*),us\n', r'\1,ms\n', text),
     "unit 'ms' of latency is not 'us'"),
    (lambda text: text.replace(',wall_time,', ',latency,'), "unit 's' of latency"),
    (lambda text: text.replace(',wall_time,', '8,wall_time,'), 'has no size'),
    (lambda text: text.replace(',2,2,', ',2,two,'), "num_tasks 'two'"),
    (lambda text: text.partition('\n')[0] + '\n', 'no values'),
    (lambda text: '', 'not the CSV'),
    (lambda text: text.replace(',latency,', ',latency,x'), 'could not convert'),
    (lambda text: re.sub(',latency,[^,]*', ',latency,inf', text), 'not a finite'),
])
def test_other_csv_is_refused(few, tmp_path, capsys, change, reason):
    file = tmp_path / 'bad.csv'
    file.write_text(change(few.read_text()))
    for command in (lambda: plot.main(['--from', str(file)]),
                    lambda: compare.main(['a', 'b', '--from', str(file)]),
                    lambda: sql.main(['FROM results', '--from', str(file)])):
        assert command() == 2
        out, err = capsys.readouterr()
        assert str(file) in err and reason in err and not out


def test_metrics_that_no_family_defines_are_reported(few, tmp_path):
    file = tmp_path / 'more.csv'
    file.write_text(few.read_text().replace(',wall_time,', ',wall_tme,'))
    messages = []
    with parsed.perflogs_of_saved_results([str(file)], messages.append):
        pass
    assert len(messages) == 1 and 'wall_tme is not a metric' in messages[0]


@pytest.mark.parametrize('time', ['yesterday', '2026-01-02T03:04:05', ''])
def test_a_time_without_a_zone_is_refused(few, tmp_path, time):
    text = re.sub(r',\d+,2[^,]*Z,', f',1,{time},', few.read_text(), count=1)
    (tmp_path / 'bad.csv').write_text(text)
    with pytest.raises(ValueError, match='bad.csv:2: '):
        read(tmp_path / 'bad.csv')


def test_a_saved_result_has_the_time_of_its_file(tmp_path):
    log = tmp_path / 'log'
    log.write_text('# OSU MPI Init Test v5.8\nnprocs: 2, min: 1 ms, max: 9 ms, '
                   'avg: 2 ms\n')
    os.utime(log, (86400 * 365, 86400 * 365))
    with open(tmp_path / 'a.csv', 'w') as out:
        parse.convert_output_to_csv('osu', [str(log)], out, sys.stderr)
    assert set(read(tmp_path / 'a.csv')['time'].dt.strftime('%Y-%m-%d')) == {
        '1971-01-01'}


#: Family -> metric, parameters of the check in its perflogs, and of another test case.
OWN = {
    'osu': ('latency', 'program=osu_allgather layout=4xone buffers=host',
            'program=osu_allgather layout=2xone buffers=host'),
    'nccl': ('busbw', 'gpus=2 nodes=1 program=all_reduce_perf',
             'gpus=4 nodes=1 program=all_reduce_perf'),
    'keyvalue': ('operations', 'store=redis operation=get payload=64 pipeline=1 '
                 'connections=10 threads=1 persistence=off generator=plumbload',
                 'store=redis operation=get payload=64 pipeline=16 '
                 'connections=10 threads=1 persistence=off generator=plumbload'),
    'taobench': ('total_qps', 'job=autoscale program=tao_server scale=small '
                 'client_nodes=2', 'job=custom program=tao_server scale=small '
                 'client_nodes=2'),
    'optcast': ('busbw', 'type=optcast data_type=f32 clients=4 servers=4 '
                'client_nodes=4 scale=original', 'type=optcast data_type=f32 clients=4 '
                'servers=2 client_nodes=4 scale=original'),
    'smartredis': ('put_tensor', 'db=redis deployment=standard db_nodes=1 db_cpus=1 '
                   'client_nodes=2 clients_per_node=1 iterations=100 network=',
                   'db=redis deployment=standard db_nodes=3 db_cpus=1 '
                   'client_nodes=2 clients_per_node=1 iterations=100 network=')}
RUN_CFG = """[run]
date = 2023-07-05 21:26:18
db = redis-server
[attributes]
colocated = 0
client_nodes = 2
client_per_node = 1
client_total = 2
database_nodes = 1
tensor_bytes = 1024
"""


def saved_text(family, folder):
    """A text or folder that a program of the family wrote, with its configuration."""
    golden = ROOT / 'tests' / family / 'golden'
    if family == 'nccl':
        return golden / 'formats' / 'all_reduce.json'
    file = folder / 'saved'
    if family == 'osu':
        file.write_text('$ mpirun -np 4 -map-by ppr:1:node osu_allgather\n'
                        + (golden / '7.2' / 'osu_allgather.txt').read_text())
    elif family == 'keyvalue':
        file.write_text('$ memtier_benchmark -t 1 -c 10 -d 64 --ratio 0:1\n'
                        + (golden / 'memtier-2.3.0.get.txt').read_text())
    elif family == 'taobench':
        file.write_text(json.dumps({
            'benchmark_name': 'tao_bench_autoscale', 'timestamp': 1688592378,
            'benchmark_args': ['--num-clients', '2'], 'metrics': {
                'fast_qps': 900.0, 'slow_qps': 100.0, 'total_qps': 1000.0,
                'hit_ratio': 0.9, 'num_data_points': 62}}, indent=1))
    elif family == 'optcast':
        return golden / 'eval_run3.txt'
    else:
        file.mkdir()
        (file / 'run.cfg').write_text(RUN_CFG)
        for rank in range(2):
            (file / f'rank_{rank}_timing.csv').write_text(''.join(
                f'{rank},{function},0.1\n' for function in (
                    'client()', 'put_tensor', 'unpack_tensor', 'loop_time', 'main()')))
    return file


def parsed_csv(family, *files):
    out, err = io.StringIO(), io.StringIO()
    assert parse.convert_output_to_csv(family, map(str, files), out, err) == 0
    return out.getvalue()


@pytest.mark.parametrize('family', OWN)
def test_a_perflog_and_a_saved_text_have_a_metric_in_common(family, tmp_path, capsys):
    """Of the same configuration: other test cases of the perflog are not mixed in."""
    text = parsed_csv(family, saved_text(family, tmp_path))
    (tmp_path / 'study.csv').write_text(text)
    metric, *params = OWN[family]
    one = next(row for row in csv.DictReader(io.StringIO(text))
               if row['metric'] == metric)
    perflogs_factory.write(tmp_path / 'perflogs', [perflogs_factory.record(
        metric, float(one['value']) * factor, int(one['size']) if one['size'] else None,
        unit=one['unit'], family=family, check='Check', params=text, system='mine',
        program=one['program'] if family in ('nccl', 'optcast', 'osu') else 'another',
        environ='mine', partition='mine') for factor, text in enumerate(params, 1)])
    words = ['study', '--from', str(tmp_path / 'study.csv'), '--perflogs',
             str(tmp_path / 'perflogs'), '--json', '-']
    assert compare.main(['mine', *words]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)
            if row['metric'] == metric and row['a'] and row['b']]
    assert [(row['ratio'], row['runs_a'], row['runs_b']) for row in rows] == [
        (pytest.approx(1), 1, 1)]


@pytest.mark.parametrize('family, time', [
    ('nccl', '2026-11-21T00:31:02Z'), ('taobench', '2023-07-05T21:26:18Z'),
    ('smartredis', '2023-07-05T21:26:18Z')])
def test_a_saved_result_has_the_time_of_its_text(family, time, tmp_path):
    rows = csv.DictReader(io.StringIO(
        parsed_csv(family, saved_text(family, tmp_path))))
    assert {row['time'] for row in rows} == {time}


def test_logs_of_optcast_have_the_time_of_their_first_line(tmp_path):
    folder = ROOT / 'tests' / 'optcast' / 'golden'
    text = parsed_csv('optcast', folder / 'run_nogpu_2x2.txt')
    assert {row['time'] for row in csv.DictReader(io.StringIO(text))} == {
        '2026-11-21T00:23:38Z'}
    for file in (folder / 'nogpu').iterdir():
        data = file.read_bytes()
        (tmp_path / file.name.removesuffix('.gz')).write_bytes(
            gzip.decompress(data) if file.suffix == '.gz' else data)
    rows = [*csv.DictReader(io.StringIO(parsed_csv('optcast', tmp_path)))]
    assert {(row['time'], row['params']) for row in rows} == {
        ('2026-11-21T00:22:33Z', 'type=optcast data_type=f32 clients=2 servers=2')}


def test_saved_results_are_added_to_the_perflogs(few, tmp_path, capsys):
    """Those of `plumb parse` and those of `plumb export`."""
    perflogs = tmp_path / 'perflogs'
    perflogs_factory.write(perflogs, perflogs_factory.site(
        3, 1, days=[0, 1], sizes=(8,)))
    before = records.read(perflogs)
    assert export.main(['--perflogs', str(perflogs), '--parquet',
                        str(tmp_path / 'own.parquet')]) == 0
    count = ['SELECT system, count(*) FROM results GROUP BY ALL ORDER BY 1']
    for files, folder in (([few], perflogs),
                          ([few, tmp_path / 'own.parquet'], tmp_path / 'none')):
        assert sql.main([*count, '--perflogs', str(folder), '--csv', '-', '--from',
                         *map(str, files)]) == 0
        counts = dict(line.split(',') for line in capsys.readouterr().out.split()[1:])
        assert counts.keys() == {'cloud', *before['system'].unique()}
        for system, rows in before.groupby('system', observed=True):
            assert int(counts[system]) == (
                rows['metric'] != 'completed').sum() + (
                    folder == perflogs) * (rows['metric'] == 'completed').sum()


def test_another_parquet_file_is_refused(tmp_path):
    file = tmp_path / 'x.parquet'
    file.write_text('no parquet')
    with pytest.raises(ValueError, match='x.parquet: not a Parquet file'):
        read(file)
    duckdb.sql('SELECT 1 AS one').write_parquet(str(file))
    with pytest.raises(ValueError, match='has no column time'):
        read(file)


def test_two_files_of_one_name_are_refused(few):
    with pytest.raises(ValueError, match='also called cloud'):
        read(few, few)


def test_the_figures_of_the_study(saved, tmp_path, capsys, monkeypatch):
    """The plots are made and not rendered, because no assertion reads the files."""
    monkeypatch.setattr(plot.svg, 'render', lambda *_: b'')
    code = plot.main([str(ROOT / 'checks' / 'osu' / 'study.yaml'), '--from',
                      str(saved), '--output', str(tmp_path)])
    assert (code, capsys.readouterr().err) == (0, '')
    names = {file.stem for file in tmp_path.glob('*.svg')}
    assert {'osu_latency-wall_time-boxes-allocated_nodes',
            'osu_barrier-latency-boxes-allocated_nodes',
            'osu_init-init_time-boxes-allocated_nodes',
            'osu_ibarrier-overlap-boxes-allocated_nodes',
            'allocated_nodes-latency-osu_allgather-curve',
            'allocated_nodes-bandwidth-osu_put_bibw-curve',
            'allocated_nodes-message_rate-curve',
            *(f'allocated_nodes-latency-osu_{program}_latency-boxes-size'
              for program in ('acc', 'cas', 'fop'))} <= names
    assert sum(name.endswith('wall_time-boxes-allocated_nodes') for name in names) == 22
    for size in ('8-B', '1-KiB', '1-MiB'):
        assert any(f'latency-scaling-allocated_nodes-at-{size}' in n for n in names)
    for metric in ('overall_time', 'compute_time', 'pure_comm_time', 'overlap'):
        assert any(f'{metric}-scaling-allocated_nodes' in n for n in names)


def test_plots_of_the_page_without_a_file(few, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'stdin', io.StringIO(few.read_text()))
    assert plot.main(['--from', '-', '--output', str(tmp_path)]) == 0
    names = {file.stem for file in tmp_path.glob('*.svg')}
    for part in ('Collectives-by-node-count', 'Non-blocking-collectives-by-node-count',
                 'Pairs-at-once', 'wall_time'):
        assert any(part in name for name in names), part


def test_two_files_are_compared_by_name(few, tmp_path, capsys):
    slow = tmp_path / 'slow.csv'
    rows = list(csv.DictReader(io.StringIO(few.read_text())))
    for row in rows:
        if row['metric'] == 'latency':
            row['value'] = str(2 * float(row['value']))
    with open(slow, 'w', newline='') as out:
        writer = csv.DictWriter(out, PARSED)
        writer.writeheader()
        writer.writerows(rows)
    code = compare.main(['cloud', 'slow', '--from', str(few), str(slow), '--json',
                         '-'])
    assert code == 0
    ratios = {row['ratio'] for row in json.loads(capsys.readouterr().out)
              if row['metric'] == 'latency'}
    assert all(ratio == pytest.approx(2) for ratio in ratios) and ratios


def test_sql_has_means_and_medians_of_saved_results(few, capsys):
    """As the how-to has it."""
    assert sql.main([STATISTICS, '--from', str(few), '--csv', '-']) == 0
    groups = pd.read_csv(io.StringIO(capsys.readouterr().out))
    rows = [row for row in csv.DictReader(io.StringIO(few.read_text()))
            if (row['program'], row['metric']) == ('osu_hello', 'wall_time')
            and row['num_nodes'] == '8']
    values = [float(row['value']) for row in rows]
    [group] = groups[(groups['program'] == 'osu_hello') & (groups['num_nodes'] == 8)
                     & (groups['metric'] == 'wall_time')].to_dict('records')
    assert len(set(values)) == 3
    assert group['count'] == 3
    assert group['mean'] == pytest.approx(statistics.mean(values))
    assert group['median'] == statistics.median(values)
    assert (group['minimum'], group['maximum']) == (min(values), max(values))


def test_tests_and_connections_of_load_generators_are_test_cases(tmp_path, capsys):
    """They differ in operation and connections; a prefix of the pod is removed."""
    golden = ROOT / 'tests' / 'keyvalue' / 'golden'
    text = (golden / 'memtier-2.3.0.get.txt').read_text()
    pod = tmp_path / 'pod.txt'
    pod.write_text(''.join(
        f'[pod/a-{number % 3}] {line}' for number, line in enumerate(
            re.sub(r'(?m)^\d+( +Connections)', r'50\1', text).splitlines(True))))
    out, err = io.StringIO(), io.StringIO()
    public = ROOT / 'tests' / 'data' / 'public' / 'keyvalue' / 'k10-set-get.csv'
    files = [golden / 'memtier-2.3.0.get.txt', pod, public]
    assert parse.convert_output_to_csv('keyvalue', map(str, files), out, err) == 0, err
    (tmp_path / 'mine.csv').write_text(out.getvalue())
    assert sql.main(["SELECT DISTINCT program, params FROM results WHERE metric = "
                     "'operations' ORDER BY ALL", '--from', str(tmp_path / 'mine.csv'),
                     '--csv', '-']) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        'memtier_benchmark,connections=10 operation=get',
        'memtier_benchmark,connections=50 operation=get',
        'redis-benchmark,operation=get', 'redis-benchmark,operation=lpush',
        'redis-benchmark,operation=set']
