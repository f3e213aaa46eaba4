"""The cache beside the perflogs: what it gives is what the text says."""
from __future__ import annotations

import gzip
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

from postprocess import perflogs  # noqa: E402
from postprocess.perflogs import cache, formats, reading  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def tree(tmp_path) -> Path:
    """Perflogs of three checks and four sessions."""
    sessions(tmp_path, range(4))
    return tmp_path


def sessions(root: Path, days) -> None:
    for day in days:
        make.write(root, [
            make.record('latency', 1 + n + day / 100, 2 ** n, day=day,
                        check=f'Check{n % 3}', stack='a, "b"')
            for n in range(9)] + [make.record('wall_time', 3.0, day=day)])


def text(root: Path):
    """What the perflogs say without a cache."""
    faults: list[tuple] = []
    # Several paths have no cache beside them.
    with cache.open_records_database([root, root],
                                     lambda *fault: faults.append(fault)) as con:
        return perflogs.records_as_dataframe(con), sorted(map(str, faults))


def agree(root: Path) -> pd.DataFrame:
    """Cache and text give the same table, and the same faults."""
    frame, errors = perflogs.read(root, on_error='collect')
    other, faults = text(root)
    pd.testing.assert_frame_equal(frame, other)
    assert len(errors) == len(faults)
    assert any((root / cache.FOLDER).glob('*/*.parquet'))
    return frame


def reads(monkeypatch) -> list[tuple[str, int]]:
    """(name, offset) of each file that is read from now on."""
    seen = []
    real = reading.read_blocks_of_new_lines

    def blocks(file, source, layout):
        seen.append((file.name, source.offset))
        return real(file, source, layout)

    monkeypatch.setattr(reading, 'read_blocks_of_new_lines', blocks)
    return seen


def test_the_cache_gives_what_the_text_says(tree):
    assert len(agree(tree)) == 40
    assert len(agree(tree)) == 40


def test_only_what_is_new_is_read(tree, monkeypatch):
    perflogs.read(tree)
    seen = reads(monkeypatch)
    perflogs.read(tree)
    assert not seen
    sessions(tree, [9])
    assert len(perflogs.read(tree)) == 50
    assert len(seen) == 4 and all(offset for _, offset in seen)
    monkeypatch.undo()
    agree(tree)


def test_a_line_that_is_written_in_two_goes(tree):
    file = next(tree.rglob('Check0*.csv'))
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert len(agree(tree)) == 39
    with open(file, 'ab') as handle:
        handle.write(whole[-20:])
    assert len(agree(tree)) == 40


def test_a_file_that_is_replaced_counts_once(tree):
    """Its old records are gone, as they are from the text."""
    agree(tree)
    file = next(tree.rglob('Check0*.csv'))
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(''.join(lines[:1] + lines[2:]))
    assert len(agree(tree)) == 39
    file.unlink()
    assert len(agree(tree)) == 28
    packed = next(tree.rglob('Check1*.csv'))
    Path(f'{packed}.gz').write_bytes(gzip.compress(packed.read_bytes()))
    assert len(agree(tree)) == 28           # not twice
    packed.unlink()
    assert len(agree(tree)) == 28


def test_bad_lines_are_told_each_time(tree):
    file = next(tree.rglob('Check0*.csv'))
    file.write_text(file.read_text().replace(',us,', ',ms,', 2) + '1,2\n')
    for _ in range(2):
        _, errors = perflogs.read(tree, on_error='collect')
        assert len(errors) == 2
    agree(tree)


@pytest.mark.parametrize('harm', ['truncate', 'flip', 'remove', 'shape',
                                  'orphan', 'version'])
def test_a_damaged_cache_is_made_anew(tree, monkeypatch, harm):
    agree(tree)
    place = tree / cache.FOLDER
    month = next(place.glob('alpha/*.parquet'))
    data = month.read_bytes()
    if harm == 'truncate':
        month.write_bytes(data[:-9])
    elif harm == 'flip':
        half = len(data) // 2
        month.write_bytes(data[:half] + bytes([data[half] ^ 1])
                          + data[half + 1:])
    elif harm == 'remove':
        month.unlink()
    elif harm == 'shape':               # sound Parquet, and not the cache's
        with cache.open_memory_database() as con:
            con.execute(f"COPY (SELECT 1) TO '{month}' (FORMAT parquet)")
        month.rename(
            place / 'alpha' / f'2026-11.{cache._checksum(month)}.parquet')
    elif harm == 'orphan':
        (place / 'alpha' / '2025-11.99999999.parquet').touch()
        sessions(tree, [7])
    else:
        monkeypatch.setattr(cache, 'VERSION', -1)
    agree(tree)
    assert len([*place.glob('*/*')]) == 1
    assert not [*reads(monkeypatch)] and len(perflogs.read(tree)) >= 40


def test_a_cache_with_other_columns_is_not_used(tree, monkeypatch):
    """Another checkout of the suite wrote it."""
    types = formats.column_types()
    agree(tree)
    with monkeypatch.context() as patch:
        patch.setattr(formats, 'column_types', lambda: {**types, 'line': 'DOUBLE'})
        perflogs.read(tree)
    seen = reads(monkeypatch)
    assert len(perflogs.read(tree)) == 40 and len(seen) == 4


def test_a_month_has_one_file(tree):
    for day in range(10, 14):
        sessions(tree, [day])
        perflogs.read(tree)
    assert len([*(tree / cache.FOLDER).glob('*/*')]) == 1
    assert len(agree(tree)) == 80


