"""Where ranks run: what they say, and what real launchers do of it."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import LIMIT, OSU, ROOT

from checks.core import placement
from checks.machine import gpus
from checks.machine.software import identify_mpi
from config.sites import launch
from postprocess import records, results
from tests.serving.job import build_programs


def as_rank(*words: str) -> list[str]:
    """A command that runs a program as a rank."""
    return [str(ROOT / 'checks' / 'core' / 'src' / 'rank.sh'), str(build_programs()),
            '', 'mpirun', *words]


@pytest.mark.parametrize('err, text', [
    ('plumbline-rank n2 1 1\nplumbline-rank n1 1 1\nplumbline-rank n1 0 0\n'
     'plumbline-rank n2 0 0\n', 'n1:0-1 n2:0-1'),
    ('plumbline-rank n1 0-1,6 0,1,6\nplumbline-rank n1 2-3 2,3\n', 'n1:0-3,6'),
    ('plumbline-rank n1 0-3 0,1\n' * 3, 'n1:0-3'),
    ('plumbline-rank n1\nplumbline-rank n1 0 0\n', ''), ('', ''),
])
def test_cpus_of_the_ranks_of_each_node(err, text):
    assert placement.format_binding(placement.parse_rank_lines(err)) == text


#: Prints what nvidia-smi and rocm-smi print for four GPUs.
SMI = {'nvidia-smi': '''#!/bin/bash
gpus=(07:00.0 0F:00.0 47:00.0 4E:00.0)
case $* in
'-i 7'*) echo 'No devices were found' ;;
*query-gpu=index*) printf '%s\\n' 0 1 2 3 ;;
-i*) echo "00000000:${gpus[$2]}" ;;
esac
''', 'rocm-smi': '''#!/bin/bash
for n in 0 1 2 3; do
    if [ "$1" != -d ] || [ "$2" = $n ]; then
        echo "GPU[$n]          : PCI Bus: 0000:C$n:00.0"
    fi
done
'''}


@pytest.mark.parametrize('variables, expected', [
    ({}, '-'),
    ({'SLURM_LOCALID': '2'}, '00000000:47:00.0'),
    ({'PALS_LOCAL_RANKID': '1', 'SLURM_LOCALID': '0'}, '00000000:0F:00.0'),
    # Polaris: the GPUs in reverse order.
    ({'PALS_LOCAL_RANKID': '0', 'CUDA_VISIBLE_DEVICES': '3,2,1,0'},
     '00000000:4E:00.0'),
    ({'SLURM_LOCALID': '3', 'CUDA_VISIBLE_DEVICES': '1'}, '00000000:0F:00.0'),
    ({'PLUMBLINE_GPUS': 'rocm', 'SLURM_LOCALID': '3'}, '0000:C3:00.0'),
    ({'PLUMBLINE_GPUS': 'rocm', 'SLURM_LOCALID': '5',
      'ROCR_VISIBLE_DEVICES': '2,3'}, '0000:C3:00.0'),
    # One GPU for each rank: its number may be that inside a cgroup.
    ({'PLUMBLINE_GPUS': 'rocm', 'SLURM_LOCALID': '5',
      'ROCR_VISIBLE_DEVICES': '0'}, '-'),
    # A job that has fewer GPUs: nvidia-smi prints no address.
    ({'SLURM_LOCALID': '0', 'CUDA_VISIBLE_DEVICES': '7'}, '-')])
def test_each_rank_reports_its_gpu(tmp_path, variables, expected):
    for name, text in SMI.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        as_rank('env'), capture_output=True, text=True, check=True,
        env={'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'PLUMBLINE_GPUS': 'cuda',
             **variables})
    (host, (gpu,)), = gpus.parse_gpu_lines(done.stderr).items()
    assert gpu == expected
    assert gpus.format_gpus({host: [gpu]}) == f'{host}:{expected}'
    assert ('\nLOCAL_RANK=' in '\n' + done.stdout) == bool(
        {'SLURM_LOCALID', 'PALS_LOCAL_RANKID'} & {*variables})


def test_a_rank_reports_the_cpus_near_its_gpu(tmp_path):
    devices = sorted(Path('/sys/bus/pci/devices').glob('*:*/local_cpulist'))
    if not devices:
        pytest.skip('no PCI device')
    smi = tmp_path / 'nvidia-smi'
    # Any device of this machine stands for a GPU.
    smi.write_text(f'#!/bin/bash\necho 0000{devices[0].parent.name.upper()}\n')
    smi.chmod(0o755)
    done = subprocess.run(
        as_rank('true'), capture_output=True, text=True, check=True,
        env={'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'PLUMBLINE_GPUS': 'cuda',
             'SLURM_LOCALID': '0', 'CUDA_VISIBLE_DEVICES': '0'})
    words = re.search('plumbline-gpu .*', done.stderr)[0].split()
    assert words[2] == f'0000{devices[0].parent.name.upper()}'
    assert words[4:] == devices[0].read_text().split()


def test_a_rank_binds_itself_to_the_cores_of_its_gpu():
    cpus = sorted(os.sched_getaffinity(0))

    def bound_rank(*words, **variables):
        return subprocess.run([*words, *as_rank('true')], text=True,
                              capture_output=True,
                              env={'PATH': os.environ['PATH'], **variables})

    near = {'PLUMBLINE_RANK_CPUS': f'{cpus[0]}:{cpus[-1]}'}
    # The launcher's own binding does not matter.
    for words in ((), ('taskset', '-c', str(cpus[0]))):
        done = bound_rank(*words, **near, SLURM_LOCALID='1')
        (_, (rank,)), = placement.parse_rank_lines(done.stderr).items()
        assert rank.cpus == (cpus[-1],)
    done = bound_rank(**near)
    assert done.returncode == 1
    assert 'gpu_cores: the launcher does not pass a rank its number' in done.stderr
    done = bound_rank(PLUMBLINE_RANK_CPUS='100000', SLURM_LOCALID='0')
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert 'gpu_cores: rank 0 of the node cannot run on the CPUs 100000' in done.stderr


def test_threads_that_shared_cores():
    there = placement.parse_rank_lines('plumbline-rank a 0-1 0,1\n' * 2)
    assert placement.describe_core_sharing(there, 1) == ''
    assert placement.describe_core_sharing(there, 2) == '4 threads shared 2 cores'


def test_a_rank_says_where_it_runs():
    """From inside; no process is started for it."""
    one = max(os.sched_getaffinity(0))
    done = subprocess.run(
        ['taskset', '-c', str(one), *as_rank('echo', 'program')], text=True,
        capture_output=True)
    (host, (rank,)), = placement.parse_rank_lines(done.stderr).items()
    assert host == os.uname().nodename and done.stdout == 'program\n'
    assert rank.cpus == (one,) and len(rank.cores) == 1
    path = Path(f'/sys/devices/system/cpu/cpu{one}/topology/physical_package_id')
    assert rank.sockets == ({int(path.read_text())} if path.exists() else set())


def test_a_node_that_nobody_described():
    """C11: with a guess of one core it took one rank."""
    part = SimpleNamespace(fullname='lake:cpu',
                           processor=SimpleNamespace(num_cores=None))
    with pytest.raises(placement.PlacementError,
                       match="partition lake:cpu has no 'processor' with"):
        placement.cores_per_node(part)


def test_a_launcher_that_cannot_leave_ranks_unbound_is_refused(monkeypatch):
    monkeypatch.setattr(placement, 'mpi_of_partition', lambda part: '')
    part = SimpleNamespace(
        fullname='lake:gpu', extras={'gpu_cores': ['0-3', '4-7']},
        processor=SimpleNamespace(num_cores=8, num_cpus_per_core=1, num_sockets=1,
                                  num_cpus_per_socket=8), launcher_type=SimpleNamespace(
            registered_name='clush'))
    check = SimpleNamespace(current_partition=part, threads=1, num_tasks_per_node=2,
                            partition_launcher_extra_name=lambda: 'gpu_cores')
    with pytest.raises(placement.PlacementError, match='lake:gpu needs launcher '
                       'options for gpu_cores, and those of clush with no MPI are '
                       'unknown; add them to UNBOUND in config/sites/launch.py'):
        placement.launcher_options(check)
    part.launcher_type.registered_name = 'srun'
    assert placement.launcher_options(check) == ['--cpu-bind=none']


@pytest.mark.parametrize('extra, launcher, mpi, extras, expected', [
    ('launcher_pin', 'srun', 'openmpi 5', {}, launch.PIN['srun']),
    # Of the site, also if it is empty.
    ('launcher_pin', 'srun', '', {'launcher_pin': []}, []),
    ('gpu_cores', 'srun', '', {'gpu_cores': ['0-3']}, launch.UNBOUND['srun']),
    ('gpu_cores', 'ibrun', 'intelmpi 21', {}, launch.UNBOUND['intelmpi']),
    ('launcher_free', 'srun', '', {}, None),
    # No mpirun is of PALS, and this launcher is of no MPI.
    ('launcher_pin', 'mpirun', 'cray-mpich 9', {}, None),
    ('launcher_pin', 'ibrun', 'intelmpi 21', {}, None),
])
def test_launcher_options_are_of_the_site_or_of_the_launcher(
        extra, launcher, mpi, extras, expected):
    assert launch.launcher_extra(extra, launcher, mpi, extras) == expected


def launchers() -> dict[str, Path]:
    """MPIs of this machine: those of PATH and those of the wheels."""
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    rows = [shutil.which('mpirun'), shutil.which('mpirun.mpich')]
    rows += [work / name / 'bin' / 'mpirun' for name in ('mpi', 'mpich')]
    return {str(path): Path(path) for path in rows
            if path and Path(path).exists()}


@pytest.mark.parametrize('mpirun', launchers().values(), ids=str)
@pytest.mark.parametrize('ranks, threads', [(2, 1), (1, 2)])
def test_a_launcher_binds_as_it_is_told(mpirun, ranks, threads):
    """Each rank has as many cores as threads, and has them for itself."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip('one CPU: nothing to choose from')
    flavour, version = identify_mpi(subprocess.run(
        [mpirun, '--version'], text=True, capture_output=True).stdout)
    options = [word.replace('{cpus}', str(threads))
               for word in launch.PIN[flavour]]
    done = subprocess.run(
        [mpirun, '-np', str(ranks), *options, *as_rank('true')], text=True,
        capture_output=True, timeout=LIMIT, env={
            **os.environ, 'OMPI_ALLOW_RUN_AS_ROOT': '1',
            'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'})
    assert done.returncode == 0, (flavour, version, done.stderr)
    (group,) = placement.parse_rank_lines(done.stderr).values()
    assert [len(rank.cores) for rank in group] == [threads] * ranks
    assert len(frozenset().union(*(r.cores for r in group))) == (
        ranks * threads)
    assert re.fullmatch(r'\S+:\S+', placement.format_binding({'n1': group}))


