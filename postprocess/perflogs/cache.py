"""The cache beside the perflogs: `.store/` in their folder.

The perflogs are the truth. The cache is what was read of them, so that each
line is read once. It may be deleted at any time, and is made anew.

    .store/<system>/<month>.<checksum>.parquet
                    typed records of all perflogs that were last written in a
                    month; its metadata say how far each of them was read
    .store/lock     shared by those who read, held by who writes

If a perflog changes, the file of its month is replaced. The new file takes
the records of all perflogs that did not change, or only grew, from the old
file. A perflog has grown if its inode is the same, and the hash of the bytes
before the place where reading stopped. Any other perflog is read from its
beginning.
"""
from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from config.sessions import lock as locks

from .. import options
from . import formats, plans, reading
from .formats import sql_string_literal
from .reading import Malformed, Source

FOLDER, VERSION = '.store', 6
ROOT = Path(__file__).resolve().parents[2]
#: Bytes before the place where reading stopped, of which the hash is kept.
BLOCK = 4096


@contextlib.contextmanager
def open_records_database(paths: Sequence[os.PathLike | str], report_fault: Any,
                          include_missing_records: bool = True) -> Iterator[
                              duckdb.DuckDBPyConnection]:
    """A connection with the view `records`: all good records of perflogs.

    :param report_fault: called with file, line and reason of each fault
    :param include_missing_records: also test cases of ended sessions without a record
    """
    given = [*map(Path, paths)]
    with contextlib.ExitStack() as stack:
        # Before the records: a session may end between the two.
        ended = [file for file in reading.find_perflog_files(given, lambda *_: None)
                 if plans.is_plan(file) and not plans.is_session_running(file)
                 ] if include_missing_records else []
        con = stack.enter_context(open_memory_database())
        cache = _open_updated_cache(stack, given, con)
        cache.create_views()
        if ended:
            reading.add_missing_records(con, ended, report_fault)
        for file, line, reason in cache.perflog_faults():
            report_fault(file, line, reason)
        yield con


@contextlib.contextmanager
def open_memory_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory."""
    # DuckDB makes this folder when memory is short, and removes it.
    spilled = Path(tempfile.gettempdir(), f'plumbline-spilled-{os.getpid()}')
    with duckdb.connect(config={
            'threads': 1, 'memory_limit': '1GB',
            'temp_directory': str(spilled),
            # No variable of Python is a table, and pandas is not imported.
            'python_enable_replacements': False}) as con:
        con.execute('SET enable_progress_bar = false')
        columns = ', '.join(f'"{name}" {kind}'
                            for name, kind in formats.column_types().items())
        con.execute(f'CREATE TABLE absent ({columns})')
        yield con


def restrict_view_to_site(con: duckdb.DuckDBPyConnection, site: str) -> None:
    """Restricts the view `records` to a site; '': to none.

    :param con: of opened
    :raises ValueError: the site has no records
    """
    if not site:
        return
    sites = [name for name, in con.execute(
        'SELECT DISTINCT system FROM records').fetchall()]
    if sites:
        options.refuse_unknown_site(site, sites)
    con.execute('ALTER VIEW records RENAME TO all_records')
    con.execute('CREATE VIEW records AS FROM all_records WHERE system = '
                + sql_string_literal(site))


def _open_updated_cache(stack: contextlib.ExitStack, given: Sequence[Path], con: Any
             ) -> Cache:
    """An up-to-date cache. It is a temporary one for anything but a folder,
    and if the folder cannot be written to."""
    if len(given) == 1 and given[0].is_dir():
        with contextlib.suppress(OSError, locks.LockError,
                                 duckdb.IOException):
            return _open_cache_with_shared_lock(stack, given[0], con)
    place = stack.enter_context(
        tempfile.TemporaryDirectory(prefix='plumbline-'))
    cache = Cache(given, Path(place), con)
    cache.update()
    return cache


def _open_cache_with_shared_lock(stack: contextlib.ExitStack, folder: Path,
                                 con: Any) -> Cache:
    """The cache of a folder, up to date; readers share it."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    lock = stack.enter_context(os.fdopen(
        locks.open_lock_file(place / 'lock', shared=True), 'r+'))
    fcntl.lockf(lock, fcntl.LOCK_SH)
    cache = Cache([folder], place, con)
    if not cache.is_up_to_date():
        # Two who shared it and wanted more would wait for each other.
        fcntl.lockf(lock, fcntl.LOCK_UN)
        fcntl.lockf(lock, fcntl.LOCK_EX)
        cache = Cache([folder], place, con)
        cache.update()
        fcntl.lockf(lock, fcntl.LOCK_SH)
    return cache


