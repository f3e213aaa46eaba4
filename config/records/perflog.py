"""Write the suite's perflogs: a handler for ReFrame's performance log.

config/perflog.yaml describes the format. ReFrame's own file handler cannot
quote a value, writes nothing for a test case that a sanity check refused, and
renames files when the header changes. This handler quotes values, writes a
record for each test case, and has a fixed header per schema.
"""
from __future__ import annotations

import csv
import datetime
import functools
import gzip
import io
import logging
import math
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reframe
from reframe.core.exceptions import LoggingError
from reframe.core.logging import register_log_handler

from config.records import metrics, samples
from config.records.columns import schema_number_and_columns
from config.sessions import lock, run_id
from config.version import VERSION

ROOT = Path(__file__).resolve().parents[2]

#: Sanity checks that fail a test case but keep its values.
KEEP_VALUES = ('reference', 'validity')


@functools.cache
def suite_commit() -> str:
    """Commit of the checkout, '-dirty' if changed; without git: 'unknown'."""
    try:
        return subprocess.run(
            ['git', '-C', str(ROOT), 'describe', '--always', '--dirty',
             '--abbrev=12', '--exclude=*'],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return 'unknown'


def csv_line(cells: list[Any]) -> str:
    """A CSV line; control characters become blanks, and None is empty."""
    clean = []
    for cell in cells:
        text = '' if cell is None else (
            repr(cell) if isinstance(cell, float) else str(cell))
        # Nearly all cells are printable: the slow part is for the others.
        clean.append(text if text.isprintable() else ''.join(
            c if c.isprintable() else ' ' for c in text))
    out = io.StringIO()
    csv.writer(out, lineterminator='\n').writerow(clean)
    return out.getvalue()


#: A file of an earlier month is renamed if it has at least so many bytes.
ENOUGH = 1 << 20


#: Name of the lock in a folder of perflogs, and the longest wait for it, in
#: seconds. A session holds it while it appends records.
LOCK, LOCK_LIMIT = '.lock', 120.0


def append_records(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    """Append all of the records, or none.

    Several sessions may share the file and take turns with a lock beside it,
    which users who can only read the file cannot hold. A line that an earlier
    crash left incomplete is ended first, so that the next line is readable.
    Records of earlier months are moved away, so that the file stays small.

    :raises OSError: it cannot be written; the file is unchanged
    :raises LockError: another session holds the lock, or it is not a file
    """
    with lock.hold_file_lock(path.parent / LOCK, LOCK_LIMIT, 'reframe',
                             f'{path.parent} is written by', shared=True):
        aside = rename_file_of_past_month(path)
        with open(path, 'ab+', buffering=0) as handle:
            _append_rows(handle, header, rows)
    if aside:
        compress_files_of_past_months(path)


def _append_rows(handle: Any, header: list[str], rows: list[list[Any]]) -> None:
    size = handle.seek(0, os.SEEK_END)
    text = ''
    if size == 0:
        text = csv_line(header)
    else:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b'\n':
            text = '\n'
    data = (text + ''.join(csv_line(row) for row in rows)).encode()
    try:
        while data:
            data = data[handle.write(data):]
        os.fsync(handle.fileno())
    except OSError:
        handle.truncate(size)
        raise


def rename_file_of_past_month(path: Path) -> bool:
    """Rename a file that was last written in an earlier month:
    X.v3.csv becomes X.v3.2026-10.csv. The caller holds the lock.

    A file of less than 1 MiB is not renamed.
    """
    try:
        known = path.stat()
    except FileNotFoundError:
        return False
    utc = datetime.timezone.utc
    month = f'{datetime.datetime.fromtimestamp(known.st_mtime, utc):%Y-%m}'
    now = f'{datetime.datetime.now(utc):%Y-%m}'
    if known.st_size < ENOUGH or month >= now:
        return False
    old = path.with_name(f'{path.stem}.{month}.csv')
    if old.exists() or Path(f'{old}.gz').exists():
        return False
    os.rename(path, old)
    return True


def compress_files_of_past_months(path: Path) -> None:
    """Compress the renamed files of a perflog.

    Readers use the plain file as long as it exists, so no record is lost or
    doubled if the process is killed. A file that cannot be compressed stays
    plain.
    """
    for old in path.parent.glob(f'{path.stem}.????-??.csv'):
        draft = old.with_name(f'.{old.name}.{secrets.token_hex(3)}')
        try:
            with open(old, 'rb') as plain, open(draft, 'wb') as handle:
                with gzip.GzipFile(old.name, 'wb', fileobj=handle) as packed:
                    shutil.copyfileobj(plain, packed)
                handle.flush()
                os.fsync(handle.fileno())
            draft.replace(f'{old}.gz')
            old.unlink()
        except OSError:
            draft.unlink(missing_ok=True)


def save_attached_files(folder: Path, files: dict[str, str]) -> None:
    """Save the files of a test case beside the perflogs: all or none.

    :arg files: path below the folder -> text
    :raises OSError: they cannot be written; none of them is
    """
    if not files:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        for name, text in files.items():
            path = Path(new, 'files', name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if folder.exists():
            # This session measured the test case before: keep the newer.
            os.rename(folder, Path(new, 'before'))
        os.rename(Path(new, 'files'), folder)
    if samples.FILE in files:
        samples.remove_old_samples(folder)


@functools.cache
def current_session_id() -> str:
    """Identifier of this session, which `plumb run` may have chosen."""
    # Removed from the environment: child processes are other sessions.
    return os.environ.pop(run_id.VARIABLE, '') or run_id.new_session_id()


def save_files_if_absent(folder: Path, files: dict[str, str]) -> None:
    """Save content-addressed files: each once, and atomically.

    :arg files: name -> text
    :raises OSError: a file cannot be written; existing files are unchanged
    """
    for name, text in files.items():
        path = folder / f'{name}.json'
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f'.{name}.{secrets.token_hex(3)}'
            try:
                draft.write_text(text)
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)


class PerflogHandler(logging.Handler):
    """Appends one record per metric and point for each finished test case."""

    def __init__(self, basedir: str) -> None:
        super().__init__()
        self.basedir = Path(basedir)
        self.run = current_session_id()
        #: Test cases with a record: partition, environment and hash.
        self.recorded: set[tuple[str, str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        check: Any = getattr(record, '__rfm_check__', None)
        # Builds end here, too, but they have no values.
        if (hasattr(check, 'params') and not check.is_dry_run()
                and not hasattr(check, 'is_settled')):
            self.write_records(check)

    def record_failed_test_case(self, check: Any, is_set_up: bool) -> None:
        """Write the records of a test case that failed.

        ReFrame logs only some of these, and adds no further record.

        :raises LoggingError: they cannot be written
        """
        check.is_settled = True
        self.write_records(check, is_set_up)

    def write_records(self, check: Any, is_set_up: bool = True) -> None:
        """Write the records of a test case.

        :param is_set_up: whether its number of tasks is known
        :raises LoggingError: they cannot be written
        """
        schema, names = schema_number_and_columns()
        common = self.common_columns(check, is_set_up, schema)
        rows = [[{**common, **metric}.get(name) for name in names]
                for metric in value_records(check)]
        folder = self.basedir / common['system'] / common['partition']
        path = folder / f"{common['check']}.v{schema}.csv"
        try:
            # A test case has the same hash in all environments.
            save_attached_files(folder / common['family'] / '-'.join(
                common[name] for name in ('run', 'environ', 'case')),
                check.attached_files)
            save_files_if_absent(self.basedir / common['system'] / 'machines',
                                 check.facts_files)
            append_records(path, list(names), rows)
        except (OSError, lock.LockError) as err:
            why = getattr(err, 'strerror', None) or err
            raise LoggingError(f'cannot write to {path} ({why}), so the '
                               'values of this test case are lost; free '
                               'space on the disk, and run it again'
                               ) from None
        self.recorded.add((common['partition'], common['environ'],
                           common['case']))

    def common_columns(self, check: Any, is_set_up: bool,
                       schema: int) -> dict[str, Any]:
        """The columns that all records of a test case share."""
        now = datetime.datetime.now(datetime.timezone.utc)
        job = check.job
        nodes = job.nodelist if job else None
        # Before its setup a test case has neither partition nor tasks.
        sizes = {
            'num_nodes': check.num_nodes, 'num_tasks': check.num_tasks,
            'tasks_per_node': check.num_tasks_per_node} if is_set_up else {}
        return {
            'schema': schema, 'time': f'{now:%Y-%m-%dT%H:%M:%SZ}',
            'run': self.run, 'suite': VERSION, 'commit': suite_commit(),
            'reframe': reframe.VERSION,
            'system': check.current_system.name,
            'partition': check.current_partition.name,
            'environ': check.current_environ.name,
            'family': check.family, 'check': type(check).variant_name(),
            'params': check.params, 'case': check.hashcode,
            'job': job.jobid if job else None,
            'nodes': ' '.join(nodes or ()),
            'machine': check.node_facts,
            'binding': check.binding,
            'gpus': check.gpus,
            **sizes,
            'source': check.source, 'program': check.program,
            'version': check.version, 'stack': check.stack,
            'spec': check.spec, 'emulated': int(check.emulated),
            'speed': check.speed,
        }


def value_records(check: Any) -> Iterator[dict[str, Any]]:
    """The records of a test case: each repetition, then the compared values.

    With one repetition the two are the same record. A test case without values
    (a sanity check refused it), or with a value that is not finite, has one
    record: completed = 0. If its references are wrong or missing, it has this
    record and those of its values.
    """
    # A changed CPU speed is recorded in the column `speed`.
    result = ('inconclusive' if check.inconclusive
              and (check.invalid or check.disturbed
                   or check.speed != 'mixed') else 'no_reference')

    def metric_record(metric: str, value: float, repetition: int, **judged: Any
               ) -> dict[str, Any]:
        name, size = metrics.split_metric_key(metric)
        known = metrics.metric(name)
        return {'repetition': repetition, 'metric': name,
                'point': metrics.point_with_unit(size),
                'value': float(value), 'unit': known.unit,
                'better': known.better, 'result': result, **judged}

    # After a failure ReFrame sets the values of all names to None.
    values = {key.split(':')[-1]: v for key, v in check.perfvalues.items()
              if v[0] is not None}
    samples = getattr(check, 'samples', [])
    # Refuse here what no report could read.
    guard = check.guard if all(
        math.isfinite(number) for number in (
            *(n for sample in samples for n in sample.values()),
            *(n for v in values.values() for n in v[:4] if n is not None))
        ) else 'not_finite'
    if not values or guard:
        yield metric_record('completed', 0.0, 0, reference=1.0, lower=0.0,
                            result='fail', guard=guard)
        if guard not in KEEP_VALUES:
            return
    several = len(samples) > 1
    if several:
        for repetition, sample in enumerate(samples, 1):
            for metric, value in sample.items():
                yield metric_record(metric, value, repetition)
    for metric, (value, ref, lower, upper, _, verdict) in values.items():
        judged = {}
        if lower is not None or upper is not None:
            judged = {
                'result': 'retried'
                if verdict == 'fail' and check.retried
                else verdict
            }
        if judged or ref:
            judged |= {'reference': float(ref), 'lower': lower,
                       'upper': upper}
        yield metric_record(metric, value, 0 if several else 1, **judged)


#: The handler of this session, after ReFrame has created it.
_handlers: list[PerflogHandler] = []


def perflog_handler() -> PerflogHandler | None:
    """The handler of this session; None if the configuration has none."""
    return _handlers[-1] if _handlers else None


@register_log_handler('perflog')
def _create_handler(site_config: Any, prefix: str) -> PerflogHandler:
    made = PerflogHandler(os.path.expandvars(
        site_config.get(f'{prefix}/basedir')))
    _handlers.append(made)
    return made
