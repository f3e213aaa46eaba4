"""Another user listens on the port of a store of the job (tests/impostor.py)."""
from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from checks.services.plan import Clients, Plan, Program, Server, Step
from tests import impostor

CONFIG = '''bind {address}
port {port}
dir {data}
requirepass {password}
save ""
'''


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root, to become another user')
@pytest.mark.parametrize('attack', impostor.ATTACKS)
def test_another_user_is_never_measured(store, attack):
    # The impostor has to reach it, and pytest's folders are its user's alone.
    with tempfile.TemporaryDirectory(prefix='plumbimpostor') as folder:
        one = impostor.play(Path(folder), attack, Plan(
            Server(store.name, (str(store.binary), '-'), CONFIG,
                   ready_limit=5),
            (Clients(),), (Step('measure', (Program(('sleep', '5')),), 60),)),
            random.Random(attack))
    assert one.taken and not one.measured and not one.left, one
    if attack == 'successor':
        assert 'ended with exit code 137 while it served' in one.outcome
    else:
        # The password of a store that was killed is of no use.
        assert not one.password
    if attack == 'instead':
        assert 'another program listens on its port' in one.outcome, one
    if attack == 'always':
        assert one.outcome != 'passed', one
