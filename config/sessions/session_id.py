"""Identifiers of sessions.

An identifier has the time when the session began and a random part of six
digits. The further sessions of a nightly session (`plumb nightly` measures
again what failed) have the random part of the first one, followed by two
digits that count them. So the records alone show which sessions belong
together, and in which order, even if two began within one second. The module
imports little, because `plumb` needs it before ReFrame.
"""
from __future__ import annotations

import collections
import datetime
import functools
import os
import re
import secrets
from collections.abc import Iterable

#: Variable by which `plumb run` passes the identifier to ReFrame.
VARIABLE = 'PLUMBLINE_SESSION_ID'

_FIRST = re.compile(r'\d{8}T\d{6}Z-([0-9a-f]{6})')
_FURTHER = re.compile(r'\d{8}T\d{6}Z-([0-9a-f]{6})[0-9a-f]{2}')


#: Further sessions by the second in which they began.
_begun: collections.Counter[str] = collections.Counter()


def new_session_id(first: str = '') -> str:
    """A new identifier: start time and random part. Names sort by time.

    :param first: the first of the sessions that this one belongs to
    """
    now = f'{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%SZ}'
    if not first:
        return f'{now}-{secrets.token_hex(3)}'
    _begun[now] += 1
    return f'{now}-{first.rpartition("-")[2]}{_begun[now]:02x}'


@functools.cache
def current_session_id() -> str:
    """The identifier of this process, which is ReFrame; `plumb run` may choose it."""
    # Removed from the environment: child processes are other sessions.
    return os.environ.pop(VARIABLE, '') or new_session_id()


def first_session_id_by_session(runs: Iterable[str]) -> dict[str, str]:
    """Session -> the first of the sessions that it belongs to; itself if it is
    the first, or if the first is not among `runs`.

    >>> first_session_id_by_session([
    ...     '20261122T013000Z-abcdef', '20261123T003000Z-abcdef07'
    ... ])['20261123T003000Z-abcdef07']
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
