"""Optcast's evaluation on the services: settings, plans, runs, faults."""
from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from checks.core.parsers import ParseError
from checks.optcast import settings, timeline
from checks.optcast.evaluation import Evaluation
from checks.optcast.scenarios import SCENARIOS, Scenario
from checks.services.script import job_script_lines
from tests.checks.test_faults import GUARDED, in_small
from tests.conftest import ROOT
from tests.serving.job import LOCAL, Job, build_observer


def setup(clients=4, servers=2, type='optcast', data_type='f32', sizes=(512 << 20,),
          chunksize=512 << 10, iterations=5, warmup=1, **more):
    return settings.Setup(type, data_type, clients, servers, sizes, chunksize,
                          iterations, warmup, **more)


@pytest.mark.parametrize('given, why', [
    ({'recvs': 3}, 'recv_threads 3 does not divide the 4 clients'),
    ({'sends': 8}, 'send_threads 8 does not divide'),
    ({'nsplit': 3}, 'nsplit 3 does not divide the 131072 elements'),
    ({'nsplit': 4}, 'nsplit 4 exceeds the number of servers, 2'),
    ({'chunksize': 10}, 'does not divide'),
    ({'clients': 1}, 'an all-reduce needs at least two'),
    ({'sizes': (4 << 20, 4 << 20)}, 'each size must exceed the one before it'),
    ({'sizes': (1000001,)}, 'be a multiple of 4 B')])
def test_settings_that_hang_or_panic_are_refused(given, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        setup(**given)


def test_sizes_and_defaults():
    assert (settings.parse_size('512K'), settings.parse_size(8)) == (512 << 10, 8)
    with pytest.raises(ValueError, match="'1T' is not a size"):
        settings.parse_size('1T')
    of = setup()
    assert (of.elements_per_message, of.sends, of.recvs) == (131072, 4, 4)
    # 4 threads would wait for ever for a part of 2 clients each.
    assert setup(2, 2).recvs == 2


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
    parsed = setup(*expected[:2], of.type)
    plan = Evaluation(parsed, 'optcast', max(1, of.client_nodes),
                      of.server_node_count, 4).service_plan()
    assert plan.node_count == of.node_count
    # Receive threads that do not divide the clients would wait for ever.
    assert parsed.clients % parsed.recvs == 0


def test_a_server_has_a_nic_of_the_sites_devices():
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
    evaluation = Evaluation(setup(4, 4), 'optcast', 2, 2, 4,
                            environments=settings.server_nic_environments(node, 2))
    for command, nic in zip(evaluation.server_role().commands, (0, 1, 0, 1),
                            strict=True):
        assert command[:2] == ('env', f'NCCL_IB_HCA==mlx5_{nic}:1')
        assert command[:command.index('--address')][-1] == 'optcast'


def test_several_servers_a_node_with_a_nic_each():
    """As many as the partition has NICs."""
    two = [SimpleNamespace(type='nic', arch='infiniband', num_devices=2)]
    many = [SimpleNamespace(type='nic', arch='infiniband', num_devices=8)]
    other = [SimpleNamespace(type='nic', arch='slingshot', num_devices=4)]
    nodes = settings.count_server_nodes
    assert nodes(4, 1, [many]) == 4 and nodes(4, 2, []) == 2
    assert nodes(4, 0, [other, two]) == 2 and nodes(4, 0, [many]) == 1
    assert nodes(3, 0, [two]) == 3 and nodes(4, 0, [other]) == 4
    # All nodes have the same number.
    assert nodes(4, 3, []) == 2 and nodes(1, 2, []) == 1
    evaluation = Evaluation(setup(4, 4), 'optcast', 4,
                            nodes(4, 0, [two]), 4,
                            environments=settings.server_nic_environments(two, 2))
    plan = evaluation.service_plan()
    assert (plan.node_count, plan.server.nodes, plan.server.instances) == (6, 2, 2)
    assert [command[1] for command in plan.server.commands] == [
        f'NCCL_IB_HCA==mlx5_{nic}:1' for nic in (0, 1, 0, 1)]


@pytest.mark.parametrize('scenario', SCENARIOS, ids=str)
def test_every_case_has_a_plan(scenario):
    of = setup(scenario.clients, scenario.servers, scenario.type, scenario.data_type)
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
        of = setup(2, servers, type, **{
            'sizes': (64 << 10, 256 << 10), 'chunksize': 16 << 10, 'iterations': 2,
            **more})
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
        config = yaml.safe_load((folder / 'config.yaml').read_text())
        assert len(config['clients']) == len(config['servers']) == 2
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
    _, job = started('optcast', {'iterations': 100000, 'warmup': 0},
                     servers=1, timeout=5, ring=False)
    # Until data flow.
    job.until(lambda: any(path.stat().st_size for path in job.folder.glob('*.trace')))
    os.kill(job.wait_for(victim)[0], number)
    assert re.search(why, line := job.refusal()), line


def test_a_trace_that_fills_the_disk_has_its_message(program, tmp_path):
    of = setup(2, 1, 'ring', sizes=(1 << 20,), chunksize=16 << 10, iterations=300)
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
