"""The record as a database: one Parquet file per report and per file of rows.

They stand in `.store/` of the folder of perflogs, and may be deleted at any time. The
name of each is made from path, size and times of its file and from all that the reading
depends on. So a file that changed has another name, and no reader waits for a writer.
The values of a session come from its report where it can be read: a file of rows is
read without these sessions.
"""
from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from config import regular
from config.sessions import clock

from .. import options
from . import counting, reports, rows, sessions
from .files import PerflogError, RecordFiles, Report, find_record_files
from .typed import NO_MEASUREMENTS, sql_text

FOLDER = '.store'
ROOT = Path(__file__).resolve().parents[2]
#: Seconds after which a Parquet file that the newest reader does not use is removed.
UNUSED = 86400
#: Number of reports that one query reads: to plan it takes longer than to read one.
BATCH = 50


@contextlib.contextmanager
def open_records_database(paths: Sequence[os.PathLike | str], report_fault: Report
                          ) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the views `results`, `measurements` and `sessions`.

    :param paths: folders and files
    :param report_fault: called with file, line and reason of each fault
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
        faults: list[PerflogError] = []

        def report(file: Any, line: int, reason: str) -> None:
            faults.append(PerflogError(file, line, reason))

        files = find_record_files(paths, report)
        refused = {path.stem: (path, why) for path in [*files.reports, *files.logs]
                   if (why := sessions.wrong_clock_reason(path))}
        for path, why in refused.values():
            report(path, 1, why)
        of_files, store = [*faults], _Store(con, paths, temporary)
        try:
            parts, read = store.create_parts_view(files, refused, report)
        except (OSError, duckdb.Error):
            # The Parquet files are damaged, or the disk is full.
            store.remove_used()
            faults[:] = of_files
            store = _Store(con, paths, temporary, temporary)
            parts, read = store.create_parts_view(files, refused, report)
        logs = [log for path in files.logs if path.stem not in read
                and (log := sessions.read_log(path, store.name(path), report))]
        folder = str(store.root).rstrip('/') + '/'
        con.execute(f'SET VARIABLE root = {sql_text(folder)}')
        con.execute("SET VARIABLE site = ''")
        sessions.create_session_tables(con, logs)
        sessions.create_sessions_view(con)
        counting.create_views(con)
        con.execute(f'SET allowed_paths = [{", ".join(map(sql_text, parts))}]')
        for fault in sorted(faults, key=lambda one: (one.file, one.line)):
            report_fault(fault.file, fault.line, fault.reason)
        yield con


