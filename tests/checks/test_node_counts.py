"""Test cases for partitions of any number of nodes."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cli.site.cases import is_selected_by_nodes
from tests.conftest import LIMIT, ROOT

#: A partition with MPI, stores and GPUs; its programs need not exist.
SITE = '''
from checks.core import environs, hardware
from config.common import SETTINGS
NODE = hardware.reframe_devices(('H100-SXM5-80GB', 8))
site_configuration = {{**SETTINGS, 'systems': [{{
    'name': 'cluster', 'hostnames': ['.*'], 'partitions': [{{
        'name': 'nodes', 'scheduler': 'local', 'launcher': 'mpirun',
        'environs': ['mpi', 'tao', 'tensors', 'nccl'],
        'features': ['gpu_nvidia'], 'devices': NODE,
        'processor': {{'num_cpus': 64, 'num_cpus_per_core': 1}},
        'extras': {{'max_nodes': {nodes}, 'launcher_pin': ['--pin={{cpus}}'],
                   **hardware.bandwidth_extras(NODE)}}}}]}}],
    'environments': [
        {{'name': 'mpi', 'cc': 'mpicc',
         'features': ['mpi', 'osu', 'osu_latency', 'osu_allreduce'],
         'extras': {{'mpi_library': 'openmpi 5',
                    'programs': {{'osu': {{'source': 'embedded'}}}}}}}},
        environs.embedded_program_environment('tao', 'taobench'),
        environs.embedded_program_environment('nccl', 'nccl'),
        {{'name': 'tensors', 'cc': 'mpicc', 'features': ['tensor_redis'],
         'extras': {{'mpi_library': 'openmpi 5', 'programs': {{
             'keyvalue': {{'source': 'system', 'prefix': '/usr'}},
             'smartredis': {{'source': 'embedded'}}}}}}}}]}}
'''


@pytest.fixture(scope='module', params=[1, 12])
def site(request, tmp_path_factory):
    """Number of nodes, and what `plumb site check` and `doctor` read."""
    folder = tmp_path_factory.mktemp('site')
    (folder / 'system.py').write_text(SITE.format(nodes=request.param))
    done = subprocess.run(
        [sys.executable, '-m', 'cli.site.cases', folder], cwd=ROOT, text=True,
        env={**os.environ, 'PLUMBLINE_SITE': str(folder)},
        capture_output=True, timeout=LIMIT)
    answer = json.loads(done.stdout)
    assert 'error' not in answer, answer
    return request.param, answer


def node_counts(answer, check):
    return {case['nodes'] for case in answer['cases']
            if case['check'].startswith(check)}


@pytest.mark.parametrize('check', ['OsuCollective', 'NcclCollective'])
def test_collectives_run_on_powers_of_two_and_on_all_nodes(site, check):
    nodes, answer = site
    assert node_counts(answer, check) == {
        nodes, *(2 ** n for n in range(11) if 2 ** n <= nodes)}


def test_no_number_of_nodes_is_rounded(site):
    nodes, answer = site
    three = 3 in node_counts(answer, 'TaoBench')
    assert three == (nodes >= 3)
    for case in answer['cases']:
        assert case['nodes'] <= nodes


def test_mode_smoke_has_one_test_case_per_family_on_two_nodes(site):
    nodes, answer = site
    short = [case for case in answer['cases'] if 'smoke' in case['modes']]
    # A family without a short test case on one or two nodes is a fault. Optcast has one
    # on partitions with one node: its servers have nodes of their own, so that the
    # smallest test case on several nodes needs three.
    assert sorted(case['family'] for case in short) == sorted(
        {case['family'] for case in answer['cases']} - {'optcast' if nodes > 1 else ''})
    for case in short:
        assert case['nodes'] == min(2, nodes)
        assert {'quick', 'nightly', 'full'} <= {*case['modes']}


@pytest.mark.parametrize('collective, settings, selected', [
    (True, {}, True), (True, {'repetitions': '5'}, True),
    (True, {'node_counts': '2,16'}, False), (True, {'node_counts': '2,4'}, True),
    (False, {'node_counts': '2'}, True)])
def test_a_mode_may_select_numbers_of_nodes(collective, settings, selected):
    check = SimpleNamespace(is_collective=collective, node_count_before_setup=4)
    assert is_selected_by_nodes(check, settings) == selected


def test_what_the_partition_lacks_is_known(site):
    nodes, answer = site
    generated = {case['nodes'] for case in answer['cases']
                 if case['family'] == 'smartredis'}
    needed = set(answer['needed_nodes']['smartredis'])
    assert {n for n in needed if n <= nodes} == generated
    # The sizes of SmartSim-Scaling: up to 512 nodes of clients.
    assert {128 + 16, 256 + 16, 512 + 16} <= needed
