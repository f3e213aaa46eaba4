"""Optcast's run.py as the checks run it, with a run.py that copies logs of the real
one; with $OPTCAST_PREFIX the real one."""
from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
import yaml

from checks.optcast import programs
from tests.conftest import of_family, python_script

GOLDEN = Path(__file__).parent / 'golden'

#: A run.py that checks the config and writes the logs of LOGS.
RUN = '''
import os, shutil, sys, yaml
words = dict(zip(sys.argv[1:], sys.argv[2:]))
config = yaml.safe_load(open(words['--config']))
names = {{one['name'] for one in config['servers'] + config['clients']}}
assert names == {{os.uname().nodename}}, names
assert {{one['env']['NCCL_PLUGIN_P2P'] for one in config['servers']}} == {{'socket'}}
assert os.environ['NCCL_PLUGIN_P2P'] == 'socket'
for path in ('reduction_server/target/release/optcast-reduction-server',
             'nccl_plugin/src/.libs/libnccl-net.so', 'test/run.py'):
    assert os.path.exists(os.path.join(words['--shared-dir'], path)), path
# Open MPI 4 and 5, with the options of the real script.
assert not os.system(words['--mpirun'] + ' -bind-to none -np 1 true')
if '--fail' in sys.argv:
    sys.exit('mpirun: not found')
shutil.copytree({logs!r}, words['--log-dir'])
'''


@pytest.fixture
def prefix(tmp_path):
    """The prefix of an installation."""
    logs, folder = tmp_path / 'logs', tmp_path / 'prefix'
    logs.mkdir()
    for name in ('client.log', 'server.log'):
        (logs / name).write_bytes(gzip.decompress(
            (GOLDEN / 'nogpu' / f'{name}.gz').read_bytes()))
    (logs / 'setting.yaml').write_text((GOLDEN / 'nogpu/setting.yaml').read_text())
    for name, text in ((f'bin/{programs.SERVER}', ''), (f'lib/{programs.LIBRARY}', ''),
                       ('share/optcast/run.py', RUN.format(logs=str(logs)))):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(python_script(text) if text else '')
        path.chmod(0o755)
    return folder


def run(suite, prefix, *options):
    return suite.reframe(
        *of_family('optcast'), '-Sbringup=1', '-n', 'OptcastOriginal', '-E',
        'scenario.client_nodes == 0 and scenario.data_type == "f32"', *options,
        OPTCAST_PREFIX=str(prefix))


def test_the_logs_of_the_script_become_records(suite, prefix):
    done = run(suite, prefix, '-r', '-SOptcastOriginal.chunksize=16K')
    assert 'PASSED' in done.stdout, done.stdout
    values = {(r['metric'], r['point']): float(r['value']) for r in suite.records}
    assert values['busbw', '16384 B'] == values['algbw', '16384 B'] > 0
    assert values['server_reduce_avg', ''] > 0
    assert all("Optcast's own clients do not compare the sums" in r['not_checked']
               for r in suite.records)


def test_more_threads_that_spin_than_cpus_are_inconclusive(suite, prefix):
    """Otherwise the bandwidth of threads that wait for a CPU could become a
    reference."""
    done = run(suite, prefix, '-r', '-SOptcastOriginal.chunksize=16K',
               '-SOptcastOriginal.options=--num-threads 4096')
    assert 'PASSED' in done.stdout, done.stdout
    values = [r for r in suite.records if r['metric'] == 'client_bandwidth']
    assert {r['result'] for r in values} == {'inconclusive'}
    # Two threads receive, two send, and each client has one.
    assert 'instead of 4102 on ' in (
        next(iter(values))['reason']), values


def test_a_script_that_fails_is_named_with_its_last_line(suite, prefix):
    done = run(suite, prefix, '-r', '-SOptcastOriginal.options=--fail')
    assert re.search('service: client 0 ended with exit code 1; the last lines of .*: '
                     'mpirun: not found', done.stdout), done.stdout


@pytest.mark.parametrize('setting, expected', [
    ('options=--nrank 4', 'options: remove --nrank: use the setting clients'),
    ('client_options=-g2', 'client_options: remove -g2: use the setting clients'),
    ('sizes=1M,2M', 'run.py measures one size'),
    ('options=--nsplit 2', 'options: remove --nsplit: use the check OptcastNccl')])
def test_settings_that_are_refused(suite, prefix, setting, expected):
    done = run(suite, prefix, '--dry-run', f'-SOptcastOriginal.{setting}')
    assert expected in done.stdout and done.returncode == 1, done.stdout


def test_an_installation_without_the_script_is_refused(suite, prefix):
    (prefix / 'share/optcast/run.py').unlink()
    done = run(suite, prefix, '-r')
    assert f'run.py does not exist below {prefix}' in done.stdout


def test_nccl_runs_alone_and_with_the_servers(suite):
    """The job script and config.yaml for a site with GPUs and several NICs."""
    done = suite.reframe(
        *of_family('optcast'), '--dry-run', '-Sbringup=1', '-n', 'OptcastNccl', '-E',
        'scenario.clients == 4 and scenario.servers == 4',
        '-SOptcastNccl.client_options=-m 3', '-SOptcastNccl.servers_each=2',
        '-SOptcastNccl.options=--nsplit 2 --num-jobs 3',
        PLUMBLINE_SITE='hgx-h100')
    assert 'PASSED' in done.stdout, done.stdout
    [path] = suite.tmp.rglob('config.yaml')
    config = yaml.safe_load(path.read_text())
    assert [one['name'] for one in config['servers']] == ['@0@', '@0@', '@1@', '@1@']
    assert [one['port'] for one in config['servers']] == [18080, 18081] * 2
    assert [one['env']['NCCL_IB_HCA'] for one in config['servers']] == [
        '=mlx5_0:1', '=mlx5_1:1'] * 2
    assert [one['name'] for one in config['clients']] == ['@2@', '@2@', '@3@', '@3@']
    [script] = path.parent.glob('rfm_*.sh')
    text = script.read_text()
    assert text.count('-c 1 -n 5 -w 1 -m 3') == 2
    assert text.count('--verbose --nsplit 2 --num-jobs 3') == 2
    assert text.index('--type nccl') < text.index('--type optcast')


@pytest.mark.skipif('OPTCAST_PREFIX' not in os.environ,
                    reason='OPTCAST_PREFIX is not set to the prefix of an '
                           'Optcast')
def test_the_real_one(suite):
    done = run(suite, os.environ['OPTCAST_PREFIX'], '-r',
               '-SOptcastOriginal.chunksize=16K')
    assert 'PASSED' in done.stdout, done.stdout
