"""Sessions: from their reports, and from the logs of those without a report.

ReFrame writes no report if it is killed. The log of such a session shows what it ran
and what failed. While a session runs, it holds a lock on its log.
"""
from __future__ import annotations

import ast
import datetime
import fcntl
import re
import shlex
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import duckdb

from config import regular
from config.sessions import clock, modes

from .files import Faults, PerflogError
from .rows import LONGEST, name_query
from .typed import (
    COUNTS,
    FLAGS,
    NO_MEASUREMENTS,
    TEXTS,
    TEXTS_OF_VALUE,
    columns_query,
    sql_text,
    typed_measurements_query,
)

_COLOUR = re.compile(r'\x1b\[[\d;]*m')
_TIME = re.compile(r'(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d+)?'
                   r'(Z|[-+]\d\d:?\d\d)?')
#: The command line of ReFrame, as Python displays a text.
_COMMAND = re.compile(r"\bcommand(?: line)?:\s+(.*\S)", re.IGNORECASE)
_SYSTEM = re.compile(r"\bselected system:\s+'([^']*)'", re.IGNORECASE)
#: A failure: name, system, partition, environment. The name of a build has a ~.
_FAILED = re.compile(r'\[\s*FAIL\s*\](?: \(\s*\d+/\d+\))? ([^~]+?) /[0-9a-f]+ '
                     r'@([^:\s]+):([^+\s]+)\+(\S+)')
_PHASE = re.compile(r"test failed during '(\w+)'")
#: Variables of checks that are not part of the identity of a test case.
_NOT_IDENTITY = 'bringup|validates|repetitions|time_limit|max_pending_time'
#: Options of ReFrame that neither select test cases nor change their identity.
_NEUTRAL = (
    r'-r|--run|-v+|--verbose|--mode[= ]\w+|--system[= ][\w-]+|--exec-policy[= ]\w+|'
    r'--max-retries[= ]\d+|--repeat[= ]\d+|(-J|--job-option=?) ?.+|'
    rf'-S ?(\w+\.)?({_NOT_IDENTITY})=\S+')
_MODE = re.compile(r'(?:--mode[= ]|-Smode=)([\w-]+)')


def wrong_clock_reason(file: Path) -> str:
    """Why the clock was wrong in a session; '': it was right.

    The newest session of a test case decides its result, so one that says a later time
    than it can have would hide what was measured after it.

    :param file: report or log of the session
    """
    began = clock.session_start_time(file.stem)
    latest = clock.max_possible_record_time(file)
    if began is None or began <= latest + clock.TOLERANCE:
        return ''
    return (f'session {file.stem} began at {clock.readable_time(began)}, but its file '
            f'was last written at {clock.readable_time(latest)}: a clock was wrong. '
            'The values are not used; remove the session '
            '(docs/reference/perflogs.md, "Remove sessions")')


class Failure(NamedTuple):
    """A test case that failed, as the log of its session has it."""
    line: int
    time: datetime.datetime
    name: str
    system: str
    partition: str
    environ: str
    phase: str


class Log(NamedTuple):
    """The log of a session without a readable report."""
    session: str
    #: Its name in the records.
    file: str
    started: datetime.datetime
    ended: datetime.datetime
    system: str
    mode: str
    command: str
    #: Whether a process of the session still runs.
    running: bool
    failures: list[Failure]


def read_log(file: Path, name: str, faults: Faults) -> Log | None:
    """The log of a session; None: it ran no test case, or it cannot be read, which is
    added to the faults.

    :param name: name of the file in the records
    """
    try:
        with regular.open_regular_file(file) as handle:
            written = datetime.datetime.fromtimestamp(
                file.stat().st_mtime, datetime.timezone.utc)
            log = Log(file.stem, name, written, written, '', '', '', _is_locked(handle),
                      [])
            return _log_with_lines(log, _lines(handle))
    except OSError as err:
        faults.append(PerflogError(file, 1, f'cannot be read ({err.strerror or err}); '
                                   'check the path and its permissions'))
        return None


def _lines(handle: BinaryIO) -> Iterator[str]:
    """The lines of a log, without colours; of a very large one those at its
    beginning."""
    while (line := handle.readline(LONGEST)) and handle.tell() < regular.LARGEST:
        yield _COLOUR.sub('', line.decode(errors='replace'))


