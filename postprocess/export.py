"""`plumb export`: the perflogs for other tools."""
from __future__ import annotations

import argparse
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import records, store
from .records import FIGURE, HEAD, KIND, Part

HELP = """Writes the perflogs as a file for other tools.

--parquet and --csv have a row a record, of all runs, in order of time: the
columns of config/perflog.yaml; `size`, the point in bytes; `file`, `line` and
`format`, where the record stands. Empty cells are NULL; times are UTC.

--junit and --openmetrics tell how each case stands in its newest run, as the
page does. JUnit is what `plumb verdict --junit` writes: a test a case, failed
where it failed or regressed, skipped where nothing judged it (inconclusive, or
no reference and too few nights). The OpenMetrics are gauges: plumb_METRIC for
each judged figure, with the labels system, partition, environ, check, params,
program, source, metric, point and unit (plumb_METRIC_value where the metric
ends in what Prometheus keeps for counters, as cpu_total does);
plumb_case_failed, 0 or 1; plumb_case_run_seconds, when the case ran.

Several files can be written at once; each is replaced as a whole, or not.

Examples:
  ./plumb export --parquet all.parquet
  ./plumb export --perflogs /shared/perflogs --csv all.csv --junit junit.xml
  ./plumb export --openmetrics /var/lib/node_exporter/plumb.prom
  ./plumb export --csv /dev/stdout | head

Exit codes: 0 good (also where a case failed), 1 written, but there are
damaged places in the perflogs (each is told on stderr), 2 usage, no records,
or a file that cannot be written.
"""
#: Rows that are made at a time: each has forty cells.
_BATCH = 200_000
_COUNTS = ('schema', 'num_nodes', 'num_tasks', 'tasks_per_node', 'repeat')
#: Endings of names that mean something to Prometheus, and not a gauge.
_KEPT = re.compile('_(total|created|count|sum|bucket|info)$')
_LABELS = ('system', 'partition', 'environ', 'check', 'params', 'program',
           'source')


def parser() -> argparse.ArgumentParser:
    head, _, rest = HELP.partition('\n\n')
    cmd = argparse.ArgumentParser(
        prog='plumb export', description=head, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    cmd.add_argument('--perflogs', type=Path, default=Path('perflogs'),
                     metavar='DIR', help='folder of perflogs, or a file')
    for name, text in (('parquet', 'all records as Parquet (zstd)'),
                       ('csv', 'all records as CSV'),
                       ('junit', 'how the cases stand, as JUnit XML'),
                       ('openmetrics', 'the newest figures, for Prometheus')):
        cmd.add_argument(f'--{name}', type=Path, metavar='FILE', help=text)
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    cmd = parser()
    args = cmd.parse_args(argv)
    if not any((args.parquet, args.csv, args.junit, args.openmetrics)):
        cmd.error('what is to be written? --parquet, --csv, --junit or '
                  '--openmetrics FILE')
    faults: list[str] = []

    def report(file: Path, line: int, reason: str) -> None:
        faults.append(f'{file}:{line}: {reason}')

    parts = store.parts([args.perflogs], report)
    for fault in faults:
        print(f'plumb export: {fault}', file=sys.stderr)
    if not any(len(part.line) for part in parts):
        if not faults:
            print(f'plumb export: no records in {args.perflogs}: run '
                  '`./plumb run` first, or name another folder with '
                  '--perflogs', file=sys.stderr)
        return 2
    try:
        for file, form in ((args.parquet, 'parquet'), (args.csv, 'csv')):
            if file:
                written(file, functools.partial(tidy, parts, form))
        if args.junit or args.openmetrics:
            from . import perflogs, telling, verdict
            frame = perflogs.frame(parts)
            if args.openmetrics:
                written(args.openmetrics, functools.partial(
                    _text, '\n'.join(openmetrics(newest(frame))) + '\n'))
            if args.junit:
                found = verdict.of_records(frame, [str(args.perflogs)])
                written(args.junit, functools.partial(
                    _text, telling.junit(found)))
    except OSError as err:
        print(f'plumb export: {err.filename or "a file"}: cannot be written '
              f'({err.strerror or err})', file=sys.stderr)
        return 2
    except ValueError as err:       # a damaged file beside the references
        print(f'plumb export: {err}', file=sys.stderr)
        return 2
    return 1 if faults else 0


def written(file: Path, write: Callable[[Path], Any]) -> None:
    """Lets a file be written beside, and puts it in its place.

    :raises OSError: it cannot be written; what was there is as it was
    """
    if file.exists() and not file.is_file():    # /dev/stdout, a pipe
        write(file)
        return
    handle, name = tempfile.mkstemp(prefix=f'.{file.name}.',
                                    dir=file.absolute().parent)
    os.close(handle)
    try:
        write(Path(name))
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, file)
    finally:
        Path(name).unlink(missing_ok=True)


