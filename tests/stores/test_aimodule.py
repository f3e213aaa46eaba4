"""The module that answers RedisAI's commands, in each server that is here."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from checks.stores import aimodule
from checks.stores.servers import Needs, make_server_role
from tests.conftest import LIMIT, ROOT, free_port, skip_missing, until
from tests.stores import networks, vectors
from tests.stores.resp import Client, Error, serving

GOLDEN = json.loads(networks.GOLDEN.read_text())
DTYPES = {'FLOAT': 'f4', 'DOUBLE': 'f8', 'INT8': 'i1', 'INT16': 'i2',
          'INT32': 'i4', 'INT64': 'i8', 'UINT8': 'u1', 'UINT16': 'u2',
          'BOOL': '?'}


def servers() -> dict[str, Path]:
    """Name -> server: those of PATH, and of the project's own stores."""
    result = {}
    for name in ('redis-server', 'valkey-server', 'keydb-server'):
        if on_path := shutil.which(name):
            result[name] = Path(on_path)
        wheel = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline',
                     'stores', 'bin', name)
        if wheel.exists():
            result[f'{name} of a wheel'] = wheel
    return result


@pytest.fixture(scope='session')
def module(once) -> Path:
    """The module, built without a warning."""
    def make(folder: Path) -> None:
        done = subprocess.run(
            aimodule.module_build_command(str(folder / 'ai.so')), shell=True,
            text=True, capture_output=True,
            env={**os.environ, 'CFLAGS': '-Werror'})
        assert done.returncode == 0, done.stderr
    return once('aimodule', make) / 'ai.so'


@contextlib.contextmanager
def loaded(name, module, folder):
    """A server with the module: its port."""
    if name not in servers():
        skip_missing(name, f'{name} is not here')
    line = aimodule.module_load_line(str(module), threads=2) + ' EMULATE_GPUS 2'
    port = free_port()
    with serving(servers()[name], port, folder, '--save', '',
                 '--loadmodule', *line.split()):
        yield port


@pytest.fixture(scope='module', params=[
    'redis-server', 'redis-server of a wheel', 'valkey-server of a wheel',
    *({'valkey-server', 'keydb-server'} & {*servers()})])
def store(request, module, tmp_path_factory):
    with loaded(request.param, module,
                tmp_path_factory.mktemp('store')) as port:
        yield port


@pytest.fixture
def ask(store):
    client = Client(store)
    client('FLUSHALL')
    yield client
    client.close()


def tensor(ask, key):
    """The tensor as an array."""
    kind, name, shape, dims, blob, data = ask('AI.TENSORGET', key, 'META',
                                              'BLOB')
    assert (kind, shape, blob) == (b'dtype', b'shape', b'blob')
    return np.frombuffer(data, DTYPES[name.decode()]).reshape(dims)


def put(ask, key, array):
    name = next(n for n, dtype in DTYPES.items()
                if np.dtype(dtype) == array.dtype)
    assert ask('AI.TENSORSET', key, name, *array.shape, 'BLOB',
               array.tobytes()) == 'OK'


def refused(ask, words, *command):
    """The command is an error that begins with the words."""
    with pytest.raises(Error) as error:
        ask(*command)
    assert str(error.value).startswith(words), error.value


# --- tensors -----------------------------------------------------------------

@pytest.mark.parametrize('name', DTYPES)
def test_a_tensor_comes_back(ask, name):
    values = np.random.default_rng(1).integers(0, 200, (3, 4, 5))
    array = values.astype(DTYPES[name])
    put(ask, 'a', array)
    assert (tensor(ask, 'a') == array).all()
    assert ask('AI.TENSORSET', 'b', name.lower(), *array.shape) == 'OK'
    assert not tensor(ask, 'b').any()


@pytest.mark.parametrize('size', [1, 1 << 10, 1 << 16, 5 << 20])
def test_large_tensors_and_overwriting(ask, size):
    array = np.random.default_rng(2).random(size, np.float32)
    for scale in (1, 2, 3):
        put(ask, 'large', array * np.float32(scale))
        assert (tensor(ask, 'large') == array * np.float32(scale)).all()
    assert ask('MEMORY', 'USAGE', 'large') > array.nbytes
    assert ask('RENAME', 'large', 'other') == ask('SET', 'x', 'y') == 'OK'
    ask('DEL', 'other')
    assert ask('EXISTS', 'large', 'other') == 0


