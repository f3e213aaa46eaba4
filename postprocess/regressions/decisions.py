"""Decisions of people about regressions and failures, kept with the perflogs.

`decisions.yaml` in the folder of the perflogs, a list:

    - id: 3f2a91c0
      kind: muted            # or accepted, retired
      since: 2026-11-20
      until: 2027-05-01      # null if not muted
      reason: firmware 2.1, ticket 42
      decided: 2026-11-23
      metrics: ['c0ffee00 latency']

`accepted`: the sessions from `since` on are the baseline of these metrics.
`muted`: the regression or test case does not fail the verdict, until the end of the
day `until`. `retired`: a test case that was last measured on or before `since` is no
longer missing, and its failures until then are no longer open.

A metric is TEST_CASE [METRIC [POINT]], with the short id of the test case: without a
point all of the curve, without a metric all of the test case. A retired one is
TEST_CASE [COPY]: the failure of a test case on some nodes.
"""
from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config import strict
from config.regular import write_files_atomically

FILE = 'decisions.yaml'
KINDS = ('accepted', 'muted', 'retired')


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
    if not isinstance(rows, list):
        raise ValueError(f'{path}:1: expected a list; restore the file')
    return [_parse_decision(path, number, row) for number, row in enumerate(rows, 1)]


def _parse_decision(path: Path, number: int, row: Any) -> Decision:
    where = f'{path}: entry {number}'
    names = list(Decision.__dataclass_fields__)
    if not isinstance(row, dict) or sorted(row) != sorted(names):
        raise ValueError(f'{where}: expected the keys {", ".join(names)}')
    muted = row['kind'] == 'muted'
    is_date = {key: type(row[key]) is datetime.date
               for key in ('since', 'until', 'decided')}
    for key, good, expected in (
            ('kind', row['kind'] in KINDS, f'one of {", ".join(KINDS)}'),
            ('since', is_date['since'], 'a date like 2026-11-20'),
            ('decided', is_date['decided'], 'a date like 2026-11-20'),
            ('until', is_date['until'] if muted else row['until'] is None,
             'a date like 2026-11-20' if muted else 'null, because it is not muted'),
            ('metrics', isinstance(row['metrics'], list) and row['metrics'],
             'a list of metrics'),
            ('reason', str(row['reason'] or '').strip(), 'a text')):
        if not good:
            raise ValueError(f'{where}: {key}: expected {expected}, got {row[key]!r}')
    return Decision(str(row['id']), row['kind'], row['since'], row['until'],
                    str(row['reason']), row['decided'],
                    tuple(map(str, row['metrics'])))


def add_decision(folder: Path, new: Decision) -> Path:
    """Adds an entry, in place of one of the same id; returns the file.

    :raises ValueError: the file is damaged
    """
    kept = [one for one in load_decisions(folder) if one.id != new.id]
    write_files_atomically(folder, {FILE: _decisions_as_yaml([*kept, new])})
    return folder / FILE


def complete_id(ident: str, texts: Mapping[str, str], what: str, where: str) -> str:
    """An ID, or the only one that begins so.

    :param texts: ID -> text, of all that are known
    :param what: what they are, and
    :param where: what has them, for the message
    :raises ValueError: there is none, or several
    """
    matching = [one for one in texts if one == ident] or [
        one for one in texts if ident and one.startswith(ident)]
    if len(matching) == 1:
        return matching[0]
    names = '; '.join(texts[one] for one in matching or texts) or f'no {what}'
    raise ValueError((f'several {what}s begin with' if matching else
                      f'no {what} has the ID') + f' {ident!r}: {where} has {names}')


def undo_decision(folder: Path, ident: str) -> Decision:
    """Removes the entry with an ID, or with the only one that begins so; returns it.

    :raises ValueError: there is none, or several; or the file is damaged
    """
    known = {one.id: one for one in load_decisions(folder)}
    undone = known.pop(complete_id(ident, {
        one.id: f'{one.id} {one.kind}: {one.reason}' for one in known.values()},
        'decision', str(folder / FILE)))
    write_files_atomically(folder, {FILE: _decisions_as_yaml(known.values())})
    return undone


def _decisions_as_yaml(rows: Iterable[Decision]) -> bytes:
    head = '# Written by ./plumb verdict accept, mute, retire and undo.\n'
    return (head + yaml.safe_dump([
        {**vars(row), 'metrics': list(row.metrics)} for row in rows],
        sort_keys=False, allow_unicode=True, width=79)).encode()
