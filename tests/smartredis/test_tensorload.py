"""tensorload under a real launcher, on a real store: what it does, and what
is said when something breaks."""
from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest

from checks.services.plan import Clients, Plan, Program, Step
from checks.smartredis import parser
from checks.smartredis.folders import read_sessions
from checks.stores import aimodule
from checks.stores.servers import Needs, make_server_role
from config.sites import launch
from tests.conftest import ROOT, free_port, require_program
from tests.serving.job import CONFIG, LOCAL, Job, redis_like
from tests.stores import resp

SRC = ROOT / 'checks' / 'smartredis' / 'src'

MPI = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
       'OMPI_MCA_mpi_yield_when_idle': '1'}


@pytest.fixture(scope='session')
def tools(once):
    """Folder of tensorload and the AI module, built without a warning."""
    if not shutil.which('mpicc') or not shutil.which('mpirun'):
        pytest.skip('no MPI')

    def make(folder):
        for command in ([str(SRC / 'build.sh'), str(folder / 'tensorload')],
                        ['sh', '-c', aimodule.module_build_command(
                            str(folder / 'ai.so'))]):
            done = subprocess.run(
                command, capture_output=True, text=True,
                env={**os.environ, 'CFLAGS': '-Werror',
                     'SMARTREDIS_PREFIX': ''})
            assert done.returncode == 0, done.stderr
    return once('tensorload', make)


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(plan):
        words = launch.step_launch_command('mpirun', 'openmpi', 1, mpi=True)
        jobs.append(Job(tmp_path / f'job{len(jobs)}', plan,
                        replace(LOCAL, mpi_words=words), **MPI))
        return jobs[-1]

    yield begin
    for one in jobs:
        one.kill()


def loop(tools, store, mode, *options, config='', servers=1, ranks=2,
         module=False, limit=30.0, more=()):
    """Ranks of one program beside servers, and other programs with them."""
    lines = CONFIG + config
    if module:
        lines += f'loadmodule {aimodule.module_load_line(str(tools / "ai.so"))}\n'
    if servers > 1:
        lines += 'cluster-enabled yes\n'
    program = (str(tools / 'tensorload'), mode, '--service', '{service}',
               *(() if '--limit' in options else ('--limit', '20')),
               *(() if module else ('--plain',)), '--folder',
               '{output}.ranks', *options)
    return Plan(
        replace(redis_like(store, instances=servers, cluster=servers > 1),
                config=lines),
        (Clients(instances=ranks), *(role for role, _ in more)),
        (Step('measure', (Program(program, mpi=True), *(
            Program(command, role=role.name, mpi=True)
            for role, command in more)), limit),))


def runs(one):
    """What the programs of a job printed, and their times, by mode."""
    _, text = one.services()
    assert not one.leftovers()
    printed = [parser.parse_run(f'{part}# end\n')
               for part in text.split('# end\n')[:-1]]
    times = {session.kind: session for _, session in read_sessions(one.folder)}
    return {run.mode: (run, times[run.mode]) for run in printed}


def call_count(session, function):
    return sum(len(functions[function]) for functions in session.calls.values())


def kill(one, word):
    result = one.processes(word)
    assert result
    for pid in result[:1]:
        os.kill(pid, signal.SIGKILL)


# It works ------------------------------------------------------------------

@pytest.mark.parametrize('module, servers', [(False, 1), (True, 1),
                                             (True, 3)])
def test_four_ranks_and_their_tensors(tools, store, start, module, servers):
    run, session = runs(start(loop(
        tools, store, 'throughput', '--bytes', '65536', '--iterations', '5',
        ranks=4, module=module, servers=servers)))['throughput']
    assert (run.ranks, run.iterations, run.bytes) == (4, 5, 65536)
    assert run.verified == 20
    assert call_count(session, 'put_tensor') == 20


def aggregation(tools, store, iterations, *options, module=False, **more):
    """Two producers and a consumer."""
    common = ('--bytes', '4096', '--tensors', '3', '--iterations', str(iterations))
    consumer = (str(tools / 'tensorload'), 'consumer', *common,
                '--producers', '2', '--client-threads', '2', '--limit', '20',
                '--folder', '{output}.ranks', *options, '--service',
                '{service}', *([] if module else ['--plain']))
    return loop(tools, store, 'producer', *common, module=module,
                more=((Clients(name='consumer'), consumer),), **more)


