"""Optcast's evaluation on the services: settings, plans, runs, faults."""
from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from checks.core.parsers import ParseError
from checks.optcast import settings, timeline
from checks.optcast.evaluation import Evaluation
from checks.optcast.scenarios import SCALES, SCENARIOS, Scenario
from checks.services.script import job_script_lines
from tests.checks.test_faults import GUARDED, in_small
from tests.conftest import ROOT
from tests.serving.job import LOCAL, Job, build_observer

GOLDEN = Path(__file__).parent / 'golden'


@pytest.mark.parametrize('given, why', [
    ({'num_recvs': 3}, 'num_recvs 3 does not divide the 4 clients'),
    ({'num_sends': 0}, 'num_sends 0 does not'),
    ({'nsplit': 3}, 'nsplit 3 does not divide the 131072 elements'),
    ({'nsplit': 4}, 'nsplit 4 exceeds the number of servers, 2'),
    ({'chunksize': '10'}, 'does not divide'),
    ({'chunksize': '1T'}, 'is not a size'),
    ({'type': 'mpi'}, 'known types: optcast, nccl, sharp, ring'),
    ({'data_type': 'f64'}, 'known types: f32, f16'),
    ({'num_job': 2}, 'did you mean num_jobs'),
    ({'mpirun': 'srun'}, "uses the partition's launcher"),
    ({'num_jobs': 'x'}, 'is not a whole number'),
    ({'nccl_test_options': '-c 0'}, 'remove -c (check): 0 switches the check'),
    ({'nccl_test_options': '-g 2'}, 'remove -g (ngpus): the servers expect one rank'),
    ({'nccl_test_options': '--nthreads=2'}, 'remove -t (nthreads): the servers'),
    ({'nccl_test_options': '-o max'}, 'remove -o (op): the servers only add'),
    ({'nccl_test_options': '-d half'}, 'remove -d (datatype): set data_type'),
    ({'nccl_test_options': '-r 0'}, 'remove -r (root): an all-reduce has no root'),
    ({'nccl_test_options': '-C 1'}, 'remove -C (report_cputime): the table would'),
    ({'nccl_test_options': '-h'}, 'remove -h (help): it measures nothing'),
    ({'nccl_test_options': '-m 2'}, 'remove -m (agg_iters): the embedded client lacks'),
    ({'nccl_test_options': '-N 2'}, 'option -N not recognized; known: -t -g'),
    ({'nccl_test_options': '-n'}, 'option -n requires argument'),
    ({'nccl_test_options': '-n 0'}, '-n 0 is not a whole number of at least 1'),
    ({'nccl_test_options': '-f 1'}, '-f 1 is not a whole number of at least 2'),
    ({'nccl_test_options': '-n 2 3'}, "'3' belongs to no option"),
    ({'nccl_test_options': '-b 4M -e 1M'}, '-b is above -e'),
    ({'nccl_test_options': '-b 1M -e 1G'}, 'more than 64 sizes'),
    ({'size': '4M,4M'}, 'each size must occur once'),
    ({'size': '1000001'}, 'be a multiple of 4 B')])
