"""The cache beside the perflogs: `.store/` in their folder.

The perflogs are the truth. The cache is what was read of them, as Parquet, so
that each line is read once. It may be deleted at any time, and is made anew.

    .store/manifest.json          files (how far they were read, and their
                                  faults) and parts; replaced atomically
    .store/<system>/<month>.N.parquet
                                  a part, which never changes: typed records
                                  of files that were last written in a month
    .store/lock                   shared by those who read, held by who writes

A file that has grown is read on from where reading stopped: it is the same
when its inode is, and the hash of the bytes before that place, and nothing was
wrong with it. Any other change makes it a new source: its records are read
again, and those of the old source do not count any more. A part is written
beside, and counts from the moment when the manifest names it; what a killed
writer left is removed by the next one. Eight small parts of a month are
joined.
"""
from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from config.sessions import lock as locks

from .. import options
from . import formats, plans, reading
from .formats import sql_text
from .reading import Lines

FOLDER, MANIFEST, VERSION = '.store', 'manifest.json', 5
ROOT = Path(__file__).resolve().parents[2]
#: Staged text that becomes one part; parts of fewer records than SMALL are
#: joined, MANY at a time.
FULL, SMALL, MANY = 256 << 20, 250_000, 8
#: Bytes before the place where reading stopped, of which the hash is kept.
BLOCK = 4096
#: Text below this is read as fast as the cache is opened.
WORTH = 8 << 20


