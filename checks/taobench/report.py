"""Report of a run in the original's format: JSON, and a table per server.

Names, keys and columns are those of DCPerf (benchpress/cli/commands/run.py,
packages/tao_bench/parser.py), so that its tools can read the report.
"""
from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from checks.core.parsers import Record
from checks.taobench.jobs import Job
from checks.taobench.parser import Log, Summary

COLUMNS = ('seq', 'total_qps', 'fast_qps', 'hit_rate', 'slow_qps', 'is_oom',
           'slow_qps_oom', 'nanosleeps_per_sec')
#: Fields of a summary that the report of a job with one server has.
SINGLE = ('fast_qps', 'slow_qps', 'total_qps', 'hit_ratio',
          'num_data_points', 'score')


def format_time_series(log: Log) -> str:
    """A server's points as CSV, one row per line of its log.

    A missing field is empty; the original writes 0.
    """
    rows = [','.join(COLUMNS)]
    for number, point in enumerate(log.points):
        values = {name: repr(value) for name, value in point.values.items()}
        if {'fast_qps', 'slow_qps'} <= set(point.values):
            values['total_qps'] = repr(point.values['fast_qps']
                                       + point.values['slow_qps'])
        values |= {'seq': str(number), 'is_oom': str(int(
            point.out_of_memory))}
        rows.append(','.join(values.get(name, '') for name in COLUMNS))
    return '\n'.join(rows) + '\n'


def server_metrics(summary: Summary) -> dict[str, float | int | str]:
    """The metrics of a job with one server, role `server`."""
    return {'role': 'server', **{name: getattr(summary, name)
                                 for name in SINGLE}}


def client_metrics(records: Sequence[Record]) -> dict[str, float | str]:
    """The metrics of a client, role `client`: operations per second."""
    rates = {record.metric: record.value for record in records}
    return {'role': 'client', **{
        name: rates[metric] for name, metric in (
            ('set_qps', 'operations[type=Sets]'),
            ('qps', 'operations[type=Gets]')) if metric in rates}}


def build_report(job: Job, machines: Sequence[Mapping[str, Mapping[str, str]]],
                 arguments: Sequence[str], metrics: Mapping[str, float | str],
                 run_id: str, timestamp: int,
                 more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The report of one run.

    :param machines: output of machine.py; the report has the caches of the
        first machine, the server's
    :param arguments: arguments of the program
    :param timestamp: start of the run. Unit: s since 1970
    :param more: metadata that the original does not have
    :raises ValueError: a value is nan or infinite
    """
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f'{name} = {value} cannot be part of a report, '
                             'because it is not finite')
    return {
        'machines': [dict(machine['machine']) for machine in machines],
        'metadata': {**(machines[0]['metadata'] if machines else {}),
                     **(more or {})},
        'run_id': run_id, 'timestamp': int(timestamp),
        'benchmark_name': job.name, 'benchmark_desc': job.description,
        'benchmark_hooks': list(job.hooks),
        'benchmark_args': list(arguments), 'metrics': dict(metrics)}


def server_log_name(index: int, start: float) -> str:
    """The original's name of a server's log.

    :param index: index of the server, from 0
    :param start: start of the server. Unit: s since 1970
    """
    at = time.strftime('%y%m%d_%H%M%S', time.localtime(start))
    return f'tao-bench-server-{index + 1}-{at}.log'


def drop_overwritten_text(text: str) -> str:
    """The text as a terminal shows it in the end: a line has only the part after
    its last carriage return. So it has the last progress report of memtier, which
    prints one per second."""
    return '\n'.join(line.rstrip('\r').rpartition('\r')[2]
                     for line in text.split('\n'))


def text_of_report_files(report: Mapping[str, Any], logs: Sequence[Log | None],
                         iteration: int = 1, output: Mapping[str, str] | None = None
                         ) -> dict[str, str]:
    """All files of a report: path under the results -> text.

    :param logs: log of each server; None: it has no log
    :param output: name of a log that is kept beside the report -> text
    """
    folder = f'benchmark_metrics_{report["run_id"]}'
    name = (f'{report["benchmark_name"]}_metrics_{report["timestamp"]}'
            f'_iter_{iteration}.json')
    single = 'spawned_instances' not in report['metrics']
    return {f'{folder}/{name}': json.dumps(report, sort_keys=True, indent=2)
            + '\n', **{
                f'{folder}/server{"" if single else f"_{index}"}.csv':
                format_time_series(log) for index, log in enumerate(logs) if log},
            **{f'{folder}/{name}': text for name, text in (output or {}).items()}}
