"""Decisions of people about regressions and failures, kept with the perflogs.

`decisions.yaml` in the folder of the perflogs, a list:

    - id: 3f2a91c0
      kind: muted            # or accepted, retired
      since: 2026-11-20
      until: 2027-05-01      # null if not muted
      reason: firmware 2.1, ticket 42
      decided: 2026-11-23
      metrics: ['c0ffee00 latency']
      failures: {}           # if muted: what, and where: {exit_code: [n7]}

`accepted`: the sessions from `since` on are the baseline of these metrics.
`muted`: the regression or failure does not fail the verdict, until the end of the day
`until`. `retired`: a test case that was last measured on or before `since` is no
longer missing, and its failures until then are no longer open.

A metric is TEST_CASE [METRIC [POINT]], with the short id of the test case: without a
point all of the curve, without a metric all of the test case. A retired one is
TEST_CASE [COPY]: the failure of a test case on some nodes.

A muted failure has a guard ('': a value out of tolerance) and the nodes on which it
failed; a muted regression has `regression` in place of a guard. It hides what has the
same guard and shares a node with it, or whose nodes are unknown; without nodes ([]) it
hides all with this guard. A value out of tolerance has a regression, too: a muted one
hides both.
"""
from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from config import schema, strict
from config.regular import write_files_atomically
from config.sessions import lock

FILE = 'decisions.yaml'
#: In place of a guard: a regression, which has none.
REGRESSION = 'regression'
#: Longest wait for another person's decision. Unit: seconds.
LOCK_LIMIT = 60.0


@dataclass(frozen=True)
class Decision:
    """A regression or test case that a person accepted, muted or retired."""
    #: Of the regression or test case; of several test cases one that names them all.
    id: str
    kind: str
    since: datetime.date
    #: Last day on which it is muted; None if it is not muted.
    until: datetime.date | None
    reason: str
    decided: datetime.date
    metrics: tuple[str, ...]
    #: What is muted: guard or REGRESSION -> nodes; (): all nodes.
    failures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def hides(self, guard: str, nodes: Collection[str]) -> bool:
        """Whether a failure or regression of its test case is one that is muted.

        :param guard: of the failure, or REGRESSION
        :param nodes: of the failure or regression; empty: unknown
        """
        own = self.failures.get(guard)
        return own is not None and (
            not own or not nodes or not set(own).isdisjoint(nodes))

    def is_muted_on(self, day: datetime.date) -> bool:
        """Whether it mutes something on a day."""
        return self.until is not None and self.since <= day <= self.until


def decision_target_names(test_case: str, metric: str, point: str
                          ) -> tuple[str, str, str]:
    """A metric, its curve and its test case, as `metrics` has them."""
    return (f'{test_case} {metric} {point}'.strip(), f'{test_case} {metric}',
            test_case)


def load_decisions(folder: Path) -> list[Decision]:
    """The decisions about the sessions of a folder; [] if there are none.

    :param folder: of the perflogs
    :raises ValueError: the file is damaged; says where and how
    """
    path = folder / FILE
    try:
        rows = strict.load_yaml(path) or []
    except FileNotFoundError:
        return []
    except strict.Fault as err:
        raise ValueError(f'{err}; restore the file') from None
    for row in rows if isinstance(rows, list) else ():
        for key in ('id', 'since', 'until', 'decided'):
            if isinstance(row, dict) and type(row.get(key)) in (int, datetime.date):
                row[key] = str(row[key])
    for fault in schema.schema_faults(str(path), rows, 'decisions'):
        raise ValueError(f'{fault}; restore the file')
    return [_decision_of_row(row) for row in rows]


def _decision_of_row(row: Mapping[str, Any]) -> Decision:
    since, until, decided = (row[key] and datetime.date.fromisoformat(row[key])
                             for key in ('since', 'until', 'decided'))
    return Decision(row['id'], row['kind'], since, until, row['reason'], decided,
                    tuple(row['metrics']),
                    {guard: tuple(nodes) for guard, nodes in row['failures'].items()})


@contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the file while it is read, changed and written: two people may
    decide at once.

    :raises ValueError: the folder cannot be written
    """
    if not os.access(folder, os.W_OK):
        raise ValueError(f'cannot write {folder / FILE}: the folder does not exist or '
                         'is read-only; name another one with --perflogs')
    with lock.hold_file_lock(folder / '.decisions.lock', LOCK_LIMIT, shared=True,
                             busy=f'{folder / FILE} is written by'):
        yield


def add_decision(folder: Path, new: Decision) -> Path:
    """Adds an entry, in place of one of the same id; returns the file.

    :raises ValueError: the file is damaged
    :raises LockError: another process holds its lock
    """
    with _hold_lock(folder):
        known = [one for one in load_decisions(folder) if one.id != new.id]
        write_files_atomically(folder, {
            FILE: _decisions_as_yaml([*known, new])})
    return folder / FILE


def check_id(ident: str, texts: Mapping[str, str], what: str, where: str) -> None:
    """Refuse an unknown ID.

    :param texts: ID -> text, of all that are known
    :param what: what they are, and
    :param where: what has them, for the message
    :raises ValueError: it is unknown
    """
    if ident not in texts:
        names = '; '.join(texts.values()) or f'no {what}'
        raise ValueError(f'no {what} has the ID {ident!r}: {where} has {names}')


def undo_decision(folder: Path, ident: str) -> Decision:
    """Removes the entry with an ID; returns it.

    :raises ValueError: there is none; or the file is damaged
    :raises LockError: another process holds its lock
    """
    with _hold_lock(folder):
        known = {one.id: one for one in load_decisions(folder)}
        check_id(ident, {
            one.id: f'{one.id} {one.kind}: {one.reason}' for one in known.values()},
            'decision', str(folder / FILE))
        undone = known.pop(ident)
        write_files_atomically(folder, {FILE: _decisions_as_yaml(known.values())})
    return undone


def _decisions_as_yaml(rows: Iterable[Decision]) -> bytes:
    head = '# Written by ./plumb verdict accept, mute, retire and undo.\n'
    return (head + yaml.safe_dump([
        {**vars(row), 'metrics': list(row.metrics), 'failures': {
            guard: list(nodes) for guard, nodes in row.failures.items()}}
        for row in rows], sort_keys=False, allow_unicode=True, width=79)).encode()
