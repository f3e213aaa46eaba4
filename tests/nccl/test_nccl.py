"""The checks: every case of the matrix by its command line and the stand-in,
guards on what a run says, and some cases on a cluster."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from ClusterShell.RangeSet import RangeSet

from checks.core import features, hardware, limits
from checks.nccl import parser, physics, programs, variants
from config import families
from tests.conftest import LIMIT, ROOT, of_family

SRC = ROOT / 'checks' / 'nccl' / 'src' / 'standin.c'
GOLDEN = Path(__file__).parent / 'golden'

#: 64 nodes with all that the family knows choices of.
SITE = '''
from checks.core import environs, hardware
from config.common import SETTINGS
NODE = hardware.reframe_devices(('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8))
site_configuration = {**SETTINGS, 'systems': [{
    'name': 'big', 'hostnames': ['.*'], 'partitions': [{
        'name': 'gpu', 'scheduler': 'local', 'launcher': 'mpirun',
        'environs': ['nccl'],
        'features': ['gpu_nvidia'],
        'processor': {'num_cpus': 224, 'num_cpus_per_core': 2},
        'devices': NODE, 'extras': {
            'max_nodes': 64, **hardware.bandwidth_extras(NODE),
            'launcher_pin': ['--pin={cpus}']}}]}],
    'environments': [environs.embedded_program_environment('nccl', 'nccl')]}
for environment in site_configuration['environments']:
    environment['features'] = [*environment['features'], 'sharp']
'''


def matrix(site):
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / 'matrix.py', site],
        env={**os.environ, 'PYTHONPATH': str(ROOT),
             'PLUMBLINE_SITE': str(site)},
        capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope='module')
def big(tmp_path_factory):
    folder = tmp_path_factory.mktemp('big')
    (folder / 'system.py').write_text(SITE)
    return matrix(folder)


@pytest.fixture(scope='module')
def standin(tmp_path_factory):
    """Runs a program of the stand-in, alone in place of all its ranks."""
    folder = tmp_path_factory.mktemp('standin')
    subprocess.run(['cc', '-O1', '-std=gnu11', '-Wall', '-Wextra', '-Werror',
                    '-DALONE', '-o', folder / 'standin', SRC, '-lm'],
                   check=True)
    for name in programs.PROGRAMS:
        (folder / name).symlink_to('standin')

    def run(program, *arguments, ranks=1, nodes=1, fault='fast', **more):
        return subprocess.run(
            [folder / program, *arguments], capture_output=True, text=True,
            cwd=folder, env={
                **os.environ, 'STANDIN_RANKS': str(ranks),
                'STANDIN_NODES': str(nodes), 'STANDIN_FAULT': fault, **more})
    run.folder = folder
    return run


def test_every_case_of_the_matrix_is_launched_and_parsed(big, standin):
    """The command line of each, to the stand-in, through the parser."""
    seen = {}
    for case in big:
        ranks = case['gpus'] * case['nodes']
        key = (case['program'], ranks, *case['arguments'])
        if key not in seen:
            done = standin(case['program'], *case['arguments'], ranks=ranks,
                           nodes=case['nodes'])
            assert done.returncode == 0, done
            seen[key] = parser.read_output(done.stdout)
        out = seen[key]
        assert out.ranks == ranks and len(out.hosts) == case['nodes']
        assert out.program == case['program']
        answer = {r.metric if r.size is None else f'{r.metric}@{r.size}B'
                  for r in parser.records_of_output(out)}
        assert set(case['planned']) <= answer, case
        assert len(case['planned']) > 10 or 'alltoallv' in case['program']


def test_addresses_of_gpus_are_recorded_and_those_of_the_stand_in_are_not(
        big, standin):
    done = standin('all_reduce_perf', '-b', '8', '-e', '1K', '-f', '2', ranks=4,
                   nodes=2)
    assert [address for _, address in parser.read_output(done.stdout).addresses] == [
        '0000:10:00', '0000:11:00', '0000:12:00', '0000:13:00']
    for case in big:
        assert case['addresses'] == [
            '', 'n1:0000:10:00,0000:11:00 n2:0000:10:00,0000:10:00']
        assert case['reasons'] == ['2 ranks of n2 shared the GPU 0000:10:00']


def test_the_matrix_has_what_it_should(big):
    layouts = {(c['nodes'], c['gpus']) for c in big
               if c['check'].startswith('NcclCollective')}
    assert layouts == {(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8),
                       (8, 8), (16, 8), (32, 8), (64, 8)}
    # With ranks that are no power of two it prints nothing and ends with 0.
    assert {c['program'] for c in big} == set(programs.PROGRAMS) - {'hypercube_perf'}
    messages = [c['environment'] for c in big]
    for name, value in (('NCCL_ALGO', 'NVLS'), ('NCCL_CROSS_NIC', '2'),
                        ('NCCL_COLLNET_ENABLE', '1'), ('NCCL_PROTO', 'LL'),
                        ('NCCL_NVLS_ENABLE', '0')):
        assert any(env.get(name) == value for env in messages), name
    for case in big:
        assert case['tasks'] == case['nodes'] * case['gpus'], case
        assert case['threads'] * case['tasks'] == 112 * case['nodes']
    # No two cases have one name.
    names = Counter((c['check'], c['params']) for c in big)
    assert max(names.values()) == 1
    assert any(c['params'] == 'gpus=8 nodes=2 program=all_reduce_perf'
               for c in big)
    quick = {(c['program'], c['nodes'], c['gpus']) for c in big
             if 'quick' in c['modes']}
    assert quick == {(p, n, 8) for n in (1, 2)
                     for p in ('all_reduce_perf', 'sendrecv_perf')}


def test_amd_has_its_own(tmp_path):
    cases = matrix(ROOT / 'site-configs' / 'lumi')
    assert {c['where'] for c in cases} == {'lumi-g'}
    assert not any('NVLS' in str(c['environment']) for c in cases)
    # The site has to declare these.
    assert not any({'NCCL_COLLNET_ENABLE'} & {*c['environment']}
                   or c['environment'].get('NCCL_PROTO') == 'LL128' for c in cases)
    file = tmp_path / 'system.py'
    file.write_text((ROOT / 'site-configs' / 'lumi' / 'system.py').read_text() + '''
for environment in site_configuration['environments']:
    if 'nccl' in environment['extras'].get('programs', ()):
        environment['features'] = [*environment['features'], 'll128']
''')
    assert any(c['environment'].get('NCCL_PROTO') == 'LL128' for c in matrix(tmp_path))
    assert {c['nodes'] for c in cases} == {1, 2, 4, 8, 16}
    assert 'alltoallv_perf' in {c['program'] for c in cases}


def test_without_a_gpu_there_is_no_case(tmp_path):
    (tmp_path / 'system.py').write_text(
        SITE.replace("'gpu_nvidia'", ''))
    assert matrix(tmp_path) == []


def test_partitions_with_fewer_gpus_are_left_out(tmp_path):
    second = """, {
        'name': 'small', 'scheduler': 'local', 'launcher': 'mpirun',
        'environs': ['nccl'], 'features': ['gpu_nvidia'],
        'processor': {'num_cpus': 16, 'num_cpus_per_core': 1},
        'devices': hardware.reframe_devices(('A100-SXM4', 4)),
        'extras': {'max_nodes': 2, 'launcher_pin': ['--pin={cpus}']}}]}],"""
    (tmp_path / 'system.py').write_text(SITE.replace('}]}],', '}' + second))
    cases = matrix(tmp_path)
    assert {(c['nodes'], c['gpus']) for c in cases
            if c['where'] == 'small'} == {(1, 1), (1, 2), (1, 4), (2, 4)}
    assert {c['gpus'] for c in cases if c['nodes'] == 1} == {1, 2, 4, 8}


def test_the_table_of_programs_is_that_of_family_yaml():
    assert set(programs.PROGRAMS) == set(
        families.families()['nccl'].programs)


def test_what_an_installation_has(tmp_path):
    for name in ('bin/all_reduce_perf', 'bin/new_thing_perf',
                 'bin/alltoall_perf_mpi', 'bin/other'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('')
        path.chmod(0o755)
    assert programs.find_installed_programs(tmp_path) == {
        'all_reduce_perf': str(tmp_path / 'bin/all_reduce_perf'),
        'new_thing_perf': str(tmp_path / 'bin/new_thing_perf'),
        'alltoall_perf': str(tmp_path / 'bin/alltoall_perf_mpi')}


# ------------------------------------------------------------- physics

H100 = hardware.bandwidth_extras(hardware.reframe_devices(
    ('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8)))


MESH = hardware.bandwidth_extras(hardware.reframe_devices(('MI300X', 8)))


@pytest.mark.parametrize('program, nodes, gpus, site, maximum', [
    # In a switch that reduces, each GPU sends the data once: 2(n-1)/n.
    ('all_reduce_perf', 1, 8, H100, 787.5), ('all_reduce_perf', 1, 2, H100, 450),
    ('all_gather_perf', 1, 8, H100, 450), ('sendrecv_perf', 1, 8, H100, 450),
    ('all_reduce_perf', 2, 8, H100, 750), ('broadcast_perf', 2, 8, H100, 400),
    # 7/8 of what each rank has goes to others, half of it to other nodes.
    ('alltoall_perf', 2, 8, H100, 93.75), ('hypercube_perf', 2, 8, H100, 750),
    # Without a switch a GPU has links to each of the others.
    ('all_gather_perf', 1, 2, MESH, 64), ('all_gather_perf', 1, 8, MESH, 448),
    # Unknown hardware, unequal parts, one GPU.
    ('all_reduce_perf', 2, 8, {}, None), ('alltoallv_perf', 2, 8, H100, None),
    ('all_reduce_perf', 1, 1, H100, None)])
def test_limits_by_links_and_nics(program, nodes, gpus, site, maximum):
    limit = physics.busbw_limit(program, nodes, gpus, site)
    assert limit == maximum or limit[0] == pytest.approx(maximum)


def test_measured_values_are_within_the_limits():
    """Above the ring, by reduction in the switch."""
    for nodes, busbw, item in (
            (1, 483, [('H100-SXM5-80GB', 8)]),
            (2, 487, [('H100-SXM5-80GB', 8), ('EFA-100', 32)]),
            (1, 839, [('B200-SXM', 8)]), (1, 230, [('A100-SXM4', 8)])):
        site = hardware.bandwidth_extras(hardware.reframe_devices(*item))
        assert busbw < physics.busbw_limit('all_reduce_perf', nodes, 8, site)[0]


@pytest.mark.parametrize('params, size, busbw, noted', [
    ('gpus=8 nodes=2 program=all_reduce_perf', 1 << 30, 199, True),
    ('gpus=8 nodes=2 program=all_reduce_perf', 1 << 30, 201, False),
    ('gpus=8 nodes=2 program=all_reduce_perf', 1 << 20, 1, False),
    ('gpus=8 nodes=2 program=alltoall_perf', 1 << 30, 1, False),
    ('gpus=8 nodes=1 program=all_reduce_perf', 1 << 30, 224, True),
    ('gpus=1 nodes=1 program=all_reduce_perf', 1 << 30, 1, False)])
def test_a_busbw_below_half_of_a_ring_is_noted(params, size, busbw, noted):
    note = limits.low_values_note('nccl', {f'busbw@{size}B': busbw}, params, H100)
    assert bool(note) is noted


def test_a_transport_says_where_it_is_from():
    """Sites give their network's variables a source and a date."""
    env = {'name': 'nccl', 'features': [], 'extras': {'transport': {
        'name': 'x', 'env': {}, 'evidence': 'y', 'source': 'a page',
        'date': '2026-11'}}}
    features.check_site_features({'environments': [env]}, 'here')
    env['extras']['transport']['sauce'] = ''
    with pytest.raises(features.GlossaryError, match='sauce'):
        features.check_site_features({'environments': [env]}, 'here')