def _text(text: str, file: Path) -> None:
    file.write_text(text, encoding='utf-8')


def tidy(parts: Sequence[Part], form: str, file: Path) -> None:
    """All records in one table, in order of time, as Parquet or CSV.

    :raises OSError: the file cannot be written
    """
    import polars as pl
    from polars.io.plugins import register_io_source
    part = records.joined(parts)
    words = {name: pl.Series(name, *_typed(name, part.texts[name]))
             for name in (*HEAD, *KIND)}
    sizes = pl.Series('size', [*map(records.size, part.texts['point'])],
                      pl.Int64)

    def rows(at: np.ndarray) -> pl.DataFrame:
        head, kind = part.head[at], part.kind[at]
        return pl.DataFrame([
            *(words[name].gather(part.heads[name][head]) for name in HEAD),
            *(words[name].gather(part.kinds[name][kind]) for name in KIND),
            sizes.gather(part.kinds['point'][kind]),
            *(pl.Series(name, figure[at], nan_to_null=True) for name, figure
              in zip(FIGURE, part.figure, strict=True)),
            pl.Series('line', part.line[at])])

    order = _order(part, words['time'].to_numpy())

    def source(*_: Any) -> Iterator[pl.DataFrame]:
        for at in range(0, len(order), _BATCH):
            yield rows(order[at:at + _BATCH])

    table = register_io_source(source, schema=rows(order[:1]).schema)
    try:
        with open(file, 'wb') as handle:
            if form == 'parquet':
                table.sink_parquet(handle)
            else:
                table.sink_csv(handle, datetime_format='%Y-%m-%dT%H:%M:%SZ')
    except pl.exceptions.PolarsError as err:
        raise OSError(0, str(err).splitlines()[0], str(file)) from None


def _typed(name: str, texts: Sequence[str]) -> tuple[Any, Any]:
    """The values of a column's texts, None where one is empty; their type
    in polars, None where it is plain."""
    import polars as pl
    if name == 'time':
        return records.times(texts), None
    if name == 'emulated':
        return [text == '1' for text in texts], pl.Boolean
    if name in _COUNTS:
        return [*map(records.count, texts)], pl.Int64
    return [text or None for text in texts], pl.String


def _order(part: Part, times: np.ndarray) -> np.ndarray:
    """The records in order of time, file and line."""
    file = store.rank(part.texts['file'])
    return np.lexsort((part.line, file[part.heads['file']][part.head],
                       times[part.heads['time']][part.head]))


def newest(frame: Any) -> list[tuple[Any, str, Any]]:
    """Each case in its newest run: its record that decides, how it ended,
    and all that was judged of it.

    :param frame: as perflogs.read gives it
    """
    from . import results
    judged = results.newest(frame)
    found = []
    for _, rows in judged.groupby(results.CASE, observed=True, sort=True):
        rank = rows['result'].map(results.ORDER.index)
        first = rows.loc[rank.idxmin()]
        found.append((first, str(first['result']), rows))
    return found


def openmetrics(cases: list[tuple[Any, str, Any]]) -> Iterator[str]:
    """Lines of OpenMetrics text, which is Prometheus' own format too."""
    from . import results
    families: dict[str, tuple[str, dict[str, str]]] = {
        'plumb_case_failed': ('1 where the case failed in its newest run',
                              {}),
        'plumb_case_run_seconds': ('When the newest run of the case was, '
                                   'seconds since 1970', {})}
    known = records.metrics()
    for first, result, rows in cases:
        labels = {name: str(first[name]) for name in _LABELS}
        families['plumb_case_failed'][1][_labels(labels)] = str(
            int(result in results.FAILED))
        families['plumb_case_run_seconds'][1][_labels(labels)] = str(
            int(first['time'].timestamp()))
        for row in rows.itertuples():
            if row.metric == 'completed':
                continue
            name = 'plumb_' + re.sub(r'\W', '_', str(row.metric),
                                     flags=re.ASCII)
            name += '_value' * bool(_KEPT.search(name))
            means = known.get(str(row.metric), {}).get('means', '')
            # The last of several repeats that have no median.
            families.setdefault(name, (means, {}))[1][_labels(
                labels | {'metric': str(row.metric),
                          'point': str(row.point), 'unit': str(row.unit)}
            )] = repr(float(row.value))
    for name, (means, samples) in sorted(families.items()):
        yield f'# HELP {name} {_escaped(means or name)}'
        yield f'# TYPE {name} gauge'
        for labels_, value in samples.items():
            yield f'{name}{labels_} {value}'
    yield '# EOF'


def _labels(labels: dict[str, str]) -> str:
    return '{' + ','.join(f'{name}="{_escaped(value)}"'
                          for name, value in labels.items()) + '}'


def _escaped(text: str) -> str:
    text = ''.join(c if c.isprintable() else ' ' for c in text)
    return text.replace('\\', r'\\').replace('"', r'\"')
