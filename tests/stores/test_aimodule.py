"""The module that answers RedisAI's commands, in each server that is here."""
from __future__ import annotations

import contextlib
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
    line = aimodule.module_load_line(str(module), threads=2)
    port = free_port()
    with serving(servers()[name], port, folder, '--save', '',
                 '--loadmodule', *line.split()):
        yield port


@pytest.fixture(scope='module')
def store(module, tmp_path_factory):
    """Port of one of the servers that are here."""
    name = min(servers(), default='redis-server')
    with loaded(name, module, tmp_path_factory.mktemp('store')) as port:
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


@pytest.mark.parametrize('name', [
    'redis-server', 'redis-server of a wheel', 'valkey-server of a wheel',
    *({'valkey-server', 'keydb-server'} & {*servers()})])
def test_each_server_has_tensors_and_a_network(name, module, tmp_path):
    with loaded(name, module, tmp_path) as port:
        client = Client(port)
        computes(client, 'tiny', 3)
        client.close()


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
    assert ask('RENAME', 'large', 'other') == ask('SET', 'x', 'y') == 'OK'
    ask('DEL', 'other')
    assert ask('EXISTS', 'large', 'other') == 0


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
    ('ERR invalid or negative value', ['k', 'FLOAT', 1, 'BLOB']),
    ('ERR invalid or negative value', ['k', 'FLOAT', 1, 'BLOB', '1234', 1]),
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
    """Single precision against double, sums of hundreds of terms."""
    np.testing.assert_allclose(got, want, rtol=1e-3,
                               atol=1e-3 * np.abs(want).max())


def test_the_number_of_operations_is_that_of_resnet50():
    assert abs(networks.operations('resnet50') / 8_178_368_512 - 1) < 0.002


@pytest.mark.parametrize('name, images', [('tiny', 3), ('small', 2),
                                          ('resnet50', 1)])
def test_a_network_computes_the_reference(ask, name, images):
    computes(ask, name, images)


def computes(ask, name, images):
    """Asks for the scores of a network, and compares them."""
    side, classes = aimodule.NETWORKS[name]
    assert ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'TAG', 'v', 'BATCHSIZE', 2,
               'BLOB', aimodule.model_blob(name)) == 'OK'
    batch = np.random.default_rng(3).random((images, 3, side, side), np.float32)
    put(ask, 'in', batch)
    assert ask('AI.MODELEXECUTE', 'm', *ONE, 'TIMEOUT', 60_000_000) == 'OK'
    close(tensor(ask, 'out'), networks.scores(name, batch, classes))


def test_requests_of_one_model_are_batches(ask, store):
    """Each client has the scores of its own images."""
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU:2', 'BATCHSIZE', 8, 'BLOB',
        aimodule.model_blob('tiny'))
    pictures = np.random.default_rng(4).random((9, 3, 16, 16), np.float32)
    want = networks.scores('tiny', pictures, 10)
    clients = [Client(store) for _ in pictures]
    for i, picture in enumerate(pictures):
        put(ask, f'in{i}', picture[None])
    for i, client in enumerate(clients):
        client.send('AI.MODELEXECUTE', 'm', 'INPUTS', 1, f'in{i}', 'OUTPUTS',
                    1, f'out{i}')
    for i, client in enumerate(clients):
        assert client.receive() == 'OK'
        close(tensor(ask, f'out{i}'), want[i:i + 1])
        client.close()


def test_a_client_that_leaves_while_its_network_runs(ask, store):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB', aimodule.model_blob('small'))
    ask('AI.TENSORSET', 'in', 'FLOAT', 20, 3, 224, 224)
    busy = Client(store)
    busy.send('AI.MODELEXECUTE', 'm', *ONE)
    assert ask('PING') == 'PONG'
    busy.close()
    assert ask('AI.MODELEXECUTE', 'm', *ONE) == 'OK'
    assert tensor(ask, 'out').shape == (20, 1000)