# ------------------------------------------------------------- guards

#: Folder of a run -> (options of the stand-in, message of the guard). The
#: first word is the check: plain, or with a choice.
JUDGED = {
    'plain good': ({}, None),
    'plain wrong': ({'fault': 'wrong'}, 'arrived wrong: 1 wrong element'),
    'plain type': ({'fault': 'type'}, 'the data type in the table: int32; '
                   'requested: float'),
    'plain size': ({'fault': 'size'}, 'largest size in the table: 536870912;'),
    'plain ranks': ({'ranks': 8}, 'ranks in the table: 8; requested: 16'),
    'plain nodes': ({'nodes': 1}, 'nodes in the table: 1; requested: 2'),
    'plain program': ({'program': 'broadcast_perf'}, 'program in the table: '
                      'broadcast_perf; requested: all_reduce_perf'),
    'plain op': ({'more': ['-o', 'max']}, 'reduction in the table: max; '
                 'requested: sum'),
    'plain silent': ({'fault': 'silent'}, '0 of 16 processes left a log of '
                     'NCCL'),
    'plain socket': ({'fault': 'socket'}, 'NCCL used TCP (NET/Socket), '
                     'although the node has infiniband'),
    'plain fast': ({'rate': '3000'}, 'exceeds the physical limit of'),
    'sharp=on no': ({}, 'sharp=on was requested, but no channel of NCCL '
                    'uses it; channels in the log: NET/STANDIN'),
    'sharp=on yes': ({'NCCL_COLLNET_ENABLE': '1'}, None),
    'net=all yes': ({}, None),
    'net=all no': ({'fault': 'p2p'}, 'NCCL_P2P_DISABLE is set, but 16 chann'
                   'els of NCCL use P2P'),
}


