"""The record as a database: Parquet files, each made of several files of the record.

They stand in `.store/` of the folder of perflogs, and may be deleted at any time. The
name of each is made from paths, sizes and times of its files and from all that the
reading depends on. So after a change another Parquet file is made, and no reader waits
for a writer. The values of a session come from its report where it can be read: files
of rows are read without these sessions.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from config import regular
from config.regular import draft_of_file

from .. import options
from . import counting, reports, rows, sessions
from .files import Faults, PerflogError, RecordFiles, find_record_files
from .typed import NO_MEASUREMENTS, sql_text

FOLDER = '.store'
ROOT = Path(__file__).resolve().parents[2]
#: Seconds after which a Parquet file that the newest reader does not use is removed.
UNUSED = 86400
#: Files of a Parquet file. To open many takes most of the time of a query (500 reports:
#: 1.4 s in files of 1, 0.4 s in files of 20); a new session has all of its batch read
#: again (20 reports of 2 000 values: 0.3 s).
BATCH = 20
#: Files of the checkout on which the Parquet files depend, and on which an answer does.
READING = ('config/*.yaml', 'checks/*/family.yaml', 'postprocess/records/*.py')
ANSWERING = (*READING, 'config/**/*.py', 'postprocess/**/*.py',
             'site-configs/*/topology.yaml')
#: Line of a fault because of which nothing of a report is read.
WHOLE_FILE = 0


@contextlib.contextmanager
def open_records_database(paths: Sequence[os.PathLike | str], faults: Faults
                          ) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the views `results`, `measurements` and `sessions`.

    :param paths: folders and files
    :param faults: all faults are added to it, in order
    """
    with contextlib.ExitStack() as stack:
        # DuckDB puts there what does not fit into memory.
        temporary = Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix='plumbline-')))
        con = stack.enter_context(duckdb.connect(config={
            'threads': 1, 'memory_limit': '1GB',
            'temp_directory': str(temporary / 'spilled'),
            # No variable of Python is a table, and pandas is not imported.
            'python_enable_replacements': False}))
        con.execute('SET enable_progress_bar = false')
        con.execute('SET parquet_metadata_cache = true')
        # Values stream through the joins of the views: they are never what one of them
        # keeps in memory.
        con.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
        new: Faults = []
        files = find_record_files(paths, new)
        refused = {name: (path, why) for name, path in {
            path.stem: path for path in [*files.logs, *files.reports]}.items()
            if (why := sessions.wrong_clock_reason(path))}
        new += [PerflogError(path, 1, why) for path, why in refused.values()]
        store = _Store(con, paths, temporary)
        try:
            parts, read = store.create_parts_view(files, refused)
        except (OSError, duckdb.Error):
            # The Parquet files are damaged, or the disk is full.
            store.remove_all()
            store = _Store(con, paths, temporary, temporary)
            parts, read = store.create_parts_view(files, refused)
        new += [PerflogError(store.root / file, max(line, 1),
                             fault + f' (and {count - 1} more)' * (count > 1))
                for file, line, fault, count in store.faults]
        logs = [log for path in files.logs if path.stem not in read
                and (log := sessions.read_log(path, store.name(path), new))]
        folder = str(store.root).rstrip('/') + '/'
        con.execute(f'SET VARIABLE root = {sql_text(folder)}')
        con.execute("SET VARIABLE site = ''")
        # What an answer depends on; a session that runs may end without a change.
        state = sql_text(_digest([*map(str, parts), logs]))
        con.execute(f'SET VARIABLE state = {state}')
        sessions.create_session_tables(con, logs)
        sessions.create_sessions_view(con)
        counting.create_views(con)
        con.execute(f'SET allowed_paths = [{", ".join(map(sql_text, parts))}]')
        faults += sorted(new, key=lambda one: (one.file, one.line))
        yield con


