"""Write the record of a session as ReFrame writes it: report, log and rows.

For records that no session of ReFrame made: those of `plumb demo`, of results that
others saved, and of tests.
"""
from __future__ import annotations

import datetime
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from config.records.columns import DELIMITER, reframe_names, text_for_row
from config.records.identity import IDENTITY, test_case_id
from config.records.metrics import metrics_by_name, perf_var

#: Columns of rows that each value has of its own.
VALUE_COLUMNS = ('perf_var', 'value', 'reference', 'lower', 'upper', 'unit', 'result')


class Value(NamedTuple):
    """A value of a measurement."""
    metric: str
    value: float
    point: int | None = None
    #: Number of the repetition; None: the value that is judged.
    repetition: int | None = None
    reference: float = 0.0
    lower: float | None = None
    upper: float | None = None
    result: str = 'pass'
    #: '': that of the metric.
    unit: str = ''

    @property
    def name(self) -> str:
        """ReFrame's name of the value."""
        return perf_var(self.metric, self.point, self.repetition)

    def cells(self) -> list[Any]:
        """The value as ReFrame's report has it."""
        known = metrics_by_name().get(self.metric)
        return [self.value, self.reference, self.lower, self.upper,
                self.unit or (known.unit if known else ''), self.result]


def values_of_repetitions(given: Iterable[tuple[str, str, int | None, Sequence[float]]]
                          ) -> list[Value]:
    """Values that others measured: each repetition of several, and their median.

    :param given: metric, unit, point in bytes, and the values of the repetitions
    """
    values = []
    for metric, unit, point, repeated in given:
        if len(repeated) > 1:
            values += [Value(metric, value, point, number, unit=unit)
                       for number, value in enumerate(repeated, 1)]
        values.append(Value(metric, statistics.median(repeated), point, unit=unit))
    return values


@dataclass
class Measurement:
    """A measurement of a test case."""
    #: End of the job.
    time: datetime.datetime
    #: Columns of config/perflog.yaml that its values have in common.
    columns: dict[str, Any]
    values: Sequence[Value] = ()
    #: Of ReFrame: pass, fail, fail_deps, skip, abort, xfail, xpass.
    result: str = 'pass'
    fail_phase: str | None = None
    fail_reason: str | None = None
    #: Number of the retry.
    retry: int = 0


@dataclass
class Session:
    """A session of ReFrame, with its measurements in their order."""
    name: str
    started: datetime.datetime
    measurements: list[Measurement] = field(default_factory=list)
    #: Options on the command line of ReFrame.
    options: str = ''
    #: Whether it ended; a session that was cut short has no report.
    ended: bool = True


#: Columns of a measurement that does not give them.
DEFAULTS: Mapping[str, Any] = {
    'num_nodes': 1, 'num_tasks': 1, 'tasks_per_node': 1, 'emulated': False,
    'transient': False}


def write_sessions(folder: Path, sessions: Iterable[Session]) -> int:
    """Write the record of sessions below a folder of perflogs; add to what is there.

    :returns: number of values, and of measurements without any
    :raises OSError: it cannot be written
    """
    sessions = list(sessions)
    count = write_rows(folder, sessions)
    reports = folder / 'sessions'
    reports.mkdir(parents=True, exist_ok=True)
    for session in sessions:
        (reports / f'{session.name}.log').write_text(_log(session), encoding='utf-8')
        if session.ended:
            (reports / f'{session.name}.json').write_text(
                json.dumps(_report(session)), encoding='utf-8')
    return count


def write_rows(folder: Path, sessions: Iterable[Session]) -> int:
    """Write only the rows of sessions; see `write_sessions`."""
    rows: dict[Path, list[str]] = {}
    count = 0
    for session in sessions:
        for number, one in enumerate(session.measurements):
            columns = _complete_columns(session, number, one)
            if one.values:
                path = (folder / columns['system'] / columns['partition']
                        / f'{columns["check"]}.log')
                rows.setdefault(path, []).extend(_rows(columns, one.values))
            count += len(one.values) or 1
    for path, lines in rows.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, 'a', encoding='utf-8') as handle:
            if not handle.tell():
                handle.write(DELIMITER.join(reframe_names().values()) + '\n')
            handle.writelines(lines)
    return count