def test_settings_that_hang_or_panic_are_refused(given, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        settings.parse_settings(given, 4, 2)


def test_what_only_the_original_cannot_do():
    given = {'data_type': 'f16', 'num_recvs': 2}
    assert settings.parse_settings(given, 4, 2).recvs == 2
    with pytest.raises(ValueError, match='needs num_recvs = nrank'):
        settings.parse_settings(given, 4, 2, x86_original=True)
    with pytest.raises(ValueError, match='known types: f32, f16$'):
        settings.parse_settings({'data_type': 'bf16'}, 4, 2, bf16=False)


def test_defaults_are_those_of_the_run_script():
    of = settings.parse_settings({}, 4, 4)
    assert (of.sizes, of.chunksize, of.elements_per_message) == (
        (512 << 20,), 512 << 10, 131072)
    assert (of.jobs, of.threads, of.sends, of.recvs, of.nsplit) == (
        2, 2, 4, 4, 1)
    assert (of.options.iterations, of.options.warmup) == (1, 1)
    assert of.to_run_script_settings()['nccl_test_options'] == '-c 1 -n 1 -w 1'
    # 4 threads would wait for ever for a part of 2 clients each.
    assert settings.parse_settings({}, 2, 2).recvs == 2
    # A comma ends a setting on ReFrame's command line.
    assert settings.parse_settings({'size': '1M+4M'}, 2, 2).sizes == (1 << 20, 4 << 20)
    sweep = settings.parse_settings({'nccl_test_options': '-b 1M -e 8M -f 2'}, 2, 2)
    assert sweep.sizes == (1 << 20, 2 << 20, 4 << 20, 8 << 20)
    # Without -f, nccl-tests adds -i, whose default is 1 MiB.
    sweep = settings.parse_settings({'nccl_test_options': '-b1M --maxbytes 4M'}, 2, 2)
    assert sweep.sizes == tuple(n << 20 for n in (1, 2, 3, 4))
    sweep = settings.parse_settings({'nccl_test_options': '-b 8 -e 24 -i 8'}, 2, 2)
    assert sweep.sizes == (8, 16, 24)


@pytest.mark.parametrize('scenario, nrank, nservers, expected', [
    (Scenario('optcast', 'f32', 2, 1, 0, 'small'), 5, 3, (5, 3, 0)),
    (Scenario('optcast', 'f32', 2, 1, 2, 'small'), 3, 7, (3, 7, 3)),
    (Scenario('optcast', 'f32', 4, 4, 2, 'small'), 8, 0, (8, 4, 4)),
    (Scenario('optcast', 'f32', 4, 4, 2, 'small'), 3, 0, (3, 4, 3)),
    (Scenario('optcast', 'f32', 4, 4, 2, 'small'), 0, 2, (4, 2, 2)),
    (Scenario('ring', 'f32', 4, 1, 4, 'small'), 6, 2, (6, 2, 6))])
def test_other_numbers_of_clients_and_servers(scenario, nrank, nservers, expected):
    of = scenario.with_counts(nrank, nservers)
    assert (of.clients, of.servers, of.client_nodes) == expected
    parsed = settings.parse_settings(
        {'nrank': nrank, 'nservers': nservers, 'type': of.type}, *expected[:2])
    plan = Evaluation(parsed, 'optcast', max(1, of.client_nodes),
                      of.server_node_count, 4).service_plan()
    assert plan.node_count == of.node_count
    # Receive threads that do not divide the clients would wait for ever.
    assert parsed.clients % parsed.recvs == 0
    with pytest.raises(ValueError, match='at least two ranks'):
        settings.parse_settings({}, 1, 1)


def test_a_config_of_the_original():
    config = settings.read_config(GOLDEN / 'config.yaml')
    assert (config.server_nodes, config.servers_each, config.client_nodes,
            config.clients_each, config.port) == (2, 2, 2, 2, 8080)
    assert config.environments[1] == {'NCCL_IB_HCA': '=mlx5_2:1'}
    alone = settings.read_config(GOLDEN / 'nogpu' / 'config.yaml')
    assert (alone.server_nodes, alone.servers_each) == (1, 2)
    # The original takes the first ones, and not more servers than clients.
    part = settings.read_config(GOLDEN / 'config.yaml', 2)
    assert (part.server_nodes, part.servers_each, part.client_nodes,
            part.clients_each) == (1, 2, 1, 2)
    part = settings.read_config(GOLDEN / 'config.yaml', 2, 4)
    assert (part.server_nodes, part.client_nodes) == (2, 1)
    for counts, why in (((5, 0), 'nrank 5'), ((0, 9), 'nservers 9')):
        with pytest.raises(ValueError, match=f'{why}: .*config.yaml has only 4'):
            settings.read_config(GOLDEN / 'config.yaml', *counts)


def test_a_server_has_a_nic_of_the_sites_devices(tmp_path):
    node = [SimpleNamespace(type='gpu', arch='sm_90', num_devices=8),
            SimpleNamespace(type='nic', arch='infiniband', num_devices=2)]
    assert settings.server_nic_environments(node, 2) == (
        {'NCCL_IB_HCA': '=mlx5_0:1'}, {'NCCL_IB_HCA': '=mlx5_1:1'})
    # Fewer NICs than servers, or none that is called so.
    assert (
        settings.server_nic_environments(node, 3)
        == settings.server_nic_environments(node[:1], 1)
        == ()
    )
    of = settings.parse_settings({}, 4, 4)
    evaluation = Evaluation(of, 'optcast', 2, 2, 4,
                            environments=settings.server_nic_environments(node, 2))
    for command, nic in zip(evaluation.server_role().commands, (0, 1, 0, 1),
                            strict=True):
        assert command[:2] == ('env', f'NCCL_IB_HCA==mlx5_{nic}:1')
        assert command[:command.index('--address')][-1] == 'optcast'
    path = tmp_path / 'config.yaml'
    path.write_text(settings.format_config_yaml(
        [(f's{n // 2}', '10.0.0.1', 8080 + n % 2) for n in range(4)],
        ['c0', 'c1'], evaluation.environments))
    assert settings.read_config(path).environments == evaluation.environments


def test_several_servers_a_node_with_a_nic_each():
    """Without a config: as many as the partition has NICs."""
    two = [SimpleNamespace(type='nic', arch='infiniband', num_devices=2)]
    many = [SimpleNamespace(type='nic', arch='infiniband', num_devices=8)]
    other = [SimpleNamespace(type='nic', arch='slingshot', num_devices=4)]
    nodes = settings.count_server_nodes
    assert nodes(4, 1, [many]) == 4 and nodes(4, 2, []) == 2
    assert nodes(4, 0, [other, two]) == 2 and nodes(4, 0, [many]) == 1
    assert nodes(3, 0, [two]) == 3 and nodes(4, 0, [other]) == 4
    # All nodes have the same number.
    assert nodes(4, 3, []) == 2 and nodes(1, 2, []) == 1
    with pytest.raises(ValueError, match='servers_each -1 must be at least 0'):
        nodes(4, -1, [])
    evaluation = Evaluation(settings.parse_settings({}, 4, 4), 'optcast', 4,
                            nodes(4, 0, [two]), 4,
                            environments=settings.server_nic_environments(two, 2))
    plan = evaluation.service_plan()
    assert (plan.node_count, plan.server.nodes, plan.server.instances) == (6, 2, 2)
    assert [command[1] for command in plan.server.commands] == [
        f'NCCL_IB_HCA==mlx5_{nic}:1' for nic in (0, 1, 0, 1)]


@pytest.mark.parametrize('old, new, why', [
    ('8081', '8090', 'must be 8080, 8081'),
    ('port: 8081', 'port: 8080', 'has the ports'),
    ('name: client2', 'name: client1', ''), ('clients:', 'client:', 'expect'),
    ('  - name: client1\n', '', 'the same number of clients'),
    ('port: 8080', 'port: http', 'expected servers')])
def test_configs_that_no_job_can_be_given(tmp_path, old, new, why):
    path = tmp_path / 'config.yaml'
    path.write_text((GOLDEN / 'config.yaml').read_text().replace(
        old, new, 1))
    if not why:
        # Three clients on one node and one on the other.
        why = 'the same number of servers'
    with pytest.raises(ValueError, match=why) as caught:
        settings.read_config(path)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('scenario', SCENARIOS, ids=str)
def test_every_case_has_a_plan(scenario):
    of = settings.parse_settings({**SCALES[scenario.scale], 'type': scenario.type,
                                  'data_type': scenario.data_type}, scenario.clients,
                                 scenario.servers)
    evaluation = Evaluation(of, 'optcast', max(1, scenario.client_nodes),
                            scenario.server_node_count, 4)
    plan = evaluation.service_plan()
    assert plan.node_count == scenario.node_count
    assert len(plan.server.commands) == (
        scenario.servers if scenario.type == 'optcast' else 1)
    assert [step.name for step in plan.steps] == (
        ['ring'] if scenario.type == 'ring' else ['ring', 'optcast'])
    # The secret is on no command line.
    assert not [word for step in plan.steps for program in step.programs
                for command in (*program.commands, *plan.server.commands)
                for word in command if 'password' in word]


@pytest.fixture(scope='module')
def program(once):
    """The program as checks build it."""
    def make(folder):
        subprocess.run([ROOT / 'checks/optcast/src/build.sh',
                        folder / 'optcast'], check=True)
    return once('optcast-plain', make) / 'optcast'


@pytest.fixture
def started(program, tmp_path):
    """started(type, ...): an evaluation and its job."""
    jobs = []

    def start(type, more, servers=2, timeout=20, ring=True):
        of = settings.parse_settings(
            {'size': '64K,256K', 'chunksize': '16K', 'type': type,
             'nccl_test_options': '-n 2 -w 1', **more}, 2, servers)
        evaluation = Evaluation(of, str(program), timeout=timeout)
        plan = evaluation.service_plan()
        jobs.append(Job(tmp_path / type, plan if ring else replace(
            plan, steps=plan.steps[1:])))
        return evaluation, jobs[-1]
    yield start
    for job in jobs:
        job.kill()


@pytest.mark.parametrize('type, more', [
    ('optcast', {'nsplit': 2}), ('ring', {'data_type': 'bf16'})])
def test_a_run_on_the_services(started, type, more):
    evaluation, job = started(type, more)
    services, _ = job.services()
    folder = evaluation.collect_run_logs(job.folder, 'run.1', services)
    result = evaluation.analyse_logs(folder)
    values = {record.metric if record.size is None
              else f'{record.metric}@{record.size}B': record.value
              for record in result.records}
    if type == 'optcast':
        values |= evaluation.ring_bandwidths_and_ratios(result)
        assert 'on equal links the ratio to a ring is at most 1 with' in (
            evaluation.summary_sentences(result, values)[-1])
        # config.yaml is one that the original reads.
        config = settings.read_config(folder / 'config.yaml') if len(
            {one.port for one in services.servers}) == 1 else None
        assert config is None or config.clients_each == 2
    assert set(evaluation.expected_metrics()) == set(values)
    assert result.program_version == '1.0'
    # What threads did stays with the records, for the page.
    calls = {
        one.call
        for one in timeline.last_spans_as_samples(
            (result.client, result.server)
        )
    }
    assert calls == ({'client:send', 'client:recv', 'client:reduce'}
                     if type == 'ring' else {
        'client:requested', 'client:send_done', 'client:recv_done',
        'server:recv', 'server:reduce', 'server:send'})
    if type == 'optcast':
        ring = (folder / 'ring.txt').read_text()
        (folder / 'ring.txt').write_text(re.sub(
            r' 0\n( +262144 )', r' 1\n\1', ring))
        with pytest.raises(ParseError, match='1 wrong element'):
            evaluation.analyse_logs(folder)
        (folder / 'ring.txt').write_text(ring)
    client = (folder / 'client.log').read_text()
    (folder / 'client.log').write_text(re.sub(
        r'\n +262144 .*', '', client))
    with pytest.raises(ParseError):
        evaluation.analyse_logs(folder)


#: In the command of the server, which knows its address; node.py does not yet.
SERVER = '--address\x00127.0.0.1'


@pytest.mark.parametrize('victim, number, why', [
    (SERVER, signal.SIGKILL, r'optcast \(server 0 .*killed by signal 9'),
    ('--client', signal.SIGKILL, r'client \d on .* was killed by signal 9|'
     r'optcast \(server \d .* rank \d .* closed its connection before'),
    (SERVER, signal.SIGSTOP, 'it hangs, or its link is down')])
def test_a_fault_is_one_line(started, victim, number, why):
    _, job = started('optcast', {'nccl_test_options': '-n 100000 -w 0'},
                     servers=1, timeout=5, ring=False)
    # Until data flow.
    job.until(lambda: any(path.stat().st_size for path in job.folder.glob('*.trace')))
    os.kill(job.wait_for(victim)[0], number)
    assert re.search(why, line := job.refusal()), line


def test_a_trace_that_fills_the_disk_has_its_message(program, tmp_path):
    of = settings.parse_settings({'size': '1M', 'chunksize': '16K', 'type': 'ring',
                                  'nccl_test_options': '-n 300 -w 0'}, 2, 1)
    plan = Evaluation(of, str(program), timeout=20).service_plan()
    script = tmp_path / 'rfm_job.sh'
    launching = replace(LOCAL, watch=str(build_observer()))
    script.write_text('\n'.join([
        *job_script_lines(plan, launching), f". '{ROOT}/checks/core/src/measure.sh' "
        '--repetitions 1 -- run_and_stop', '']))
    done = in_small(tmp_path / 'stage', '256k', [
        'bash', '-c', GUARDED.format(python=shlex.quote(sys.executable),
                                     root=str(ROOT)),
        'bash', tmp_path / 'stage', 'bash', script])
    code, message, _ = done.stdout.splitlines()
    assert code == 'code 1' and 'nothing more can be written' in message


@pytest.mark.parametrize('busbw, unit', [(0.5, 'MB/s'), (7.27, 'GB/s')])
def test_a_sweep_is_told_in_a_unit_of_its_size(tmp_path, busbw, unit):
    """Also beside a curve of which nothing was measured."""
    from checks.optcast import sweep
    [_, svg] = sorted(sweep.draw({'optcast': {1 << 20: busbw}, 'ring': {}},
                                 'sweep', tmp_path, 'sweep'))
    assert f'busbw ({unit})' in svg.read_text()
