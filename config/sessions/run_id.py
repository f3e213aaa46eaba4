"""Identifiers of sessions; imports little: `plumb` needs it before ReFrame.

A session's identifier is the time when it began and a random part of six
digits. Further sessions of one night (`plumb nightly` measures again what
failed) have the random part of its first one and two digits more, which count
them, so that the records alone say what belongs to one night, and in which
order, even where two began within one second.
"""
from __future__ import annotations

import collections
import datetime
import re
import secrets
from collections.abc import Iterable

#: Variable by which `plumb run` passes the identifier to ReFrame.
VARIABLE = 'PLUMBLINE_RUN_ID'

_FIRST = re.compile(r'\d{8}T\d{6}Z-([0-9a-f]{6})')
_FURTHER = re.compile(r'\d{8}T\d{6}Z-([0-9a-f]{6})[0-9a-f]{2}')


#: Further sessions by the second in which they began.
_begun: collections.Counter[str] = collections.Counter()


def new(first: str = '') -> str:
    """Start time and a random part; the order of names is that of time.

    :param first: the first session of a night that this one belongs to
    """
    now = f'{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%SZ}'
    if not first:
        return f'{now}-{secrets.token_hex(3)}'
    _begun[now] += 1
    return f'{now}-{first.rpartition("-")[2]}{_begun[now]:02x}'


def first_of(runs: Iterable[str]) -> dict[str, str]:
    """Session -> the first one of its night; itself where it is that, or
    where none of those given is.

    >>> first_of(['20261122T013000Z-abcdef', '20261123T003000Z-abcdef07'])[
    ...     '20261123T003000Z-abcdef07']
    '20261122T013000Z-abcdef'
    """
    newest: dict[str, str] = {}
    first_by_run = {}
    for name in sorted(set(runs)):
        first, further = _FIRST.fullmatch(name), _FURTHER.fullmatch(name)
        if first:
            newest[first[1]] = name
        first_by_run[name] = newest.get(further[1], name) if further else name
    return first_by_run