def test_an_overwrite_ends_the_expiry(ask):
    put(ask, 'a', np.zeros(3, 'f4'))
    ask('EXPIRE', 'a', 100)
    put(ask, 'a', np.ones(3, 'f4'))
    assert ask('TTL', 'a') == -1


def test_a_tensor_without_dimensions(ask):
    ask('AI.TENSORSET', 'a', 'FLOAT', 'BLOB', struct.pack('f', 7))
    assert ask('AI.TENSORGET', 'a', 'META', 'BLOB') == [
        b'dtype', b'FLOAT', b'shape', [], b'blob', struct.pack('f', 7)]


@pytest.mark.parametrize('words, command', [
    ('ERR invalid data type', ['k', 'FLOAT16', 1]),
    ('ERR invalid or negative value', ['k', 'FLOAT', 0]),
    ('ERR invalid or negative value', ['k', 'FLOAT', -1, 'BLOB', '']),
    ('ERR invalid or negative value', ['k', 'FLOAT', 2 ** 40, 2 ** 40]),
    ('ERR invalid or negative value', ['k', 'DOUBLE', 2 ** 62]),
    ('ERR a tensor has at most 512 MiB', ['k', 'FLOAT', 2 ** 40]),
    ('ERR a tensor has at most 32', ['k', 'FLOAT', *[1] * 33]),
    ('ERR data length does not match', ['k', 'FLOAT', 2, 'BLOB', '1234']),
    ('ERR a single binary string', ['k', 'FLOAT', 1, 'BLOB']),
    ('ERR BOOL tensor elements', ['k', 'BOOL', 1, 'BLOB', b'\2']),
    ('ERR wrong number of arguments', ['k', 'FLOAT']),
    ('WRONGTYPE', ['text', 'FLOAT', 1]),
])
def test_a_tensor_that_is_none(ask, words, command):
    ask('SET', 'text', 'x')
    refused(ask, words, 'AI.TENSORSET', *command)
    assert ask('DBSIZE') == 1


def test_reading_what_is_no_tensor(ask):
    put(ask, 'a', np.zeros(1, 'f4'))
    ask('SET', 'text', 'x')
    refused(ask, 'ERR tensor key is empty or in a different shard',
            'AI.TENSORGET', 'nokey', 'META', 'BLOB')
    refused(ask, 'WRONGTYPE', 'AI.TENSORGET', 'text', 'META', 'BLOB')
    refused(ask, 'ERR unsupported data format', 'AI.TENSORGET', 'a', 'META',
            'VALUES')
    refused(ask, 'ERR wrong number of arguments', 'AI.TENSORGET', 'a', 'BLOB')


# --- models ------------------------------------------------------------------

ONE = ['INPUTS', 1, 'in', 'OUTPUTS', 1, 'out']


def close(got, want):
    """Single precision against double, sums of thousands of terms."""
    np.testing.assert_allclose(got, want, rtol=2e-4,
                               atol=2e-4 * np.abs(want).max())


@pytest.mark.parametrize('name', ['tiny', 'small'])
def test_the_reference_is_what_numpy_computes(name):
    scores, flops = networks.computed(name)
    step = 1 if scores.shape[1] < 100 else 100
    np.testing.assert_allclose(scores[0][::step], GOLDEN[name]['scores'],
                               rtol=1e-6)
    assert flops == GOLDEN[name]['flops']


@pytest.mark.parametrize('name', networks.NAMES)
def test_a_network_computes_the_reference(ask, name):
    assert ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB',
               aimodule.model_blob(name)) == 'OK'
    put(ask, 'in', networks.picture(networks.shape_of(name)))
    assert ask('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in', 'OUTPUTS', 1,
               'out', 'TIMEOUT', 60_000_000) == 'OK'
    got = tensor(ask, 'out')
    assert got.shape == (1, aimodule.NETWORKS[name].classes)
    close(got[0][::1 if got.size < 100 else 100], GOLDEN[name]['scores'])
    info = ask('INFO', 'EVERYTHING').decode()
    assert f'ai_flops_of_{name}:{GOLDEN[name]["flops"]}\r\n' in info
    assert 'ai_program:plumbline embedded\r\n' in info


