"""plumb doctor: what would start, why a family has no case, what it costs."""
from __future__ import annotations

import argparse
import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.session.commands import MODES
from cli.setup.venv import SetupError
from cli.site import doctor, programs, schedulers
from cli.site.cases import max_seconds_in_mode
from tests.cli.test_run_cost import SITE as CLUSTER

SITE = {
    'systems': [{'name': 'cluster', 'partitions': [{
        'name': 'a', 'scheduler': 'slurm', 'launcher': 'srun',
        'environs': ['gnu', 'stores']}]}],
    'environments': [
        {'name': 'gnu', 'cc': 'gcc', 'features': ['mpi', 'osu'],
         'extras': {'programs': {'osu': {'source': 'embedded'}}}},
        {'name': 'stores', 'features': ['valkey'], 'extras': {
            'stack': 'keyvalue',
            'programs': {'keyvalue': {'source': 'spack'}}}}]}

FOLDER = Path('/no/such/mycluster')


def site(**of_gnu) -> dict:
    changed = copy.deepcopy(SITE)
    changed['environments'][0].update(of_gnu)
    return changed


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH with the programs that are named, and no Spack."""
    monkeypatch.delenv('SPACK_ROOT', raising=False)
    for name in ('LMOD_CMD', 'MODULESHOME', 'MODULES_CMD'):
        monkeypatch.delenv(name, raising=False)

    def there(*programs: str) -> str:
        for program in programs:
            (tmp_path / program).write_text(
                '' if program != 'sinfo' else
                '#!/bin/sh\necho "a*|n1|idle|2|1|2|1|(null)|1-4|none"\n')
            (tmp_path / program).chmod(0o755)
        monkeypatch.setenv('PATH', str(tmp_path))
        return str(tmp_path)
    return there


def reasons_of(configuration, pools=None):
    """Why test cases cannot start here."""
    return doctor.reasons_test_cases_cannot_start(
        configuration, programs.environment_states(FOLDER, configuration), pools or {})


# ------------------------------------------------------ what would start

def test_an_environment_whose_stack_is_not_installed_does_not_start(path):
    path('sbatch', 'sinfo', 'gcc')
    result = reasons_of(SITE)
    assert set(result) == {'a+stores'}
    assert result['a+stores'].startswith(
        'environment stores: the stack keyvalue is not installed for the '
        'site mycluster in ')


def test_without_the_schedulers_command_nothing_starts(path):
    path('gcc')
    result = reasons_of(SITE)
    assert set(result) == {'a+gnu', 'a+stores'}
    assert 'sbatch not found: partition a has the scheduler slurm; use a ' \
        'login node' in result['a+gnu']


@pytest.mark.parametrize('nodes, why', [
    ('n1|idle', ''), ('n1|drained', 'no node of partition a takes jobs')])
def test_a_partition_without_usable_nodes_starts_nothing(path, tmp_path, nodes, why):
    path('sbatch', 'gcc')
    (tmp_path / 'sinfo').write_text(
        f'#!/bin/sh\necho "batch*|{nodes}|2|1|2|1|(null)|1-4|disk"\n')
    (tmp_path / 'sinfo').chmod(0o755)
    pools = schedulers.query_pools(SITE['systems'][0]['partitions'])
    assert reasons_of(SITE, pools).get('a+gnu', '') == why


def test_a_scheduler_that_does_not_answer_starts_nothing(path, capsys):
    path('sbatch', 'gcc')
    pools = schedulers.query_pools(
        {'name': name, 'scheduler': 'slurm'} for name in 'ab')
    doctor.print_pools(pools)
    text = 'sinfo: No such file or directory: run this on a node where jobs are submit'
    assert capsys.readouterr().out.count(text) == 1
    assert reasons_of(SITE, pools)['a+gnu'].startswith(text)
    pools = schedulers.query_pools([{'name': 'a', 'scheduler': 'pbs'},
                                    {'name': 'b', 'scheduler': 'flux'}])
    assert str(pools.pop('a')).startswith('pbsnodes: No such') and not pools


def test_pbs_reports_the_nodes_of_a_queue(tmp_path, monkeypatch):
    nodes = {'nodes': {
        'n1': {'state': 'free', 'resources_available': {'ncpus': 4, 'host': 'n1'}},
        'n2': {'state': 'offline', 'comment': 'disk',
               'resources_available': {'ncpus': 4, 'host': 'n2'}}}}
    queues = {'Queue': {name: {'queue_type': 'Execution', 'enabled': 'True',
                               'started': started}
                        for name, started in (('work', 'True'), ('shut', 'False'))}}
    for name, answer in (('pbsnodes', nodes), ('qstat', queues)):
        (tmp_path / name).write_text(
            f"#!/bin/sh\ncat <<END\n{json.dumps(answer)}\nEND\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=':')
    pool = schedulers.query_pool(
        {'name': 'a', 'scheduler': 'pbs', 'access': ['-q work']})
    assert str(pool).startswith('1 of 2 nodes take jobs (1 idle); left out: n2 (')
    with pytest.raises(
            SetupError,
            match='queue shut, which partition a uses, takes no jobs: not sta'):
        schedulers.query_pool({'name': 'a', 'scheduler': 'pbs', 'access': ['-q shut']})


@pytest.mark.parametrize('change, words', [
    ({'cc': 'xlc'}, 'builds its programs with xlc, which is not found'),
    ({'modules': ['openmpi/5']}, 'loads openmpi/5, but no modules system'),
    ({'extras': {'programs': {'osu': {'source': 'system',
                                      'prefix': '/no/such'}}}},
     'osu: folder /no/such does not exist'),
    ({'cc': 'gcc'}, None)])
def test_what_an_environment_needs(path, change, words):
    path('sbatch', 'sinfo', 'gcc')
    result = reasons_of(site(**change))
    assert (words in result['a+gnu']) if words else 'a+gnu' not in result


def test_modules_bring_the_compiler(path, monkeypatch):
    monkeypatch.setenv('LMOD_CMD', '/lmod')
    path('sbatch')
    assert 'a+gnu' not in reasons_of(
        site(cc='mpicc', modules=['openmpi/5']))


def test_this_machine_needs_its_launcher(path):
    here = copy.deepcopy(SITE)
    here['systems'][0]['partitions'][0].update(scheduler='local',
                                               launcher='mpirun')
    path('gcc')
    result = reasons_of(here)
    assert 'mpirun not found' in result['a+gnu']
    path('mpirun')
    assert 'a+gnu' not in reasons_of(here)


def test_reasons_are_counted():
    cases = [{'family': 'osu', 'where': where, 'unavailable_cpus': cpus}
             for where, cpus in (('a+gnu', 0), ('a+stores', 5), ('b+stores', 11))]
    changed = site()
    changed['systems'][0]['partitions'][0]['extras'] = {'max_nodes': 4}
    blocked = {'a+stores': 'no Spack', 'b+stores': 'no Spack'}
    assert doctor.reasons_not_here('osu', cases, blocked, changed, [1, 3, 20, 144]) == [
        '2 test cases: no Spack',
        '2 test cases would be inconclusive: servers and clients need 5 to 11 CPUs of '
        'a node, and no node has them',
        'test cases of 20, 144 nodes on partition a: its max_nodes is 4']
    [reason] = doctor.reasons_not_here('nccl', cases, blocked, changed, [4])
    assert reason.startswith('no partition has the feature gpu_nvidia')


def test_the_parts_of_a_family_that_are_missing():
    assert doctor.missing_parts('osu', SITE) == {
        'real OMB and all collectives': 'set the prefix of an installation of the OSU '
        'micro-benchmarks in an environment (on the site local: OMB_PREFIX); or use a '
        'stack that has it: mpi-cuda, mpi-host, mpi-rocm'}
    assert doctor.missing_parts('osu', site(features=['osu_alltoall'])) == {}
    assert 'TAOBENCH_PREFIX' in str(doctor.missing_parts('taobench', SITE))


# ------------------------------------------------------------ the cost

def case(nodes: int, *modes: str) -> dict:
    return {'nodes': nodes, 'modes': modes,
            'max_seconds': {'quick': 1800.0, 'full': 7200.0}}


def test_the_cost_of_a_mode_is_the_sum_of_its_time_limits():
    cases = [case(4, 'quick', 'full'), case(1, 'quick'), case(2, 'full')]
    assert str(doctor.mode_cost(cases, 'quick')) == '2 jobs, at most 2.5 node-hours'
    assert doctor.mode_cost(cases, 'quick').minutes_text == (
        'at most 60 min of test time')
    assert str(doctor.mode_cost([], 'quick')) == '0 jobs, at most 0 node-hours'


def check_with_limits(time_limit: float) -> SimpleNamespace:
    return SimpleNamespace(time_limit=time_limit)


@pytest.mark.parametrize('check, settings, expected', [
    (check_with_limits(600.0), {}, 600.0),
    (check_with_limits(600.0), {'repetitions': '20', 'time_limit': '2h'}, 7200.0),
    (check_with_limits(600.0), {'time_limit': '1d2h3m4s'}, 93784.0),
    # The job of a test case may need more than the mode gives.
    (check_with_limits(9000.0), {'time_limit': '2h'}, 9000.0)])
def test_time_limits_of_modes(check, settings, expected):
    assert max_seconds_in_mode(check, settings) == expected


# --------------------------------------------------------- the command

def test_the_site_of_this_machine(suite):
    done = suite.plumb('doctor', '--all')
    assert done.returncode == 0, done.stderr
    output = done.stdout
    # What a person may set, and what is installed.
    assert 'OMB_PREFIX' in output and re.search(r'^tao .* installed', output, re.M)
    whole = dict(re.findall(r'--mode (\w+) +(\d+) jobs?, at most \d+ min', output))
    assert set(whole) == set(MODES)
    assert f'READY: mode quick has {whole["quick"]} test cases of' in output


def test_a_cluster_does_not_run_on_another_machine(suite, monkeypatch, path, capsys):
    folder = suite.tmp / 'cluster'
    suite.write_site(folder, CLUSTER)
    monkeypatch.setattr(doctor.sites, 'list_test_cases_with_reframe', lambda _: {
        'cases': [case(1, 'quick') | {'family': 'osu', 'where': 'nodes+mpi'}]})
    monkeypatch.setattr(doctor, 'reframe_environment_variables', lambda _: {})
    path('gcc')
    assert doctor.doctor(argparse.Namespace(site=str(folder), all=False)) == 1
    output = capsys.readouterr().out
    assert 'runs here' not in output and 'NOT READY: mode quick' in output
    assert re.search(r'Not here:\n(.+\n)*? +nccl +no partition has the feature', output)
