"""Cells found all at once are those of lines that are split one by one."""
from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

np = pytest.importorskip('numpy')
sys.path.insert(0, str(Path(__file__).parent / 'data'))

import perflogs_factory as make  # noqa: E402

from postprocess import (  # noqa: E402
    cells,
    formats,
    ingest,
    perflogs,
    store,
)

WORDS = ['', 'a', 'Bench %n=1', 'ä µs', '1.5', '-2e3', 'None', 'x' * 40]


@pytest.fixture(autouse=True, params=[2, cells.MANY],
                ids=['texts in polars', 'texts in Python'])
def all_at_once(monkeypatch, request):
    """However few the lines are."""
    monkeypatch.setattr(cells, 'MANY', request.param)
    monkeypatch.setattr(ingest, 'FOREIGN_LEAST', 0)
    monkeypatch.setattr(ingest, 'WORTH_IMPORT', 0)


def both(rows: list[list[str]]) -> tuple[cells.Table, cells.Rows]:
    data = ''.join('|'.join(row) + '\n' for row in rows).encode()
    return (cells.Table(data, b'|', len(rows[0]), range(len(rows[0])),
                        [len(rows[0]) - 1]),
            cells.Rows(rows))


@pytest.mark.parametrize('seed', range(20))
def test_all_at_once_or_one_by_one(seed):
    rng = random.Random(seed)
    pools = [rng.sample(WORDS, rng.randint(1, len(WORDS))) for _ in range(5)]
    numbers = [repr(rng.gauss(0, 1e6)) for _ in range(50)]
    rows = [[*(rng.choice(pool) for pool in pools), number]
            for number in numbers]
    grid, plain = both(rows)
    assert grid.size == plain.size == 50
    for at in range(5):
        (texts, codes), (others, more) = grid.column(at), plain.column(at)
        assert (list(texts), codes.tolist()) == (others, more.tolist())
        assert [texts[code] for code in codes] == [row[at] for row in rows]
    assert grid.numbers(5).tolist() == plain.numbers(5).tolist() == [
        float(number) for number in numbers]


@pytest.mark.parametrize('text', ['nan', 'inf', '1e999', '1_0', '٣', '0x1',
                                  '1\x00', '-', '1.2.3', 'null'])
def test_what_is_no_finite_number(text):
    for columns in both([['1', '2'], ['3', text]]):
        assert columns.numbers(1) is None
        assert list(columns.column(1)[0]) == ['2', text]


def test_an_empty_cell_is_no_number():
    table, rows = both([['1', '2'], ['3', '']])
    assert rows.numbers(1) is None
    assert [value == value for value in table.numbers(1)] == [True, False]


@pytest.mark.parametrize('asked', [[], [0]])
@pytest.mark.parametrize('figures', [[], [1]])
@pytest.mark.parametrize('data', [
    b'a|1\nc\n', b'a|b\nc\n', b'a|b|c\nd\n', b'a|b\nc|d|e\n',
    b'a\n\nb|c|d\n', b'\n'])
def test_lines_of_several_lengths(data, figures, asked):
    with pytest.raises(ValueError):
        cells.Table(data, b'|', 2, asked, figures)


HEADER = 'job_completion_time|display_name|a_value|a_unit|a_ref|a_lower_thres'


@pytest.mark.parametrize('lines', [
    [], ['x'], ['2026-11-01T03:00:00|B %n=1|nan|us|1|-0.1'],
    ['2026-11-01T03:00:00|B %n=1|None|us|1|-0.1'],
    ['2026-11-01T03:00:00|B ä %n=1| 7 |µs|null|None '],
    ['2026-11-01T03:00:00|B \ufffd|7|us||'],
    ['2026-13-01T03:00:00|B %n=1|7|us|1|-0.1'],
    ['2026-11-01T03:00:00+01:00|B %n=1|7|us|1|-0.1|\r'],
    ['2026-11-01T03:00:00|B %n=1|7|us|1|-0.1\r'],
])
def test_foreign_lines_are_read_alike(tmp_path, monkeypatch, lines):
    """Good lines beside one that needs a look: the same both ways."""
    good = [f'2026-11-01T03:{n:02}:00|B %n={n % 3}|{n / 7}|us|1|-0.1'
            for n in range(30)]
    file = tmp_path / 'B.log'
    file.write_bytes('\n'.join([HEADER, *good[:9], *lines, *good[9:], '']
                               ).encode())
    frame, faults = perflogs.read(file, on_error='collect')

    def refused(*_):
        raise ValueError

    monkeypatch.setattr(cells, 'Table', refused)
    other, told = perflogs.read(file, on_error='collect')
    assert frame.to_csv() == other.to_csv()
    assert list(map(str, faults)) == list(map(str, told))
    assert len(frame) >= 30


@pytest.mark.parametrize('change', [
    {}, {'stack': 'a, "b"'}, {'guard': 'x, "y"'}, {'guard': 'a,b'},
    {'nodes': 'n1,n2', 'value': float('nan')}, {'value': 1e999},
    {'reference': '1.5', 'lower': '-0.1'}, {'reference': 'x'},
    {'unit': 'ms'}, {'params': 'ä=1'}, {'result': 'good'},
    {'time': '2026-11-01T03:00:00+01:00'}, {'time': '2026-02-30T03:00:00Z'}])
