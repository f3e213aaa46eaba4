"""Identifiers of sessions; imports little: `plumb` needs it before ReFrame."""
from __future__ import annotations

import datetime
import secrets

#: Variable by which `plumb run` passes the identifier to ReFrame.
VARIABLE = 'PLUMBLINE_RUN_ID'


def new() -> str:
    """Start time and a random part; the order of names is that of time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f'{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}'