def test_messages_of_the_guards(standin, tmp_path):
    site = tmp_path / 'site'
    site.mkdir()
    (site / 'system.py').write_text(SITE)
    for name, (message, _) in JUDGED.items():
        folder = tmp_path / name
        folder.mkdir()
        message = dict(message)
        fault, rate = message.pop('fault', ''), message.pop('rate', '300')
        program = message.pop('program', 'all_reduce_perf')
        more = message.pop('more', [])
        ranks, nodes = message.pop('ranks', 16), message.pop('nodes', 2)
        done = standin(
            program, '-b', '8', '-e', '1G', '-f', '2', '-n', '0', *more,
            ranks=ranks, nodes=nodes, fault=fault, STANDIN_RATE=rate,
            NCCL_DEBUG='INFO', NCCL_DEBUG_FILE=f'{folder}/nccl.%h.log',
            **message)
        (folder / 'out').write_text(done.stdout)
        for one in [*folder.glob('nccl.*.log')]:     # one rank told
            for rank in range(15):
                one.with_name(f'nccl.{rank}.log').write_text(one.read_text())
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / 'judge.py', site,
         *(tmp_path / name for name in JUDGED)],
        env={**os.environ, 'PYTHONPATH': str(ROOT),
             'PLUMBLINE_SITE': str(site)},
        capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    for name, line in json.loads(done.stdout).items():
        expected = JUDGED[name][1]
        if expected is None:
            assert line['busbw@1073741824B'] > 200, (name, line)
            assert line['busbw_limit@1073741824B'] == 750
        else:
            assert expected in line, (name, line)


