"""Identity of a test case: what its histories, references and decisions belong to."""
from __future__ import annotations

import hashlib

#: Columns of the identity, in the order of the arguments of `test_case_id`.
IDENTITY = ('system', 'partition', 'environ', 'check', 'params', 'settings')
#: Hexadecimal digits of a short id.
DIGITS = 8


def test_case_id(system: str, partition: str, environ: str, check: str,
                 params: str, settings: str) -> str:
    """The short id of a test case, made from its whole identity.

    ReFrame's own hash does not depend on settings (-S), so that a test case with other
    settings would have the same one.

    :param params: parameters, `name=value name=value`
    :param settings: settings that differ from their default, in the same form
    """
    text = '\x1f'.join((system, partition, environ, check, params, settings))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
