"""Optcast's run.py as the checks run it, with a run.py that copies logs of the real
one; with $OPTCAST_PREFIX the real one."""
from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
import yaml

from checks.core.parsers import ParseError
from checks.optcast import programs, settings
from checks.optcast.original import NcclClients, RunScript
from checks.optcast.scenarios import ON_NCCL, ORIGINAL, Scenario
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


def test_more_threads_that_spin_than_cpus_are_inconclusive(suite, prefix):
    """Otherwise the bandwidth of threads that wait for a CPU could become a
    reference."""
    done = run(suite, prefix, '-r', '-SOptcastOriginal.chunksize=16K',
               '-SOptcastOriginal.reduce_threads=4096')
    assert 'PASSED' in done.stdout, done.stdout
    values = [r for r in suite.records if r['metric'] == 'client_bandwidth']
    assert {r['result'] for r in values} == {'inconclusive'}
    # Two threads receive, two send, and each client has one.
    assert 'too few CPUs: 1 client with 4102 threads that spin' in (
        next(iter(values))['reason']), values


def test_a_script_that_fails_is_named_with_its_last_line(suite, prefix):
    done = run(suite, prefix, '-r', '-SOptcastOriginal.options=--fail')
    assert re.search('service: client 0 ended with exit code 1; the last lines of .*: '
                     'mpirun: not found', done.stdout), done.stdout


@pytest.mark.parametrize('setting, expected', [
    ('options=--num-jobs 4', 'options: remove --num-jobs: use the setting reduce_jobs'),
    ('options=--chunk 1M', 'options: remove --chunk: use the setting chunksize'),
    ('client_options=-n 5', 'client_options: remove -n: use the setting iterations'),
    ('client_options=-g2', 'client_options: remove -g2: use the setting clients'),
    ('sizes=1M,2M', 'run.py measures one size'),
    ('nsplit=2', 'nsplit 2 exceeds the number of servers'),
    ('reduce_threads=0', '0 is too small; the smallest value is 1')])
def test_settings_that_are_refused(suite, prefix, setting, expected):
    done = run(suite, prefix, '--dry-run', f'-SOptcastOriginal.{setting}')
    assert expected in done.stdout and done.returncode == 1, done.stdout


def test_an_installation_without_the_script_is_refused(suite, prefix):
    (prefix / 'share/optcast/run.py').unlink()
    done = run(suite, prefix, '-r')
    assert f'run.py does not exist below {prefix}' in done.stdout


def evaluation_of(kind, scenario, **more):
    of = settings.Setup(scenario.type, scenario.data_type, scenario.clients,
                        scenario.servers, (64 << 20,), 512 << 10, 5, 1, **more)
    return kind(of, '/p', max(1, scenario.client_nodes), scenario.server_node_count,
                environments=({'NCCL_IB_HCA': '=mlx5_0:1'},))


@pytest.mark.parametrize('scenario', [*ORIGINAL, *ON_NCCL], ids=str)
def test_every_scenario_has_a_plan_and_a_config(scenario):
    kind = NcclClients if scenario in ON_NCCL else RunScript
    evaluation = evaluation_of(kind, scenario)
    plan = evaluation.service_plan()
    assert plan.node_count == scenario.node_count
    assert [step.name for step in plan.steps] == (
        ['ring', 'optcast'] if kind is NcclClients else ['optcast'])
    config = yaml.safe_load(evaluation.config_yaml())
    assert len(config['servers']) == scenario.servers
    assert len(config['clients']) == scenario.clients
    nodes = {int(one['name'].strip('@'))
             for one in (*config['servers'], *config['clients'])}
    assert nodes == set(range(scenario.node_count))
    # No two servers of a node have the same port.
    assert len({(one['name'], one['port']) for one in config['servers']}
               ) == scenario.servers
    assert config['servers'][0]['env'] == {'NCCL_IB_HCA': '=mlx5_0:1'}