@pytest.mark.parametrize('harm', [',ms,', ',"us,', ',u\r,'])
def test_a_damaged_file_that_grows_is_read_on(tree, monkeypatch, harm):
    """What was wrong with its first lines is reported each time."""
    file = next(tree.rglob('Check0*.csv'))
    file.write_bytes(file.read_bytes().replace(
        b',us,', harm.encode(), 1))
    for _ in range(2):
        _, [error] = perflogs.read(tree, on_error='collect')
        assert error.line == 2
    seen = reads(monkeypatch)
    sessions(tree, [9])
    frame, [error] = perflogs.read(tree, on_error='collect')
    assert error.line == 2 and len(frame) == 49
    assert all(offset for _, offset in seen)
    monkeypatch.undo()
    assert len(agree(tree)) == 49


def test_parts_are_kept_by_system_and_month(tree):
    """The month is that in which a file was last written."""
    make.write(tree, [make.record(system='beta')])
    old(next(tree.glob('beta/*/*.csv')), '2025-03')
    agree(tree)
    names = {file.relative_to(tree / cache.FOLDER).as_posix()[:12]
             for file in tree.glob(f'{cache.FOLDER}/*/*.parquet')}
    assert 'beta/2025-03' in names and len(names) == 2


def test_a_folder_that_cannot_be_written_to(tree, monkeypatch):
    real = Path.mkdir

    def mkdir(self, *args, **kwargs):
        if self.name == cache.FOLDER:
            raise PermissionError(13, 'Permission denied')
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, 'mkdir', mkdir)
    assert len(perflogs.read(tree)) == 40
    assert not (tree / cache.FOLDER).exists()


def test_a_disk_without_room_for_the_cache(tree, monkeypatch):
    real = cache.Cache._write_month_file

    def write(self, *args, **kwargs):
        if self.place.name == cache.FOLDER:
            raise duckdb.IOException('No space left on device')
        return real(self, *args, **kwargs)

    monkeypatch.setattr(cache.Cache, '_write_month_file', write)
    assert len(perflogs.read(tree)) == 40
    assert not [*(tree / cache.FOLDER).glob('*/')]


#: A process that reads again and again, and prints how many records exist.
READER = textwrap.dedent('''
    import sys
    sys.path.insert(0, sys.argv[1])
    from postprocess.perflogs import cache
    while True:
        with cache.open_records_database([sys.argv[2]], print) as con:
            [[records]] = con.execute(
                'SELECT count(*) FROM records').fetchall()
        print(records, flush=True)
''')


def start(tree: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, '-c', READER, str(ROOT),
                             str(tree)], stdout=subprocess.PIPE, text=True)


def test_killed_while_it_is_written(tree):
    """SIGKILL at a moment that moves on: nothing is lost, nothing twice."""
    for n in range(5):
        for month in (tree / cache.FOLDER).glob('*/*.parquet'):
            month.unlink()
        writer = start(tree)
        deadline = time.monotonic() + 60
        while not any((tree / cache.FOLDER).glob('new/*')) \
                and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.004 * n)
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        assert len(agree(tree)) == 40


def test_two_readers_and_a_writer(tree):
    """No reader sees fewer records than before, and all see the last."""
    perflogs.read(tree)
    readers = [start(tree) for _ in range(2)]
    try:
        for reader in readers:
            assert int(reader.stdout.readline()) == 40
        for day in range(30, 36):
            sessions(tree, [day])
        seen = []
        for reader in readers:
            last = 0
            while last < 100:
                now = int(reader.stdout.readline())
                assert now >= last, seen
                last = now
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert len(agree(tree)) == 100


# ----------------------------------------------- what is written for long

def old(path: Path, month: str) -> None:
    """Makes a file look as if it was last written in a month."""
    when = pd.Timestamp(f'{month}-15', tz='UTC').timestamp()
    os.utime(path, (when, when))


def rows(path: Path) -> list[list]:
    import csv
    with open(path, newline='') as handle:
        return list(csv.reader(handle))


def test_no_perflog_grows_for_ever(tmp_path, monkeypatch):
    from config.records import perflog
    [path] = make.write(tmp_path, [make.record(day=n) for n in range(9)])
    header, *records = rows(path)
    old(path, '2026-10')
    perflog.append_records(path, header, records[:1])
    assert len(list(path.parent.glob('*.csv*'))) == 1  # it is small
    monkeypatch.setattr(perflog, 'ENOUGH', 100)
    perflog.append_records(path, header, records[:1])
    assert len(list(path.parent.glob('*.csv*'))) == 1  # it is this month's
    for month in ('2026-09', '2026-10'):
        old(path, month)
        perflog.append_records(path, header, records[:1])
    assert sorted(p.name for p in path.parent.glob('*.csv*')) == [
        'OsuPt2pt.v3.2026-09.csv.gz', 'OsuPt2pt.v3.2026-10.csv.gz',
        'OsuPt2pt.v3.csv']
    assert len(perflogs.read(tmp_path)) == 13
    assert len(agree(tmp_path)) == 13


def test_setting_aside_can_be_killed_at_any_moment(tmp_path, monkeypatch):
    from config.records import perflog
    [path] = make.write(tmp_path, [make.record(day=n) for n in range(9)])
    header, *records = rows(path)
    monkeypatch.setattr(perflog, 'ENOUGH', 100)
    old(path, '2026-09')

    class Killed(BaseException):
        pass

    def killed(*args, **kwargs):
        raise Killed

    real = Path.unlink
    for name, count in (('replace', 10), ('unlink', 11)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, killed)
            with pytest.raises(Killed):
                perflog.append_records(path, header, records[:1])
        assert len(perflogs.read(tmp_path)) == count
        old(path, '2026-10')
    assert Path.unlink is real
    perflog.append_records(path, header, records[:1])
    assert len(perflogs.read(tmp_path)) == 12
