"""Runs that the guards of the checks refuse."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LIMIT, ROOT
from tests.smartredis.test_smartredis_pbs import SITE

HERE = Path(__file__).parent
#: Sizes of the tensors of a run.
SIZES = (1024, 65536, 1024000)
#: Mode -> calls of a rank in 100 iterations: function, number, seconds.
CALLS = {
    'throughput': (('client()', 1, 0.004), ('put_tensor', 100, 0.0002),
                   ('unpack_tensor', 100, 0.0003), ('loop_time', 1, 0.05)),
    'inference': (('client()', 1, 0.004), ('warmup', 1, 0.1),
                  ('put_tensor', 100, 0.001), ('run_script', 100, 0.002),
                  ('run_model', 100, 0.016), ('unpack_tensor', 100, 0.001),
                  ('loop_time', 1, 2)),
    'producer': (('client()', 1, 0.004), ('put_dataset', 1, 0.001),
                 ('append_to_list', 100, 0.001), ('loop_time', 1, 0.5)),
    'consumer': (('client()', 1, 0.004), ('poll_list', 100, 0.001),
                 ('get_list', 100, 0.002), ('loop_time', 1, 0.4))}


def program(mode, ranks, size, verified, number=0):
    """End of a file's name -> its text: what a program prints and writes."""
    return {f'size{size}.{number}.out': (
        f'# tensorload 1.0 {mode}\n# client embedded\n'
        f'# ranks {ranks} iterations 100 bytes {size}\n'
        f'# verified {verified}\n# end\n')} | {
        f'size{size}.{number}.ranks/rank_{rank}_timing.csv': ''.join(
            f'{rank},{function},{seconds}\n' * count for function, count, seconds
            in (*CALLS[mode], ('main()', 1, 3)))
        for rank in range(ranks)}


def changed(files, end, old, new):
    """The files, with a change to those whose names have this end."""
    assert any(old in text for name, text in files.items() if name.endswith(end))
    return {name: text.replace(old, new, 1) if name.endswith(end) else text
            for name, text in files.items()}


def throughput(old='', new='', end='size65536.0.out', ranks=4, **more):
    """A run of the throughput check, with a change to one size's output."""
    files = {}
    for size in SIZES:
        files |= program('throughput', ranks, size, 100 * ranks)
    return {'check': 'SmartRedisThroughput', 'commands': 800,
            'files': changed(files, end, old, new), **more}


def aggregation(old='', new='', end='.1.out', **more):
    """The same of the aggregation; the change is to the consumer's output of
    each size."""
    files = {}
    for size in SIZES:
        files |= (program('producer', 4, size, 0)
                  | program('consumer', 1, size, 400, number=1))
    return {'check': 'SmartRedisAggregation', 'commands': 2400,
            'files': changed(files, end, old, new), **more}


def inference():
    """A run of the inference check."""
    return {'check': 'SmartRedisInference', 'commands': 4 * 404,
            'files': program('inference', 4, 602112, 404)}


def without(run, end):
    del run['files'][end]
    return run


#: Name -> the run, and its refusal; '' for a good run.
RUNS = {
    'good': (throughput(), ''),
    'good-lists': (aggregation(), ''),
    'good-inference': (inference(), ''),
    'fewer-ranks': (throughput('ranks 4', 'ranks 2'),
                    '4 of 2 ranks of throughput wrote the times of 100 iterations '
                    'with 65536 B; requested: 4 ranks, 100 iterations with 65536 B'),
    'a-rank-without-times': (
        without(throughput(), 'size1024.0.ranks/rank_3_timing.csv'),
        '3 of 4 ranks of throughput wrote the times'),
    'cut-times': (
        throughput('3,main(),3\n', '', end='size1024.0.ranks/rank_3_timing.csv'),
        'run.1.size1024.0.ranks/rank_3_timing.csv:202: unfinished'),
    'fewer-calls': (
        aggregation('0,get_list,0.002\n', '', end='.1.ranks/rank_0_timing.csv'),
        'rank_0_timing.csv of consumer has 99 calls of get_list in 100 iterations'),
    'no-loop': (
        aggregation('0,loop_time,0.4\n', '', end='.1.ranks/rank_0_timing.csv'),
        'rank_0_timing.csv of consumer has 0 calls of loop_time in 100 iterations'),
    'loop-of-0-s': (
        throughput('2,loop_time,0.05\n', '2,loop_time,0\n',
                   end='size1024.0.ranks/rank_2_timing.csv'),
        'loop_time of a rank of throughput is 0'),
    'two-consumers': (aggregation('ranks 1', 'ranks 2'),
                      '1 of 2 ranks of consumer wrote the times of 100 iterations with '
                      '1024 B; requested: 1 ranks'),
    'another-client': (throughput('client embedded', 'client smartredis'),
                       'used the client smartredis instead of embedded'),
    'not-compared': (throughput('verified 400', 'verified 399'),
                     'compared 399 of 400 values'),
    'another-server': (throughput(commands=799),
                       'redis counted only 799 of at least 800 commands'),
    'evicted': (throughput(evicted=3), '1024 B: redis evicted 3 keys'),
    'no-module': (throughput(log='Ready'), 'run.1.server0.log names no AI module'),
    'cut': (throughput('# end\n', ''), 'size65536.0.out:'),
    'missing': (without(throughput(), 'size1024.0.out'), 'No such file')}


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp('judged')
    site = folder / 'cluster'
    site.mkdir()
    (site / 'system.py').write_text(SITE)
    runs = {name: run for name, (run, _) in RUNS.items()}
    # Default sizes of the original, which sends whole floats.
    runs['original-size'] = {
        'check': 'SmartRedisThroughput', 'commands': 800,
        'files': {**program('throughput', 4, 32768, 400),
                  **program('throughput', 4, 65536, 400)},
        'settings': {'tensor_bytes': [32769, 65538]}}
    done = subprocess.run(
        [sys.executable, HERE / 'judge.py', site, folder / 'runs'],
        input=json.dumps(runs), capture_output=True, text=True, timeout=LIMIT,
        env={**os.environ, 'PYTHONPATH': str(ROOT),
             'PLUMBLINE_SITE': str(site)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize('name', RUNS)
def test_a_run_that_is_none_is_refused(judged, name):
    words = RUNS[name][1]
    output = judged[name]
    if words:
        assert words in output
    elif name == 'good':
        # 4 ranks, 100 iterations, in 0.05 s.
        assert output['one_way_bandwidth@65536B'] == pytest.approx(524.288)
        assert output['bandwidth@65536B'] == pytest.approx(2 * 524.288)
        assert output['version'] == '7.0.15, embedded AI module, stand-in'
    elif name == 'good-inference':
        assert output['inference_rate@602112B'] == pytest.approx(4 * 100 / 2)
        assert output['run_model@602112B'] == pytest.approx(16)
    else:
        assert output['get_list@1024B'] == pytest.approx(2)
        # 4 datasets of 4 tensors, 100 iterations, in 0.4 s.
        assert output['bandwidth@1024B'] == pytest.approx(4.096)


@pytest.mark.parametrize('size', [32768, 65536])
def test_a_size_of_the_original_is_measured_as_it_is_sent(judged, size):
    assert judged['original-size'][f'put_tensor@{size}B'] == pytest.approx(200)