@pytest.mark.parametrize('images', [1, 3, 8, 19])
def test_a_batch_is_its_images(ask, images):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU:1', 'BLOB',
        aimodule.model_blob('tiny', 5000))
    batch = np.random.default_rng(3).random((images, 3, 16, 16), np.float32)
    put(ask, 'in', batch)
    assert ask('AI.MODELEXECUTE', 'm', *ONE) == 'OK'
    close(tensor(ask, 'out'), networks.computed('tiny', batch)[0])


def values(ask, key='m'):
    answer = ask('AI.INFO', key)
    return {k.decode(): v for k, v in
            zip(answer[::2], answer[1::2], strict=True)}


def test_threads_that_share_the_work(module, tmp_path):
    name = next(iter(servers()), '')
    if not name:
        skip_missing('redis-server', 'no server is here')
    port = free_port()
    line = aimodule.module_load_line(str(module), threads=2, intra=3)
    with serving(servers()[name], port, tmp_path, '--save', '',
                 '--loadmodule', *line.split()):
        clients = [Client(port) for _ in range(2)]
        ask = clients[0]
        ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB',
            aimodule.model_blob('small'))
        put(ask, 'in', networks.picture((1, 3, 224, 224)))
        for _ in range(3):
            for i, client in enumerate(clients):
                client.send('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in',
                            'OUTPUTS', 1, f'out{i}')
            for client in clients:
                assert client.receive() == 'OK'
            for i in range(2):
                close(tensor(ask, f'out{i}')[0][::100],
                      GOLDEN['small']['scores'])


def counted(ask, metric):
    """What INFO says of a queue."""
    info = ask('INFO', 'EVERYTHING').decode()
    return int(info.split(f'ai_queue_{metric}:')[1].split('\r')[0])


def test_requests_that_wait_become_one_run(ask, store):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU:2', 'BATCHSIZE', 8,
        'MINBATCHSIZE', 4, 'BLOB', aimodule.model_blob('tiny'))
    pictures = np.random.default_rng(4).random((5, 3, 16, 16), np.float32)
    want = networks.computed('tiny', pictures)[0]
    clients = [Client(store) for _ in pictures]
    for i, picture in enumerate(pictures):
        put(ask, f'in{i}', picture[None])
    before = counted(ask, 'CPU_2_runs')
    for i, client in enumerate(clients[:4]):
        client.send('AI.MODELEXECUTE', 'm', 'INPUTS', 1, f'in{i}', 'OUTPUTS',
                    1, f'out{i}')
    for i, client in enumerate(clients[:4]):
        assert client.receive() == 'OK'
        close(tensor(ask, f'out{i}'), want[i:i + 1])
    assert counted(ask, 'CPU_2_runs') == before + 1
    assert values(ask)['samples'] == 4
    # A fifth waits for three more, which do not come.
    assert clients[4]('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in4', 'OUTPUTS',
                      1, 'out4', 'TIMEOUT', 50) == 'TIMEDOUT'
    assert ask('EXISTS', 'out4') == 0
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU:2', 'BATCHSIZE', 8,
        'MINBATCHSIZE', 4, 'MINBATCHTIMEOUT', 50, 'BLOB',
        aimodule.model_blob('tiny'))
    assert clients[4]('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in4', 'OUTPUTS',
                      1, 'out4') == 'OK'
    close(tensor(ask, 'out4'), want[4:])
    # One that waits for ever is dropped when its client leaves.
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU:2', 'BATCHSIZE', 8,
        'MINBATCHSIZE', 4, 'BLOB', aimodule.model_blob('tiny'))
    clients[0].send('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in0', 'OUTPUTS', 1,
                    'out0')
    before = counted(ask, 'CPU_2_jobs')
    for client in clients:
        client.close()
    until(lambda: counted(ask, 'CPU_2_jobs') != before)


def test_the_server_answers_while_a_network_runs(ask, store):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB', aimodule.model_blob('small'))
    # A second's work.
    ask('AI.TENSORSET', 'in', 'FLOAT', 100, 3, 224, 224)

    def answers_and_the_client_leaves():
        """Whether both came before the run was over."""
        ask('DEL', 'out')
        busy, before = Client(store), counted(ask, 'CPU_jobs')
        busy.send('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in', 'OUTPUTS', 1, 'out')
        answered = counted(ask, 'CPU_jobs') == before
        busy.close()
        until(lambda: counted(ask, 'CPU_jobs') != before)
        return answered and ask('EXISTS', 'out') == 0

    # On a loaded machine a run may be over first.
    until(answers_and_the_client_leaves)


