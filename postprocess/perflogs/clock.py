"""Sessions whose clock was wrong.

The newest session of a test case decides how it stands. A session that says
a wrong time would hide what was measured after it, or would be hidden itself.
So the time of a session is believed only if

- it is not later than now, nor than the modification time of its files;
- no record is from before the session began;
- in each perflog, to which records are only appended, it does not contradict
  the order of writing.

Any other session is a fault of the perflogs. Its values are not used: each
of its test cases has the record `completed` = 0 instead, guard
`session_clock`. This record counts in the order of writing: after the sessions
that were written before it, and before those that were written later.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from config.sessions import clock

from .formats import OURS
from .plans import CASE

#: The guard of a test case in a session whose clock was wrong. The guard
#: `clock` of the checks differs: it names a node whose clock is wrong.
GUARD = 'session_clock'
#: What the record of such a test case says.
_REFUSED = {
    'repetition': 0, 'metric': 'completed', 'point': float('nan'),
    'value': 0.0, 'unit': '1', 'better': 'higher', 'reference': 1.0,
    'lower': 0.0, 'upper': float('nan'), 'result': 'fail', 'guard': GUARD,
    'measurements': 1}


def drop_wrong_clock_values(
    frame: pd.DataFrame, report: Callable[[Path, int, str], None]
) -> pd.DataFrame:
    """The records, without the values of sessions whose clock was wrong.

    :param frame: as perflogs.read gives it
    :param report: called with file, line and reason for each such session
    """
    sessions = _time_span_of_sessions(frame.loc[frame['format'] == OURS,
                                                ['file', 'run', 'line', 'time']])
    wrong: dict[str, str] = {}
    for run, why in _sessions_with_impossible_times(sessions):
        wrong.setdefault(run, why)
    wrong |= _sessions_out_of_order(sessions[~sessions['run'].isin(wrong)])
    if not wrong:
        return frame
    for run, why in wrong.items():
        first = sessions[sessions['run'] == run].iloc[0]
        report(Path(first['file']), int(first['line']), f'session {run} '
               f'{why}: a clock was wrong. The values are not used; remove '
               'the session (docs/how-to/troubleshooting.md, "Remove a session")')
    sound = sessions[~sessions['run'].isin(wrong)]
    times = {run: _time_by_write_order(sessions[sessions['run'] == run], sound)
             for run in wrong}
    of_wrong = frame['run'].isin(wrong)
    return pd.concat([frame[~of_wrong].pipe(_add_refusal_pandas_categories),
                      _make_wrong_clock_failure_records(frame[of_wrong],
                                                        times)]).sort_values(
                          'time', kind='stable').reset_index(drop=True)


def _time_span_of_sessions(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each session and file: its first line, its first and last
    time, when it `began`, and the `latest` time that can be right there."""
    table = frame.groupby(['file', 'run'], observed=True, sort=False).agg(
        line=('line', 'min'), first=('time', 'min'), last=('time', 'max')
        ).reset_index().astype({'file': str, 'run': str}).sort_values(
            ['file', 'line'])
    began = {run: clock.session_start_time(run) for run in table['run'].unique()}
    latest = {file: clock.max_possible_record_time(Path(file))
              for file in table['file'].unique()}
    return table.assign(
        began=pd.to_datetime(table['run'].map(began), utc=True
                             ).fillna(table['first']),
        latest=pd.to_datetime(table['file'].map(latest), utc=True))


def _sessions_with_impossible_times(
    sessions: pd.DataFrame,
) -> Iterator[tuple[str, str]]:
    """Sessions with a time that cannot be right, and why."""
    ends = sessions[['last', 'began']].max(axis=1)
    ahead = ends > sessions['latest'] + clock.TOLERANCE
    for session, end in zip(sessions[ahead].itertuples(), ends[ahead],
                            strict=True):
        yield session.run, (
            f'has the time {clock.readable_time(end)}, but its file was last written '
            f'at {clock.readable_time(session.latest)}')
    before = sessions['first'] < sessions['began'] - clock.TOLERANCE
    for session in sessions[before].itertuples():
        yield session.run, (
            f'began at {clock.readable_time(session.began)}, but has records of '
            f'{clock.readable_time(session.first)}')


def _sessions_out_of_order(sessions: pd.DataFrame) -> dict[str, str]:
    """Sessions that contradict the order of writing, and why: as few as leave
    no contradiction.

    :param sessions: of each file in the order of writing
    """
    against: dict[str, dict[str, str]] = {}
    for before, after in _contradicting_session_pairs(sessions):
        earlier, later = (
            clock.readable_time(after.first),
            clock.readable_time(before.first),
        )
        against.setdefault(after.run, {})[before.run] = (
            f'was written after {before.run}, but has earlier times '
            f'({earlier}, {later})')
        against.setdefault(before.run, {})[after.run] = (
            f'was written before {after.run}, but has later times '
            f'({later}, {earlier})')
    wrong = {}
    while any(against.values()):
        run = max(against, key=lambda name: len(against[name]))
        wrong[run] = next(iter(against.pop(run).values()))
        for others in against.values():
            others.pop(run, None)
    return wrong


def _contradicting_session_pairs(sessions: pd.DataFrame) -> Iterator[tuple[Any, Any]]:
    """Sessions of a file that was written to by one before the other, and
    that say the opposite."""
    for _, group in sessions.groupby('file', sort=False):
        first = group['first']
        late = first < first.cummax() - clock.TOLERANCE
        for after in group[late].itertuples():
            before = group[(group['line'] < after.line) & (
                first > after.first + clock.TOLERANCE)]
            for earlier in before.itertuples():
                yield earlier, after


def _time_by_write_order(session: pd.DataFrame, sound: pd.DataFrame) -> pd.Timestamp:
    """The time at which a session counts: after all that was written before
    it in its files."""
    near = session.merge(sound, on='file', suffixes=('', '_other'))
    written_before = near['line_other'] < near['line']
    second = pd.Timedelta(seconds=1)
    if written_before.any():
        return near['last_other'][written_before].max() + second
    return pd.concat([session['latest'], near['first_other']]).min() - second


def _make_wrong_clock_failure_records(rows: pd.DataFrame,
                                      times: Mapping[str, pd.Timestamp]
             ) -> pd.DataFrame:
    """One record for each test case of a session: it failed."""
    rows = _add_refusal_pandas_categories(rows.drop_duplicates([*CASE, 'run', 'case']))
    return rows.assign(
        time=pd.to_datetime(rows['run'].astype(str).map(times)), **{
            name: pd.array([value] * len(rows), rows[name].dtype)
            for name, value in _REFUSED.items()})


def _add_refusal_pandas_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """With the texts of `_REFUSED` among the categories."""
    for name, value in _REFUSED.items():
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype) \
                and value not in column.cat.categories:
            frame = frame.assign(
                **{name: column.cat.add_categories([value])})
    return frame
