"""Sizes of the servers and clients of TaoBench that the suite starts."""
from __future__ import annotations

import pytest

from checks.taobench import sizing
from checks.taobench.scenarios import Scenario
from checks.taobench.sizing import Machine, Sizes


def plan(cpus=16, client_machines=2, **sizes):
    return sizing.plan_job(Machine(cpus, 0), Sizes(**{
        **vars(Scenario('autoscale').sizes(cpus)), **sizes}), client_machines)


@pytest.mark.parametrize('parts', [0, 17])
def test_more_servers_than_cores_are_refused(parts):
    with pytest.raises(ValueError, match=f'servers = {parts}: '):
        sizing.cpus_per_server(Machine(16, 0), parts)
    with pytest.raises(ValueError, match='the node has 8 cores'):
        sizing.cpus_per_server(Machine(16, 0, 2), 9)


@pytest.mark.parametrize('cpus, threads', [
    (1, 1), (2, 1), (6, 4), (7, 1), (16, 10), (176, 170)])
def test_client_threads(cpus, threads):
    assert sizing.client_thread_count(cpus) == threads


@pytest.mark.parametrize('servers, machines, numbers', [
    (6, 2, [1, 1, 1, 1, 1, 1]), (2, 5, [3, 2]), (1, 1, [1]), (3, 3, [1, 1, 1])])
def test_clients_are_spread_over_servers(servers, machines, numbers):
    result = plan(client_machines=machines, servers=servers)
    assert result.clients == sum(numbers) and numbers == [
        len(result.clients_of_server(server)) for server in range(servers)]
    # 16 CPUs: 10 threads of 20 connections.
    assert [result.connections_to_server(server) for server in range(servers)] == [
        200 * number for number in numbers]
    assert [result.key_count_of_client(server) for server in range(servers)] == [
        -(-result.keys // number) for number in numbers]


def test_sizes_of_a_large_machine():
    """One server per 72 CPUs; each has its part of the memory, and its own keys."""
    large = plan(176)
    assert (large.servers, large.cpus, large.memory) == (3, 58, 360)
    assert (large.fast_threads, large.dispatchers, large.slow_threads) == (43, 10, 129)
    assert (large.client_threads, large.connections, large.keys) == (170, 20, 784932)


def test_servers_have_whole_cores():
    assert [sizing.cpus_per_server(Machine(cpus, 0, threads), servers) for
            cpus, threads, servers in ((16, 1, 3), (16, 2, 3), (73, 2, 2), (1, 2, 1))
            ] == [5, 4, 36, 1]


def test_memory_that_is_too_small_for_a_cache():
    with pytest.raises(ValueError, match='less than 1 MB'):
        plan(memory=0.001)
