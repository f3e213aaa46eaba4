"""TorchScript by the module that is built with libtorch.

PLUMBLINE_LIBTORCH is the prefix of an installed libtorch; without it only
the build is tried.
"""
from __future__ import annotations

import os
import shutil
import subprocess

import numpy as np
import pytest

from checks.stores import aimodule
from tests.conftest import skip_missing
from tests.stores.resp import Client
from tests.stores.test_aimodule import loaded, put, refused, servers, tensor

#: With a write into an argument, and no tensor.
SCRIPT = aimodule.TORCHSCRIPT + '''
def wrong(a):
    return a + torch.zeros(4)

def overwrite(a):
    return a.add_(1)

def number(a):
    return 1

def half(a):
    return a.half()
'''


def test_a_prefix_without_libtorch_is_refused(tmp_path):
    done = subprocess.run(
        aimodule.module_build_command(str(tmp_path / 'ai.so')), shell=True,
        text=True, capture_output=True,
        env={**os.environ, 'TORCH_PREFIX': str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == (f'build.sh: {tmp_path}: no libtorch_cpu.so in its '
                           'lib\n')
    assert list(tmp_path.iterdir()) == []


def test_the_headers_of_usr_keep_their_place(tmp_path):
    """Before those of the C++ library, they would hide its <stdlib.h>."""
    if not shutil.which('c++'):
        skip_missing('c++', 'no C++ compiler is here')
    (tmp_path / 'lib').mkdir()
    (tmp_path / 'lib' / 'libtorch_cpu.so').touch()
    (tmp_path / 'include').symlink_to('/usr/include')
    (tmp_path / 'cxx').write_text(
        'while [ "$1" != -isystem ]; do shift; done\n'
        'echo "#include <cstdlib>" | c++ -E -x c++ "$1" "$2" - >/dev/null\n')
    done = subprocess.run(
        aimodule.module_build_command(str(tmp_path / 'ai.so'), 'true'), shell=True,
        text=True, capture_output=True,
        env={**os.environ, 'TORCH_PREFIX': str(tmp_path),
             'CXX': f'sh {tmp_path / "cxx"}'})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('text, header, expected', [
    ('RKSs', 'C++17 or later', ['-std=c++17', '-D_GLIBCXX_USE_CXX11_ABI=0']),
    ('RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE', 'C++20 or later',
     ['-std=c++20'])])
def test_the_build_finds_the_language_of_libtorch(tmp_path, text, header, expected):
    """Newer headers need C++20; std::string of Python packages before 2.6 has other
    names in the libraries."""
    (tmp_path / 'lib').mkdir()
    (tmp_path / 'lib' / 'libtorch_cpu.so').touch()
    (tmp_path / 'lib' / 'libc10.so').write_text(
        f'\0_ZN3c106detail14torchCheckFailEPKcS2_j{text}\0')
    (tmp_path / 'include' / 'ATen').mkdir(parents=True)
    (tmp_path / 'include' / 'ATen' / 'ATen.h').write_text(
        f'#error {header} compatible compiler is required to use ATen.\n')
    done = subprocess.run(
        aimodule.module_build_command(str(tmp_path / 'ai.so'), 'true'), shell=True,
        text=True, capture_output=True, check=True,
        env={**os.environ, 'TORCH_PREFIX': str(tmp_path), 'CXX': 'echo'})
    assert [word for word in done.stdout.split()
            if word.startswith('-std=c++') or 'ABI' in word] == expected
    # With CUDA this library would load those of GPUs.
    assert '-ltorch' not in done.stdout.split()


@pytest.fixture(scope='module')
def torch_module(once):
    prefix = os.environ.get('PLUMBLINE_LIBTORCH')
    if not prefix:
        pytest.skip('PLUMBLINE_LIBTORCH is not set to the prefix of a '
                    'libtorch')

    def make(folder):
        done = subprocess.run(
            aimodule.module_build_command(
                str(folder / 'ai.so'), model=str(folder / 'resnet50.pt')),
            shell=True, text=True, capture_output=True,
            env={**os.environ, 'TORCH_PREFIX': prefix, 'CFLAGS': '-Werror',
                 'CXXFLAGS': '-Werror'})
        assert done.returncode == 0, done.stderr
    return once('aitorch', make)


@pytest.fixture(scope='module', params=[
    'redis-server', 'valkey-server of a wheel',
    *({'keydb-server'} & {*servers()})])
def store(request, torch_module, tmp_path_factory):
    with loaded(request.param, torch_module / 'ai.so',
                tmp_path_factory.mktemp('torch')) as port:
        yield port


@pytest.fixture
def ask(store):
    client = Client(store)
    client('FLUSHALL')
    client.socket.settimeout(120)
    yield client
    client.close()


RUN = ['AI.MODELEXECUTE', 'm', 'INPUTS', 1]


def test_a_model_of_torchscript(ask, torch_module):
    """Images that wait together are one run, and each client has its own
    scores; another shape is a run for itself."""
    assert ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BATCHSIZE', 4, 'BLOB',
               (torch_module / 'resnet50.pt').read_bytes()) == 'OK'
    port = ask.socket.getpeername()[1]
    shapes = {'one': (1, 3, 64, 64), 'two': (2, 3, 64, 64), 'wide': (1, 3, 64, 96)}
    alone, clients = {}, {}
    for number, (name, shape) in enumerate(shapes.items()):
        put(ask, name, np.random.default_rng(number).random(shape, np.float32))
        assert ask(*RUN, name, 'OUTPUTS', 1, 'out') == 'OK'
        alone[name] = tensor(ask, 'out')
        assert alone[name].shape == (shape[0], 1000) and alone[name].std() > 0
        clients[name] = Client(port)
    for name, client in clients.items():
        client.send(*RUN, name, 'OUTPUTS', 1, f'{name}.out')
    for name, client in clients.items():
        assert client.receive() == 'OK'
        np.testing.assert_allclose(tensor(ask, f'{name}.out'), alone[name],
                                   rtol=1e-2, atol=1e-2)
        client.close()


def test_functions_of_a_script(ask):
    assert ask('AI.SCRIPTSET', 's', 'CPU', 'SOURCE', SCRIPT) == 'OK'
    image = np.random.default_rng(5).integers(0, 255, (6, 7, 3)).astype('u1')
    put(ask, 'image', image)
    assert ask('AI.SCRIPTRUN', 's', 'pre_process_3ch', 'INPUTS', 'image', 'OUTPUTS',
               'out') == 'OK'
    np.testing.assert_allclose(
        tensor(ask, 'out')[0], ((image / 255 - [.485, .456, .406])
                                / [.229, .224, .225]).transpose(2, 0, 1),
        rtol=1e-5, atol=1e-5)
    put(ask, 'a', np.int64([1, 2]))
    # What a function writes into its argument is not the key's.
    assert ask('AI.SCRIPTRUN', 's', 'overwrite', 'INPUTS', 'a', 'OUTPUTS',
               'f') == 'OK'
    assert tensor(ask, 'a').tolist() == [1, 2]
    assert tensor(ask, 'f').tolist() == [2, 3]


@pytest.mark.parametrize('words, command', [
    ('ERR the blob is no model of TorchScript: ', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BLOB', b'PK\3\4' * 9]),
    ('ERR the source is no TorchScript: ', [
        'AI.SCRIPTSET', 'x', 'CPU', 'SOURCE', 'def f(x):\n  return y\n']),
    ('ERR forward: ', ['AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'a', 'OUTPUTS', 1,
                       'o']),
    ('ERR none: no such function', [
        'AI.SCRIPTRUN', 's', 'none', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR wrong: RuntimeError: The size of tensor a (3) must match', [
        'AI.SCRIPTRUN', 's', 'wrong', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR number: it gives back Int, and no tensor', [
        'AI.SCRIPTRUN', 's', 'number', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR half: no tensor of a key has the type Half', [
        'AI.SCRIPTRUN', 's', 'half', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR overwrite: libtorch takes no tensors of UINT16', [
        'AI.SCRIPTRUN', 's', 'overwrite', 'INPUTS', 'u', 'OUTPUTS', 'o']),
])
def test_what_libtorch_refuses_is_one_line(ask, torch_module, words, command):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB',
        (torch_module / 'resnet50.pt').read_bytes())
    ask('AI.SCRIPTSET', 's', 'CPU', 'SOURCE', SCRIPT)
    put(ask, 'a', np.zeros(3, 'f4'))
    put(ask, 'u', np.zeros(3, 'u2'))
    refused(ask, words, *command)
    assert ask('DBSIZE') == 4
    assert ask('PING') == 'PONG'
