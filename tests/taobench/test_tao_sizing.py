"""TaoBench's sizing against the original's own answers and worked values.

golden/sizing.json is what the original's code (DCPerf, 2025-06)
gives for CPUs, SMT and NUMA nodes that it was told of. Its `bind`, the words of
taskset and numactl, is not compared: node.py binds the servers.
"""
from __future__ import annotations

import json

import pytest

from checks.machine.cpus import Cpu, divide_cpus, numa_nodes_of_cpus
from checks.taobench import calls, jobs, sizing
from checks.taobench.sizing import Machine
from tests.conftest import ROOT

GOLDEN = json.loads((ROOT / 'tests' / 'taobench' / 'golden'
                     / 'sizing.json').read_text())


def machine(count, smt=False, memory=64.0):
    return Machine(count, memory, 2 if smt else 1)


def numbered_cpus(count, smt, nodes):
    """CPUs as kernels count them: all first threads, then all siblings."""
    cores = -(-count // 2) if smt else count
    return [Cpu(core * nodes // cores, 0, core, n)
            for n in range(count) for core in [n % cores]]


def plan(job, on=None, given=None, **more):
    return sizing.plan_job_processes(
        jobs.find_job(job), on or machine(16), given, **more
    )


# CPUs ----------------------------------------------------------------------

def numbers_in_ranges(text):
    """CPUs of a list of taskset, in its order."""
    return [n for part in text.split(',') for first, last in [part.split('-')]
            for n in range(int(first), int(last) + 1)]


@pytest.mark.parametrize('case', GOLDEN['distribute'])
def test_cpus_are_split_as_the_original_does(case):
    count, smt, nodes = case.split()
    count, smt = int(count), smt == 'smt'
    cpus = numbered_cpus(count, smt, int(nodes))
    servers = sizing.server_count(count)
    parts = divide_cpus(cpus, servers)
    assert sizing.cpu_counts_of_servers(machine(count, smt), servers) == list(
        map(len, parts))
    if smt and count % 2:
        # An odd number of threads is paired wrongly there.
        assert list(map(len, parts)) == [38, 35]
        return
    assert [(part, numa_nodes_of_cpus(cpus, part)) for part in parts] == [
        (numbers_in_ranges(text), list(map(int, nodes.split(','))))
        for text, nodes in GOLDEN['distribute'][case]]


def test_siblings_that_are_counted_side_by_side_stay_together():
    """The original takes a half of the list for first threads."""
    cpus = [Cpu(0, 0, n // 2, n) for n in range(16)]
    parts = divide_cpus(cpus, 2)
    assert parts == [[0, 2, 4, 6, 1, 3, 5, 7], [8, 10, 12, 14, 9, 11, 13, 15]]


def test_cores_that_have_not_all_two_threads_are_all_given_out():
    cpus = [Cpu(0, 0, n, n) for n in range(10)] + [
        Cpu(0, 0, n, 10 + n) for n in range(4)]
    parts = divide_cpus(cpus, 3)
    assert sorted(sum(parts, [])) == list(range(14))
    for part in parts:
        cores = {n % 10 for n in part}
        assert {n for n in range(14) if n % 10 in cores} == set(part)


@pytest.mark.parametrize('parts', [0, 17])
def test_more_servers_than_cores_are_refused(parts):
    with pytest.raises(ValueError, match=f'num_servers = {parts}: '):
        sizing.cpu_counts_of_servers(machine(16), parts)
    with pytest.raises(ValueError, match='the node has 8 cores'):
        sizing.cpu_counts_of_servers(machine(16, smt=True), 9)


# Worked values -------------------------------------------------------------

def thread_counts(server):
    """Fast threads, dispatchers and slow threads."""
    return (server.fast_threads, server.options['tao_slow_dispatchers'],
            server.options['tao_num_slow_threads'])


@pytest.mark.parametrize('job, cpus, sizes, threads', [
    ('autoscale', 16, [16], (12, 3, 36)),
    ('autoscale', 72, [72], (54, 13, 162)),
    ('autoscale', 73, [37, 36], (27, 6, 81)),
    ('autoscale', 176, [60, 58, 58], (43, 10, 129)),
    ('autoscale', 380, [64] * 4 + [62] * 2, (46, 11, 138)),
    ('autoscale', 384, [64] * 6, (48, 12, 144)),
    ('autoscale_v2_beta', 384, [64] * 6, (80, 20, 240)),
])
def test_worked_values(job, cpus, sizes, threads):
    result = plan(job, machine(cpus, smt=cpus % 2 == 0), {'memsize': 384})
    assert [one.cpus for one in result.instances] == sizes
    last = result.instances[-1]
    assert thread_counts(last) == threads
    assert [one.port for one in result.instances] == [
        11211 + index for index in range(len(sizes))]
    assert all(one.memory == int(384 / len(sizes) * 768)
               for one in result.instances)


def test_keys_of_64_gb():
    assert sizing.cache_size_mb(64) == 49152
    assert sizing.key_count(64) == 106483520


@pytest.mark.parametrize('memsize, code, guide', [
    (64, 1200, 1200), (120, 1200, 1200), (240, 1200, 2400), (384, 1920, 3840),
    (768.5, 3842, 7685)])
def test_warmup(memsize, code, guide):
    for rule, seconds in (('code', code), ('guide', guide)):
        assert sizing.warmup_seconds(memsize, rule) == seconds
        of = plan('autoscale', machine(8, memory=memsize), rule=rule)
        assert of.warmup_time == seconds
        assert of.clients[0].arguments['warmup_time'] == seconds


@pytest.mark.parametrize('cpus, threads', [
    (1, 1), (2, 1), (6, 4), (7, 1), (16, 10), (176, 170)])
def test_client_threads(cpus, threads):
    assert sizing.client_thread_count(cpus) == threads
    assert sizing.client_thread_count(cpus, 5) == 5


@pytest.mark.parametrize('cpus, expected, each', [
    (16, 0, 380), (16, 9999, 2048), (176, 380, 186), (176, 100, 100),
    (40000, 0, 1)])
def test_connections_are_capped(cpus, expected, each):
    assert sizing.connections_per_thread(cpus, expected) == each


@pytest.mark.parametrize('servers, clients, pairs', [
    (6, 2, [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5)]),
    (2, 5, [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]),
    (1, 1, [(0, 0)]), (3, 3, [(0, 0), (1, 1), (2, 2)])])
def test_clients_are_spread_over_servers(servers, clients, pairs):
    result = plan('autoscale', None, {'num_servers': servers,
                                      'num_clients': clients})
    assert [(c.machine, c.server) for c in result.clients] == pairs
    assert all(c.port == 11211 + c.server for c in result.clients)


def test_what_is_opened_to_a_server():
    result = plan('autoscale', None, {'num_servers': 4})
    # 16 CPUs: 10 threads of 380 connections.
    assert result.connections_to_server(3) == 3800


def test_v2_suggests_connections_also_where_clients_have_few_cpus():
    """The original divides by the CPUs less six."""
    few = plan('autoscale_v2_beta', machine(2), {'client_cores': 6})
    assert [c.connections for c in few.clients] == [85 * 2 // (4 * 2)] * 2
    own = plan('autoscale_v2_beta', machine(16), {'clients_per_thread': 7})
    assert {c.connections for c in own.clients} == {7}


def test_memory_of_a_machine_that_clients_share():
    assert plan('autoscale', machine(4, memory=32)).settings['memsize'] == 32
    assert plan('standalone', machine(4, memory=32)).settings['memsize'] == 24


def test_standalone_runs_as_many_servers_as_its_clients_are_told_of():
    """The original does not hand num_servers on."""
    result = plan('standalone', None, {'num_servers': 3})
    assert len(result.instances) == 3
    assert {c.server for c in result.clients} == {0, 1, 2}


def test_times():
    result = plan('autoscale', machine(16, memory=384))
    assert (result.warmup_time, result.test_time) == (1920, 720)
    assert result.kill_after == 2820
    custom = plan('custom', None, {'warmup_time': 0})
    assert (custom.warmup_time, custom.kill_after) == (0, 480)
    standalone = plan('standalone', None, {'warmup_time': 3, 'test_time': 4})
    assert standalone.kill_after == 67


def test_nothing_of_the_original_is_left_out_of_short_runs():
    tiny = plan('standalone', machine(2), {
        'memsize': 0.0625, 'warmup_time': 5, 'test_time': 10,
        'stats_interval': 1000, 'clients_per_thread': 4})
    server, = tiny.instances
    assert (server.memory, *thread_counts(server)) == (48, 1, 1, 3)
    assert server.options['tao_stats_sleep_ms'] == 1000
    assert {c.keys for c in tiny.clients} == {sizing.key_count(0.0625)}


def test_the_clients_of_a_single_server_are_told_what_it_was_given():
    result = plan('custom', None, {'memsize': 1, 'port_number': 12000,
                                   'test_time': 9}, hostname='h',
                  client_given={'test_time': 8})
    message = result.clients[0].arguments
    assert (message['server_memsize'], message['test_time']) == (1, 8)
    assert result.clients[0].keys == sizing.key_count(1)
    assert {c.port for c in result.clients} == {12000}


def test_clients_can_be_told_more():
    result = plan('autoscale', None, None, client_given={
        'target_hit_ratio': 0.5}, client_cpus=[8, 32, 16])
    assert [c.threads for c in result.clients] == [2, 26, 10]
    assert result.clients[0].keys == sizing.key_count(64, 0.5)
    assert len(result.clients) == result.settings['num_clients'] == 3


# The original's command lines ----------------------------------------------

def same(server, theirs):
    """Equal but for the order of what follows -o, and for the address, which the
    original does not set."""
    def split(words):
        at = words.index('-o')
        return words[:at], set(words[at + 1].split(','))
    ours = filled(calls.server_command_template(
        'tao_bench_server', server, '/p', 180000), server.port)
    at = ours.index('-l')
    assert ours[at + 1] == '{address}'
    assert split(ours[:at] + ours[at + 2:]) == split(theirs)


def filled(words, port, host=''):
    """A template with what the original uses."""
    values = {'port': str(port), 'host': host, 'user': 'nobody',
              'cert': '/p/certs/example.crt', 'key': '/p/certs/example.key'}
    for name, value in values.items():
        words = [word.replace(f'{{{name}}}', value) for word in words]
    return words


def filled_client(client):
    return filled(calls.client_command_template(
        'tao_bench_server', client, '/p', 7, 1.0, 1), client.port,
        client.arguments['server_hostname'])


@pytest.mark.parametrize('want', GOLDEN['plans'], ids=lambda want: (
    f'{want["job"]}-{want["cpus"]}'))
def test_plans_are_those_of_the_original(want):
    on = machine(want['cpus'], want['smt'], want['memory'])
    given = want['given']
    result = plan(want['job'], on, given, hostname='server', client_cpus=[
        want['client_cpus']] * given.get('num_clients', 2))
    assert result.kill_after - sizing.SERVER_MARGIN == want['lifetime']
    for one, (*nic, command) in zip(result.instances, want['server'],
                                    strict=True):
        same(one, command)
        assert sizing.nic_setup_commands(one, result.settings, '/p') == nic
    by_machine = sorted(result.clients, key=lambda client: client.machine)
    assert [filled_client(client) for client in by_machine] == want['client']


@pytest.mark.parametrize('want', GOLDEN['roles'], ids=lambda want: (
    f'{want["job"]}-{want["cpus"]}'))
def test_roles_are_those_of_the_original(want):
    result = plan(want['job'], machine(want['cpus']), want['given'],
                  client_given=want['client_given'], hostname='h')
    *nic, command = want['server']
    server, = result.instances
    same(server, command)
    assert sizing.nic_setup_commands(server, result.settings, '/p') == nic
    assert filled_client(result.clients[0]) == want['client']


def test_hard_binding():
    result = plan('custom', None, {'hard_binding': 1})
    nic = sizing.nic_setup_commands(result.instances[0], result.settings, '/p')[1]
    assert nic[-2:] == ['--cpu', '0 1 2 3 4 5 6 7']


# Parameters ----------------------------------------------------------------

def test_jobs_have_the_original_names_and_say_what_is_deprecated():
    assert set(jobs.JOBS) == {
        'tao_bench_64g', 'tao_bench_custom', 'tao_bench_autoscale',
        'tao_bench_standalone', 'tao_bench_autoscale_v2_beta'}
    assert [one.deprecated for one in jobs.JOBS.values() if one.deprecated
            ] == ['tao_bench_autoscale']
    for one in jobs.JOBS.values():
        for role in one.roles.values():
            assert role.opened <= set(role.arguments)


@pytest.mark.parametrize('job, role, defaults', [
    ('64g', 'server', {'memsize': 64, 'warmup_time': 1200, 'test_time': 360,
                       'timeout_buffer': 120, 'interface_name': 'eth0'}),
    ('custom', 'server', {'memsize': 64, 'port_number': 11211,
                          'stats_interval': 5000, 'disable_tls': 0}),
    ('custom', 'client', {'clients_per_thread': 380, 'data_size_min': 8191,
                          'wait_after_warmup': 5, 'tunning_factor': 0.807}),
    ('autoscale', '', {'num_servers': 0, 'memsize': 0, 'num_clients': 2,
                       'client_wait_after_warmup': 5, 'test_time': 720}),
    ('standalone', '', {'interface_name': 'lo', 'timeout_buffer': 0,
                        'server_hostname': 'localhost'}),
    ('autoscale_v2_beta', '', {
        'fast_threads_ratio': 1.25, 'slow_threads_use_semaphore': 1,
        'conns_per_server_core': 85, 'client_wait_after_warmup': -1}),
])
def test_defaults(job, role, defaults):
    result = jobs.role_arguments_with_defaults(jobs.find_job(job), role)
    assert {name: result[name] for name in defaults} == defaults


@pytest.mark.parametrize('job, role, given, words', [
    ('autoscael', '', {}, 'did you mean tao_bench_autoscale'),
    ('autoscale', 'server', {}, 'no role'),
    ('autoscale', '', {'mem_size': 1}, 'did you mean memsize'),
    ('autoscale', '', {'memsize': -1}, 'memsize = -1 must be at least 0'),
    ('autoscale', '', {'memsize': float('nan')}, 'memsize = nan'),
    ('autoscale', '', {'memsize': 'much'}, "'much' is not a number"),
    ('autoscale', '', {'memsize': float('inf')}, 'memsize = inf'),
    ('autoscale', '', {'num_clients': 0}, 'at least 1'),
    ('autoscale', '', {'num_servers': 1.5}, 'not a whole number'),
    ('custom', 'server', {'port_number': 70000}, 'from 0 to 65535'),
    ('custom', 'client', {'target_hit_ratio': 1.1}, 'from 0.001 to 1'),
    ('custom', 'client', {'data_size_min': 9000}, 'exceeds data_size_max'),
])
def test_bad_parameters_are_named(job, role, given, words):
    with pytest.raises(ValueError, match=words):
        jobs.role_arguments_with_defaults(jobs.find_job(job), role, given)


@pytest.mark.parametrize('given, words', [
    ({'port_number_start': 65535, 'num_servers': 2}, 'ports above'),
    ({'num_servers': 99}, 'num_servers = 99'),
    ({'memsize': 0.0001}, 'less than 1 MB'),
])
def test_plans_that_cannot_be(given, words):
    with pytest.raises(ValueError, match=words):
        plan('autoscale', None, given)


def test_plans_without_cpus_or_with_too_few_client_machines():
    with pytest.raises(ValueError, match='no CPUs'):
        plan('autoscale', Machine(0, 64))
    with pytest.raises(ValueError, match='num_clients = 2'):
        plan('autoscale', None, {'num_clients': 2}, client_cpus=[4])
    with pytest.raises(ValueError, match='client machine 1 has no CPUs'):
        plan('autoscale', None, None, client_cpus=[0])


def test_what_the_original_would_not_take_is_told():
    custom = jobs.find_job('custom')
    assert jobs.find_unexposed_arguments(custom, 'client', {
        'test_time': 5, 'target_hit_ratio': 0.5}) == ['target_hit_ratio']
    assert jobs.role_arguments_with_defaults(custom, 'client',
                                             {'target_hit_ratio': '0.5'})[
        'target_hit_ratio'] == 0.5
