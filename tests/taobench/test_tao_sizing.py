"""TaoBench's sizing against the original's own answers and worked values.

golden/sizing.json is what the original's code (DCPerf, 2025-06)
gives for CPUs, SMT and NUMA nodes that it was told of. Only sizes are compared: node.py
binds the servers, and DCPerf's own scripts start the original.
"""
from __future__ import annotations

import json
import re

import pytest

from checks.machine.cpus import Cpu, divide_cpus
from checks.taobench import sizing
from checks.taobench.sizing import JOBS, Machine, Sizes
from tests.conftest import ROOT, each

GOLDEN = json.loads((ROOT / 'tests' / 'taobench' / 'golden'
                     / 'sizing.json').read_text())


def machine(count, smt=False, memory=64.0):
    return Machine(count, memory, 2 if smt else 1)


def numbered_cpus(count, smt, nodes):
    """CPUs as kernels count them: all first threads, then all siblings."""
    cores = -(-count // 2) if smt else count
    return [Cpu(core * nodes // cores, 0, core, n)
            for n in range(count) for core in [n % cores]]


def plan(job, on=None, client_machines=2, client_cpus=0, **sizes):
    return sizing.plan_job(JOBS[job.removeprefix('tao_bench_')], on or machine(16),
                           Sizes(**sizes), client_machines, client_cpus)


# CPUs ----------------------------------------------------------------------

def numbers_in_ranges(text):
    """CPUs of a list of taskset, in its order."""
    return [n for part in text.split(',') for first, last in [part.split('-')]
            for n in range(int(first), int(last) + 1)]


@each(GOLDEN['distribute'])
def test_cpus_are_split_as_the_original_does(case):
    count, smt, nodes = case.split()
    count, smt = int(count), smt == 'smt'
    cpus = numbered_cpus(count, smt, int(nodes))
    parts = divide_cpus(cpus, sizing.server_count(count))
    if smt and count % 2:
        # An odd number of threads is paired wrongly there.
        assert list(map(len, parts)) == [38, 35]
        return
    assert parts == [
        numbers_in_ranges(text) for text, _ in GOLDEN['distribute'][case]]


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
    with pytest.raises(ValueError, match=f'servers = {parts}: '):
        sizing.cpu_counts_of_servers(machine(16), parts)
    with pytest.raises(ValueError, match='the node has 8 cores'):
        sizing.cpu_counts_of_servers(machine(16, smt=True), 9)


# Worked values -------------------------------------------------------------

@pytest.mark.parametrize('cpus, threads', [
    (1, 1), (2, 1), (6, 4), (7, 1), (16, 10), (176, 170)])
def test_client_threads(cpus, threads):
    assert sizing.client_thread_count(cpus) == threads


@pytest.mark.parametrize('cpus, expected, each', [
    (16, 0, 380), (16, 9999, 2048), (176, 380, 186), (176, 100, 100),
    (40000, 0, 1)])
def test_connections_are_capped(cpus, expected, each):
    assert sizing.connections_per_thread(cpus, expected) == each


@pytest.mark.parametrize('servers, machines, numbers', [
    (6, 2, [1, 1, 1, 1, 1, 1]), (2, 5, [3, 2]), (1, 1, [1]), (3, 3, [1, 1, 1])])
def test_clients_are_spread_over_servers(servers, machines, numbers):
    result = plan('autoscale', None, machines, servers=servers)
    assert result.clients == sum(numbers) and numbers == [
        len(result.clients_of_server(server)) for server in range(servers)]


def test_connections_to_one_of_several_servers():
    # 16 CPUs: 10 threads of 380 connections.
    assert plan('autoscale', servers=4).connections_to_server(3) == 3800


def test_v2_limits_connections_also_where_clients_have_few_cpus():
    """The original divides by the CPUs less six."""
    few = plan('autoscale_v2_beta', machine(2), 2, 6)
    assert (few.clients, few.connections) == (2, 85 * 2 // (4 * 2))
    assert plan('autoscale_v2_beta', connections=7).connections == 7


def test_memory_of_a_machine_that_clients_share():
    assert plan('autoscale', machine(4, memory=32)).instances[0].memory == 32 * 768
    assert plan('standalone', machine(4, memory=32)).instances[0].memory == 24 * 768


def test_keys_of_a_user():
    result = plan('autoscale', servers=2, keys=1000)
    assert result.keys == result.key_count_of_client(0) == 1000
    assert plan('custom', keys=999).key_count_of_client(1) == 500


# The original ---------------------------------------------------------------

def words_after(command, *options):
    """The numbers after some options of a command, `-x 1` or `--x=1`."""
    text = ' '.join(command)
    return [int(re.search(rf'(?:^|[ ,]){option}[ =](\d+)', text)[1])
            for option in options]


def assert_sized_like(want, result):
    assert [[one.memory, one.fast_threads, one.dispatchers, one.slow_threads]
            for one in result.instances] == [
        words_after(command, '-m', '-t', 'tao_slow_dispatchers',
                    'tao_num_slow_threads') for command in want['server']]
    assert [[result.keys, result.client_threads, result.connections]
            ] * result.clients == [
        words_after(command, '--key-maximum', '-t', '--clients')
        for command in want['client']]


@pytest.mark.parametrize('want', GOLDEN['plans'], ids=lambda want: (
    f'{want["job"]}-{want["cpus"]}'))
def test_sizes_are_those_of_the_original(want):
    given = want['given']
    result = plan(want['job'], machine(want['cpus'], want['smt'], want['memory']),
                  given.get('num_clients', 2), want['client_cpus'],
                  memory=given.get('memsize', 0), test_time=given.get('test_time', 0),
                  connections=given.get('clients_per_thread', 0))
    standalone = want['job'] == 'tao_bench_standalone'
    assert result.warmup_time + result.test_time == (
        want['lifetime'] - 120 * (not standalone))
    assert_sized_like({**want, 'server': [words for *_, words in want['server']]},
                      result)


@pytest.mark.parametrize('want', GOLDEN['roles'], ids=lambda want: (
    f'{want["job"]}-{want["cpus"]}'))
def test_sizes_of_one_server_are_those_of_the_original(want):
    result = plan(want['job'], machine(want['cpus']), 1,
                  memory=want['given'].get('memsize', 0))
    assert (result.warmup_time, result.test_time) == (1200, 360)
    assert_sized_like({'server': want['server'][-1:], 'client': [want['client']]},
                      result)


def test_memory_that_is_too_small_for_a_cache():
    with pytest.raises(ValueError, match='less than 1 MB'):
        plan('autoscale', memory=0.001)
