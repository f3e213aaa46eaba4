"""Output of tensorload: real, broken, and what is made of it."""
from __future__ import annotations

import re

import pytest

from checks.lib.parsers import ParseError
from checks.smartredis import parser
from config import families
from tests.conftest import ROOT

GOLDEN = ROOT / 'tests' / 'smartredis' / 'golden'
TEXTS = {path.name: path.read_text() for path in sorted(GOLDEN.glob('*.txt'))}
THROUGHPUT = TEXTS['throughput-redis-7.0.15-4-ranks.txt']


@pytest.mark.parametrize('name', TEXTS)
def test_real_output(name):
    records = parser.parse(TEXTS[name])
    keys = [(r.size, r.metric) for r in records]
    assert len(keys) == len(set(keys)), 'a figure stands twice'
    known = families.metrics()
    lines = TEXTS[name].splitlines()
    for record in records:
        assert known[record.metric]['unit'] == record.unit
        first = lines[record.line - 1].split()[0]
        assert first == '#' or first.removesuffix('()') in (
            *record.metric.split('_p99'), 'client')


def test_figures_of_a_real_run():
    found = {(r.size, r.metric): r.value for r in parser.parse(THROUGHPUT)}
    assert found[65536, 'bandwidth'] == 717.910275
    assert found[65536, 'one_way_bandwidth'] == 717.910275 / 2
    assert found[1024, 'put_tensor'] == pytest.approx(62.394)
    assert found[1024, 'unpack_tensor_p99'] == pytest.approx(109.134)
    assert found[1024000, 'loop_time'] == pytest.approx(0.828557685)
    assert found[1024, 'client_time'] == pytest.approx(8.750677)
    assert {r.program for r in parser.parse(THROUGHPUT)} == {'tensorload'}


def test_what_is_moved_agrees_with_the_loops():
    # Four ranks; each moved twice its bytes in its own time, between the
    # fastest and the slowest.
    for run in parser.read(THROUGHPUT):
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
     'no times of'),
    (r'put_tensor( +400 +)0.000027490', r'put_tensor\g<1>0.900027490',
     'not in order'),
    (r'(unpack_tensor .*\n)', r'\1\1', 'stands twice'),
    ('# end\n', '# end\nrank 3 says hello\n', 'expected a line "# tensor'),
    (r'# moved \S+', '# moved nan', 'expected a line "# moved'),
])
def test_a_changed_line_is_refused(old, new, reason):
    text, count = re.subn(old, new, THROUGHPUT, count=1)
    assert count
    with pytest.raises(ParseError, match=reason):
        parser.parse(text)


def test_nothing_is_no_output():
    with pytest.raises(ParseError, match='no output of tensorload'):
        parser.parse('\n')


def test_the_dip_is_seen():
    straight = {size: float(size) ** 0.5 for size in (
        32768, 65536, 131072, 262144)}
    assert parser.dip(straight) == pytest.approx(1)
    assert parser.dip({**straight, 65536: straight[65536] / 2}
                      ) == pytest.approx(0.5)
    # Beside a dip its neighbour stands out; only the smallest counts.
    assert parser.dip({**straight, 1024: 1.0, 131072: straight[131072] * 0.9}
                      ) == pytest.approx(0.9)
    assert parser.dip({1024: 1.0, 65536: 2.0}) is None