def _log_with_lines(log: Log, lines: Iterable[str]) -> Log | None:
    """A log with what its lines say; None: the session ran no test case.

    :param log: with the time when its file was written
    """
    started = ended = None
    command = system = ''
    has_run = False
    failures: list[Failure] = []
    for number, line in enumerate(lines, 1):
        ended = _time_of_line(line) or ended
        started = started or ended
        if '[ RUN ' in line:
            has_run = True
        elif not command and (match := _COMMAND.search(line)):
            command = _displayed_text(match[1])
        elif not system and (match := _SYSTEM.search(line)):
            system = match[1].partition(':')[0]
        elif match := _FAILED.search(line):
            test, of_system, partition, environ = match.groups()
            failures.append(Failure(number, ended or log.ended, test, of_system,
                                    partition, environ, ''))
        elif failures and not failures[-1].phase and (match := _PHASE.search(line)):
            failures[-1] = failures[-1]._replace(phase=match[1])
    if not has_run:
        return None
    system = system or next((one.system for one in failures), '')
    mode = _MODE.search(command)
    return log._replace(started=started or log.started, ended=ended or log.ended,
                        system=system, mode=mode[1] if mode else '', command=command,
                        failures=failures)


def _displayed_text(shown: str) -> str:
    """A text that Python displays with quotes, or as it is."""
    try:
        return str(ast.literal_eval(shown))
    except (SyntaxError, ValueError):
        return shown


def settings_of_command(command: str, check: str) -> str:
    """The settings of a check that a command line of ReFrame sets with -S.

    >>> settings_of_command('reframe -S A.size=8 -SA.time_limit=1h -SB.size=9', 'A')
    'size=8'
    """
    try:
        words = shlex.split(command)
    except ValueError:          # cut off
        words = []
    matches = (re.fullmatch(rf'(?:-S|--setvar=)?{re.escape(check)}\.(\w+=.*)', word)
               for word in words)
    return ' '.join(match[1] for match in matches
                    if match and not re.match(f'(?:{_NOT_IDENTITY})=', match[1]))


def _time_of_line(line: str) -> datetime.datetime | None:
    """The time at the beginning of a line; without an offset it is local time."""
    if not (match := _TIME.match(line)):
        return None
    day, time, offset = match.groups()
    try:
        return datetime.datetime.fromisoformat(
            f'{day}T{time}{(offset or "").replace("Z", "+00:00")}').astimezone(
                datetime.timezone.utc)
    except ValueError:
        return None


def _is_locked(handle: Any) -> bool:
    """Whether another process holds an exclusive lock on a file; takes none itself."""
    question = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, question)
    except OSError:                     # a file system without locks
        return False
    return struct.unpack('hhqqi4x', answer)[0] != fcntl.F_UNLCK


def _sql_time(time: datetime.datetime) -> str:
    return f"TIMESTAMP '{time.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M:%S}'"


def create_session_tables(con: duckdb.DuckDBPyConnection, logs: Sequence[Log]) -> None:
    """Make the tables `logs` and `failures_of_logs`.

    :param con: with the view `parts`
    """
    con.execute('CREATE TEMP TABLE logs (session VARCHAR, started TIMESTAMP, '
                'ended TIMESTAMP, system VARCHAR, mode VARCHAR, command VARCHAR, '
                'running BOOLEAN)')
    if logs:
        con.execute('INSERT INTO logs VALUES ' + ', '.join(
            f'({sql_text(log.session)}, {_sql_time(log.started)}, '
            f'{_sql_time(log.ended)}, {sql_text(log.system)}, {sql_text(log.mode)}, '
            f'{sql_text(log.command)}, {log.running})' for log in logs))
    failures = [(log, one) for log in logs for one in log.failures]
    con.execute('CREATE TEMP TABLE failures_of_logs AS '
                + (_failures_query(failures) if failures else NO_MEASUREMENTS))


