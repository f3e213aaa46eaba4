"""tensorload under a real launcher, on a real store: what it does, and what
is said when something breaks."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from checks.serving.plan import Clients, Plan, Program, Step
from checks.smartredis import parser
from checks.stores import aimodule
from config import launch
from tests.conftest import ROOT
from tests.serving.test_service import CONFIG, Job, real

BUILD = ROOT / 'checks' / 'smartredis' / 'src' / 'build.sh'

MPI = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
       'OMPI_MCA_mpi_yield_when_idle': '1'}


@pytest.fixture(scope='session')
def tools(once):
    """Folder of tensorload and the AI module, built without a warning."""
    if not shutil.which('mpicc') or not shutil.which('mpirun'):
        pytest.skip('no MPI')

    def make(folder):
        for command in ([str(BUILD), str(folder / 'tensorload')],
                        ['sh', '-c', aimodule.build_command(
                            str(folder / 'ai.so'))]):
            done = subprocess.run(
                command, capture_output=True, text=True,
                env={**os.environ, 'CFLAGS': '-Werror'})
            assert done.returncode == 0, done.stderr
    return once('tensorload', make)


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(plan):
        jobs.append(Job(tmp_path / f'job{len(jobs)}', replace(
            plan, launcher=tuple(launch.step('mpirun', 'openmpi', 1))),
            **MPI))
        return jobs[-1]

    yield begin
    for one in jobs:
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)
        one.process.wait()
        shutil.rmtree(one.scratch, ignore_errors=True)


def loop(tools, store, mode, *options, config='', servers=1, ranks=2,
         module=False, limit=30.0, more=()):
    """Ranks of one program beside servers, and other programs with them."""
    lines = CONFIG + config
    if module:
        lines += f'loadmodule {aimodule.load_line(str(tools / "ai.so"))}\n'
    if servers > 1:
        lines += 'cluster-enabled yes\n'
    program = (str(tools / 'tensorload'), mode, '--service', '{service}',
               '--limit', '5', *(() if module else ('--plain',)), *options)
    return Plan(
        replace(real(store, instances=servers, cluster=servers > 1),
                config=lines),
        (Clients(instances=ranks), *(role for role, _ in more)),
        (Step('measure', (Program(program, mpi=True), *(
            Program((*program[:1], *command), role=role.name, mpi=True)
            for role, command in more)), limit),))


def runs(one):
    """What the programs of a job said."""
    assert one.end(90) == 0, one.said()
    assert not one.leftovers()
    text = (one.folder / 'out').read_text()
    return parser.read(text.partition('\n')[2])


def fault(one):
    """The one line of a job that fails and leaves nothing."""
    assert one.end(90) == 1
    lines = one.said()
    assert len(lines) == 1, (one.folder / 'err').read_text()
    assert not one.leftovers()
    return lines[0]


def kill(one, word):
    found = one.processes(word)
    assert found
    for pid in found[:1]:
        os.kill(pid, signal.SIGKILL)


# It works ------------------------------------------------------------------

@pytest.mark.parametrize('module, servers', [(False, 1), (True, 1),
                                             (True, 3)])
def test_four_ranks_and_their_tensors(tools, store, start, module, servers):
    (run,) = runs(start(loop(
        tools, store, 'throughput', '--bytes', '65536', '--iterations', '5',
        '--folder', '{output}.ranks', ranks=4, module=module,
        servers=servers)))
    assert (run.ranks, run.iterations, run.bytes) == (4, 5, 65536)
    assert run.verified == 20 and run.moved > 0
    assert run.functions['put_tensor'].calls == 20
    assert run.commands == ('AI.TENSORSET' if module else 'SET')


def aggregation(tools, store, iterations, *options, **more):
    """Two producers and a consumer."""
    common = ('--bytes', '4096', '--tensors', '3', '--iterations',
              str(iterations))
    consumer = ('consumer', '--service', '{service}', '--plain', *common,
                '--producers', '2', '--client-threads', '2', '--limit', '5',
                *options)
    return loop(tools, store, 'producer', *common,
                more=((Clients(name='consumer'), consumer),), **more)


@pytest.mark.parametrize('servers', [1, 3])
def test_producers_and_a_consumer(tools, store, start, servers):
    found = {run.mode: run for run in runs(start(aggregation(
        tools, store, 4, servers=servers)))}
    assert found['producer'].functions['append_to_list'].calls == 8
    assert found['consumer'].functions['get_list'].calls == 4
    assert found['consumer'].verified == 8


def test_inference_with_the_module(tools, store, start, tmp_path):
    (tmp_path / 'model').write_bytes(aimodule.blob('tiny'))
    (tmp_path / 'script').write_text(aimodule.SCRIPT)
    (run,) = runs(start(loop(
        tools, store, 'inference', '--model', str(tmp_path / 'model'),
        '--script', str(tmp_path / 'script'), '--side', '16', '--classes',
        '10', '--iterations', '3', '--num-devices', '2', module=True)))
    assert run.functions['run_model'].calls == 6
    assert run.functions['warmup'].calls == 2 and run.verified == 8


def test_smartredis_itself(tools, store, start):
    """With SMARTREDIS_LIBRARY: the shared object of the wheel."""
    path = os.environ.get('SMARTREDIS_LIBRARY')
    if not path:
        pytest.skip('SMARTREDIS_LIBRARY is not set')
    plan = loop(tools, store, 'throughput', '--colocated', '--bytes', '65536',
                '--iterations', '5', '--library', path, module=True)
    config = plan.server.config.replace('bind {address}', 'unixsocket '
                                        '{data}/socket').replace(
        'port {port}', 'port 0').replace('requirepass {password}', '').replace(
        'masterauth {password}', '')
    (run,) = runs(start(replace(plan, server=replace(
        plan.server, config=config, socket=True, password=False))))
    assert run.client == 'smartredis' and run.verified == 10


def test_a_library_that_is_none(tools, store, start, tmp_path):
    (tmp_path / 'nothing.so').write_text('')
    line = fault(start(loop(tools, store, 'throughput', '--library',
                            str(tmp_path / 'nothing.so'))))
    assert 'nothing.so: ' in line


# It breaks -----------------------------------------------------------------

ENDLESS = ('--iterations', '100000000')


@pytest.mark.parametrize('servers', [1, 3])
def test_a_server_that_dies_in_the_middle(tools, store, start, servers):
    one = start(loop(tools, store, 'throughput', *ENDLESS, servers=servers))
    one.wait_for('tensorload\0throughput')
    kill(one, f'{store.binary.name} ')
    line = fault(one)
    assert f'{store.name} (server ' in line
    assert 'was killed by signal 9' in line


def test_a_consumer_that_dies(tools, store, start):
    one = start(aggregation(tools, store, 100000000))
    # The program, and not a launcher whose arguments name it.
    def consumers():
        return [pid for pid in one.processes('tensorload\0consumer')
                if os.readlink(f'/proc/{pid}/exe').endswith('/tensorload')]

    one.wait_for('tensorload\0consumer')
    for _ in range(400):
        if consumers():
            break
        time.sleep(0.05)
    for pid in consumers():
        os.kill(pid, signal.SIGKILL)
    assert 'the ranks of consumer ended with exit code' in fault(one)


def test_producers_without_a_consumer_end_in_their_limit(tools, store, start):
    line = fault(start(loop(tools, store, 'producer', '--limit', '0.5')))
    assert 'the ranks of client ended with exit code 1' in line
    assert 'of 0 datasets after 0.5 s: is the consumer alive?' in line


def test_a_model_that_is_missing(tools, store, start):
    line = fault(start(loop(tools, store, 'inference', '--limit', '0.5',
                            '--side', '16', module=True)))
    assert 'the model resnet_model is not in the database' in line


def test_a_store_without_memory(tools, store, start):
    line = fault(start(loop(tools, store, 'throughput', '--bytes',
                            '8000000', config='maxmemory 4mb\n')))
    assert 'the store is full: its memory limit is below the data' in line


def test_a_store_without_the_module(tools, store, start):
    plan = loop(tools, store, 'throughput')
    (step,) = plan.steps
    (program,) = step.programs
    plan = replace(plan, steps=(replace(step, programs=(replace(
        program, command=tuple(word for word in program.command
                               if word != '--plain')),)),))
    assert "ERR unknown command" in fault(start(plan))