def _complete_columns(session: Session, number: int, one: Measurement
                      ) -> dict[str, Any]:
    """The columns of a measurement, those that follow from others included."""
    columns = {**dict.fromkeys(reframe_names(), ''), **DEFAULTS, **one.columns}
    columns |= {'time': f'{one.time:%Y-%m-%dT%H:%M:%S+00:00}', 'session': session.name,
                'number_of_values': columns['number_of_values'] or len(one.values),
                'measurement': columns['measurement']
                or f'{session.started:%d%H%M}{number:06x}'}
    columns['test_case'] = test_case_id(*(columns[name] for name in IDENTITY))
    columns['name'] = columns['name'] or ' %'.join(
        [columns['check'], *columns['params'].split()])
    one.columns = columns
    return columns


def _rows(columns: Mapping[str, Any], values: Iterable[Value]) -> Iterable[str]:
    """The rows of a measurement."""
    common = DELIMITER.join(
        _cell(cell) for name, cell in columns.items() if name not in VALUE_COLUMNS)
    for value in values:
        yield DELIMITER.join(
            [common, value.name, *map(_cell, value.cells())]) + '\n'


def _cell(value: Any) -> str:
    """A cell as ReFrame's file handler writes it."""
    return text_for_row(value) if isinstance(value, str) else json.dumps(value)


def _report(session: Session) -> dict[str, Any]:
    """The report of a session."""
    ended = _end(session)
    runs: dict[int, list[dict[str, Any]]] = {}
    for one in session.measurements:
        columns = one.columns
        place = f'{columns["system"]}:{columns["partition"]}:'
        has_job = one.fail_phase != 'setup' and one.result in ('pass', 'fail')
        runs.setdefault(one.retry, []).append({
            **{reframe_names()[name]: cell for name, cell in columns.items()
               if name not in (*VALUE_COLUMNS, 'time')},
            'job_completion_time_unix': one.time.timestamp() if has_job else None,
            'fixture': False, 'unique_name': columns['name'],
            'dependencies_actual': [], 'result': one.result,
            'fail_phase': one.fail_phase, 'fail_reason': one.fail_reason,
            'perfvalues': {place + value.name: [
                None if isinstance(cell, float) and not math.isfinite(cell) else cell
                for cell in value.cells()] for value in one.values}})
    last = runs.get(max(runs, default=0), [])
    return {
        'session_info': {
            'data_version': '4.2', 'version': '4.10.4',
            'cmdline': _command(session),
            'time_start_unix': session.started.timestamp(),
            'time_end_unix': ended.timestamp(),
            'num_aborted': sum(case['result'] == 'abort' for case in last),
            'num_failures': sum(case['result'] == 'fail' for case in last)},
        'runs': [{'run_index': number, 'num_cases': len(cases), 'testcases': cases}
                 for number, cases in sorted(runs.items())]}


def _end(session: Session) -> datetime.datetime:
    return max([session.started, *(one.time for one in session.measurements)])


def _command(session: Session) -> str:
    """The command line of ReFrame."""
    return f'reframe -r {session.options}'.strip()


def _log(session: Session) -> str:
    """The log of a session, of level info."""
    def line(time: datetime.datetime, text: str) -> str:
        return f'{time:%Y-%m-%dT%H:%M:%S}+00:00 {text}\n'

    text = line(session.started, '[ReFrame Setup]') + line(
        session.started, f'  command:           {_command(session)!r}')
    if session.measurements:
        system = session.measurements[0].columns['system']
        text += line(session.started, f'  selected system:   {system!r}')
    for one in session.measurements:
        columns = one.columns
        hashcode = columns['test_case']
        place = f'{columns["system"]}:{columns["partition"]}+{columns["environ"]}'
        name = f'{columns["name"]} /{hashcode} @{place}'
        text += line(one.time, f'[ RUN      ] {name}')
        word = {'pass': '      OK', 'fail_deps': '    SKIP', 'skip': '    SKIP',
                'abort': '   ABORT'}.get(one.result, '    FAIL')
        text += line(one.time, f'[ {word} ] (1/1) {name}')
        if one.result == 'fail':
            text += line(one.time, f"==> test failed during '{one.fail_phase}': "
                         'test staged in None')
    if session.ended:
        text += line(_end(session), '[==========] Finished')
    return text
