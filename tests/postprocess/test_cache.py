"""The cache of the record: what it gives is what the files say."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pd = pytest.importorskip('pandas')
duckdb = pytest.importorskip('duckdb')
import perflogs_factory as make  # noqa: E402

from postprocess import records  # noqa: E402
from postprocess.records import cache, reports, rows, sql  # noqa: E402
from tests.conftest import ROOT  # noqa: E402


@pytest.fixture
def tree(tmp_path) -> Path:
    """Three checks and four sessions, of which the last one has no report."""
    write_sessions(tmp_path, range(3))
    write_sessions(tmp_path, [3], ended=False)
    return tmp_path


def write_sessions(root: Path, days, **options) -> None:
    """Writes sessions of the past: processes here have the real clock."""
    for day in days:
        make.write(root, [
            make.record('latency', 1 + n + day / 100, 2 ** n, day=day - 1000,
                        check=f'Check{n % 3}', stack='a, "b"')
            for n in range(9)] + [make.record('wall_time', 3.0, day=day - 1000)],
            **options)


def report_of(root: Path, day: int) -> Path:
    return root / 'sessions' / f'{make.record(day=day - 1000)["session"]}.json'


def agree(root: Path) -> pd.DataFrame:
    """Cache and files give the same table, and the same faults."""
    frame, errors = records.read(root, on_error='collect')
    # Several paths have no cache beside them.
    other, faults = records.read([root, root], on_error='collect')
    pd.testing.assert_frame_equal(frame, other)
    assert [*map(str, errors)] == [*map(str, faults)]
    return frame


def files_read(monkeypatch) -> list[str]:
    """Names of the files that are read from now on."""
    seen = []
    of_reports, copy_lines = reports.reports_query, rows.copy_whole_lines

    def read_reports(files):
        seen.extend(path.name for path in files)
        return of_reports(files)

    def read_rows(handle, *args):
        seen.append(Path(handle.name).name)
        return copy_lines(handle, *args)

    monkeypatch.setattr(reports, 'reports_query', read_reports)
    monkeypatch.setattr(rows, 'copy_whole_lines', read_rows)
    return seen


def test_the_cache_gives_what_the_files_say(tree):
    assert len(records.read(tree)) == len(agree(tree)) == 40
    assert any((tree / cache.FOLDER).glob('*.parquet'))


def test_only_the_batch_of_what_changed_is_read(tree, monkeypatch):
    monkeypatch.setattr(cache, 'BATCH', 2)
    records.read(tree)
    seen = files_read(monkeypatch)
    records.read(tree)
    assert not seen
    write_sessions(tree, [9])
    assert len(records.read(tree)) == 50
    assert sorted(seen) == sorted([
        report_of(tree, 2).name, report_of(tree, 9).name, 'OsuPt2pt.log',
        *(f'Check{n}.log' for n in range(3))])
    agree(tree)


def test_a_report_that_cannot_be_read_costs_no_other(tree):
    report_of(tree, 0).write_text('{"runs": [}')
    report_of(tree, 1).write_text('{')
    assert len(agree(tree)) == 40


def test_a_value_that_is_edited_in_place_is_seen(tree, capsys):
    question = ['SELECT value FROM results WHERE value IN (7.5, 7.53)', '--csv', '-',
                '--perflogs', str(tree)]
    assert sql.main(question) == 0 and capsys.readouterr().out == 'value\n'
    for path, old, new in (
            (report_of(tree, 0), '[9.0, 0.0,', '[7.5, 0.0,'),
            (tree / 'alpha/cpu/Check2.log', '|9.03|', '|7.53|')):
        before = path.stat()
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sql.main(question) == 0
    assert sorted(capsys.readouterr().out.split()) == ['7.5', '7.53', 'value']
    assert {7.5, 7.53} < set(agree(tree)['value'])


def test_a_file_that_is_removed_is_gone(tree):
    records.read(tree)
    (tree / 'alpha/cpu/Check0.log').unlink()
    assert len(records.read(tree)) == 37
    report_of(tree, 0).unlink()
    assert len(records.read(tree)) == 34    # its rows of two checks remain
    (tree / 'alpha/cpu/Check1.log').unlink()
    assert len(agree(tree)) == 28


def test_faults_are_reported_each_time(tree):
    file = tree / 'alpha/cpu/Check0.log'
    file.write_text(file.read_text() + '1|2\n')
    for _ in range(2):
        _, [error] = records.read(tree, on_error='collect')
        assert error.file == str(file)
    agree(tree)


@pytest.mark.parametrize('harm', ['truncate', 'empty', 'remove', 'shape'])
def test_a_damaged_cache_is_made_again(tree, monkeypatch, harm):
    records.read(tree)
    for part in (tree / cache.FOLDER).glob('*.parquet'):
        if harm in ('truncate', 'empty'):
            part.write_bytes(part.read_bytes()[:-9] if harm == 'truncate' else b'')
        else:
            part.unlink()
        if harm == 'shape':                 # sound Parquet, of something else
            duckdb.execute(f"COPY (SELECT 1) TO '{part}' (FORMAT parquet)")
    assert len(agree(tree)) == len(records.read(tree)) == 40
    seen = files_read(monkeypatch)
    assert len(records.read(tree)) == 40 and not seen


def test_what_nobody_used_for_a_day_is_removed(tree):
    folder = tree / cache.FOLDER
    records.read(tree)
    first = {*folder.iterdir()}
    old = time.time() - 2 * cache.UNUSED
    for path in first:
        os.utime(path, (old, old))
    write_sessions(tree, [9])
    records.read(tree)
    assert first - {*folder.iterdir()}      # the rows changed
    assert len(agree(tree)) == 50


@pytest.mark.skipif(os.getuid() == 0, reason='root may write everywhere')
def test_a_folder_that_cannot_be_written_to(tree):
    tree.chmod(0o555)
    try:
        assert len(records.read(tree)) == 40
    finally:
        tree.chmod(0o755)


@pytest.mark.parametrize('name', ['mkdir', 'mkstemp'])
def test_a_disk_without_room_for_the_cache(tree, monkeypatch, name):
    owner = Path if name == 'mkdir' else cache.tempfile
    real = getattr(owner, name)

    def refuse(*args, **kwargs):
        if cache.FOLDER in str(kwargs.get('dir', args[0] if args else '')):
            raise OSError(28, 'No space left on device')
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, refuse)
    assert len(records.read(tree)) == 40
    assert not [*tree.glob(f'{cache.FOLDER}/*')]


#: A process that reads again and again, and prints how many values exist.
READER = textwrap.dedent('''
    import sys
    sys.path.insert(0, sys.argv[1])
    from postprocess.records import cache
    while True:
        with cache.open_records_database([sys.argv[2]], []) as con:
            [[count]] = con.execute('SELECT count(*) FROM results').fetchall()
        print(count, flush=True)
''')


def start(tree: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, '-c', READER, str(ROOT), str(tree)],
                            stdout=subprocess.PIPE, text=True)


def test_killed_while_it_is_written(tree):
    """SIGKILL at a moment that moves on: nothing is lost, nothing twice."""
    for n in range(3):
        for part in (tree / cache.FOLDER).glob('*.parquet'):
            part.unlink()
        writer = start(tree)
        while not any((tree / cache.FOLDER).glob('*')) and writer.poll() is None:
            time.sleep(0.001)
        time.sleep(0.02 * n)
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        assert len(agree(tree)) == 40


def test_readers_and_a_writer_at_once(tree):
    """No reader waits, and all see the last session."""
    readers = [start(tree) for _ in range(2)]
    try:
        for day in range(30, 34):
            write_sessions(tree, [day])
        for reader in readers:
            while int(reader.stdout.readline()) < 80:
                pass
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert len(agree(tree)) == 80