def test_counters_of_a_model(ask):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'TAG', 'v 1', 'BLOB',
        aimodule.model_blob('tiny'))
    put(ask, 'in', np.zeros((2, 3, 16, 16), 'f4'))
    put(ask, 'bad', np.zeros((2, 3, 16, 17), 'f4'))
    for _ in range(3):
        ask('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'in', 'OUTPUTS', 1, 'out')
    refused(ask, 'ERR network tiny takes FLOAT n x 3 x 16 x 16, not FLOAT '
            '2 x 3 x 16 x 17', 'AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'bad',
            'OUTPUTS', 1, 'out')
    result = values(ask)
    assert result.pop('duration') > 0
    assert result == {
        'key': b'm', 'type': b'MODEL', 'backend': b'TORCH', 'device': b'CPU',
        'tag': b'v 1', 'samples': 6, 'calls': 4, 'errors': 1}
    assert ask('AI.INFO', 'm', 'RESETSTAT') == 'OK'
    assert values(ask)['calls'] == 0
    refused(ask, 'ERR cannot find run info for key', 'AI.INFO', 'in')
    refused(ask, 'ERR cannot find run info for key', 'AI.INFO', 'nokey')


def test_a_blob_comes_back_whole_or_in_chunks(ask):
    size = ask('AI.CONFIG', 'GET', 'MODEL_CHUNK_SIZE')
    assert size == 511 << 20
    blob = aimodule.model_blob('small', 3 << 20)
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB',
        *[blob[i:i + 1_000_000] for i in range(0, len(blob), 1_000_000)])
    assert ask('AI.MODELGET', 'm', 'BLOB') == blob
    assert ask('AI.CONFIG', 'MODEL_CHUNK_SIZE', 1 << 20) == 'OK'
    assert b''.join(ask('AI.MODELGET', 'm', 'BLOB')) == blob
    assert ask('AI.CONFIG', 'MODEL_CHUNK_SIZE', size) == 'OK'
    assert ask('AI.MODELDEL', 'm') == 'OK'
    refused(ask, 'ERR model key is empty', 'AI.MODELDEL', 'm')
    refused(ask, 'ERR model key is empty', 'AI.MODELGET', 'm', 'BLOB')
    refused(ask, 'ERR unsupported data format', 'AI.MODELGET', 'm', 'META')