@pytest.mark.parametrize('servers, module', [(1, False), (3, False), (1, True)])
def test_producers_and_a_consumer(tools, store, start, servers, module):
    one = start(aggregation(tools, store, 4, servers=servers, module=module))
    result = runs(one)
    (producer, appended), (consumer, read) = result['producer'], result['consumer']
    assert call_count(appended, 'append_to_list') == 8
    assert call_count(appended, 'put_dataset') == 2
    assert call_count(read, 'get_list') == 4
    assert consumer.verified == 8
    assert consumer.client == producer.client == 'embedded'


def model(tmp_path):
    """Options of an inference: a model and a script."""
    (tmp_path / 'model').write_bytes(aimodule.model_blob('tiny'))
    (tmp_path / 'script').write_text(aimodule.SCRIPT)
    return ('--model', str(tmp_path / 'model'), '--script',
            str(tmp_path / 'script'), '--side', '16', '--classes', '10')


@pytest.mark.parametrize('servers', [1, 3])
def test_inference_with_the_module(tools, store, start, tmp_path, servers):
    run, session = runs(start(loop(
        tools, store, 'inference', *model(tmp_path), '--iterations', '3',
        '--num-devices', '2', module=True, servers=servers)))['inference']
    assert call_count(session, 'run_model') == 6
    assert call_count(session, 'warmup') == 2 and run.verified == 8


@pytest.fixture(scope='session')
def library_tools(tools, once):
    """The folder `tools`, but tensorload has SmartRedis' library."""
    prefix = os.environ.get('SMARTREDIS_PREFIX')
    if not prefix:
        pytest.skip("SMARTREDIS_PREFIX is not set to the prefix of SmartRedis' "
                    'library')

    def make(folder):
        done = subprocess.run(
            [str(SRC / 'build.sh'), str(folder / 'tensorload')], text=True,
            capture_output=True, env={**os.environ, 'CFLAGS': '-Werror',
                                      'CXXFLAGS': '-Werror'})
        assert done.returncode == 0, done.stderr
        (folder / 'ai.so').symlink_to(tools / 'ai.so')
    return once('tensorload-smartredis', make)


def open_door(plan, store):
    """The plan for clients that send no password."""
    door = make_server_role(store.name, '', Needs(open=True))
    more = [line for line in door.config.splitlines()
            if line.startswith(('user ', 'protected-mode '))]
    kept = [line for line in plan.server.config.splitlines()
            if not line.startswith(('requirepass', 'masterauth',
                                    'protected-mode'))]
    return replace(plan, server=replace(
        plan.server, user=door.user, config='\n'.join([*kept, *more, ''])))


@pytest.mark.parametrize('mode, servers', [
    ('throughput', 1), ('throughput', 3), ('aggregation', 1),
    ('aggregation', 3), ('inference', 1), ('inference', 3)])
def test_the_library_of_smartredis(library_tools, store, start, tmp_path, mode,
                                   servers):
    if mode == 'aggregation':
        plan = aggregation(library_tools, store, 4, module=True, servers=servers)
    else:
        plan = loop(library_tools, store, mode, '--iterations', '3', *(
            model(tmp_path) if mode == 'inference' else ['--bytes', '65536']),
            module=True, servers=servers)
    for run, _ in runs(start(open_door(plan, store))).values():
        assert run.client == 'smartredis'
        assert run.verified == {'throughput': 6, 'inference': 8, 'producer': 0,
                                'consumer': 8}[run.mode]


def test_the_library_of_smartredis_and_a_password(library_tools, store, start):
    line = Job.refusal(start(loop(library_tools, store, 'throughput', '--limit', '2',
                            module=True)))
    assert 'SmartRedis: connect: ' in line and 'NOAUTH' in line


