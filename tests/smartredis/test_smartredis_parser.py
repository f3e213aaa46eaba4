"""Output of tensorload: real, broken, and what is made of it."""
from __future__ import annotations

import csv
import io
import re

import pytest

from checks.core.parsers import ParseError
from checks.smartredis import parser
from cli.session.parse import convert_output_to_csv
from config import families
from tests.conftest import ROOT

GOLDEN = ROOT / 'tests' / 'smartredis' / 'golden'
TEXTS = {path.name: path.read_text() for path in sorted(GOLDEN.glob('*.txt'))}
THROUGHPUT = TEXTS['throughput-redis-7.0.15-4-ranks.txt']


@pytest.mark.parametrize('name', TEXTS)
def test_real_output(name):
    records = parser.parse(TEXTS[name])
    keys = [(r.size, r.metric) for r in records]
    assert len(keys) == len(set(keys)), 'a value stands twice'
    known = families.all_metrics()
    lines = TEXTS[name].splitlines()
    for record in records:
        assert known[record.metric]['unit'] == record.unit
        first = lines[record.line - 1].split()[0]
        assert first == '#' or first.removesuffix('()') in (
            *record.metric.split('_p99'), 'client', 'warmup')


def test_values_of_a_real_run():
    result = {(r.size, r.metric): r.value for r in parser.parse(THROUGHPUT)}
    assert result[65536, 'bandwidth'] == 403.859686
    assert result[65536, 'one_way_bandwidth'] == 403.859686 / 2
    assert result[1024, 'put_tensor'] == pytest.approx(204.319)
    assert result[1024, 'unpack_tensor_p99'] == pytest.approx(1311.212)
    assert result[1024000, 'loop_time'] == pytest.approx(2.062181500)
    assert result[1024, 'client_time'] == pytest.approx(3.651989)
    assert {r.program for r in parser.parse(THROUGHPUT)} == {'tensorload'}
    result = {r.metric: r.value for r in parser.parse(
        TEXTS['inference-redis-7.0.15.txt'])}
    assert result['inference_rate'] == 11.992489
    assert result['run_model'] == pytest.approx(177.615557)


def test_what_is_moved_agrees_with_the_loops():
    # Four ranks; each moved twice its bytes in its own time, between the
    # fastest and the slowest.
    for run in parser.parse_runs(THROUGHPUT):
        loop = run.functions['loop_time']
        moved = 2 * run.bytes * run.iterations * run.ranks / 1e6
        assert moved / loop.max <= run.moved <= moved / loop.min


LINES = THROUGHPUT.splitlines(keepends=True)


@pytest.mark.parametrize('number', range(len(LINES)))
def test_a_missing_or_cut_line_is_refused(number):
    without = LINES[:number] + LINES[number + 1:]
    with pytest.raises(ParseError):
        parser.parse(''.join(without))
    cut = LINES[:number] + [LINES[number][:len(LINES[number]) // 2]]
    with pytest.raises(ParseError):
        parser.parse(''.join(cut))


@pytest.mark.parametrize('old, new, reason', [
    ('put_tensor             400', 'put_tensor             4x0',
     'the times of .* are missing'),
    (r'put_tensor( +400 +)0.000024623', r'put_tensor\g<1>0.900024623',
     'are not in ascending order'),
    (r'(unpack_tensor .*\n)', r'\1\1', 'occurs twice'),
    ('# end\n', '# end\nrank 3 says hello\n', 'expected a line "# tensor'),
    (r'# moved \S+', '# moved nan', 'expected a line "# moved'),
])
def test_a_changed_line_is_refused(old, new, reason):
    text, count = re.subn(old, new, THROUGHPUT, count=1)
    assert count
    with pytest.raises(ParseError, match=reason):
        parser.parse(text)


def test_nothing_is_no_output():
    with pytest.raises(ParseError, match='has no output of tensorload'):
        parser.parse('\n')


def test_the_dip_is_seen():
    straight = {size: float(size) ** 0.5 for size in (
        32768, 65536, 131072, 262144)}
    assert parser.bandwidth_dip_ratio(straight) == pytest.approx(1)
    assert parser.bandwidth_dip_ratio({**straight, 65536: straight[65536] / 2}
                      ) == pytest.approx(0.5)
    # Beside a dip its neighbour stands out; only the smallest counts.
    assert parser.bandwidth_dip_ratio(
        {**straight, 1024: 1.0, 131072: straight[131072] * 0.9}
    ) == pytest.approx(0.9)
    assert parser.bandwidth_dip_ratio({1024: 1.0, 65536: 2.0}) is None


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


def test_the_size_may_be_in_the_name(tmp_path):
    session(tmp_path / 'x-TB4096-y', cfg='[run]\n')
    assert {row['size'] for row in parsed(tmp_path)[1]} == {'4096'}


def test_a_real_run_is_read_as_its_own_output(tmp_path):
    session(tmp_path / 'inference', [('put_tensor', 1), ('run_model', 2),
                                     ('loop_time', 3)], cfg='[run]\n')
    code, rows, _ = parsed(tmp_path)
    assert code == 0
    assert {row['metric']: row['value'] for row in rows}['run_model'] == '2000'


@pytest.mark.parametrize('rows, words', [
    ([('put_tensor', 'nan')], "rank_0_timing.csv:1: 'nan' is not a time"),
    ([('put_tensor', -1)], "'-1' is not a time"),
    ([('put_tensor', '1,2')], 'expected 0,FUNCTION,SECONDS'),
    ([('main()', 1)], 'none of the functions')])
def test_a_broken_folder_is_refused(tmp_path, rows, words):
    session(tmp_path / 'x', rows)
    code, result, err = parsed(tmp_path)
    assert code == 1 and not result and words in err
    assert len(err.splitlines()) == 1


def test_a_folder_without_sessions_is_refused(tmp_path):
    assert 'no rank_N_timing.csv' in parsed(tmp_path)[2]
