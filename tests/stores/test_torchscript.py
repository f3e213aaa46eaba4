"""TorchScript by the module that is built with libtorch.

PLUMBLINE_LIBTORCH is the prefix of an installed libtorch; without it only
the build is tried, and what is read of an archive that the tests make.
"""
from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import zipfile

import numpy as np
import pytest

from checks.stores import aimodule, torchscript
from tests.conftest import skip_missing
from tests.stores import networks
from tests.stores.resp import Client
from tests.stores.test_aimodule import loaded, put, refused, servers, tensor

ADD = '''def forward(self: __torch__.Net, x: Tensor, y: Tensor) -> Tensor:
  return torch.add(x, y)'''

#: With a list of tensors, a write into an argument, and no tensor.
SCRIPT = torchscript.SCRIPT + '''
def two(a, b):
    return a + b, a - b

def as_list(tensors: List[Tensor]):
    return torch.stack(tensors).sum(0)

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


def test_an_archive_has_all_weights():
    with zipfile.ZipFile(io.BytesIO(torchscript.torchscript_network('tiny'))) as file:
        sizes = [len(file.read(name)) // 4 for name in file.namelist()
                 if name.startswith('net/data/')]
        code = file.read('net/code/__torch__.py').decode()
    network = networks.Network()
    network.tiny(networks.picture(networks.shape_of('tiny')))
    assert sum(sizes) == network.used
    assert code.count('torch.conv2d(') == len(sizes) // 2 == 9


@pytest.fixture(scope='module')
def torch_module(once):
    prefix = os.environ.get('PLUMBLINE_LIBTORCH')
    if not prefix:
        pytest.skip('PLUMBLINE_LIBTORCH is not set to the prefix of a '
                    'libtorch')

    def make(folder):
        done = subprocess.run(
            aimodule.module_build_command(str(folder / 'ai.so')), shell=True,
            text=True, capture_output=True,
            env={**os.environ, 'TORCH_PREFIX': prefix, 'CFLAGS': '-Werror',
                 'CXXFLAGS': '-Werror'})
        assert done.returncode == 0, done.stderr
    return once('aitorch', make) / 'ai.so'


@pytest.fixture(scope='module', params=[
    'redis-server', 'valkey-server of a wheel',
    *({'keydb-server'} & {*servers()})])
def store(request, torch_module, tmp_path_factory):
    with loaded(request.param, torch_module,
                tmp_path_factory.mktemp('torch')) as port:
        yield port


@pytest.fixture
def ask(store):
    client = Client(store)
    client('FLUSHALL')
    client.socket.settimeout(120)
    yield client
    client.close()


def values(ask, key):
    answer = ask('AI.INFO', key)
    return dict(zip(answer[::2], answer[1::2], strict=True))


@pytest.mark.parametrize('name', ['tiny', 'small'])
@pytest.mark.parametrize('device', ['CPU', 'GPU:1'])
def test_libtorch_computes_what_the_networks_do(ask, name, device):
    """The same weights: libtorch, numpy and the module's own C agree."""
    assert ask('AI.MODELSTORE', 'm', 'TORCH', device, 'BLOB',
               torchscript.torchscript_network(name)) == 'OK'
    put(ask, 'in', networks.picture(networks.shape_of(name)))
    assert ask('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in', 'OUTPUTS', 1,
               'out', 'TIMEOUT', 60_000) == 'OK'
    want = json.loads(networks.GOLDEN.read_text())[name]['scores']
    got = tensor(ask, 'out')[0][::1 if name == 'tiny' else 100]
    np.testing.assert_allclose(got, want, rtol=2e-4,
                               atol=2e-4 * np.abs(want).max())
    assert values(ask, 'm')[b'samples'] == 1
    assert b'ai_libtorch:' in ask('INFO', 'EVERYTHING')


def test_several_inputs(ask):
    blob = torchscript.torchscript_archive(ADD)
    assert ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB', blob) == 'OK'
    put(ask, 'a', np.float32([[1, 2]]))
    put(ask, 'b', np.float32([[10, 20]]))
    assert ask('AI.MODELEXECUTE', 'm', 'INPUTS', 2, 'a', 'b', 'OUTPUTS', 1,
               'c') == 'OK'
    assert tensor(ask, 'c').tolist() == [[11, 22]]
    assert ask('AI.MODELGET', 'm', 'BLOB') == blob


def test_requests_that_wait_together_are_one_run(ask):
    """Those whose rows fit; another shape is a run for itself."""
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU:3', 'BATCHSIZE', 6,
        'MINBATCHSIZE', 6, 'MINBATCHTIMEOUT', 2000, 'BLOB',
        torchscript.torchscript_archive(ADD))
    port = ask.socket.getpeername()[1]
    shapes = {'one': (1, 4), 'two': (2, 4), 'three': (3, 4), 'wide': (3, 5)}
    clients = {name: Client(port) for name in shapes}
    for number, (name, shape) in enumerate(shapes.items()):
        put(ask, name, np.full(shape, number, 'f4'))
    for name, client in clients.items():
        client.send('AI.MODELEXECUTE', 'm', 'INPUTS', 2, name, name,
                    'OUTPUTS', 1, f'{name}.out')
    for number, (name, client) in enumerate(clients.items()):
        assert client.receive() == 'OK'
        got = tensor(ask, f'{name}.out')
        assert got.shape == shapes[name] and (got == 2 * number).all()
        client.close()
    info = ask('INFO', 'EVERYTHING').decode()
    assert 'ai_queue_CPU_3_jobs:4\r\n' in info
    assert 'ai_queue_CPU_3_runs:2\r\n' in info


def test_functions_of_a_script(ask):
    assert ask('AI.SCRIPTSET', 's', 'CPU', 'SOURCE', SCRIPT) == 'OK'
    image = np.random.default_rng(5).integers(0, 255, (6, 7, 3)).astype('u1')
    put(ask, 'image', image)
    want = ((image / 255 - [.485, .456, .406]) / [.229, .224, .225])
    put(ask, 'rgba', np.concatenate([image, image[:, :, :1]], 2))
    for function, key in (('pre_process_3ch', 'image'),
                          ('pre_process_4ch', 'rgba')):
        assert ask('AI.SCRIPTRUN', 's', function, 'INPUTS', key, 'OUTPUTS',
                   'out') == 'OK'
        np.testing.assert_allclose(
            tensor(ask, 'out')[0], want.transpose(2, 0, 1), rtol=1e-5,
            atol=1e-5)
    put(ask, 'scores', np.float32([[1, 3, 2], [-1, -2, -3]]))
    assert ask('AI.SCRIPTRUN', 's', 'post_process', 'INPUTS', 'scores',
               'OUTPUTS', 'out') == 'OK'
    assert tensor(ask, 'out').tolist() == [1, 0]
    put(ask, 'a', np.int64([1, 2]))
    put(ask, 'b', np.int64([5, 7]))
    assert ask('AI.SCRIPTRUN', 's', 'two', 'INPUTS', 'a', 'b', 'OUTPUTS',
               'c', 'd') == 'OK'
    assert tensor(ask, 'c').tolist() == [6, 9]
    assert tensor(ask, 'd').tolist() == [-4, -5]
    assert ask('AI.SCRIPTRUN', 's', 'as_list', 'INPUTS', 'a', 'b', 'b',
               'OUTPUTS', 'e') == 'OK'
    assert tensor(ask, 'e').tolist() == [11, 16]
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
    ('ERR forward: ', ['AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'a', 'OUTPUTS',
                       1, 'o']),
    ('ERR forward: RuntimeError: The size of tensor a (3) must match', [
        'AI.MODELEXECUTE', 'm', 'INPUTS', 2, 'a', 'b', 'OUTPUTS', 1, 'o']),
    ('ERR forward: it gives back 1 tensors, asked for were 2', [
        'AI.MODELEXECUTE', 'm', 'INPUTS', 2, 'a', 'a', 'OUTPUTS', 2, 'o',
        'p']),
    ('ERR Function does not exist: none', [
        'AI.SCRIPTRUN', 's', 'none', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR number: it gives back Int, and no tensors', [
        'AI.SCRIPTRUN', 's', 'number', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR half: no tensor of a key has the type Half', [
        'AI.SCRIPTRUN', 's', 'half', 'INPUTS', 'a', 'OUTPUTS', 'o']),
    ('ERR overwrite: libtorch takes no tensors of UINT16', [
        'AI.SCRIPTRUN', 's', 'overwrite', 'INPUTS', 'u', 'OUTPUTS', 'o']),
])
def test_what_libtorch_refuses_is_one_line(ask, words, command):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB',
        torchscript.torchscript_archive(ADD))
    ask('AI.SCRIPTSET', 's', 'CPU', 'SOURCE', SCRIPT)
    put(ask, 'a', np.zeros(3, 'f4'))
    put(ask, 'b', np.zeros(4, 'f4'))
    put(ask, 'u', np.zeros(3, 'u2'))
    refused(ask, words, *command)
    assert ask('DBSIZE') == 5
    assert ask('PING') == 'PONG'