@pytest.mark.parametrize('words, command', [
    ('ERR model key is empty', ['AI.MODELEXECUTE', 'nokey', *ONE]),
    ('WRONGTYPE', ['AI.MODELEXECUTE', 'in', *ONE]),
    ('ERR wrong number of arguments', ['AI.MODELEXECUTE', 'm', 'INPUTS']),
    ('ERR INPUTS not specified', ['AI.MODELEXECUTE', 'm', 'X', *ONE[1:]]),
    ('ERR Input count must be', ['AI.MODELEXECUTE', 'm', 'INPUTS', 0,
                                 *ONE[2:], 'x']),
    ('ERR Invalid argument for input_count',
     ['AI.MODELEXECUTE', 'm', 'INPUTS', 'x', *ONE[2:]]),
    ('ERR number of input keys', ['AI.MODELEXECUTE', 'm', 'INPUTS', 9,
                                  *ONE[2:]]),
    ('ERR OUTPUTS not specified', ['AI.MODELEXECUTE', 'm', *ONE[:3], 'x', 1,
                                   'out']),
    ('ERR number of output keys', ['AI.MODELEXECUTE', 'm', *ONE[:4], 2,
                                   'out']),
    ('ERR Invalid value for TIMEOUT', ['AI.MODELEXECUTE', 'm', *ONE,
                                       'TIMEOUT', 0]),
    ('ERR No value provided for TIMEOUT', ['AI.MODELEXECUTE', 'm', *ONE,
                                           'TIMEOUT']),
    ('ERR Invalid argument: x', ['AI.MODELEXECUTE', 'm', *ONE, 'x\r\n']),
    ('Number of keys given as INPUTS', [
        'AI.MODELEXECUTE', 'm', 'INPUTS', 2, 'in', 'in', *ONE[3:]]),
    ('Number of keys given as OUTPUTS', ['AI.MODELEXECUTE', 'm', *ONE[:4], 2,
                                         'a', 'b']),
    ('ERR tensor key is empty', ['AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'no',
                                 *ONE[3:]]),
    ('WRONGTYPE', ['AI.MODELEXECUTE', 'm', *ONE[:5], 'text']),
    ('ERR the model is TorchScript', ['AI.MODELEXECUTE', 'torch', *ONE]),
    ('ERR unsupported backend', ['AI.MODELSTORE', 'x', 'CAFFE', 'CPU',
                                 'BLOB', 'x']),
    ('ERR Could not load backend', ['AI.MODELSTORE', 'x', 'ONNX', 'CPU',
                                    'BLOB', 'x']),
    ('ERR Could not load backend', [
        'AI.MODELSTORE', 'x', 'TF', 'CPU', 'INPUTS', 1, 'a', 'OUTPUTS', 1,
        'b', 'BLOB', 'x']),
    ('ERR Could not load backend', ['AI.MODELSTORE', 'x', 'TF', 'CPU',
                                    'BLOB', 'x']),
    ('ERR INPUTS argument should not', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'INPUTS', 1, 'a', 'BLOB',
        'x']),
    ('ERR Invalid DEVICE', ['AI.MODELSTORE', 'x', 'TORCH', 'TPU', 'BLOB',
                            'x']),
    ('ERR Invalid DEVICE', ['AI.MODELSTORE', 'x', 'TORCH', 'CPU:x', 'BLOB',
                            'x']),
    ('ERR no such GPU', ['AI.MODELSTORE', 'x', 'TORCH', 'GPU:2', 'BLOB',
                         'x']),
    ('ERR Invalid argument for BATCHSIZE', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BATCHSIZE', 'x', 'BLOB']),
    ('ERR MINBATCHSIZE specified without', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'MINBATCHSIZE', 1, 'BLOB',
        'x']),
    ('ERR MINBATCHTIMEOUT specified without', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BATCHSIZE', 1,
        'MINBATCHTIMEOUT', 1, 'BLOB', 'x']),
    ('ERR Insufficient arguments, missing model BLOB', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'TAG', 't', 'BLOB']),
    ('ERR the blob is no model', ['AI.MODELSTORE', 'x', 'TORCH', 'CPU',
                                  'BLOB', 'x']),
    ('ERR no such network', ['AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BLOB',
                             'plumbline-network 1 alexnet\n']),
    ('WRONGTYPE', ['AI.MODELSTORE', 'in', 'TORCH', 'CPU', 'BLOB',
                   aimodule.model_blob('tiny')]),
])
def test_a_model_that_is_asked_wrongly(ask, words, command):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB', aimodule.model_blob('tiny'))
    ask('AI.MODELSTORE', 'torch', 'TORCH', 'CPU', 'BLOB', b'PK\3\4' * 9)
    put(ask, 'in', np.zeros((1, 3, 16, 16), 'f4'))
    ask('SET', 'text', 'x')
    refused(ask, words, *command)
    assert ask('DBSIZE') == 4


# --- scripts -----------------------------------------------------------------

@pytest.fixture
def script(ask):
    assert ask('AI.SCRIPTSET', 's', 'CPU', 'SOURCE',
               aimodule.SCRIPT) == 'OK'


def test_kernels_of_scripts(ask, script):
    image = np.random.default_rng(5).integers(0, 255, (6, 7, 4)).astype('u1')
    put(ask, 'rgba', image)
    put(ask, 'rgb', image[:, :, :3].astype('f4').copy())
    want = ((image[:, :, :3] / 255 - [.485, .456, .406])
            / [.229, .224, .225]).transpose(2, 0, 1)[None]
    for key, kernel in (('rgb', 'pre_process_3ch'),
                        ('rgba', 'pre_process_4ch')):
        assert ask('AI.SCRIPTRUN', 's', kernel, 'INPUTS', key, 'OUTPUTS',
                   'out') == 'OK'
        close(tensor(ask, 'out'), want)
    put(ask, 'scores', np.float32([[1, 3, 3], [-1, -2, -3]]))
    assert ask('AI.SCRIPTRUN', 's', 'post_process', 'INPUTS', 'scores',
               'OUTPUTS', 'out') == 'OK'
    assert tensor(ask, 'out').tolist() == [1, 0]
    assert ask('AI.SCRIPTRUN', 's', 'copy', 'INPUTS', 'rgb', 'scores',
               'OUTPUTS', 'a', 'b') == 'OK'
    assert (tensor(ask, 'b') == tensor(ask, 'scores')).all()
    assert values(ask, 's')['calls'] == 4
    assert values(ask, 's')['samples'] == -1


