"""Stores: the parser, the guards, and a real server where there is one."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from checks.lib.parsers import ParseError
from checks.lib.parsers.resp_benchmark import parse
from tests.conftest import ROOT
from tests.test_faults import another_site

GOLDEN = ROOT / 'tests' / 'golden' / 'keyvalue'
OURS = (GOLDEN / 'redis-benchmark-7.0.15.txt').read_text()


def test_golden_output_with_the_counts_of_the_store():
    records = parse(OURS)
    assert {(r.program, r.version, r.size) for r in records} == {
        ('redis', '7.0.15', 64)}
    found = {r.metric: (r.value, r.unit) for r in records}
    assert found['calls'] == (100000, '1') and found['misses'] == (0, '1')
    header, row = OURS.splitlines()[2:]
    cells = dict(zip(header.replace('"', '').split(','),
                     row.replace('"', '').split(','), strict=True))
    assert found['operations'] == (float(cells['rps']), '1/s')
    assert found['latency_p99'] == (
        round(float(cells['p99_latency_ms']) * 1000, 3), 'us')


def test_plain_output_of_several_tests():
    records = parse((GOLDEN / 'redis-benchmark-7.0.15.csv').read_text())
    assert len([r for r in records if r.metric.startswith('operations')]) == 3


@pytest.mark.parametrize('old, new, reason', [
    (r'"GET".*\n', '', 'no row'), (r'\n\Z', '', 'cut short'),
    (r'"GET",[^\n]{9}\n?', '"GET",', 'is no number|cannot be|columns'),
    (r',"[\d.]+"\n', '\n', '7 columns, the header has 8'),
    (r'"GET","[\d.]+', '"GET","0.00', 'rps: 0.00 cannot be'),
    (r'"GET","[\d.]+', '"GET","nan', 'rps: nan cannot be'),
    ('avg_latency_ms', 'avg_latency_us', 'expected the header'),
    ('"test"', 'Error: connection reset "test"', 'expected the header'),
    (r'(?s).*', '', 'no row'),
])
def test_mutilated_output_gives_no_figure(old, new, reason):
    broken = re.sub(old, new, OURS, count=1)
    assert broken != OURS
    with pytest.raises(ParseError, match=reason):
        parse(broken)


def stores(suite, tmp_path, folder):
    """The local site with a redis in folder/bin."""
    another_site(suite, tmp_path, f'''
site_configuration['environments'].append(
    {{'name': 'stores', 'cc': 'cc', 'features': ['redis', 'store_bench'],
      'extras':
     {{'programs': {{'keyvalue': {{'source': 'system',
                                  'prefix': '{folder}'}}}}}}}})
site_configuration['systems'][0]['partitions'][0]['environs'] = ['stores']
''')
    return suite.plumb('run', '--bringup', '--', '-n', 'StoreBundled',
                       '-SStoreBundled.requests=2000')


FAKE = {
    'server': 'exec sleep 60',
    'cli': '''case "$*" in *ping) echo PONG;; *info*) printf '%s\\n' \
redis_version:7.0 keyspace_misses:0 evicted_keys:0 \
cmdstat_get:calls=2000,usec=1 cmdstat_set:calls=2000,usec=1;; esac''',
    'benchmark': f"""cat <<'X'
{OURS.split(chr(10), 2)[2]}X""",
}


@pytest.mark.parametrize('broken, words', [
    ({'server': 'echo "Fatal: out of luck"; exit 1', 'cli': 'exit 1'},
     'redis-server ended before it answered: Fatal: out of luck'),
    ({'server': 'sleep 1', 'benchmark': f"sleep 2; {FAKE['benchmark']}"},
     'redis-server died under load'),
    ({'benchmark': 'exit 1'}, 'exit code 1'),
    ({'cli': FAKE['cli'].replace('2000', '1999')},
     'calls: .*2000 gets asked for, the store served 1999'),
    ({'cli': FAKE['cli'].replace('misses:0', 'misses:7')},
     'misses: .*7 keys not found'),
])
def test_a_store_that_is_broken(suite, tmp_path, broken, words):
    folder = tmp_path / 'fake' / 'bin'
    folder.mkdir(parents=True)
    for part, text in {**FAKE, **broken}.items():
        (folder / f'redis-{part}').write_text(f'#!/bin/bash\n{text}\n')
        (folder / f'redis-{part}').chmod(0o755)
    done = stores(suite, tmp_path, folder.parent)
    assert done.returncode == 1
    assert re.search(words, done.stdout), done.stdout
    assert {r['metric'] for r in suite.records} <= {'completed'}


def test_a_store_that_is_told_to_stop(tmp_path):
    for part, text in {**FAKE, 'benchmark': 'exec sleep 60'}.items():
        (tmp_path / f'redis-{part}').write_text(f'#!/bin/bash\n{text}\n')
        (tmp_path / f'redis-{part}').chmod(0o755)
    job = subprocess.Popen(
        [ROOT / 'checks/keyvalue/src/bundled.sh', 'redis', tmp_path, 'get',
         '64', '1', '10'], env={**os.environ, 'TMPDIR': str(tmp_path)})
    while not list(tmp_path.glob('plumbline.*/fill')):
        time.sleep(0.05)
    job.terminate()
    assert job.wait(10) == 143
    assert not list(tmp_path.glob('plumbline.*'))
    left = subprocess.run(['pgrep', '-f', str(tmp_path)],
                          capture_output=True, text=True).stdout
    assert not left


def test_a_real_store(suite, tmp_path):
    server = shutil.which('redis-server')
    if not server or not shutil.which('redis-benchmark'):
        pytest.skip('no redis-server and redis-benchmark on PATH')
    done = stores(suite, tmp_path, Path(server).parent.parent)
    assert done.returncode == 0, done.stdout
    assert {r['params'].split()[0] for r in suite.records} == {
        'operation=get', 'operation=set'}
    assert {r['source'] for r in suite.records} == {'system'}
    assert 'operations' in {r['metric'] for r in suite.records}
    assert not list(Path('/tmp').glob('plumbline.*/socket'))