def _failures_query(failures: Sequence[tuple[Log, Failure]]) -> str:
    """SQL of the failures of logs as measurements.

    A log has no parameters as columns have them: they are those of the newest
    measurement with the same name, place and settings, else they come from the name.
    A test case that was out of tolerance has rows.
    """
    given = ', '.join('(' + ', '.join(map(sql_text, (
        log.session, log.file, one.line, one.time.isoformat(), one.name, one.system,
        one.partition, one.environ, one.phase,
        settings_of_command(log.command, one.name.split()[0])))) + ')'
        for log, one in failures)
    place = ('name', 'system', 'partition', 'environ')
    same = ' AND '.join(f'k.{name} = f.{name}' for name in place)
    # -S has them in any order.
    equal = ' = '.join(f"list_sort(string_split({one}.settings, ' '))" for one in 'kf')
    texts = {name: f'coalesce(CAST(k."{name}" AS VARCHAR), \'\')'
             for name in (*TEXTS, *COUNTS, *FLAGS)}
    texts |= {
        **{name: f'f.{name}' for name in ('session', 'time', *place)},
        **{part: f'coalesce(k."{part}", {name_query("f.name", part)})'
           for part in ('check', 'params')},
        'settings': 'coalesce(k.settings, f.settings)',
        'measurement': "f.session || '.' || f.line",
        'inconclusive': "''", 'job': "''", 'nodes': "''"}
    return typed_measurements_query(f'''
        SELECT {columns_query(texts)}, 'fail' AS outcome, f.phase AS phase,
            CASE WHEN f.phase = '' THEN '' ELSE 'failed in the stage ' || f.phase
                || ', before the session was cut short' END AS reason, 0 AS retry,
            '' AS command, NULL::TIMESTAMP AS started, NULL::TIMESTAMP AS ended,
            0 AS aborted, []::{TEXTS_OF_VALUE}[] AS vals, f.file AS file,
            f.line AS line, false AS is_foreign, '' AS wrong_file
        FROM (VALUES {given}) AS f (session, file, line, time, name, system, partition,
            environ, phase, settings)
        LEFT JOIN (SELECT DISTINCT ON ({', '.join(place)}, settings) * FROM parts
            WHERE NOT broken ORDER BY time DESC) AS k ON {same} AND {equal}
        WHERE NOT (f.phase = 'performance' AND EXISTS (FROM parts AS k
            WHERE k.session = f.session AND k.outcome = 'out' AND {same}))''')


def _whole_query() -> str:
    """SQL of whether a session ran all test cases of its mode, with their settings,
    from ReFrame's command line."""
    text = 'command'
    for options in modes.MODES.values():
        # `plumb` passes the options of the mode themselves.
        text = f"replace({text}, {sql_text(' ' + shlex.join(options))}, '')"
    return (f"command <> '' AND len(list_filter(regexp_extract_all({text}, "
            "' -(?: [^-]|[^ ])*'), lambda option: NOT regexp_full_match(option, "
            f"{sql_text(f' (?:{_NEUTRAL})')}))) = 0")


_SESSIONS = r'''
CREATE TEMP VIEW sessions AS
    WITH found AS (
        SELECT session, any_value(system) AS system, max(mode) AS mode,
            coalesce(min(started), min(time)) AS started,
            coalesce(max(ended), max(time)) AS ended,
            max(command) AS command,
            -- Later runs measure again (--max-retries, --duration).
            CASE WHEN max(retry) = 0 THEN max(aborted) END AS aborted
        FROM parts WHERE NOT broken GROUP BY session),
    given AS (
        SELECT session, coalesce(nullif(logs.system, ''), found.system, '') AS system,
            coalesce(nullif(found.mode, ''), logs.mode, '') AS mode,
            coalesce(logs.started, found.started) AS started,
            coalesce(logs.ended, found.ended) AS ended,
            coalesce(nullif(found.command, ''), logs.command, '') AS command,
            NOT coalesce(logs.running, false) AND (
                logs.session IS NOT NULL OR coalesce(found.aborted, 0) > 0)
                AS cut_short,
            coalesce(logs.running, false) AS running
        FROM found FULL JOIN logs USING (session))
    SELECT given.session, given.system, given.mode, given.started, given.ended,
        {whole} AS selected_all, given.cut_short, given.running,
        given.command
    FROM given
    WHERE getvariable('site') IN ('', given.system)
    ORDER BY given.started, given.session
'''


def create_sessions_view(con: duckdb.DuckDBPyConnection) -> None:
    """Make the view `sessions`.

    :param con: as of `counting.create_views`
    """
    con.execute(_SESSIONS.replace('{whole}', _whole_query()))