@dataclasses.dataclass
class Source:
    """What is known of a perflog."""
    number: int
    #: Inode, size and time of change.
    stat: list[int]
    #: Value of the column `format`.
    form: str = ''
    #: Bytes that were read, the next line, and a hash of the end of them.
    offset: int = 0
    line: int = 1
    hash: str = ''
    #: Line and reason of each fault.
    faults: list[tuple[int, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Part:
    """What is known of a file of records."""
    records: int
    crc: int
    sources: list[int]


@contextlib.contextmanager
def opened(paths: Sequence[os.PathLike | str], report: Any,
           missing: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the view `records`: all good records of perflogs.

    :param report: called with file, line and reason of each fault
    :param missing: also test cases that an ended session has no record of
    """
    given = [*map(Path, paths)]
    with contextlib.ExitStack() as stack:
        # Before the records: a session may end between the two.
        ended = [file for file in reading.files(given, lambda *_: None)
                 if plans.is_plan(file) and not plans.lives(file)
                 ] if missing else []
        cache = _shared(stack, given[0]) if len(given) == 1 and worth(
            given[0]) else None
        if cache is None:
            place = stack.enter_context(
                tempfile.TemporaryDirectory(prefix='plumbline-'))
            cache = Cache(given, Path(place))
            cache.update()
        for file, line, reason in cache.faults():
            report(file, line, reason)
        con = stack.enter_context(cache.connect())
        if ended:
            reading.missing(con, ended, report)
        yield con


def only(con: duckdb.DuckDBPyConnection, site: str) -> None:
    """Restricts the view `records` to a site; '': to none.

    :param con: of opened
    :raises ValueError: the site has no records
    """
    if not site:
        return
    sites = [name for name, in con.execute(
        'SELECT DISTINCT system FROM records').fetchall()]
    if sites:
        options.known(site, sites)
    con.execute('ALTER VIEW records RENAME TO all_records')
    con.execute('CREATE VIEW records AS FROM all_records WHERE system = '
                + sql_text(site))


def _shared(stack: contextlib.ExitStack, folder: Path) -> Cache | None:
    """The cache of a folder, up to date; readers share it. None: the folder
    cannot be written to."""
    place = folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        lock = stack.enter_context(os.fdopen(
            locks.opened(place / 'lock', shared=True), 'r+'))
        fcntl.lockf(lock, fcntl.LOCK_SH)
        cache = Cache([folder], place)
        if not cache.current():
            # Two who shared it and wanted more would wait for each other.
            fcntl.lockf(lock, fcntl.LOCK_UN)
            fcntl.lockf(lock, fcntl.LOCK_EX)
            cache = Cache([folder], place)
            cache.update()
            fcntl.lockf(lock, fcntl.LOCK_SH)
            # Another writer may have come in between.
            cache = Cache([folder], place)
    except (OSError, locks.LockError):
        return None
    return cache


def worth(folder: Path) -> bool:
    """Whether a folder has so much text that its cache is faster."""
    return folder.is_dir() and ((folder / FOLDER / MANIFEST).exists() or sum(
        _stat(file)[1] for file in reading.files(
            [folder], lambda *_: None)) >= WORTH)


class Cache:
    """A cache; empty where there is none that can be used."""

    def __init__(self, paths: Sequence[Path], place: Path) -> None:
        """
        :param paths: perflogs, or folders of them
        :param place: folder of the cache
        """
        self.paths, self.place = paths, place
        #: A name below the folder of the perflogs begins with nothing.
        self._root = f'{paths[0]}/' if len(paths) == 1 and paths[
            0].is_dir() and paths[0] != Path() else ''
        self.next = 1
        self.sources: dict[str, Source] = {}
        self.parts: dict[str, Part] = {}
        self._broken: list[tuple[Path, int, str]] = []
        self._load()

    # ------------------------------------------------------------ manifest

    def _load(self) -> None:
        """Takes what the manifest says, if all of it is sound."""
        try:
            data = json.loads((self.place / MANIFEST).read_text())
            sources = {name: Source(**entry)
                       for name, entry in data['sources'].items()}
            parts = {name: Part(**entry)
                     for name, entry in data['parts'].items()}
            if data['key'] == self._key() and all(zlib.crc32(
                    (self.place / name).read_bytes()) == part.crc
                    for name, part in parts.items()):
                self.next = int(data['next'])
                self.sources, self.parts = sources, parts
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return

    def _key(self) -> str:
        """What the records depend on besides the perflogs: their format, and
        the metrics. To parse the files takes longer than a question."""
        found = hashlib.sha256(f'{VERSION}'.encode())
        for path in sorted([*ROOT.glob('config/*.yaml'),
                            *ROOT.glob('checks/*/family.yaml')]):
            found.update(path.read_bytes())
        return found.hexdigest()[:16]

    def _save(self) -> None:
        """The manifest, atomically; then what it does not name is removed."""
        draft = self.place / f'.{MANIFEST}'
        with open(draft, 'w') as handle:
            handle.write(json.dumps({
                'key': self._key(), 'next': self.next,
                'sources': {name: dataclasses.asdict(source)
                            for name, source in self.sources.items()},
                'parts': {name: dataclasses.asdict(part)
                          for name, part in self.parts.items()}}))
            handle.flush()
            os.fsync(handle.fileno())
        draft.replace(self.place / MANIFEST)
        for path in self.place.glob('*/*'):
            if os.fspath(path.relative_to(self.place)) not in self.parts:
                path.unlink(missing_ok=True)

    def faults(self) -> Iterator[tuple[Path, int, str]]:
        """File, line and reason of all that is wrong with the perflogs."""
        yield from self._broken
        for name, source in self.sources.items():
            for line, reason in source.faults:
                yield Path(self._root + name), line, reason

    def current(self) -> bool:
        """Whether no perflog has changed since."""
        found = self._files()
        return (self.place / MANIFEST).exists() and not self._broken \
            and found.keys() == self.sources.keys() and all(
                _stat(found[name]) == source.stat
                for name, source in self.sources.items())

    def _files(self) -> dict[str, Path]:
        """Perflogs by their name below the folder; `_broken`: what could
        not be searched."""
        self._broken = []
        return {os.fspath(file).removeprefix(self._root): file
                for file in reading.files(
                    self.paths, lambda *fault: self._broken.append(fault))
                if not plans.is_plan(file)}

    # ------------------------------------------------------------- writing

    def update(self) -> None:
        """Reads what is new in the perflogs; the lock is held."""
        drafts = self.place / 'new'
        shutil.rmtree(drafts, ignore_errors=True)
        drafts.mkdir()
        found = self._files()
        self.sources = {name: self.sources[name] for name in self.sources
                        if name in found}
        with connection() as con:
            formats.prepare(con)
            self._read(found, drafts, con)
            self._join(drafts, con)
        shutil.rmtree(drafts)
        self._save()

    def _read(self, found: dict[str, Path], drafts: Path, con: Any) -> None:
        """Reads all files that are new or have changed."""
        groups: dict[tuple, list[Lines]] = {}
        size = 0
        for name, file in found.items():
            source = self._source(name, file)
            if source is None:
                continue
            self.sources[name] = source
            reader = reading.Reading(
                file, functools.partial(_see, source.faults), drafts,
                source.number, source.offset, source.line)
            for lines in reader.lines():
                source.form = lines.layout.form
                groups.setdefault((*self._place(name, source), lines.layout),
                                  []).append(lines)
                size += lines.staged.stat().st_size
                if size >= FULL:
                    self._write(groups, drafts, con)
                    groups, size = {}, 0
            source.offset, source.line = reader.offset, reader.line
            source.hash = _hash(file, reader.offset)
        self._write(groups, drafts, con)

    def _source(self, name: str, file: Path) -> Source | None:
        """What is known of a file that is to be read; None: nothing new."""
        known, now = self.sources.get(name), _stat(file)
        if known and known.stat == now:
            return None
        # A line that was cut off may be whole now.
        if known and known.offset and not known.faults \
                and not reading.packed(file) \
                and now[0] == known.stat[0] and now[1] >= known.offset \
                and _hash(file, known.offset) == known.hash:
            return dataclasses.replace(known, stat=now)
        return Source(self._number(), now)

    def _number(self) -> int:
        self.next += 1
        return self.next - 1

    @staticmethod
    def _place(name: str, source: Source) -> tuple[str, str]:
        """System and month of a file: where its records are kept."""
        system = Path(name).parts[0] if len(Path(name).parts) > 1 else ''
        import datetime
        month = datetime.datetime.fromtimestamp(
            source.stat[2] / 1e9, datetime.timezone.utc)
        return re.sub(r'\W', '_', system) or '_', f'{month:%Y-%m}'

    def _write(self, groups: dict[tuple, list[Lines]], drafts: Path, con: Any
               ) -> None:
        """Writes one part for each system, month and layout."""
        draft = drafts / 'part.parquet'
        for (system, month, layout), lines in groups.items():
            if not _copied(con, layout, lines, draft):
                for one in lines:
                    if not _copied(con, layout, [one], draft):
                        one.sift()
                reading.copy(con, layout, lines, _into(draft))
            reading.faults(con, f'read_parquet({sql_text(draft)})', lines)
            self._add(system, month, draft, con)

    def _add(self, system: str, month: str, draft: Path, con: Any) -> None:
        """Puts a file of records in its place."""
        numbers = con.execute(
            f'SELECT origin, count(*) FROM read_parquet({sql_text(draft)}) '
            'GROUP BY 1 ORDER BY 1').fetchall()
        if not numbers:
            return
        name = f'{system}/{month}.{self._number():06}.parquet'
        self.parts[name] = Part(
            sum(count for _, count in numbers),
            zlib.crc32(draft.read_bytes()), [origin for origin, _ in numbers])
        (self.place / system).mkdir(exist_ok=True)
        draft.replace(self.place / name)

    def _join(self, drafts: Path, con: Any) -> None:
        """Joins small parts, and leaves out what no file has any more."""
        live = [source.number for source in self.sources.values()]
        months: dict[tuple[str, str], list[str]] = {}
        for name, part in [*self.parts.items()]:
            if not {*live} & {*part.sources}:
                del self.parts[name]
            elif part.records < SMALL:
                system, _, file = name.partition('/')
                months.setdefault((system, file[:7]), []).append(name)
        for month, names in months.items():
            if len(names) < MANY:
                continue
            draft = drafts / 'part.parquet'
            con.execute(_into(draft).replace(
                'QUERY', f'SELECT * FROM {self._parquet(names)} WHERE '
                f'fault IS NULL AND list_contains({live}, origin)'))
            for name in names:
                del self.parts[name]
            self._add(*month, draft, con)

    def _parquet(self, names: Sequence[str]) -> str:
        files = ', '.join(sql_text(self.place / name) for name in names)
        return f'read_parquet([{files}])'

    # ------------------------------------------------------------- reading

    @contextlib.contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with the view `records`, and what it is made of."""
        with connection() as con:
            con.execute('CREATE TABLE sources (origin INTEGER, '
                        'file VARCHAR, format VARCHAR)')
            if self.sources:
                con.execute('INSERT INTO sources FROM ' + formats.sql_rows(
                    ('origin', 'file', 'format'),
                    ((source.number, self._root + name, source.form)
                     for name, source in self.sources.items())))
            types = formats.types()
            columns = ', '.join(f'"{name}" {kind}'
                                for name, kind in types.items())
            con.execute(f'CREATE TABLE absent ({columns})')
            files = ', '.join(sql_text(self.place / name)
                              for name in self.parts)
            con.execute(f'SET allowed_paths = [{files}]')
            parts = f'FROM {self._parquet([*self.parts])} UNION ALL ' * bool(
                self.parts)
            con.execute(f'CREATE VIEW parts AS {parts}FROM absent')
            shown = ', '.join(f'"{name}"' for name in types
                              if name not in ('origin', 'line', 'fault'))
            con.execute(f'''CREATE VIEW records AS
                SELECT {shown}, file, format, line FROM parts
                JOIN sources USING (origin) WHERE fault IS NULL''')
            yield con


@contextlib.contextmanager
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory."""
    # DuckDB makes this folder when memory is short, and removes it.
    spilled = Path(tempfile.gettempdir(), f'plumbline-spilled-{os.getpid()}')
    with duckdb.connect(config={
            'threads': 1, 'memory_limit': '1GB',
            'temp_directory': str(spilled),
            # No variable of Python is a table, and pandas is not imported.
            'python_enable_replacements': False}) as con:
        con.execute('SET enable_progress_bar = false')
        yield con


def _see(seen: list[tuple[int, str]], _: Path, line: int, reason: str
         ) -> None:
    seen.append((line, reason))


def _into(draft: Path) -> str:
    return (f'COPY (QUERY) TO {sql_text(draft)} '
            '(FORMAT parquet, COMPRESSION zstd)')


def _copied(con: Any, layout: formats.Layout, lines: Sequence[Lines],
            draft: Path) -> bool:
    """Writes the typed records of lines; False: one is not well-formed."""
    try:
        reading.copy(con, layout, lines, _into(draft))
    except duckdb.Error:
        return False
    return not con.execute(f"FROM read_parquet({sql_text(draft)}) "
                           f"WHERE fault = '{formats.TORN}' LIMIT 1"
                           ).fetchone()


def _stat(file: Path) -> list[int]:
    """Inode, size and time of change; zeros: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return [0, 0, 0]
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _hash(file: Path, offset: int) -> str:
    """Hash of the bytes before a place."""
    if not offset:                      # nothing was read: perhaps a pipe
        return ''
    try:
        with open(file, 'rb') as handle:
            handle.seek(max(0, offset - BLOCK))
            return hashlib.sha256(handle.read(min(BLOCK, offset))).hexdigest()
    except OSError:
        return ''