def test_a_prefix_without_the_library(tools, tmp_path):
    require_program('c++')
    done = subprocess.run(
        [str(SRC / 'build.sh'), str(tmp_path / 'out')], capture_output=True,
        text=True, env={**os.environ, 'SMARTREDIS_PREFIX': str(tmp_path)})
    assert done.returncode and 'client.h' in done.stderr
    assert not (tmp_path / 'out').exists()


def test_clients_without_a_password_are_no_administrators(store, tmp_path):
    role = make_server_role(store.name, '', Needs(open=True))
    users = [word for line in role.config.splitlines()
             if line.startswith('user ') for word in f'--{line}'.split()]
    port = free_port()
    with resp.serving(store.binary, port, tmp_path / 'data',
                      *(word.replace('{password}', 'secret') for word in users)):
        client = resp.Client(port)
        client('SET', 'key', 'value')
        assert client('GET', 'key') == b'value'
        for words in ('CONFIG GET port', 'FLUSHALL', 'ACL LIST', 'SHUTDOWN',
                      'MODULE LIST'):
            with pytest.raises(resp.Error, match='NOPERM'):
                client(*words.split())
        client('AUTH', role.user, 'secret')
        assert client('CONFIG', 'GET', 'port') == [b'port', str(port).encode()]


# It breaks -----------------------------------------------------------------

ENDLESS = ('--iterations', '100000000')


@pytest.mark.parametrize('mode, servers', [
    ('throughput', 1), ('throughput', 3), ('inference', 3)])
def test_a_server_that_dies_in_the_middle(tools, store, start, tmp_path, mode,
                                          servers):
    one = start(loop(tools, store, mode, *ENDLESS, *model(tmp_path),
                     servers=servers, module=mode == 'inference'))
    one.wait_for(f'tensorload\0{mode}')
    kill(one, f'{store.binary.name} ')
    line = Job.refusal(one)
    assert f'{store.name} (server ' in line
    assert 'was killed by signal 9' in line


def test_a_consumer_that_dies(tools, store, start):
    one = start(aggregation(tools, store, 100000000))
    # The program, and not a launcher whose arguments name it.

    def consumers():
        return [pid for pid in one.processes('tensorload\0consumer')
                if os.readlink(f'/proc/{pid}/exe').endswith('/tensorload')]

    one.wait_for('tensorload\0consumer')
    one.until(consumers)
    for pid in consumers():
        os.kill(pid, signal.SIGKILL)
    assert re.match('service: the MPI program of consumer (ended with exit code|was '
                    'killed by signal)', Job.refusal(one))


def test_a_consumer_without_a_server(tmp_path, tools):
    (tmp_path / 'service').write_text('server 127.0.0.1 9\n')
    done = subprocess.run(
        [tools / 'tensorload', 'consumer', '--service', tmp_path / 'service',
         '--limit', '0.1'], text=True, capture_output=True, env={**os.environ, **MPI})
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        'tensorload: 127.0.0.1:9: Connection refused: does the server run, and listen '
        'there?')


def test_producers_without_a_consumer_end_in_their_limit(tools, store, start):
    line = Job.refusal(start(loop(tools, store, 'producer', '--limit', '0.5')))
    assert 'the MPI program of client ended with exit code 1' in line
    assert 'of 0 datasets after 0.5 s: is the consumer alive?' in line


def test_a_model_that_is_missing(tools, store, start):
    line = Job.refusal(start(loop(tools, store, 'inference', '--limit', '0.5',
                            '--side', '16', module=True)))
    assert 'the model resnet_model is not in the database' in line


def test_a_store_without_memory(tools, store, start):
    line = Job.refusal(start(loop(tools, store, 'throughput', '--bytes',
                            '8000000', config='maxmemory 4mb\n')))
    assert 'the store is full: its memory limit is below the data' in line


def test_a_store_without_the_module(tools, store, start):
    plan = loop(tools, store, 'throughput')
    (step,) = plan.steps
    (program,) = step.programs
    plan = replace(plan, steps=(replace(step, programs=(replace(
        program, command=tuple(word for word in program.command
                               if word != '--plain')),)),))
    assert "ERR unknown command" in Job.refusal(start(plan))