def test_our_lines_are_read_alike(tmp_path, monkeypatch, change):
    [file] = make.write(tmp_path, [
        make.record('latency', size=2 ** (n % 9), day=n,
                    **{'value': n / 7} | (change if n == 9 else {}))
        for n in range(30)])
    frame, faults = perflogs.read(file, on_error='collect')
    monkeypatch.setattr(ingest.records, 'quick', lambda *_: None)
    other, told = perflogs.read(file, on_error='collect')
    assert frame.to_csv() == other.to_csv()
    assert list(map(str, faults)) == list(map(str, told))
    assert len(frame) >= 29


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A file after its header, with some bytes gone, new or others."""
    head, _, rest = data.partition(b'\n')
    found = bytearray(rest)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(found))
        piece = rng.choice([
            b'|', b',', b'\n', b'', b'"', b'\r', b'\0', b' ', b'-', b'9', b'e',
            b'nan', b'None', 'ä'.encode(), b'\xff', b'x' * 70, b'\n\n',
            found[at:at + rng.randrange(90)]])
        found[at:at + rng.choice([0, 1, len(piece)])] = piece
    return head + b'\n' + bytes(found)


def read_both_ways(file: Path, monkeypatch, slow) -> None:
    """At once, and cell by cell: the same records, the same faults."""
    frame, faults = perflogs.read(file, on_error='collect')
    with monkeypatch.context() as patch:
        slow(patch)
        other, told = perflogs.read(file, on_error='collect')
    assert frame.to_csv() == other.to_csv()
    assert list(map(str, faults)) == list(map(str, told))
    lines = file.read_bytes().count(b'\n') - 1
    assert len(frame) <= lines and (faults or len(frame) == lines)


def refused(*_):
    raise ValueError


@pytest.mark.parametrize('seed', range(12))
def test_mutated_files_are_read_alike(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    theirs, ours = tmp_path / 'B.log', make.write(tmp_path, [
        make.record('latency', n / 7, 2 ** (n % 9), day=n // 9, stack='a, "b"')
        for n in range(40)])[0]
    theirs.write_text(HEADER + '|jobid|spack_spec\n' + ''.join(
        f'2026-11-{n // 9 + 1:02}T03:{n:02}:00|B %n={n % 3}|{n / 7}|us|1|-0.1|'
        f'{n * 11}|b@1.{n % 2}\n' for n in range(40)))
    for file, slow in (
            (theirs, lambda patch: patch.setattr(cells, 'Table', refused)),
            (ours, lambda patch: patch.setattr(
                ingest.records, 'quick', lambda *_: None))):
        whole = file.read_bytes()
        read_both_ways(file, monkeypatch, slow)
        for _ in range(3):
            file.write_bytes(mutated(rng, whole))
            read_both_ways(file, monkeypatch, slow)


def test_cells_of_one_key(monkeypatch):
    """Cells longer than a number are never taken for one another."""
    monkeypatch.setattr(cells, '_MIX', np.uint64(0))    # only the end counts
    texts = [*(f'{n:09}ab' for n in range(99)), 'x' * 8 + '000ab']
    lines = cells.Lines(''.join(f'{text},1\n' for text in texts).encode(),
                        b',')
    found, codes = lines.coded(lines.begins(), lines.ends[::2])
    assert [found[code] for code in codes] == texts


def test_a_piece_at_a_time(tmp_path, monkeypatch):
    """Pieces end inside of lines, and of cases."""
    [file] = make.write(tmp_path, [make.record(day=n) for n in range(50)])
    whole = perflogs.read(file)
    monkeypatch.setattr(ingest._Ours, 'piece', 777)
    assert perflogs.read(file).to_csv() == whole.to_csv()
    theirs = tmp_path / 'B.log'
    theirs.write_text(HEADER + '\n' + ''.join(
        f'2026-11-01T03:{n:02}:00|B %n={n % 3}|{n / 7}|us|1|-0.1\n'
        for n in range(50)))
    whole = perflogs.read(theirs)
    monkeypatch.setattr(ingest._Foreign, 'piece', 777)
    assert perflogs.read(theirs).to_csv() == whole.to_csv()


def test_programs_of_one_name(tmp_path):
    """Two versions of a program: its name is one text."""
    file = tmp_path / 'B.log'
    file.write_text('job_completion_time|display_name|a_value|spack_spec\n'
                    + ''.join(f'2026-11-01T03:00:0{n}|B|1|b@{n}.0\n'
                              for n in range(3)))
    frame = perflogs.read(file)
    assert frame['program'].tolist() == ['b'] * 3
    assert frame['version'].tolist() == ['0.0', '1.0', '2.0']
    assert frame['format'].iloc[0] == formats.EXCALIBUR


@pytest.mark.parametrize('small', [0, store.SMALL])
@pytest.mark.parametrize('files', [1, 3])
def test_a_store_of_theirs(tmp_path, monkeypatch, files, small):
    """Small or not, of one piece or of several that share texts."""
    for file in range(files):
        (tmp_path / f'B{file}.log').write_text(HEADER + '|jobid\n' + ''.join(
            f'2026-11-01T03:{n:02}:00|B %n={n % 3}|{n / 7}|us|1|-0.1|'
            f'{n * file}\n' for n in range(50)))
    plain = perflogs.read(sorted(tmp_path.iterdir()))
    monkeypatch.setattr(store, 'SMALL', small)
    kept = store.read(tmp_path, pytest.fail)
    assert perflogs.frame(kept).to_csv() == plain.to_csv()
    assert len(plain) == 50 * files
