"""SmartRedis' own test programs in C, C++ and Fortran.

PLUMBLINE_SMARTREDIS_PROGRAMS has them in c/bin, cpp/bin and fortran/bin, or
some of these, and in cpp/mnist_data that of SmartRedis' tests/cpp. With
PLUMBLINE_LIBTORCH all must pass; else what runs TorchScript is refused.
"""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LIMIT, free_port, skip_missing
from tests.stores.resp import serving
from tests.stores.test_aimodule import cluster, servers
from tests.stores.test_aimodule import module as module
from tests.stores.test_torchscript import torch_module as torch_module

FOLDER = os.environ.get('PLUMBLINE_SMARTREDIS_PROGRAMS', '')
TORCH = bool(os.environ.get('PLUMBLINE_LIBTORCH'))
TORCHSCRIPT = ('cpp/client_test_ensemble', 'cpp/client_test_mnist',
               'cpp/client_test_mnist_dataset', 'fortran/client_test_mnist',
               'fortran/client_test_mnist_multigpu')


def failures(address: str, mode: str) -> dict[str, str]:
    """The programs that do not end as they should, and what they said."""
    wrong = {}
    for program in sorted(Path(FOLDER).resolve().glob('*/bin/*')):
        name = f'{program.parent.parent.name}/{program.name}'
        unit = name == 'cpp/cpp_unit_tests'
        done = subprocess.run(
            [program, *(['~*Client ensemble*'] if unit and not TORCH else [])],
            cwd=program.parent if unit else program.parent.parent, text=True,
            capture_output=True, timeout=LIMIT, errors='replace',
            env={**os.environ, 'SSDB': address, 'SR_DB_TYPE': mode})
        refused = not TORCH and name in TORCHSCRIPT
        output = done.stdout + done.stderr
        if bool(done.returncode) != refused or (
                refused and 'TorchScript, which this module' not in output):
            wrong[name] = f'exit {done.returncode}: {output[-2000:]}'
    return wrong


@pytest.mark.parametrize('kind', ['TCP', 'unix', 'cluster'])
@pytest.mark.parametrize('name', ['redis-server', 'valkey-server of a wheel'])
def test_the_clients_own_programs(request, tmp_path, name, kind):
    if not FOLDER:
        pytest.skip('PLUMBLINE_SMARTREDIS_PROGRAMS is not set to the folder '
                    'of the SmartRedis test programs')
    assert list(Path(FOLDER).glob('*/bin/client_test_*')), FOLDER
    if name not in servers():
        skip_missing(name, f'{name} is not here')
    built = request.getfixturevalue('torch_module' if TORCH else 'module')
    if kind == 'cluster':
        with cluster(name, built, tmp_path) as ports:
            hosts = ','.join(f'127.0.0.1:{port}' for port in ports)
            assert failures(hosts, 'Clustered') == {}
        return
    port, path = free_port(), tmp_path / 'socket'
    with serving(servers()[name], port, tmp_path, '--save', '', '--unixsocket',
                 path, '--loadmodule', built, 'EMULATE_GPUS', 2):
        address = f'unix://{path}' if kind == 'unix' else f'127.0.0.1:{port}'
        assert failures(address, 'Standalone') == {}
