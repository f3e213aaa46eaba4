"""Raw samples beside perflogs: written within limits, read strictly."""
from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip('pandas')
import perflogs_factory as make

from config.records import samples
from config.records.samples import Sample
from postprocess import perflogs
from postprocess.perflogs import samples as reader

HEAD = ','.join(samples.COLUMNS)
GOOD = '0,MPI_Send,0,,5e-06,1'


def read(tmp_path: Path, text: str) -> tuple[list[tuple], list[str]]:
    """Rows and faults of a file with this text."""
    file = tmp_path / samples.FILE
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
    (1, 100, 100, 1), (1, 101, 100, 2), (4, 1000, 100, 40),
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


@pytest.mark.parametrize('bad', [
    Sample(-1, 'a', 0, 1.0), Sample(0, 'a', -1, 1.0), Sample(0, '', 0, 1.0),
    Sample(0, 'a,b', 0, 1.0), Sample(0, 'a\nb', 0, 1.0),
    Sample(0, 'a', 0, -1.0), Sample(0, 'a', 0, math.nan),
    Sample(0, 'a', 0, math.inf), Sample(0, 'a', 0, 1.0, -1.0)])
def test_what_nobody_could_read_is_not_written(bad):
    with pytest.raises(ValueError):
        samples.samples_as_csv([bad])
    with pytest.raises(ValueError, match='already has this'):
        samples.samples_as_csv([Sample(0, 'a', 0, 1.0)] * 2)


@pytest.mark.parametrize(('text', 'fault'), [
    ('', '1: the file is empty'),
    ('{}\n', '1: the first line is not the header of a file of raw '
     'samples (config/records/samples.py)'),
    (f'{HEAD}\n', '1: the file has no record after the header'),
    (f'{HEAD}\n{GOOD}\n{GOOD[:-4]}', '3: the last line is cut off'),
    (f'{HEAD}\n{GOOD}\n1,a,0,1\n', '3: the line has 4 columns, not 6'),
    (f'{HEAD}\n{GOOD}\n1,"a\n', '3: not a line of CSV'),
    (f'{HEAD}\n{GOOD}\n{GOOD}\n',
     '3: rank 0, call MPI_Send, iteration 0 occurs twice'),
    *[(f'{HEAD}\n{GOOD}\n{bad}\n', f'3: {fault}') for bad, fault in (
        ('x,a,0,,1,1', "rank 'x' is not a whole number"),
        ('-1,a,0,,1,1', "rank '-1' is not a whole number"),
        ('0,a b,0,,1,1', "call 'a b' is not the name of a call"),
        ('0,,0,,1,1', "call '' is not the name of a call"),
        ('0,a,0.5,,1,1', "iteration '0.5' is not a whole number"),
        ('0,a,0,-1,1,1', "start '-1' is less than 0"),
        ('0,a,0,,nan,1', "seconds 'nan' is not a finite number"),
        ('0,a,0,,,1', "seconds '' is not a finite number"),
        ('0,a,0,,1,0', "every '0' is less than 1"),
        ('0,a,0,,1,', "every '' is not a whole number"),
    )]])
def test_a_damaged_file_is_a_fault(tmp_path, text, fault):
    rows, faults = read(tmp_path, text)
    assert len(faults) == 1 and faults[0].startswith(fault), faults
    # What could be read is kept.
    assert len(rows) == (GOOD + '\n' in text)


def test_a_file_that_is_too_long_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, 'MAXIMUM', 2)
    rows, faults = read(tmp_path, samples.samples_as_csv(
        Sample(0, 'a', n, 1.0) for n in range(3)))
    assert len(rows) == 2 and faults[0].startswith('4: 3 samples, but the m')


def test_the_newest_runs_of_a_case_keep_theirs(tmp_path):
    pytest.importorskip('reframe')
    from config.records import perflog
    files = {samples.FILE: f'{HEAD}\n{GOOD}\n', 'invalid.txt': 'why\n'}
    runs = [f'202611{day:02}T030000Z-aaaaaa' for day in range(1, 9)]
    for run in runs:
        for case in ('openmpi-c0ffee00', 'mpich-c0ffee00'):
            perflog.save_attached_files(tmp_path / f'{run}-{case}', files)
    # A case that runs for the first time removes none of others.
    perflog.save_attached_files(tmp_path / f'{runs[0]}-openmpi-beef0000', files)
    for case in ('openmpi-c0ffee00', 'mpich-c0ffee00'):
        assert [run for run in runs if (
            tmp_path / f'{run}-{case}' / samples.FILE).exists()
            ] == runs[-samples.KEPT:]
    assert (tmp_path / f'{runs[0]}-openmpi-beef0000' / samples.FILE).exists()
    assert len(list(tmp_path.glob('*/invalid.txt'))) == 17


def test_a_record_leads_to_its_samples(tmp_path):
    record = make.record()
    make.write(tmp_path, [record])
    [row] = perflogs.read(tmp_path).itertuples()
    faults: list = []
    assert reader.read_samples_of_record(row, faults) is None
    folder = (tmp_path / 'alpha' / 'cpu' / 'osu' /
              f"{record['run']}-{record['environ']}-{record['case']}")
    folder.mkdir(parents=True)
    (folder / samples.FILE).write_text(f'{HEAD}\n{GOOD}\n')
    assert len(reader.read_samples_of_record(row, faults)) == 1 and not faults
    # Beside perflogs it is no perflog.
    assert len(perflogs.read(tmp_path)) == 1