class Month(NamedTuple):
    """Records of the perflogs that were last written in a month."""
    file: Path
    #: By the name of a perflog below the folder.
    sources: dict[str, Source]


class Cache:
    """A cache; empty where there is none that can be used."""

    def __init__(self, paths: Sequence[Path], place: Path, con: Any) -> None:
        """
        :param paths: perflogs, or folders of them
        :param place: folder of the cache
        """
        self.paths, self.place, self.con = paths, place, con
        #: A name below the folder of the perflogs begins with nothing.
        self._root = f'{paths[0]}/' if len(paths) == 1 and paths[
            0].is_dir() and paths[0] != Path() else ''
        self._broken: list[tuple[Path, int, str]] = []
        #: By system and month: `alpha/2026-11`.
        self.months = {
            os.fspath(file.relative_to(place)).split('.')[0]:
            Month(file, sources) for file in place.glob('*/*.parquet')
            if (sources := self._read_file_metadata(file)) is not None}

    def _read_file_metadata(self, file: Path) -> dict[str, Source] | None:
        """The sources in the metadata of a file; None: it cannot be used."""
        try:
            if file.name.split('.')[1] != _checksum(file):
                return None
            [[text]] = self.con.execute(
                'SELECT decode(value) FROM parquet_kv_metadata('
                f"{sql_string_literal(file)}) WHERE decode(key) = 'plumbline'"
                ).fetchall()
            key, sources = json.loads(text)
            return {name: Source(**entry) for name, entry in sources.items()
                    } if key == _cache_version_hash() else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError,
                duckdb.Error):
            return None

    def is_up_to_date(self) -> bool:
        """Whether no perflog has changed since."""
        known = {name: source.stat for month in self.months.values()
                 for name, source in month.sources.items()}
        return known == {name: _file_state(file) for name, file in
                         self._find_perflogs().items()} and not self._broken

    def _find_perflogs(self) -> dict[str, Path]:
        """Perflogs by their name below the folder; `_broken`: what could
        not be searched."""
        self._broken = []
        return {os.fspath(file).removeprefix(self._root): file
                for file in reading.find_perflog_files(
                    self.paths, lambda *fault: self._broken.append(fault))
                if not plans.is_plan(file)}

    # ------------------------------------------------------------- writing

    def update(self) -> None:
        """Reads what is new in the perflogs; the lock is held."""
        drafts = self.place / 'new'
        shutil.rmtree(drafts, ignore_errors=True)
        drafts.mkdir()
        files: dict[str, dict[str, Path]] = {}
        for name, file in self._find_perflogs().items():
            files.setdefault(_system_and_month(name, file), {})[name] = file
        try:
            with formats.define_sql_macros(self.con):
                self.months = {
                    month: self._update_month(month, files[month], drafts)
                    for month in sorted(files)}
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
        used = {month.file for month in self.months.values()}
        for file in {*self.place.glob('*/*')} - used:
            file.unlink()

    def _update_month(self, name: str, files: dict[str, Path], drafts: Path
                 ) -> Month:
        """A month, with what is new in its perflogs."""
        old = self.months.get(name)
        if old and {
            name: source.stat for name, source in old.sources.items()
        } == {name: _file_state(file) for name, file in files.items()}:
            return old
        try:
            sources = self._write_month_file(old, files, drafts, checked=False)
        except (duckdb.Error, Malformed):
            sources = self._write_month_file(old, files, drafts, checked=True)
        draft = drafts / 'month.parquet'
        file = self.place / f'{name}.{_checksum(draft)}.parquet'
        file.parent.mkdir(exist_ok=True)
        # No killed writer leaves two files of a month.
        if old:
            old.file.unlink()
        draft.replace(file)
        return Month(file, sources)

    def _write_month_file(self, old: Month | None, files: dict[str, Path], drafts: Path,
                          checked: bool) -> dict[str, Source]:
        """Writes the file of a month.

        :param old: the month as it was
        :param checked: whether lines that are not well-formed are reported
        :raises Malformed, duckdb.Error: there are such lines
        """
        draft = sql_string_literal(drafts / 'month.parquet')
        sources: dict[str, Source] = {}
        kept, lines = [], []
        for name, file in files.items():
            before = old.sources.get(name) if old else None
            source = _resume_point(before, file)
            if source.offset:
                kept.append(name)
            if not before or source.stat != before.stat:
                lines += reading.copy_new_lines(file, name, source, drafts, checked)
                source.hash = _hash_before_offset(file, source.offset)
            sources[name] = source
        parts = ['FROM absent', *formats.typed_records_queries(lines)]
        if old and kept:
            parts.append(
                f'FROM read_parquet({sql_string_literal(old.file)}) WHERE file '
                f'IN {formats.sql_string_list(kept)} '
                f"AND fault IS DISTINCT FROM '{formats.TORN}'"
            )
        known = json.dumps([_cache_version_hash(), {
            name: dataclasses.asdict(source)
            for name, source in sources.items()}])
        self.con.execute(
            f'COPY ({" UNION ALL ".join(parts)}) TO {draft} (FORMAT parquet, '
            f'COMPRESSION zstd, KV_METADATA {{plumbline: {sql_string_literal(known)}}})'
        )
        if not checked and self.con.execute(
                f'FROM read_parquet({draft}) '
                f"WHERE fault = '{formats.TORN}' LIMIT 1").fetchone():
            raise Malformed
        return sources

    # ------------------------------------------------------------- reading

    def create_views(self) -> None:
        """Makes the view `records`, and `parts`: bad records are there, too.
        """
        files = ', '.join(sql_string_literal(month.file)
                          for month in self.months.values())
        self.con.execute(f'SET allowed_paths = [{files}]')
        self.con.execute('CREATE VIEW parts AS FROM absent' + (
            f''' UNION ALL SELECT * REPLACE ({sql_string_literal(self._root)} || file
            AS file) FROM read_parquet([{files}])''' if files else ''))
        self.con.execute('CREATE VIEW records AS SELECT * EXCLUDE fault '
                         'FROM parts WHERE fault IS NULL')

    def perflog_faults(self) -> Iterator[tuple[Path, int, str]]:
        """File, line and reason of all that is wrong with the perflogs."""
        yield from self._broken
        faults_ = [(self._root + name, line, reason)
                   for month in self.months.values()
                   for name, source in month.sources.items()
                   for line, reason in source.faults]
        faults_ += [(file, line, f'{formats.fault_text(fault)}; {formats.REPAIR}'
                     + f' (and {count - 1} more)' * (count > 1))
                    for file, fault, line, count in self.con.execute(
                      'SELECT file, fault, min(line), count(*) FROM parts '
                      f"WHERE fault <> '{formats.TORN}' GROUP BY ALL"
                      ).fetchall()]
        for file, line, reason in sorted(faults_):
            yield Path(file), line, reason