# ------------------------------------------------------------- options

def dry_run(suite, *words):
    suite.write_site(suite.tmp / 'big', SITE)
    return suite.reframe(
        '--dry-run', '-Sbringup=1', *of_family('nccl'), '-n', '^NcclCollective%', '-E',
        'program == "all_reduce_perf" and layout.nodes == 2', *words)


def test_options_reach_the_program(suite):
    done = dry_run(suite, "-SNcclCollective.options=-d half --agg_iters=8 -o 'max'")
    assert done.returncode == 0, done.stdout
    [script] = suite.tmp.rglob('NcclCollective_*/rfm_job.sh')
    assert (' -n 20 -w 5 -c 1 -t 1 -g 1 -d half --agg_iters=8 -o max\n'
            in script.read_text())


#: Options that decide what passes -> why they are refused.
REFUSED = {
    '-e 8M': 'options: remove -e: use the setting max_size',
    '-n5': 'options: remove -n5: use the setting iterations',
    '--check 0': 'remove --check: data are always checked',
    '-g 2': 'options: remove -g: each rank has one GPU',
    '-N 2': 'options: remove -N: use the setting repetitions',
    "-d 'half": 'No closing quotation'}


def test_options_that_decide_what_passes_are_refused(suite):
    done = dry_run(suite, f'-PNcclCollective.options={",".join(REFUSED)}')
    assert f'{len(REFUSED)} failure(s)' in done.stdout, done.stdout
    for why in REFUSED.values():
        assert why in done.stdout, done.stdout


