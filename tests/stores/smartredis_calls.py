"""Calls of SmartRedis' Python client that reach the module, as the SmartRedis checks
and their original make them.

    python smartredis_calls.py ADDRESS[,ADDRESS..] WORK

Runs under a Python that has the package smartredis (and not this suite's own,
which is too new for it). Prints a line for each part: its name and `ok`, or
what went wrong; the exit code is 1 then.
"""
import os
import sys
import traceback
from pathlib import Path

import numpy as np
from smartredis import Client, ConfigOptions, Dataset
from smartredis.error import RedisReplyError, RedisRuntimeError

ADDRESSES = sys.argv[1].split(',')
WORK = Path(sys.argv[2])
CLUSTER = len(ADDRESSES) > 1
MODEL = b'plumbline-network 1 tiny\n'
SCRIPT = '''# plumbline-kernels 1
def pre_process_3ch(image): ...
'''
DTYPES = ('float64', 'float32', 'int8', 'int16', 'int32', 'int64', 'uint8',
          'uint16')
PARTS = []


def part(function):
    PARTS.append(function)
    return function


def raises(words, kind, call, *args, **kwargs):
    """The call fails with such an exception, whose text has the words."""
    try:
        call(*args, **kwargs)
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f'no {kind.__name__}: {words}')


@part
def tensors_of_all_types(c):
    for dtype in DTYPES:
        for shape in ((7,), (3, 5), (2, 3, 4), (1, 1, 1, 1)):
            array = (np.random.rand(*shape) * 100).astype(dtype)
            c.put_tensor(f't_{dtype}', array)
            got = c.get_tensor(f't_{dtype}')
            assert got.dtype == array.dtype and (got == array).all()
    assert c.tensor_exists('t_int8')
    assert c.poll_tensor('t_int8', 10, 3)
    assert not c.tensor_exists('nokey')
    assert not c.poll_tensor('nokey', 1, 3)


@part
def tensors_copied_renamed_deleted(c):
    array = np.random.randint(0, 256, 16 << 20, np.uint8)
    c.put_tensor('a', array)
    c.copy_tensor('a', 'b')
    c.rename_tensor('b', 'c')
    assert (c.get_tensor('c') == array).all() and c.key_exists('c')
    c.delete_tensor('c')
    assert not c.tensor_exists('c')


@part
def errors_of_tensors(c):
    raises('tensor key is empty', RedisReplyError, c.get_tensor, 'nokey')
    raises('', RedisReplyError, c.rename_tensor, 'nokey', 'other')
    raises('tensor key is empty', RedisReplyError, c.copy_tensor, 'nokey',
           'other')
    c.set_script('script', SCRIPT)
    if not CLUSTER:
        raises('WRONGTYPE', RedisRuntimeError, c.get_tensor, 'script')


@part
def lists_of_datasets(c):
    for rank in range(5):
        dataset = Dataset(f'rank_{rank}')
        dataset.add_tensor('tensor_0', np.full((1, 256), rank, 'f4'))
        dataset.add_meta_scalar('step', 7)
        c.put_dataset(dataset)
        c.append_to_list('list', dataset)
    assert c.poll_list_length('list', 5, 5, 10)
    got = c.get_datasets_from_list('list')
    assert [d.get_tensor('tensor_0')[0, 0] for d in got] == [0, 1, 2, 3, 4]
    assert got[0].get_meta_scalars('step')[0] == 7
    c.delete_list('list')
    assert c.get_list_length('list') == 0


@part
def models(c):
    file = WORK / 'model'
    file.write_bytes(MODEL + np.random.bytes(3 << 20))
    c.set_model_from_file('m', str(file), 'TORCH', 'CPU', batch_size=8, tag='v1')
    assert c.model_exists('m') and c.poll_model('m', 10, 3)
    c.put_tensor('in', np.random.rand(4, 3, 16, 16).astype('f4'))
    c.run_model('m', ['in'], ['out'])
    first = c.get_tensor('out')
    assert first.shape == (4, 10)
    c.run_model('m', ['in'], ['out'])
    assert (c.get_tensor('out') == first).all()


@part
def errors_of_models(c):
    c.set_model('m', MODEL, 'TORCH', 'CPU')
    c.put_tensor('in', np.zeros((1, 3, 16, 16), 'f4'))
    c.put_tensor('wide', np.zeros((1, 3, 16, 17), 'f4'))
    raises('model key is empty', RedisRuntimeError, c.run_model, 'nomodel',
           ['in'], ['out'])
    raises('tensor key is empty', RedisReplyError, c.run_model, 'm',
           ['nokey'], ['out'])
    raises('network tiny takes FLOAT n x 3 x 16 x 16', RedisRuntimeError,
           c.run_model, 'm', ['wide'], ['out'])
    raises('takes key INPUTS 1 key', RedisRuntimeError, c.run_model,
           'm', ['in', 'in'], ['out'])
    raises('without libtorch', RedisRuntimeError, c.set_model, 'x',
           b'nothing', 'TORCH', 'CPU')


@part
def scripts(c):
    file = WORK / 'script'
    file.write_text(SCRIPT)
    c.set_script_from_file('s', str(file), 'CPU')
    assert c.model_exists('s')
    image = np.random.randint(0, 256, (8, 9, 3)).astype('f4')
    c.put_tensor('image', image)
    c.run_script('s', 'pre_process_3ch', ['image'], ['ready'])
    want = ((image / 255 - [.485, .456, .406]) / [.229, .224, .225])
    np.testing.assert_allclose(c.get_tensor('ready')[0],
                               want.transpose(2, 0, 1), rtol=1e-4,
                               atol=1e-5)


@part
def errors_of_scripts(c):
    c.set_script('s', SCRIPT)
    c.put_tensor('in', np.zeros((2, 2), 'f4'))
    for words, script, function in (
            ('script key is empty', 'no', 'pre_process_3ch'),
            ('Function does not exist', 's', 'nofunction'),
            ('takes one image', 's', 'pre_process_3ch')):
        raises(words, RedisRuntimeError, c.run_script, script, function,
               ['in'], ['out'])
    raises('tensor key is empty', RedisReplyError, c.run_script, 's',
           'pre_process_3ch', ['nokey'], ['out'])


def main():
    os.environ.update(
        SSDB=sys.argv[1], SR_LOG_FILE='stdout', SR_LOG_LEVEL='QUIET',
        SR_DB_TYPE='Clustered' if CLUSTER else 'Standalone',
        SR_SOCKET_TIMEOUT='60000')
    options = ConfigOptions.create_from_environment('')
    client = Client(options, logger_name='calls')
    failed = 0
    for run in PARTS:
        try:
            run(client)
            print(run.__name__, 'ok', flush=True)
        except Exception:
            failed = 1
            print(run.__name__, traceback.format_exc(), flush=True)
    sys.exit(failed)


if __name__ == '__main__':
    main()
