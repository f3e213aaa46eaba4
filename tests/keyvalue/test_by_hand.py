"""Job scripts of stores: a person runs them again, and they keep their secrets."""
from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from checks.loadgen import memtier
from checks.services.parser import split_service_record
from checks.stores.servers import STORES
from tests.conftest import LIMIT, ROOT, of_family, skip_missing, until

#: Store -> the program of its server.
PROGRAMS = {store: store if store in ('memcached', 'dragonfly') else f'{store}-server'
            for store in STORES}

#: Metrics that come from the counters of the server, not from the client.
OF_SERVER = {'server_cpu', 'ready_time', 'memory_ratio', 'evictions', 'completed',
             'client_cpu_share'}
#: Metrics from measure.sh (runs.tsv) and from the observer of the node.
OF_JOB = {'wall_time', 'user_time', 'system_time', 'others_cpu', 'steal_cpu'}


def options(store, seconds):
    """Options that select one test case of a store; skips if it is not installed."""
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    environment = next((
        f'{store}-{one["source"]}' for one in json.loads(
            (work / 'local.json').read_text())['stores'] if one['store'] == store), '')
    if not environment:
        skip_missing(PROGRAMS[store], f'{store} is not installed')
    return ['-r', *of_family('keyvalue'), '-Sbringup=1', '-Srepetitions=1',
            '-n', 'StoreServes', '-p', f'^{environment}$',
            '-E', f'str(scenario) == "{store} get"', '--keep-stage-files',
            f'-SStoreServes.duration={seconds}', '-SStoreServes.warmup=0.1']


@pytest.mark.parametrize('store', PROGRAMS)
def test_a_job_script_runs_again(suite, store):
    done = suite.reframe(*options(store, 0.5))
    assert done.returncode == 0, done.stdout + done.stderr
    declared = {record['metric'] for record in suite.records}
    [script] = suite.tmp.glob('work/stage/**/StoreServes_*/rfm_job.sh')

    # Twice at once, without the variables of the session.
    jobs = [subprocess.Popen(['bash', script], cwd='/', text=True, env={
        'PATH': os.environ['PATH']}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)]
    outputs = [job.communicate(timeout=LIMIT) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    folders = {re.search('files of this execution are in (.*)', errors)[1]
               for _, errors in outputs}
    assert len(folders) == 2
    for folder in map(Path, folders):
        assert re.match(r'1\t0\t[\d.]+\t[\d.]+\t[\d.]+\n',
                        (folder / 'runs.tsv').read_text())
        assert 'plumbline-others ' in (folder / 'run.1.err').read_text()
    for output, _ in outputs:
        services, text = split_service_record(output)
        assert {record.metric for record in memtier.read_run(text).records
                } >= declared - OF_SERVER - OF_JOB
        [table] = memtier.read_tables(text)
        assert table.client
        counts = [number for _, number in table.client.histogram]
        measured, filled = services.steps['measure'], services.steps['fill']
        assert measured.counter_increase('commands') >= sum(counts) > 0
        assert measured.counter_increase('cpu') > 0 and measured.after.memory > 0
        assert filled.after.keys > 0 and services.servers[0].ready_ms > 0
    assert not list(script.parent.rglob('secrets.private.*'))

    # Without its server it fails.
    text = script.read_text()
    script.write_text(re.sub(r'(?m)^ +server 0 .*\n', '', text))
    assert script.read_text() != text
    failed = subprocess.run(['bash', script], capture_output=True, text=True)
    assert failed.returncode == 1
    assert 'service: the job script starts 0 of 1 servers' in failed.stderr


def test_secrets_of_a_run_are_in_no_file_and_on_no_command_line(suite):
    session = suite.start(*options('redis', 5), TMPDIR=str(suite.tmp))
    until(lambda: list(suite.tmp.rglob('run.1.measure.0.out')), session)
    [secrets] = suite.tmp.rglob('secrets.private.*')
    password = (secrets / 'password').read_bytes().strip()
    assert len(password) >= 32
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            assert password not in path.read_bytes(), path
        except OSError:
            continue
    text, _ = session.communicate()
    assert session.returncode == 0, text
    assert not secrets.exists() and password.decode() not in text
    files = [path for path in suite.tmp.rglob('*')
             if path.is_file() and not path.is_symlink()]
    assert {path.name for path in files} >= {'rfm_job.sh', 'StoreServes.log'}
    for path in files:
        assert password not in path.read_bytes(), path