def restrict_views_to_site(con: duckdb.DuckDBPyConnection, site: str) -> None:
    """Restrict all views to a site; '': to none.

    :raises ValueError: the site has no records
    """
    if not site:
        return
    sites = [name for name, in con.execute(
        'SELECT DISTINCT system FROM parts WHERE NOT broken').fetchall()]
    if sites:
        options.refuse_unknown_site(site, sites)
    con.execute(f'SET VARIABLE site = {sql_text(site)}')


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

    def create_parts_view(self, files: RecordFiles, refused: Collection[str],
                          report: Report) -> tuple[list[Path], set[str]]:
        """Make the view `parts`, all measurements of reports and rows.

        :param refused: sessions that are not read
        :returns: the Parquet files; sessions that are refused, or in their reports
        :raises OSError, duckdb.Error: Parquet files cannot be written or read
        """
        of_reports = self.parts_of_reports(
            (path for path in files.reports if path.stem not in refused), report)
        read = {*refused, *(path.stem for path in of_reports)}
        parts = [*of_reports.values(), *(
            self.part_of_rows(path, read, report) for path in files.rows)]
        self.con.execute('CREATE OR REPLACE TEMP VIEW parts AS ' + (
            f"FROM read_parquet([{', '.join(map(sql_text, parts))}])" if parts
            else NO_MEASUREMENTS))
        for file, line, fault, count in self.con.execute(
                'SELECT file, min(line), fault, count(*) FROM (SELECT file, line, '
                'unnest(faults) AS fault FROM parts WHERE len(faults) > 0) '
                'GROUP BY file, fault ORDER BY ALL').fetchall():
            report(self.root / file, line,
                   fault + f' (and {count - 1} more)' * (count > 1))
        self._remove_unused()
        return parts, read

    def parts_of_reports(self, paths: Iterable[Path], report: Report
                         ) -> dict[Path, Path]:
        """Report -> its Parquet file, of those that can be read; what is wrong with
        the others is reported."""
        parts: dict[Path, Path] = {}
        new: list[Path] = []
        for path in paths:
            try:
                parts[path] = self._part(path, '')
                if not parts[path].exists():
                    reports.check_report(path)
                    new.append(path)
            except (OSError, reports.ReportError) as err:
                self._report_unreadable(parts, path, err, report)
        for start in range(0, len(new), BATCH):
            self._write_reports(parts, new[start:start + BATCH], report)
        return parts

    def _write_reports(self, parts: dict[Path, Path], paths: Sequence[Path],
                       report: Report) -> None:
        """Write the Parquet files of reports."""
        names = {path: self.name(path) for path in paths}
        try:
            self.con.execute('CREATE OR REPLACE TEMP TABLE batch AS '
                             + reports.reports_query(names))
        except (OSError, duckdb.Error) as err:
            if len(paths) == 1:
                self._report_unreadable(parts, paths[0], err, report)
            else:
                for path in paths:
                    self._write_reports(parts, [path], report)
            return
        for path, name in names.items():
            self._write(parts[path], f'FROM batch WHERE file = {sql_text(name)}')

    def _report_unreadable(self, parts: dict[Path, Path], path: Path, err: Exception,
                           report: Report) -> None:
        parts.pop(path, None)
        report(path, 1, 'not a report of ReFrame that can be read: '
               f'{reports.error_text(err)}; the values come from the rows')

    def part_of_rows(self, path: Path, reported: Collection[str], report: Report
                     ) -> Path:
        """The Parquet file of a file of rows, without the sessions with a report."""
        try:
            # Not the sessions that began later: the file has no row of them, and need
            # not be read again for them.
            latest = datetime.datetime.fromtimestamp(
                path.stat().st_mtime, datetime.timezone.utc) + clock.TOLERANCE
            part = self._part(path, ' '.join(sorted(
                name for name in reported if name < f'{latest:%Y%m%dT%H%M%SZ}~')))
        except OSError:
            part = self.temporary / hashlib.sha256(os.fsencode(path)).hexdigest()
        if not part.exists():
            name, lines = self.name(path), self.temporary / 'lines'
            try:
                with regular.open_regular_file(path) as handle, \
                        open(lines, 'wb') as out:
                    layout, faults = rows.copy_whole_lines(handle, out, reported)
            except OSError as err:
                layout, faults = None, [(1, f'cannot be read ({err.strerror}); check '
                                         'the path and its permissions')]
            query = NO_MEASUREMENTS
            if layout and lines.stat().st_size:
                query = f'FROM ({rows.rows_query(layout, lines, name)})'
            if faults:
                given = ', '.join(
                    f'({line}, {sql_text(text)})' for line, text in faults)
                query += (f' UNION ALL BY NAME SELECT {sql_text(name)} AS file, line, '
                          '[fault] AS faults, true AS broken '
                          f'FROM (VALUES {given}) AS given (line, fault)')
            self._write(part, query)
        return part

    def name(self, path: Path) -> str:
        """The name of a file in the records."""
        path = path if self.root != Path('/') else path.absolute()
        return os.path.relpath(path, self.root)

    def _part(self, path: Path, depends: str) -> Path:
        """The path of the Parquet file of a file.

        :param depends: on what else its content depends
        :raises OSError: the file cannot be read
        """
        state = path.stat()
        key = json.dumps([_version(), self.name(path), state.st_size,
                          state.st_mtime_ns, state.st_ctime_ns, depends])
        part = self.folder / f'{hashlib.sha256(key.encode()).hexdigest()[:32]}.parquet'
        self.used.add(part)
        return part

    def _write(self, part: Path, query: str) -> None:
        """Write a Parquet file; no reader sees half of it.

        :raises duckdb.Error: the query cannot be answered
        """
        handle, draft = tempfile.mkstemp(dir=part.parent, prefix='new-')
        os.close(handle)
        try:
            self.con.execute(f'COPY ({query}) TO {sql_text(draft)} '
                             '(FORMAT parquet, COMPRESSION snappy)')
            os.replace(draft, part)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft)

    def remove_used(self) -> None:
        """Remove the Parquet files, because one of them cannot be read."""
        for part in self.used:
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


@functools.cache
def _version() -> str:
    """A hash of all that records depend on besides the files themselves."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob('config/*.yaml'), *ROOT.glob('checks/*/family.yaml'),
                        *Path(__file__).parent.glob('*.py')]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
