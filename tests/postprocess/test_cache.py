"""The cache beside the perflogs: what it gives is what the text says."""
from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pd = pytest.importorskip('pandas')
import perflogs_factory as make  # noqa: E402

from postprocess import perflogs  # noqa: E402
from postprocess.perflogs import cache, reading  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """Perflogs of three checks and four nights."""
    monkeypatch.setattr(cache, 'WORTH', 0)
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
    with cache.opened([root],
                      lambda *fault: faults.append(fault)) as con:
        return perflogs.frame(con), sorted(map(str, faults))


def agree(root: Path) -> pd.DataFrame:
    """Cache and text give the same table, and the same faults."""
    frame, errors = perflogs.read(root, on_error='collect')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, 'worth', lambda folder: False)
        other, faults = text(root)
    pd.testing.assert_frame_equal(frame, other)
    assert len(errors) == len(faults)
    assert (root / cache.FOLDER / cache.MANIFEST).exists()
    return frame


def reads(monkeypatch) -> list[tuple[str, int]]:
    """(name, offset) of each file that is read from now on."""
    seen = []
    real = reading.Reading.lines

    def lines(self):
        seen.append((self.file.name, self.offset))
        return real(self)

    monkeypatch.setattr(reading.Reading, 'lines', lines)
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
    monkeypatch.setattr(cache, 'WORTH', 0)
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


@pytest.mark.parametrize('harm', ['truncate', 'flip', 'remove', 'manifest',
                                  'nonsense', 'orphan', 'shape'])
def test_a_damaged_cache_is_made_anew(tree, harm):
    agree(tree)
    place = tree / cache.FOLDER
    part = next(place.glob('alpha/*.parquet'))
    manifest = place / cache.MANIFEST
    data = part.read_bytes()
    if harm == 'truncate':
        part.write_bytes(data[:-9])
    elif harm == 'flip':
        half = len(data) // 2
        part.write_bytes(data[:half] + bytes([data[half] ^ 1])
                         + data[half + 1:])
    elif harm == 'remove':
        part.unlink()
    elif harm == 'manifest':
        manifest.write_text(manifest.read_text()[:-7])
    elif harm == 'shape':
        known = json.loads(manifest.read_text())
        known['sources'] = {name: {'stat': entry['stat']} for name, entry
                            in known['sources'].items()}
        manifest.write_text(json.dumps(known))
    elif harm == 'nonsense':
        manifest.write_text('[1, 2]')
    else:
        (place / 'alpha' / '2026-11.999999.parquet').touch()
        sessions(tree, [7])
    agree(tree)
    assert not (place / 'alpha' / '2026-11.999999.parquet').exists()


@pytest.mark.parametrize('small', [35, cache.SMALL])
def test_small_parts_are_joined(tree, monkeypatch, small):
    monkeypatch.setattr(cache, 'SMALL', small)
    for day in range(10, 22):
        sessions(tree, [day])
        perflogs.read(tree)
    assert len(list((tree / cache.FOLDER).glob('alpha/*'))) <= cache.MANY
    assert len(agree(tree)) == 160


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


#: A process that reads again and again, and prints how many records exist.
READER = textwrap.dedent('''
    import sys
    sys.path.insert(0, sys.argv[1])
    from postprocess.perflogs import cache
    cache.WORTH = 0
    while True:
        with cache.opened([sys.argv[2]], print) as con:
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
        (tree / cache.FOLDER / cache.MANIFEST).unlink(missing_ok=True)
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
    perflog.append(path, header, records[:1])
    assert len(list(path.parent.glob('*.csv*'))) == 1  # it is small
    monkeypatch.setattr(perflog, 'ENOUGH', 100)
    perflog.append(path, header, records[:1])
    assert len(list(path.parent.glob('*.csv*'))) == 1  # it is this month's
    for month in ('2026-09', '2026-10'):
        old(path, month)
        perflog.append(path, header, records[:1])
    assert sorted(p.name for p in path.parent.glob('*.csv*')) == [
        'OsuPt2pt.v3.2026-09.csv.gz', 'OsuPt2pt.v3.2026-10.csv.gz',
        'OsuPt2pt.v3.csv']
    assert len(perflogs.read(tmp_path)) == 13
    monkeypatch.setattr(cache, 'WORTH', 0)
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
                perflog.append(path, header, records[:1])
        assert len(perflogs.read(tmp_path)) == count
        old(path, '2026-10')
    assert Path.unlink is real
    perflog.append(path, header, records[:1])
    assert len(perflogs.read(tmp_path)) == 12
