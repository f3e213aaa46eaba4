"""Options under the original's names, and the arrangements of the cases."""
from __future__ import annotations

import pytest

from checks.smartredis import settings
from checks.smartredis.scenarios import (
    ARRANGEMENTS,
    DATABASES,
    Scenario,
    modes_of,
    scenarios,
)


def test_options_under_their_own_names():
    request = settings.read('throughput', {
        'tensor_bytes': '1024+65536', 'iterations': '10', 'db_nodes': '3',
        'client_nodes': '2', 'net_ifname': 'eth0', 'wall_time': '05/00/10'})
    assert request.tensor_bytes == (1024, 65536)
    assert request.scenario == {
        'db_nodes': 3,
        'client_nodes': 2,
        'iterations': 10,
    }
    assert request.net_ifname == 'eth0' and request.wall_time == '5h0m10s'
    assert settings.read('throughput', {}) == settings.Asked()


@pytest.mark.parametrize('given, words', [
    ({'tensor_byte': '1'}, 'did you mean tensor_bytes'),
    ({'iterations': '0'}, 'a whole number from 1 on'),
    ({'tensor_bytes': '1024+x'}, "got 'x'"),
    ({'tensor_bytes': '8+8'}, 'stands twice'),
    ({'client_threads': '2'}, 'client_threads: unknown'),
    ({'net_type': 'ib'}, 'uds or tcp'),
    ({'wall_time': '5h'}, 'write 05/00/00'),
    ({'db_hosts': 'n1'}, 'first nodes of the job'),
    ({'intra_op_threads': '2'}, 'intra_op_threads: unknown'),
    ({'languages': 'python'}, 'the driver is in C'),
    ({'run_db_as_batch': 'True'}, 'part of the job')])
def test_what_is_refused(given, words):
    with pytest.raises(settings.SettingError, match=words):
        settings.read('throughput', given)


def test_aggregation_has_options_of_its_own():
    request = settings.read('aggregation', {'client_threads': '2',
                                          'tensors_per_dataset': '4'})
    assert request.scenario == {'client_threads': 2, 'tensors_per_dataset': 4}


def test_inference_has_threads_and_a_device():
    request = settings.read('inference', {
        'intra_op_threads': '2', 'db_tpq': '4', 'num_devices': '2',
        'batch_size': '96', 'device': 'CPU'})
    assert request.intra_op_threads == 2
    assert request.scenario == {
        'db_tpq': 4,
        'num_devices': 2,
        'batch_size': 96,
    }
    for given, words in (({'device': 'GPU'}, 'CPU alone'),
                         ({'inter_op_threads': '2'}, 'follow each other'),
                         ({'intra_op_thread': '2'}, 'intra_op_threads?')):
        with pytest.raises(settings.SettingError, match=words):
            settings.read('inference', given)


def test_nodes_of_an_arrangement():
    assert (
        Scenario('redis').nodes()
        == Scenario('redis', db_nodes=3).nodes(1)
        == 1
    )
    assert Scenario('redis', db_nodes=3, client_nodes=2).nodes() == 5
    assert Scenario('redis', db_nodes=3, client_nodes=2).nodes(1) == 6
    assert Scenario('redis', 'colocated', client_nodes=2).nodes() == 2


@pytest.mark.parametrize('kind', ARRANGEMENTS)
def test_arrangements_and_their_modes(kind):
    results = list(scenarios(kind))
    assert len(set(results)) == len(results)
    quick = [scenario for scenario, mode in results
             if mode == 'quick' and scenario.db == 'redis']
    assert [scenario.ranks for scenario in quick] == [4, 1]
    assert modes_of(kind, quick[0]) == {'quick', 'nightly', 'full'}
    assert modes_of(kind, Scenario('redis', clients_per_node=7)) == {'full'}
    assert any(scenario.db_nodes == 3 for scenario, _ in results)
    # Lists alone can be files.
    assert {scenario.client for scenario, _ in results} == (
        {'embedded', 'files'} if kind == 'aggregation' else {'embedded'})
    # Never a database colocated with nothing, nor a cluster of such.
    assert all(scenario.deployment == 'standard' or scenario.db_nodes == 1
               for scenario, _ in results)


def test_torchscript_wants_a_libtorch():
    results = [scenario for scenario, mode in scenarios('inference')
             if scenario.torchscript and mode == 'nightly']
    assert {scenario.network for scenario in results} == {
        'small.pt',
        'resnet50.pt',
    }
    assert all(scenario.needs == (DATABASES[scenario.db], 'libtorch')
               for scenario in results)
    assert not any(
        'libtorch' in scenario.needs
        for kind in ARRANGEMENTS
        for scenario, _ in scenarios(kind)
        if not scenario.torchscript
    )
