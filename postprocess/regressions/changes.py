"""Changes of the environment of test cases."""
from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable

import pandas as pd

from config import regular
from config.console import count_with_noun

from ..records import attached
from . import detect
from .events import Event
from .sessions import ENVIRONMENT_NAMES, History

#: Columns whose changes are reported by themselves, whether or not a metric changed
#: with them. Other nodes, and another commit of the suite, are what a session may have.
REPORTED = [column for column in ENVIRONMENT_NAMES if column not in ('nodes', 'commit')]
#: Sessions before that are looked at: what was there in one of them is no
#: news.
BEFORE = detect.FEWEST


def environment_differences(before: pd.DataFrame, after: pd.DataFrame,
                            columns: Iterable[str] = (*ENVIRONMENT_NAMES,)
                            ) -> list[str]:
    """Values of sessions that no session before had: `spec hash a -> b`.

    :param before: rows of History.ran, the oldest first
    """
    texts = []
    for column in columns:
        old, new = (_values_of_column(rows, column) for rows in (before, after))
        if column == 'machine':
            if old and {*new} - {*old}:
                texts += _node_fact_differences(before, after) or ['node facts changed']
        elif old and new and {*old}.isdisjoint(new) and (
                column != 'nodes' or len(old) == 1):     # else other nodes each time
            texts.append(f'{ENVIRONMENT_NAMES[column]} '
                         f"{', '.join(old[-3:][::-1]) or '-'} -> "
                         f"{', '.join(new[:3]) or '-'}")
    return texts


def _values_of_column(rows: pd.DataFrame, column: str) -> list[str]:
    """The values of a column, each at its last place; of `machine` its node kinds."""
    texts = rows[column].astype(str).tolist()
    if column == 'machine':
        texts = [name for text in texts for name in text.split() if name != '-']
    return [*dict.fromkeys(texts[::-1])][::-1]


def environment_changes(hist: History, this_session: Collection[str]) -> list[Event]:
    """Changes of the environment of the test cases of a session since the sessions
    before, in the first session alone.

    A new version of a program whose versions have histories of their own begins a new
    history. Nothing else would report it.

    :param this_session: the sessions that count as this session
    """
    heads = hist.metrics.drop_duplicates('of').set_index('of')
    names = heads['test_case'] + '\n' + heads['node']
    ran = hist.ran.assign(name=hist.ran['of'].map(names)).sort_values(
        ['name', 'day'], kind='stable')
    now = ran['session'].isin(this_session)
    values = ran[REPORTED].astype(str)
    changed = now & (values != values.shift()).any(axis=1) & ran['name'].eq(
        ran['name'].shift())
    heads_of_change: dict[tuple[str, str], list[pd.Series]] = {}
    for _, rows in ran[ran['name'].isin(ran['name'][changed])].groupby('name'):
        after = rows[now[rows.index]].tail(1)
        before = rows[rows['day'] < after['day'].iloc[0]].tail(BEFORE)
        head = heads.loc[after['of'].iloc[0]]
        for text in environment_differences(before, after, REPORTED):
            heads_of_change.setdefault((str(head['system']), text), []).append(head)
    events = []
    for (system, text), rows in heads_of_change.items():
        where = [*dict.fromkeys(f"{head['partition']} {head['environ']}"
                                for head in rows)]
        events.append(Event(
            'environment', f'{text}: {count_with_noun(len(rows), "test case")} on '
            f'{system} ({", ".join(where[:3])}{", ..." * (len(where) > 3)})',
            [str(head['test_case']) for head in rows], system, cause=text))
    return events


def _node_fact_differences(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """The differences between facts of nodes: `kernel A -> B`."""
    old, new = before.iloc[-1], after.iloc[0]
    was, now = (_read_node_facts(*(str(row[name]) for name in (
        'file', 'system', 'machine'))) for row in (old, new))
    return [f"{name} {was.get(name, '-')} -> {now.get(name, '-')}"
            for name in {**was, **now} if was.get(name) != now.get(name)]


@functools.lru_cache(maxsize=1024)
def _read_node_facts(file: str, system: str, machine: str) -> dict[str, str]:
    name, *_ = machine.split() or ['']
    try:
        data = json.loads(regular.read_regular_file(
            attached.perflog_folder_of_file(file) / system / 'machines'
            / f'{name}.json'))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in data.items()}
