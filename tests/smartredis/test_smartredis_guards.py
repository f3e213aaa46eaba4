"""Runs that the guards of the checks refuse."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.smartredis.test_smartredis_pbs import SITE

HERE = Path(__file__).parent
#: What the programs of a real run printed, for each size.
SIZES = (1024, 65536, 1024000)


def parts(name):
    """The outputs in a golden file."""
    text = (HERE / 'golden' / name).read_text()
    return [part + '# end\n' for part in text.split('# end\n')[:-1]]


def throughput(old='', new='', size=65536, **more):
    """A run of the throughput check, with a change to one size's output."""
    texts = {f'size{each}.0': text for each, text in zip(
        SIZES, parts('throughput-redis-7.0.15-4-ranks.txt'), strict=True)}
    where = f'size{size}.0'
    assert old in texts[where]
    texts[where] = texts[where].replace(old, new, 1)
    return {'check': 'SmartRedisThroughput', 'texts': texts,
            'commands': 800, **more}


def aggregation(old='', new='', **more):
    """The same of the aggregation; the change is to the consumer's output of
    each size."""
    producer, consumer = parts('aggregation-redis-7.0.15.txt')
    assert old in consumer
    texts = {}
    for size in SIZES:
        for number, text in enumerate((producer, consumer.replace(old,
                                                                  new, 1))):
            texts[f'size{size}.{number}'] = text.replace(
                'bytes 1024\n', f'bytes {size}\n')
    return {'check': 'SmartRedisAggregation', 'texts': texts,
            'commands': 2400, **more}


def without(run, end):
    del run['texts'][end]
    return run


def facts(*backlogs):
    """Facts of one node each, with its limit for pending connections."""
    return {f'n{number}': json.dumps({'somaxconn': str(backlog)})
            for number, backlog in enumerate(backlogs)}


#: Name -> the run, and its refusal; '' for a good run.
RUNS = {
    'good': (throughput(), ''),
    'good-lists': (aggregation(), ''),
    'fewer-ranks': (throughput('ranks 4', 'ranks 2'),
                    'ran 2 ranks and 100 iterations; requested: 4 and 100'),
    'fewer-iterations': (throughput('iterations 100', 'iterations 10'),
                         'ran 4 ranks and 10 iterations; requested: 4'),
    'two-consumers': (aggregation('ranks 1', 'ranks 2'),
                      'consumer ran 2 ranks and 100 iterations; requested: 1'),
    'another-client': (throughput('client embedded', 'client smartredis'),
                       'used the client smartredis instead of embedded'),
    'not-compared': (throughput('verified 400', 'verified 399'),
                     'compared 399 of 400 values'),
    'lists-not-compared': (aggregation('verified 400', 'verified 0'),
                           'compared 0 of 400 values'),
    'another-server': (throughput(commands=799),
                       'redis counted only 799 of at least 800 commands'),
    'lists-elsewhere': (aggregation(commands=2399),
                        'redis counted only 2399 of at least 2400 commands'),
    'evicted': (throughput(evicted=3), '1024 B: redis evicted 3 keys'),
    'cut': (throughput('# end\n', ''), 'size65536.0.out:'),
    'missing': (without(throughput(), 'size1024.0'), 'No such file')}


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp('judged')
    site = folder / 'cluster'
    site.mkdir()
    (site / 'system.py').write_text(SITE)
    runs = {name: run for name, (run, _) in RUNS.items()}
    # Of several nodes the one that holds the fewest counts.
    runs['backlogs'] = throughput(facts=facts(4096, 2, 4096))
    # Last, as it changes the check: four ranks for each of two servers.
    runs['colocated'] = throughput(
        facts=facts(3, 4), options={'net_type': 'tcp'}, commands=1600,
        scenario={'deployment': 'colocated', 'client_nodes': 2})
    for end, text in runs['colocated']['texts'].items():
        runs['colocated']['texts'][end] = text.replace(
            'ranks 4', 'ranks 8').replace('verified 400', 'verified 800')
    done = subprocess.run(
        [sys.executable, HERE / 'judge.py', site, folder / 'runs'],
        input=json.dumps(runs), capture_output=True, text=True, timeout=240,
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
        assert output['bandwidth@65536B'] == pytest.approx(403.859686)
        assert output['one_way_bandwidth@65536B'] == pytest.approx(201.929843)
        assert 'dip' in output and output['limits'] == []
    else:
        assert output['get_list@1024B'] == pytest.approx(1.732481)


def test_a_limit_on_connections_is_noted(judged):
    assert judged['backlogs']['limits'] == [
        'client_time may be too long: 4 clients connect to a server at once, '
        'but somaxconn is 2, and the other clients wait for a retry of the '
        'kernel']
    (output,) = judged['colocated']['limits']
    assert '4 clients connect to a server at once, but somaxconn is 3' in (
        output)