def restrict_views_to_site(con: duckdb.DuckDBPyConnection, site: str) -> None:
    """Restrict all views to a site, given by name or path; '': to none.

    :raises ValueError: the site has no records
    """
    if not site:
        return
    site = options.system_name(site)
    sites = [name for name, in con.execute(
        'SELECT DISTINCT system FROM parts WHERE NOT broken').fetchall()]
    if sites:
        options.refuse_unknown_site(site, sites)
    con.execute(f'SET VARIABLE site = {sql_text(site)}')


def kept_answer(folder: Path, key: object, files: Sequence[Path],
                compute: Callable[[], Any]) -> Any:
    """An answer that takes long to compute, kept beside the Parquet files.

    :param folder: of the perflogs
    :param key: what the answer depends on: the variable `state` of the database, and
        all else but the code
    :param files: files that are no records, on which it depends, too
    :param compute: the answer, as JSON has it; may raise
    """
    digest = _digest([_version(ANSWERING), key, *map(_state_of_file, files)])
    file = folder / FOLDER / f'{digest}.json'
    with contextlib.suppress(OSError, ValueError):
        answer = json.loads(regular.read_regular_file(file))
        os.utime(file)                  # it is used
        return answer
    answer = compute()
    # In a folder that is read-only, and on a full disk, nothing is kept.
    with contextlib.suppress(OSError):
        regular.write_file_atomically(file, json.dumps(answer))
    return answer