def test_the_commands_of_nccl():
    evaluation = evaluation_of(NcclClients, Scenario('optcast', 'f16', 2, 2, 2,
                                                     'original'),
                               client_options=('-m', '3'), nsplit=2)
    alone, served = (step.programs[0].command
                     for step in evaluation.service_plan().steps)
    assert alone[alone.index('--type') + 1] == 'nccl'
    assert served[served.index('--type') + 1] == 'optcast'
    for words in (alone, served):
        assert words[words.index('--nccl-test-options') + 1] == '-c 1 -n 5 -w 1 -m 3'
        assert words[words.index('--data-type') + 1] == 'f16'
        assert words[words.index('--nsplit') + 1] == '2'


#: Output of all_reduce_perf, of which run.py puts [n1] before each line.
TABLE = '''# nThread 1 nGpus 1 minBytes {size} maxBytes {size} step: {more}
# Using devices
#  Rank  0 Group  0 Pid 1 on n1 device  0 [0x84] H100
#  Rank  1 Group  0 Pid 2 on n2 device  0 [0x84] H100
#                                            out-of-place                   in-place
#       size         count      type   redop    root{head}{head}
#        (B)    (elements)                          {units}{units}
    67108864      16777216     float     sum      -1{row}{row}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : {bw:g}
'''


def table(bw):
    size = 64 << 20
    text = TABLE.format(
        size=size, bw=bw, head='     time   algbw   busbw #wrong',
        units='     (us)  (GB/s)  (GB/s)       ',
        more='1048576(bytes) warmup iters: 1 iters: 5 agg iters: 1 validation: 1 '
             'graph: 0',
        row=f'  {size / bw / 1e3:7.0f}  {bw:6.2f}  {bw:6.2f}      0')
    return ''.join(f'[n1] {line}\n' for line in text.splitlines())


def test_both_tables_of_nccl_are_compared(tmp_path):
    evaluation = evaluation_of(NcclClients, Scenario('optcast', 'f32', 2, 2, 2,
                                                     'original'))
    trace = ''.join(
        f'[n1] n1:1:2 [0] {1000 + n + part / 4:.6f} x:1 NCCL TRACE '
        f'req(0x{n % 2 + 1})/idx(0) {text}\n' for n in range(8)
        for part, text in enumerate((
            'allreduce start', 'allreduce requested size: 524288, csize: 262144, '
            'nsplit: 1', 'send done', 'recv done')))
    server = gzip.decompress((GOLDEN / 'nogpu/server.log.gz').read_bytes())
    for step, bw, text in (('ring', 2.0, ''), ('optcast', 3.0, trace)):
        folder = tmp_path / f'run.1.{step}.0.log'
        folder.mkdir()
        (folder / 'client.log').write_text(text + table(bw))
        (folder / 'server.log').write_bytes(server)
        (folder / 'setting.yaml').write_text(yaml.safe_dump(
            evaluation.setup.to_run_script_settings()))
    folder = evaluation.collect_run_logs(tmp_path, 'run.1', None)
    result = evaluation.analyse_logs(folder)
    values = evaluation.compute_derived_values(result)
    assert values == {'ring_busbw@67108864B': 2.0, 'ring_ratio@67108864B': 1.5}
    measured = {record.metric if record.size is None
                else f'{record.metric}@{record.size}B' for record in result.records}
    # Also the table's values in place.
    assert measured | set(values) > set(evaluation.expected_metrics())
    log = folder / 'ring.txt'
    log.write_text(re.sub(r'\n +67108864 .*', '', log.read_text()))
    with pytest.raises(ParseError):
        evaluation.analyse_logs(folder)


def test_the_servers_own_client_sends_to_each_server_once():
    with pytest.raises(ValueError, match='sends one chunk to each server'):
        evaluation_of(RunScript, Scenario('optcast', 'f32', 4, 4, 4, 'requests'),
                      nsplit=2)
    assert programs.program_features('system') == ('optcast_server',)
    assert programs.program_features('embedded') == ()


@pytest.mark.skipif('OPTCAST_PREFIX' not in os.environ,
                    reason='OPTCAST_PREFIX is not set to the prefix of an '
                           'Optcast')
def test_the_real_one(suite):
    done = run(suite, os.environ['OPTCAST_PREFIX'], '-r',
               '-SOptcastOriginal.chunksize=16K')
    assert 'PASSED' in done.stdout, done.stdout