def test_a_script_is_kept(ask, script):
    assert ask('AI.SCRIPTGET', 's', 'SOURCE').decode() == aimodule.SCRIPT
    other = 'def one(x):\n    return x.max(1)[0]\n'
    assert ask('AI.SCRIPTSET', 't', 'CPU', 'TAG', 'v', 'SOURCE',
               other) == 'OK'
    assert ask('AI.SCRIPTGET', 't', 'SOURCE').decode() == other
    assert values(ask, 't')['tag'] == b'v'
    refused(ask, 'ERR unsupported data format', 'AI.SCRIPTGET', 't', 'META')
    put(ask, 'in', np.zeros((1, 2), 'f4'))
    refused(ask, 'ERR the script is TorchScript, which this module cannot '
            'run', 'AI.SCRIPTRUN', 't', 'one', 'INPUTS', 'in', 'OUTPUTS', 'o')
    assert ask('AI.SCRIPTDEL', 't') == 'OK'
    refused(ask, 'ERR script key is empty', 'AI.SCRIPTDEL', 't')


@pytest.mark.parametrize('words, command', [
    ('ERR script key is empty', ['AI.SCRIPTRUN', 'no', 'copy', 'INPUTS',
                                 'in', 'OUTPUTS', 'out']),
    ('ERR Function does not exist: x', ['AI.SCRIPTRUN', 's', 'x', 'INPUTS',
                                        'in', 'OUTPUTS', 'out']),
    ('ERR Wrong number of inputs', [
        'AI.SCRIPTRUN', 's', 'post_process', 'INPUTS', 'in', 'in', 'OUTPUTS',
        'out']),
    ('ERR Function returned unexpected number', [
        'AI.SCRIPTRUN', 's', 'copy', 'INPUTS', 'in', 'OUTPUTS', 'a', 'b']),
    ('ERR post_process wants scores', [
        'AI.SCRIPTRUN', 's', 'post_process', 'INPUTS', 'in', 'OUTPUTS',
        'out']),
    ('ERR pre_process_3ch wants an image', [
        'AI.SCRIPTRUN', 's', 'pre_process_3ch', 'INPUTS', 'in', 'OUTPUTS',
        'out']),
    ('ERR INPUTS not specified', ['AI.SCRIPTRUN', 's', 'copy', 'in',
                                  'OUTPUTS', 'out']),
    ('ERR the script defines no function', ['AI.SCRIPTSET', 'x', 'CPU',
                                            'SOURCE', 'x']),
    ('ERR no such kernel', ['AI.SCRIPTSET', 'x', 'CPU', 'SOURCE',
                            '# plumbline-kernels 1\ndef x(): ...']),
    ('ERR Insufficient arguments, missing script SOURCE', [
        'AI.SCRIPTSET', 'x', 'CPU', 'X', 'x']),
    ('ERR unsupported subcommand', ['AI.CONFIG', 'x', 1]),
    ('ERR unsupported subcommand', ['AI.CONFIG', 'GET', 'x']),
    ('ERR MODEL_CHUNK_SIZE: invalid', ['AI.CONFIG', 'MODEL_CHUNK_SIZE', 0]),
])
def test_a_script_that_is_asked_wrongly(ask, script, words, command):
    put(ask, 'in', np.zeros(3, 'f4'))
    refused(ask, words, *command)
    assert ask('DBSIZE') == 2


def test_not_in_a_transaction_or_a_script_of_the_server(ask, script):
    put(ask, 'in', np.zeros(3, 'f4'))
    run = ['AI.SCRIPTRUN', 's', 'copy', 'INPUTS', 'in', 'OUTPUTS', 'out']
    ask('MULTI')
    ask(*run)
    assert 'within a transaction' in str(ask('EXEC')[0])
    with pytest.raises(Error, match='within a transaction'):
        ask('EVAL', 'return redis.call(unpack(ARGV))', 0, *run)
    # What does not block is as good there as anywhere.
    get = "return redis.call('AI.TENSORGET', 'in', 'META', 'BLOB')"
    assert ask('EVAL', get, 0)[-1] == bytes(12)