class _Store:
    """The Parquet files of some paths."""

    def __init__(self, con: duckdb.DuckDBPyConnection,
                 paths: Sequence[os.PathLike | str], temporary: Path,
                 folder: Path | None = None) -> None:
        self.con = con
        self.temporary = temporary
        only = Path(paths[0]) if len(paths) == 1 else Path('/')
        #: Files are named in the records relative to this folder.
        self.root = only if only.is_dir() else Path('/')
        self.used: set[Path] = set()
        #: File, first line, fault, and number of lines that have it.
        self.faults: list[tuple[str, int, str, int]] = []
        self.folder = folder or self._writable_folder()

    def _writable_folder(self) -> Path:
        """The folder of the Parquet files, or a temporary one."""
        folder = self.root / FOLDER
        with contextlib.suppress(OSError):
            if self.root != Path('/'):
                folder.mkdir(exist_ok=True)
                if os.access(folder, os.W_OK | os.X_OK):
                    return folder
        return self.temporary

    def create_parts_view(self, files: RecordFiles, refused: Collection[str]
                          ) -> tuple[list[Path], set[str]]:
        """Make the view `parts`, all measurements of reports and rows.

        :param refused: sessions that are not read
        :returns: the Parquet files; sessions that are refused, or in their reports
        :raises OSError, duckdb.Error: Parquet files cannot be written or read
        """
        given = [path for path in files.reports if path.stem not in refused]
        parts = self._parts_of_files(given, self._insert_reports)
        self._create_view(parts)
        # The report of a session that a signal ended while it built has no test case:
        # its log shows that it was cut short.
        whole = {file for file, in self.con.execute(
            f'SELECT file FROM parts WHERE line <> {WHOLE_FILE}').fetchall()}
        read = {*refused, *(path.stem for path in given if self.name(path) in whole)}
        parts += self._parts_of_files(
            files.rows, functools.partial(self._insert_rows, read), sorted(read))
        self._create_view(parts)
        self.faults = self.con.execute(
            'SELECT file, min(line), fault, count(*) FROM (SELECT file, line, '
            'unnest(faults) AS fault FROM parts WHERE len(faults) > 0) '
            'GROUP BY file, fault').fetchall()
        self._remove_unused()
        return parts, read

    def _create_view(self, parts: Sequence[Path]) -> None:
        self.con.execute('CREATE OR REPLACE TEMP VIEW parts AS ' + (
            f"FROM read_parquet([{', '.join(map(sql_text, parts))}])" if parts
            else NO_MEASUREMENTS))

    def _parts_of_files(
            self, paths: Sequence[Path], insert: Callable[[Sequence[Path]], None],
            depends: object = None) -> list[Path]:
        """The Parquet files of files.

        :param insert: adds the measurements of a batch of files to the table `typed`
        :param depends: on what else they depend
        :raises OSError, duckdb.Error: they cannot be written
        """
        parts = []
        for start in range(0, len(paths), BATCH):
            batch = paths[start:start + BATCH]
            key = [_version(READING), depends, *(
                (self.name(path), _state_of_file(path)) for path in batch)]
            part = self.folder / f'{_digest(key)}.parquet'
            parts.append(part)
            self.used.add(part)
            if not part.exists():
                self.con.execute('CREATE OR REPLACE TEMP TABLE typed AS '
                                 + NO_MEASUREMENTS)
                insert(batch)
                self._write_typed(part)
        return parts

    def _insert_reports(self, paths: Sequence[Path]) -> None:
        try:
            for path in paths:
                reports.check_report(path)
            self.con.execute('INSERT INTO typed ' + reports.reports_query(
                {path: self.name(path) for path in paths}))
        except (OSError, duckdb.Error, reports.ReportError) as err:
            if len(paths) > 1:
                for path in paths:
                    self._insert_reports([path])
                return
            self._insert_fault(
                paths[0], WHOLE_FILE, 'this report of ReFrame cannot be read: '
                f'{reports.error_text(err)}; the values are taken from the perflog '
                'rows instead')

    def _insert_rows(self, reported: Collection[str], paths: Sequence[Path]) -> None:
        """:param reported: sessions that are not read"""
        lines = self.temporary / 'lines'
        for path in paths:
            try:
                with regular.open_regular_file(path) as handle, \
                        open(lines, 'wb') as out:
                    layout, faults = rows.copy_whole_lines(handle, out, reported)
            except OSError as err:
                layout, faults = None, [(1, f'cannot be read ({err.strerror}); check '
                                         'the path and its permissions')]
            if layout and lines.stat().st_size:
                self.con.execute('INSERT INTO typed '
                                 + rows.rows_query(layout, lines, self.name(path)))
            for line, fault in faults:
                self._insert_fault(path, line, fault)

    def _insert_fault(self, path: Path, line: int, fault: str) -> None:
        self.con.execute(
            f'INSERT INTO typed BY NAME SELECT {sql_text(self.name(path))} AS file, '
            f'{line} AS line, [{sql_text(fault)}] AS faults, true AS broken')

    def name(self, path: Path) -> str:
        """The name of a file in the records."""
        path = path if self.root != Path('/') else path.absolute()
        return os.path.relpath(path, self.root)

    def _write_typed(self, part: Path) -> None:
        """Write the table `typed` as a Parquet file; no reader sees half of it."""
        with draft_of_file(part) as draft:
            self.con.execute(f'COPY typed TO {sql_text(draft)} '
                             '(FORMAT parquet, COMPRESSION snappy)')

    def remove_all(self) -> None:
        """Remove the Parquet files, because one of them cannot be read."""
        for part in self.folder.glob('*.parquet'):
            with contextlib.suppress(OSError):
                part.unlink()

    def _remove_unused(self) -> None:
        """Remove old Parquet files of files that changed since."""
        if self.folder == self.temporary:
            return
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if Path(entry.path) not in self.used and \
                        time.time() - entry.stat().st_mtime > UNUSED:
                    os.unlink(entry.path)


def _state_of_file(path: Path) -> list[int]:
    """What changes if the content of a file does."""
    try:
        state = path.stat()
    except OSError:
        return []
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def _digest(key: object) -> str:
    return hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:32]


@functools.cache
def _version(patterns: Sequence[str]) -> str:
    """A hash of files of the checkout."""
    digest = hashlib.sha256()
    for path in sorted({path for one in patterns for path in ROOT.glob(one)}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