@pytest.mark.parametrize('setting, expected', [
    ('iterations=0', '0 is too small; the smallest value is 1'),
    ('max_size=4', 'max_size 4 is below min_size 8')])
def test_settings_that_decide_what_passes_are_refused(suite, setting, expected):
    done = dry_run(suite, f'-SNcclCollective.{setting}')
    assert expected in done.stdout and done.returncode == 1, done.stdout


# ------------------------------------------------------------- on a cluster

#: The devcluster with nodes that say they have two GPUs: the stand-in runs.
BOX = '''
import runpy
site_configuration = runpy.run_path({system!r})['site_configuration']
for environment in site_configuration['environments']:
    if 'mpi' in environment['features']:
        environment['features'] += ['nccl_tests', 'alltoallv_perf', 'sharp']
        environment['extras']['programs']['nccl'] = {{'source': 'embedded'}}
        environment['extras']['transport'] = {{
            'name': 'the network of the stand-in',
            'env': {{'NCCL_CROSS_NIC': '1'}},
            'evidence': 'Using network STANDIN',
            'source': 'checks/nccl/src/standin.c', 'date': '2026-11'}}
for partition in site_configuration['systems'][0]['partitions']:
    partition['features'] = ['gpu_nvidia']
    partition['devices'] = [
        {{'type': 'gpu', 'arch': 'none', 'model': 'stand-in',
          'num_devices': 2}},
        {{'type': 'nic', 'arch': 'infiniband', 'model': 'stand-in',
          'num_devices': 1}}]
    if len({cpus}) == 2:
        partition['extras']['gpu_cores'] = {cpus}
'''

#: One CPU of this machine for each of the two GPUs, if it has two.
CPUS = [str(cpu) for cpu in sorted(os.sched_getaffinity(0), reverse=True)[:2]]


@pytest.fixture
def box(suite):
    site = suite.tmp / 'site'
    site.mkdir()
    (site / 'system.py').write_text(BOX.format(cpus=CPUS, system=str(
        ROOT / 'site-configs' / 'devcluster' / 'system.py')))

    def start(cluster, *options, **more):
        run = suite.on(
            cluster, '-r', '-Sbringup=1', *of_family('nccl'), *options, site=str(site),
            **more)
        text, _ = run.communicate()
        return run.returncode, text
    suite.box = start
    return suite


