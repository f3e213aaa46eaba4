"""Files that would hang or fill a machine end in one line."""
from __future__ import annotations

import os
from pathlib import Path

import perflogs_factory as make
import pytest

from config import regular, strict
from config.records.samples import file_name
from config.sites import topology
from postprocess import records
from postprocess.records import attached, reports, samples, series
from postprocess.regressions import decisions, verdict
from postprocess.report import build as report

# References and other files of a site ----------------------------------------


def test_a_fifo_as_a_file_of_a_site(tmp_path):
    path = tmp_path / 'osu.yaml'
    os.mkfifo(path)
    with pytest.raises(strict.Fault, match='osu.yaml:1: cannot be read: .*not '
                       'a regular file'):
        strict.load_yaml(path)
    with pytest.raises(topology.TopologyError, match='not a regular file'):
        topology.load_switches(path)


def test_lines_end_as_they_do_for_python(tmp_path):
    path = tmp_path / 'x'
    path.write_bytes(b'a\r\nb\rc\n')
    assert regular.read_regular_file(path) == path.read_text() == 'a\nb\nc\n'


# Perflogs --------------------------------------------------------------------

def ends(folder: Path, words: str, capsys: pytest.CaptureFixture[str]
         ) -> None:
    """The verdict prints one line, and fails."""
    assert verdict.main(['--perflogs', str(folder)]) in (1, 2)
    output = capsys.readouterr().err
    assert output.count(words) == 1, output


def test_a_fifo_among_perflogs(tmp_path, capsys):
    make.write(tmp_path, [make.record(day=2)])
    [row] = records.read(tmp_path).itertuples()
    path = tmp_path / 'sessions' / '20261103T000000Z-bbbbbb.json'
    folder = attached.attached_folder(row)
    folder.mkdir(parents=True)
    for name in (path, path.with_suffix('.log'), tmp_path / 'alpha' / 'cpu' / 'X.log',
                 folder / 'invalid.txt', folder / 'series.csv'):
        os.mkfifo(name)
    _, faults = records.read(tmp_path, on_error='collect')
    assert sorted(Path(fault.file).name for fault in faults) == [
        path.name, path.with_suffix('.log').name, 'X.log']
    assert all('not a regular file' in str(fault) for fault in faults)
    ends(tmp_path, f'{path}:1: this report of ReFrame', capsys)
    # The page lists the damage.
    assert report.main(['--perflogs', str(tmp_path), '--output',
                        str(tmp_path / 'out')]) == 1
    assert capsys.readouterr().err.count(f'{path}:1: this report of ReFrame') == 1


def test_a_fifo_beside_a_series(tmp_path):
    make.write(tmp_path, [make.record('total_qps', 9.0, family='taobench',
                                      check='TaoBench', measurement='0123456789ab')])
    [row] = records.read(tmp_path).itertuples()
    folder = attached.attached_folder(row)
    folder.mkdir(parents=True)
    (folder / 'series.csv').write_text(
        ','.join(series.COLUMNS) + '\n1,cpu n1,cpu_total,50.0,%,test,,\n')
    os.mkfifo(folder / 'invalid.txt')
    [one] = series.read_series_of_newest_runs(records.read(tmp_path)).series
    assert one.reasons == ()


@pytest.mark.parametrize('text', [b'\0' * (4 << 20), b'x|' * (2 << 20)])
def test_a_line_without_end_is_not_read_as_a_whole(tmp_path, capsys, text):
    make.write(tmp_path, [make.record()])
    rows = tmp_path / 'alpha' / 'cpu' / 'OsuPt2pt.log'
    rows.write_bytes(rows.read_bytes() + text)
    frame, [fault] = records.read(tmp_path, on_error='collect')
    assert len(frame) == 1 and 'the line has more than' in str(fault)
    ends(tmp_path, 'the line has more than', capsys)


def test_a_report_that_is_too_large(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reports, 'LARGEST', 1000)
    make.write(tmp_path, [make.record()])
    frame, [fault] = records.read(tmp_path, on_error='collect')
    assert len(frame) == 1 and frame['file'].iloc[0].endswith('OsuPt2pt.log')
    assert 'it has more than' in str(fault)


def test_fifos_as_decisions_and_as_facts_of_a_node(tmp_path, capsys):
    make.write(tmp_path, [
        {**one, 'machine': 'old' if one['time'] < '2026-12-06' else 'new'}
        for one in make.slow_node()])
    folder = tmp_path / 'alpha' / 'machines'
    folder.mkdir()
    os.mkfifo(folder / 'old.json')
    assert verdict.main(['--perflogs', str(tmp_path)]) == 1
    assert 'changed in the same session: node facts' in capsys.readouterr().out
    path = tmp_path / decisions.FILE
    os.mkfifo(path)
    ends(tmp_path, f'{path}:1: cannot be read: [Errno 22] it is not a regular file',
         capsys)


def test_a_fifo_as_samples(tmp_path):
    make.write(tmp_path, [make.record(measurement='0123456789ab')])
    [row] = records.read(tmp_path).itertuples()
    path = attached.attached_folder(row) / file_name(row.test_case)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    faults: attached.Faults = []
    assert samples.read_samples_of_record(row, faults).empty
    assert f'{path}:1: cannot be read (it is not a regular file)' in str(faults[0])