@pytest.mark.parametrize('words, command', [
    ('ERR model key is empty', ['AI.MODELEXECUTE', 'nokey', *ONE]),
    ('WRONGTYPE', ['AI.MODELEXECUTE', 'in', *ONE]),
    ('ERR this stand-in takes key INPUTS 1 key', ['AI.MODELEXECUTE', 'm', 'INPUTS']),
    ('ERR this stand-in takes key INPUTS 1 key', [
        'AI.MODELEXECUTE', 'm', 'INPUTS', 2, 'in', 'in', *ONE[3:]]),
    ('ERR tensor key is empty', ['AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'no',
                                 *ONE[3:]]),
    ('WRONGTYPE', ['AI.MODELEXECUTE', 'm', *ONE[:5], 'text']),
    ('ERR network tiny takes FLOAT n x 3 x 16 x 16', [
        'AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'wide', *ONE[3:]]),
    ('ERR Could not load backend', ['AI.MODELSTORE', 'x', 'ONNX', 'CPU',
                                    'BLOB', 'x']),
    ('ERR Invalid DEVICE', ['AI.MODELSTORE', 'x', 'TORCH', 'GPU', 'BLOB',
                            'x']),
    ('ERR Invalid DEVICE', ['AI.MODELSTORE', 'x', 'TORCH', 'CPU:x', 'BLOB',
                            'x']),
    ('ERR Could not initialize queue', ['AI.MODELSTORE', 'x', 'TORCH',
                                        'CPU:64', 'BLOB', 'x']),
    ('ERR Invalid argument for BATCHSIZE', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BATCHSIZE', 'x', 'BLOB']),
    ('ERR this stand-in takes', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BATCHSIZE', 2, 'MINBATCHSIZE',
        1, 'BLOB', 'x']),
    ('ERR this stand-in takes', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'TAG', 't', 'BLOB']),
    ('ERR this module was built without libtorch', [
        'AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BLOB', 'PK\3\4']),
    ('ERR no such network', ['AI.MODELSTORE', 'x', 'TORCH', 'CPU', 'BLOB',
                             'plumbline-network 1 alexnet\n']),
    ('WRONGTYPE', ['AI.MODELSTORE', 'in', 'TORCH', 'CPU', 'BLOB',
                   aimodule.model_blob('tiny')]),
    ('ERR unsupported subcommand', ['AI.CONFIG', 'GET', 'x']),
])
def test_a_model_that_is_asked_wrongly(ask, words, command):
    ask('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'BLOB', aimodule.model_blob('tiny'))
    put(ask, 'in', np.zeros((1, 3, 16, 16), 'f4'))
    put(ask, 'wide', np.zeros((1, 3, 16, 17), 'f4'))
    ask('SET', 'text', 'x')
    refused(ask, words, *command)
    assert ask('DBSIZE') == 4


# --- scripts -----------------------------------------------------------------

@pytest.fixture
def script(ask):
    assert ask('AI.SCRIPTSET', 's', 'CPU', 'TAG', 'v', 'SOURCE',
               aimodule.SCRIPT) == 'OK'


RUN = ['AI.SCRIPTRUN', 's', 'pre_process_3ch', 'INPUTS', 'in', 'OUTPUTS', 'out']


def test_the_function_of_a_script(ask, script):
    image = np.random.default_rng(5).integers(0, 255, (6, 7, 3)).astype('f4')
    put(ask, 'in', image)
    assert ask(*RUN) == 'OK'
    close(tensor(ask, 'out'), ((image / 255 - [.485, .456, .406])
                               / [.229, .224, .225]).transpose(2, 0, 1)[None])


@pytest.mark.parametrize('words, command', [
    ('ERR script key is empty', ['AI.SCRIPTRUN', 'no', *RUN[2:]]),
    ('ERR Function does not exist', [*RUN[:2], 'x', *RUN[3:]]),
    ('ERR pre_process_3ch takes one image', RUN),
    ('ERR this stand-in takes key function', [*RUN, 'out2']),
    ('ERR this stand-in takes key function', RUN[:5]),
    ('ERR this module was built without libtorch', [
        'AI.SCRIPTSET', 'x', 'CPU', 'SOURCE', 'def one(x):\n    return x\n']),
    ('ERR Insufficient arguments, missing script SOURCE', [
        'AI.SCRIPTSET', 'x', 'CPU', 'X', 'x']),
])
def test_a_script_that_is_asked_wrongly(ask, script, words, command):
    put(ask, 'in', np.zeros(3, 'f4'))
    refused(ask, words, *command)
    assert ask('DBSIZE') == 2


def test_not_in_a_transaction_or_a_script_of_the_server(ask, script):
    put(ask, 'in', np.zeros(3, 'f4'))
    ask('MULTI')
    ask(*RUN)
    assert 'locking module command' in str(ask('EXEC')[0])
    with pytest.raises(Error, match='locking module command'):
        ask('EVAL', 'return redis.call(unpack(ARGV))', 0, *RUN)
    # What does not block is as good there as anywhere.
    get = "return redis.call('AI.TENSORGET', 'in', 'META', 'BLOB')"
    assert ask('EVAL', get, 0)[-1] == bytes(12)


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
                '--loadmodule', module))
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
    assert done.stdout.count(' ok\n') == 8, done.stdout


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
    ('settings are THREADS_PER_QUEUE n', ['CPUS', 1]),
    ('n from 1 to 256', ['THREADS_PER_QUEUE', 0]),
    ('n from 1 to 256', ['THREADS_PER_QUEUE']),
    ('above 1 need a module that was built with libtorch', ['INTRA_OP_PARALLELISM', 2]),
    ('above 1 need a module that was built with libtorch', ['INTER_OP_PARALLELISM', 2]),
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