def test_devices_and_their_emulation(ask):
    put(ask, 'in', np.zeros((1, 3, 16, 16), 'f4'))
    for device in ('cpu', 'CPU:7', 'GPU', 'gpu:1'):
        assert ask('AI.MODELSTORE', 'm', 'TORCH', device, 'BLOB',
                   aimodule.model_blob('tiny')) == 'OK'
        assert values(ask)['device'] == device.upper().encode()
        assert ask('AI.MODELEXECUTE', 'm', *ONE) == 'OK'
    assert 'ai_emulated_gpus:2\r\n' in ask('INFO', 'EVERYTHING').decode()


def test_keys_of_a_command_are_told(ask):
    assert ask('COMMAND', 'GETKEYS', 'AI.MODELEXECUTE', 'm', 'INPUTS', 2,
               'a', 'b', 'OUTPUTS', 1, 'c') == [b'm', b'a', b'b', b'c']
    assert ask('COMMAND', 'GETKEYS', 'AI.SCRIPTRUN', 's', 'f', 'INPUTS',
               'a', 'OUTPUTS', 'c', 'd') == [b's', b'a', b'c', b'd']
    assert ask('COMMAND', 'GETKEYS', 'AI.MODELEXECUTE', 'm', 'INPUTS', 99,
               'a', 'b', 'OUTPUTS', 1, 'c') == [b'm']
    # It once told of a first key that was not there, and Valkey crashed.
    with pytest.raises(Error):
        ask('COMMAND', 'GETKEYS', 'AI.SCRIPTRUN')


# --- values are in memory only ----------------------------------------------

def test_snapshots_have_no_values(ask, script):
    put(ask, 'a', np.arange(6, dtype='i2').reshape(2, 3))
    refused(ask, 'ERR not supported for this module key', 'COPY', 'a', 'b')
    refused(ask, 'ERR Bad data format', 'RESTORE', 'b', 0, ask('DUMP', 'a'))
    assert ask('SAVE') == 'OK'
    ask('CONFIG', 'SET', 'aof-use-rdb-preamble', 'no')
    ask('BGREWRITEAOF')
    until(lambda: b'aof_rewrite_in_progress:1' not in ask('INFO', 'persistence'))
    assert b'aof_last_bgrewrite_status:ok' in ask('INFO', 'persistence')
    assert tensor(ask, 'a').shape == (2, 3)


# Redis 6.2 takes a single word of both numbers for no snapshots.
@pytest.mark.parametrize('options', [['--save', '3600', '1'],
                                     ['--save', '', '--appendonly', 'yes']])
def test_a_server_with_persistence_is_warned_of(module, tmp_path, options):
    name = next(iter(servers()), '')
    if not name:
        skip_missing('redis-server', 'no server is here')
    port = free_port()
    with serving(servers()[name], port, tmp_path, *options, '--loadmodule',
                 module):
        ask = Client(port)
        ask('AI.TENSORSET', 'a', 'FLOAT', 1)
        ask('SAVE')
        ask.close()
    assert 'are in memory only, but this server' in (
        tmp_path / 'log').read_text()
    # What was saved is refused, with the reason.
    (tmp_path / 'again').mkdir()
    (tmp_path / 'dump.rdb').rename(tmp_path / 'again' / 'dump.rdb')
    done = subprocess.run(
        [servers()[name], '--port', str(port), '--dir', tmp_path / 'again',
         '--save', '', '--loadmodule', module],
        text=True, capture_output=True, timeout=LIMIT)
    assert 'this snapshot has keys of the module' in done.stdout
    assert 'but this server writes snapshots' not in done.stdout


# --- SmartRedis --------------------------------------------------------------

SLOTS = [range(0, 5461), range(5461, 10923), range(10923, 16384)]