@pytest.mark.parametrize('mpirun', launchers().values(), ids=str)
def test_ranks_bind_themselves_under_a_launcher_that_binds_none(mpirun):
    numbers = sorted(os.sched_getaffinity(0), reverse=True)[:2]
    flavour, _ = identify_mpi(subprocess.run(
        [mpirun, '--version'], text=True, capture_output=True).stdout)
    done = subprocess.run(
        [mpirun, '-np', str(len(numbers)), *launch.UNBOUND[flavour], *as_rank('true')],
        text=True, capture_output=True, timeout=LIMIT, env={
            **os.environ, 'OMPI_ALLOW_RUN_AS_ROOT': '1',
            'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
            'PLUMBLINE_RANK_CPUS': ':'.join(map(str, numbers))})
    assert done.returncode == 0, done.stderr
    (group,) = placement.parse_rank_lines(done.stderr).values()
    assert [rank.cpus for rank in group] == [(cpu,) for cpu in sorted(numbers)]


def test_ranks_that_share_a_core_are_no_measurement(suite):
    """C9: recorded as inconclusive, and no reference is asked for."""
    one = str(min(os.sched_getaffinity(0)))
    # References of another case: this one has none, and does not fail.
    suite.write_references({'complete': True, 'OsuPt2pt': {
        '$index': ['params'], 'program=none': {}}})
    done = subprocess.run(
        ['taskset', '-c', one, ROOT / 'plumb', 'run', '--', *OSU,
         '-n', 'OsuPt2pt', '-E', 'program == "osu_latency"',
         '-SOsuPt2pt.max_size=64', '-SOsuPt2pt.iterations=20', '-SOsuPt2pt.warmup=2'],
        env={**os.environ, **suite.variables}, capture_output=True,
        text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '2 threads shared 1 core' in done.stdout
    assert {r['result'] for r in suite.records} == {'inconclusive'}
    # The reason stands wherever the result does.
    [result] = results.newest_results_of_test_cases(
        records.read(suite.tmp / 'perflogs'))
    assert result.result == 'inconclusive'
    assert '2 threads shared 1 core' in result.reason
    done = suite.plumb('verdict', '--junit', '-')
    assert 'message="inconclusive: 2 threads shared 1 core' in done.stdout
    assert '2 threads shared 1 core' in (
        suite.tmp / 'report' / 'index.html').read_text()


def test_the_launcher_of_a_step():
    one = launch.step_launch_command('mpirun', 'openmpi 5.0', 1)
    assert 'mpirun' in one and '--host' not in one
    assert launch.step_launch_command('mpirun', 'openmpi 5.0', 2)[-1] == '{slots}'
    assert launch.step_launch_command('srun', 'mpich 5.0', 2)[-1] == (
        '--nodelist={names}')
    assert launch.step_launch_command('ibrun', '', 2) == []
