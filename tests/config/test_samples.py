"""Raw samples beside perflogs: written within limits, read strictly."""
from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip('pandas')
import perflogs_factory as make

from config.records import samples
from config.records.samples import Sample
from postprocess import records
from postprocess.records import attached
from postprocess.records import samples as reader

HEAD = ','.join(samples.COLUMNS)
GOOD = '0,MPI_Send,0,,5e-06,1'


def read(tmp_path: Path, text: str) -> tuple[list[tuple], list[str]]:
    """Rows and faults of a file with this text."""
    file = tmp_path / samples.file_name('c0ffee00')
    file.write_text(text)
    faults: list = []
    frame = reader.read_samples_file(file, faults)
    return list(frame.itertuples(index=False, name=None)), [
        str(fault).removeprefix(f'{file}:') for fault in faults]


def test_what_is_written_is_read(tmp_path):
    rows, faults = read(tmp_path, samples.samples_as_csv([
        Sample(1, 'MPI_Send', 0, 5.25e-6), Sample(0, 'step', 1, 0.0, 12.5),
        Sample(0, 'step', 0, 0.125, 0.0)]))
    assert not faults
    assert rows[:2] == [(0, 'step', 0, 0.0, 0.125, 1),
                        (0, 'step', 1, 12.5, 0.0, 1)]
    assert rows[2][:3] == (1, 'MPI_Send', 0) and math.isnan(rows[2][3])
    assert rows[2][4:] == (5.25e-6, 1)


@pytest.mark.parametrize(('ranks', 'iterations', 'maximum', 'every'), [
    (1, 101, 100, 2),
    # Each rank keeps one at least: one in three would be two of each.
    (10, 4, 19, 4)])
def test_a_file_is_bounded(tmp_path, monkeypatch, ranks, iterations, maximum,
                           every):
    monkeypatch.setattr(samples, 'MAXIMUM', maximum)
    rows, faults = read(tmp_path, samples.samples_as_csv(
        Sample(rank, 'call', n, 1e-6 * n)
        for rank in range(ranks) for n in range(iterations)))
    assert not faults and len(rows) <= maximum
    assert {row[5] for row in rows} == {every}
    for rank in range(ranks):
        assert [row[2] for row in rows if row[0] == rank] == list(
            range(0, iterations, every))


def test_more_ranks_than_rows_are_refused(monkeypatch):
    monkeypatch.setattr(samples, 'MAXIMUM', 3)
    with pytest.raises(ValueError,
                       match='4 pairs of rank and call, but at most 3'):
        samples.samples_as_csv(Sample(rank, 'call', 0, 1.0) for rank in range(4))


@pytest.mark.parametrize(('bad', 'reason'), [
    ('-1,a,0,,1,1', "rank '-1' is not a whole number"),
    ('0,a b,0,,1,1', "call 'a b' is not the name of a function"),
    ('0,a,0,-1,1,1', "start '-1' is less than 0"),
    ('0,a,0,,nan,1', "seconds 'nan' is not a finite number"),
    ('0,a,0,,1,0', "every is 0; it must be 1 or more")])
def test_a_file_with_a_bad_row_is_refused(tmp_path, bad, reason):
    """tests/postprocess/test_series.py has the other ways to be damaged."""
    rows, [fault] = read(tmp_path, f'{HEAD}\n{GOOD}\n{bad}\n')
    assert not rows and fault.startswith(f'3: cannot be read ({reason}')


def test_the_newest_sessions_of_a_test_case_keep_theirs(tmp_path):
    sessions = [f'202611{day:02}T030000Z-aaaaaa' for day in range(1, 9)]
    for session in sessions:
        for test_case in ('c0ffee00', 'beef0000'):
            if test_case == 'beef0000' and session != sessions[0]:
                continue
            for copy in '12':
                folder = tmp_path / session / (test_case + copy)
                folder.mkdir(parents=True)
                (folder / samples.file_name(test_case)).write_text(f'{HEAD}\n{GOOD}\n')
                (folder / 'invalid.txt').write_text('why\n')
    for test_case in ('c0ffee00', 'beef0000'):
        samples.remove_old_samples(tmp_path, test_case)
    left = {path.parents[1].name for path in tmp_path.glob('*/*/samples-c0ffee00.csv')}
    assert sorted(left) == sessions[-samples.KEPT:]
    # A test case that runs for the first time removes none of others.
    assert len(list(tmp_path.glob('*/*/samples-beef0000.csv'))) == 2
    assert len(list(tmp_path.glob('*/*/invalid.txt'))) == 18


@pytest.mark.parametrize('source', ['report', 'rows', 'log'])
def test_a_record_leads_to_its_samples(tmp_path, source):
    make.write(tmp_path, [make.record() if source != 'log' else make.record(
        'completed', 0.0, guard='transport')], ended=source == 'report')
    [row] = records.read(tmp_path).itertuples()
    faults: list = []
    assert reader.read_samples_of_record(row, faults) is None
    folder = attached.attached_folder(row)
    assert folder.parent.parent == tmp_path / 'files'
    folder.mkdir(parents=True)
    (folder / samples.file_name(row.test_case)).write_text(f'{HEAD}\n{GOOD}\n')
    assert len(reader.read_samples_of_record(row, faults)) == 1 and not faults
    # It is no record of its own.
    assert len(records.read(tmp_path)) == 1
