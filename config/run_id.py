"""Identifiers of sessions; light, for `plumb` needs one before ReFrame."""
from __future__ import annotations

import datetime
import secrets

#: Where `plumb run` tells ReFrame the identifier that it chose.
VARIABLE = 'PLUMBLINE_RUN_ID'


def new() -> str:
    """Start and a random part: sorted by name is sorted by time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f'{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}'