@pytest.mark.cluster
def test_cases_on_several_nodes_by_both_launchers(box, cluster):
    """One rank a GPU on two and four nodes, and SHARP."""
    code, text = box.box(
        cluster, '-n', 'NcclCollective.*(=all_reduce.*4x2|=alltoallv.*2x2)',
        '--system=devcluster:slurm-srun')
    assert code == 0, text
    code, text = box.box(cluster, '-n', 'NcclNetwork.*=net=all.sharp',
                         '--system=devcluster:slurm-mpirun')
    assert code == 0, text
    ran = {(r['partition'], r['check'].split()[0], r['program'],
            r['num_nodes'], r['num_tasks']) for r in box.records}
    assert ran == {
        ('slurm-srun', 'NcclCollective', 'all_reduce_perf', '4', '8'),
        ('slurm-srun', 'NcclCollective', 'alltoallv_perf', '2', '4'),
        ('slurm-mpirun', 'NcclNetwork', 'all_reduce_perf', '2', '4')}
    assert {r['emulated'] for r in box.records} == {'1'}
    # On four nodes each rank had the core of its GPU, on all nodes the same ones.
    bindings = {r['binding'] for r in box.records if r['num_tasks'] == '8'}
    assert len(CPUS) < 2 or {one.partition(':')[2] for each in bindings
                             for one in each.split()} == {
        str(RangeSet(','.join(CPUS)))}
    assert {r['metric'] for r in box.records} >= {
        'time', 'algbw', 'busbw', 'time_in_place', 'wrong', 'busbw_average'}


@pytest.mark.cluster
def test_another_transport_fails_and_leaves_no_values(box, cluster):
    code, text = box.box(
        cluster, '-n', 'NcclCollective.*=all_reduce.*2x2',
        '--system=devcluster:slurm-srun', STANDIN_FAULT='socket')
    assert code == 1, text
    assert 'the network of the stand-in was requested' in re.sub(
        r'\s+', ' ', text)
    assert 'busbw' not in {r['metric'] for r in box.records}


@pytest.mark.parametrize('nvls', [True, False])
def test_a_switch_that_reduces_is_a_property_of_the_model(tmp_path, monkeypatch, nvls):
    (tmp_path / 'hardware.yaml').write_text(
        'gpu: {B300: {arch: sm_103, link: 900, source: x, date: 2026-01, '
        f'nvls: {str(nvls).lower()}}}}}')
    monkeypatch.setattr(variants.places, 'current_site_folder', lambda: tmp_path)
    monkeypatch.setattr(variants, 'partitions_with_gpus', lambda: [SimpleNamespace(
        devices=[SimpleNamespace(arch='sm_103', info={'model': 'B300'})],
        environs=[])])
    assert ('algo=NVLS' in variants.supported_choices(1)) == nvls


def test_a_choice_is_measured_only_in_partitions_that_support_it(tmp_path):
    """MI250X has no LL128, and only H100 reduces in its switches."""
    partition = """, {
        'name': '%s', 'scheduler': 'local', 'launcher': 'mpirun', 'environs': ['nccl'],
        'features': ['%s'], 'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
        'devices': hardware.reframe_devices(('%s', 8)), 'extras': {
            'max_nodes': 2, 'launcher_pin': ['--pin={cpus}']}}"""
    (tmp_path / 'system.py').write_text(SITE.replace('}]}],', '}' + ''.join(
        partition % values for values in (
            ('amd', 'gpu_amd', 'MI250X-GCD'), ('old', 'gpu_nvidia', 'A100-SXM4'))
        ) + ']}],', 1))
    places_of_choice = {}
    for case in matrix(tmp_path):
        if case['check'] == 'NcclChoice':
            places_of_choice.setdefault(
                case['params'].partition('choice=')[2].split()[0], set()).add(
                case['where'])
    assert places_of_choice['proto=LL128'] == {'gpu', 'old'}
    assert places_of_choice['algo=NVLS'] == places_of_choice['nvls=off'] == {'gpu'}
    assert places_of_choice['algo=Ring'] == {'gpu', 'amd', 'old'}