@contextlib.contextmanager
def cluster(name, module, folder):
    """Ports of three masters with the module that share all slots."""
    ports = [free_port() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(serving(
                servers()[name], port, folder / str(port), '--save', '',
                '--cluster-enabled', 'yes', '--cluster-node-timeout', 30000,
                '--loadmodule', module, 'EMULATE_GPUS', 2))
        clients = [Client(port) for port in ports]
        for i, client in enumerate(clients):
            # In one piece each: SmartRedis looks for a slot's shard so.
            client('CLUSTER', 'ADDSLOTS', *SLOTS[i])
            client('CLUSTER', 'SET-CONFIG-EPOCH', i + 1)
        for port in ports[1:]:
            clients[0]('CLUSTER', 'MEET', '127.0.0.1', port)
        until(lambda: all(b'cluster_state:ok' in client('CLUSTER', 'INFO')
                          and b'cluster_known_nodes:3' in client('CLUSTER', 'INFO')
                          for client in clients))
        yield ports


@pytest.fixture(scope='session')
def smartredis():
    """A Python that has the real client.

    PLUMBLINE_SMARTREDIS says which: its wheel is for Python 3.9 to 3.11 and
    numpy 1, so it cannot be one of this suite's packages.
        python3.11 -m venv DIR; DIR/bin/pip install smartredis 'numpy<2'
        PLUMBLINE_SMARTREDIS=DIR/bin/python
    """
    python = os.environ.get('PLUMBLINE_SMARTREDIS', '')
    if not python:
        pytest.skip('PLUMBLINE_SMARTREDIS is not set to a Python that has '
                    'the package smartredis')
    return python


def client_calls(python, ports, folder):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [python, ROOT / 'tests' / 'stores' / 'smartredis_calls.py',
         ','.join(f'127.0.0.1:{port}' for port in ports), folder],
        cwd=folder, text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(' ok\n') == 12, done.stdout


def test_the_real_client(smartredis, store, tmp_path):
    client_calls(smartredis, [store], tmp_path)


@pytest.mark.parametrize('name', ['redis-server', 'valkey-server of a wheel'])
def test_the_real_client_in_a_cluster(smartredis, module, tmp_path, name):
    if name not in servers():
        skip_missing(name, f'{name} is not here')
    with cluster(name, module, tmp_path) as ports:
        client_calls(smartredis, ports, tmp_path / 'work')


def test_a_model_in_a_cluster(module, tmp_path):
    """As the client does it: keys of one slot; others are refused."""
    name = next(iter(servers()), '')
    if not name:
        skip_missing('redis-server', 'no server is here')
    with cluster(name, module, tmp_path) as ports:
        asks = [Client(port) for port in ports]
        slot = asks[0]('CLUSTER', 'KEYSLOT', '{a}')
        shard = next(i for i in range(3) if slot in SLOTS[i])
        ask, other = asks[shard], asks[shard - 1]
        ask('AI.MODELSTORE', '{a}m', 'TORCH', 'CPU', 'BLOB',
            aimodule.model_blob('tiny'))
        put(ask, '{a}in', np.zeros((1, 3, 16, 16), 'f4'))
        run = ['AI.MODELEXECUTE', '{a}m', 'INPUTS', 1, '{a}in', 'OUTPUTS', 1]
        assert ask(*run, '{a}out') == 'OK'
        refused(ask, 'CROSSSLOT', *run, 'b')
        refused(other, f'MOVED {slot} ', *run, '{a}out')


# --- what nobody means to send -----------------------------------------------

@pytest.mark.parametrize('seed', [1, 2])
def test_random_argument_vectors(ask, store, seed):
    sent, errors = vectors.send(store, seed, seconds=20, maximum=1500)
    assert 0 < errors < sent
    assert ask('PING') == 'PONG'


# --- loading -----------------------------------------------------------------

@pytest.mark.parametrize('words, options', [
    ('no setting CPUS', ['CPUS', 1]),
    ('THREADS_PER_QUEUE wants a number from 1 to 256',
     ['THREADS_PER_QUEUE', 0]),
    ('THREADS_PER_QUEUE wants a number', ['THREADS_PER_QUEUE']),
])
def test_a_setting_that_is_none(module, tmp_path, words, options):
    name = next(iter(servers()), '')
    if not name:
        skip_missing('redis-server', 'no server is here')
    done = subprocess.run(
        [servers()[name], '--port', str(free_port()), '--dir', tmp_path,
         '--loadmodule', module, *map(str, options)],
        text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode and words in done.stdout


def test_a_plan_loads_it():
    line = aimodule.module_load_line('/x/ai.so', threads=4)
    config = make_server_role('redis', '/usr', Needs(modules=(line,))).config
    assert f'\nloadmodule {line}\n' in config


def test_blobs_of_the_helper():
    assert len(aimodule.model_blob('small', 100)) == 100
    with pytest.raises(ValueError, match='unknown network x; networks: tiny'):
        aimodule.model_blob('x')