def _cache_version_hash() -> str:
    """A hash of all that records depend on besides the perflogs: columns and
    the metrics. To parse the files takes longer than a question."""
    digest = hashlib.sha256(f'{VERSION} {formats.column_types()}'.encode())
    for path in sorted([*ROOT.glob('config/*.yaml'),
                        *ROOT.glob('checks/*/family.yaml')]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _system_and_month(name: str, file: Path) -> str:
    """System and month of a perflog: where its records are kept."""
    system = Path(name).parts[0] if len(Path(name).parts) > 1 else ''
    with contextlib.suppress(OSError):
        written = datetime.datetime.fromtimestamp(
            file.stat().st_mtime, datetime.timezone.utc)
        return (re.sub(r'\W', '_', system) or '_') + f'/{written:%Y-%m}'
    return '_/_'


def _resume_point(known: Source | None, file: Path) -> Source:
    """The place from which a perflog is read."""
    now = _file_state(file)
    if known and known.stat == now:
        return known
    if known and known.offset and not reading.is_compressed(file) \
            and now[0] == known.stat[0] and now[1] >= known.offset \
            and _hash_before_offset(file, known.offset) == known.hash:
        # A line that was cut off may be whole now.
        return dataclasses.replace(known, stat=now, faults=[
            fault for fault in known.faults if fault[0] < known.line])
    return Source(now)


def _file_state(file: Path) -> list[int]:
    """Inode, size and time of change; zeros: it is not there."""
    try:
        status = file.stat()
    except OSError:
        return [0, 0, 0]
    return [status.st_ino, status.st_size, status.st_ctime_ns]


def _hash_before_offset(file: Path, offset: int) -> str:
    """Hash of the bytes before a place."""
    if not offset:                      # nothing was read: perhaps a pipe
        return ''
    try:
        with open(file, 'rb') as handle:
            handle.seek(max(0, offset - BLOCK))
            return hashlib.sha256(handle.read(min(BLOCK, offset))).hexdigest()
    except OSError:
        return ''


def _checksum(file: Path) -> str:
    return f'{zlib.crc32(file.read_bytes()):08x}'
