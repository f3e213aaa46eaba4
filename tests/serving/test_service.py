"""Servers inside a job: what is started, what can break, what is left."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from checks.core.parsers import ParseError
from checks.machine import cpus
from checks.services import conduct
from checks.services.agent import PREFIX, Failed, Rendezvous
from checks.services.parser import shared_cpus_text, split_conductor_output
from checks.services.plan import (
    Clients,
    Plan,
    PlanError,
    Program,
    Server,
    Step,
    command_with_environment,
)
from checks.services.service import ServiceBenchmark
from config.sites import launch
from tests.conftest import LIMIT, ROOT, until

SERVING = str(ROOT / 'checks' / 'services')
#: For shell scripts: the command that starts SERVING, and Python alone.
PYTHON = shlex.quote(sys.executable)
SERVE = shlex.join([sys.executable, SERVING])

CONFIG = '''bind {address}
port {port}
dir {data}
requirepass {password}
masterauth {password}
save ""
'''

#: Says PONG to anything, and who it is not.
ANY = '''import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    while True:
        connection, _ = server.accept()
        data = connection.recv(4096)
        while data:
            connection.sendall(b'+PONG\\r\\n' if b'PING' in data
                               else b'$14\\r\\nprocess_id:1\\r\\n\\r\\n')
            data = connection.recv(4096)
'''


def real(store, **more):
    """The server role of a real store."""
    return Server(store.name, (str(store.binary), '-'), CONFIG, memory=64,
                  **more)


def plan(server, *command, limit=20.0, **more):
    """One client beside one server, of whatever machine this is."""
    return Plan(server, (Clients(),), (
        Step('measure', (Program(command or ('true',)),), limit),), **more)


#: A plan for agents that start nothing.
NO_SERVERS = Plan(Server('none', ('true',)), (Clients(),), ())


def shell(text):
    return ('sh', '-c', text)


class Job:
    """A batch script with a conductor, as ReFrame starts one."""

    def __init__(self, folder, plan, before='', launcher=(), **env):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        # Not below it: the path of a socket may have 107 characters.
        self.scratch = Path(tempfile.mkdtemp(prefix='plumbtest'))
        replace(plan, scratch=str(self.scratch), heartbeat_timeout=8.0).write(
            folder / 'service.json')
        agent = f'{SERVE} agent service.json'
        script = (f'{before}\n{SERVE} conduct service.json '
                  f'-- {" ".join(launcher)} {agent} & wait $!')
        self.out = open(folder / 'out', 'wb')
        self.err = open(folder / 'err', 'wb')
        # The mark finds all that this job started, wherever it went.
        self.mark = f'PLUMBLINE_TEST={folder}'
        self.process = subprocess.Popen(
            ['bash', '-c', script], cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
            env={**os.environ, 'PLUMBLINE_TEST': str(folder),
                 'TEST_SCRATCH': str(self.scratch), **env})

    def processes(self, word=''):
        """Processes of this job whose command has a word."""
        results = []
        for path in Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                command = os.fsdecode((path / 'cmdline').read_bytes())
                # A store writes its title over its environment, and other
                # processes may have any bytes there.
                environment = os.fsdecode((path / 'environ').read_bytes())
                ours = (self.mark in environment
                        or os.readlink(path / 'cwd').startswith(
                            (str(self.scratch), str(self.folder))))
                # The conductor's command ends with the agent's.
                if (ours and word in command
                        and not ('agent' in word and 'conduct' in command)
                        and int(path.name) != self.process.pid):
                    results.append(int(path.name))
        return sorted(results)

    def wait_for(self, word):
        """Until something of that name runs."""
        pids = []

        def is_running():
            pids[:] = self.processes(word)
            return pids

        self.until(is_running)
        return pids

    def wait_for_file(self, name):
        self.until(lambda: list(self.folder.glob(name)))

    def until(self, true):
        try:
            until(true, self.process)
        except AssertionError as err:
            pytest.fail(f'{err}: {self.messages()}')

    def end(self):
        code = self.process.wait(LIMIT)
        self.out.close()
        self.err.close()
        return code

    def kill(self):
        """Ends what there is of it, whatever it does."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Not os.kill: the pid of what has ended may be another's by now.
        self.process.kill()
        self.end()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def messages(self):
        lines = (self.folder / 'err').read_text().splitlines()
        return [line for line in lines if line.startswith('service: ')] \
            or lines[-5:]

    def leftovers(self):
        """What outlived the job: processes and files. Waits for agents, which
        must first notice its end."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.left())
        return self.left()

    def left(self):
        return [*self.processes(), *self.scratch.glob('*'),
                *self.folder.glob('*.private')]


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(plan, **more):
        jobs.append(Job(tmp_path / f'job{len(jobs)}', plan, **more))
        return jobs[-1]

    yield start
    for one in jobs:
        one.kill()


def refused(job, plan, **more):
    """The one line of a job that fails and leaves nothing."""
    one = job(plan, **more)
    assert one.end() == 1
    lines = one.messages()
    assert len(lines) == 1, (one.folder / 'err').read_text()
    assert not one.leftovers()
    return lines[0]


# It works ----------------------------------------------------------------

def test_a_program_with_variables_may_have_an_equals_sign_in_its_path(
        tmp_path):
    program = tmp_path / 'gcc=12' / 'program'
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$A|$1"\n')
    program.chmod(0o755)
    command = command_with_environment({'A': 'x=y'}, str(program), 'two words')
    assert subprocess.check_output(command, text=True) == 'x=y|two words\n'
    assert command_with_environment({}, 'program') == ('program',)


def test_a_store_serves_while_the_clients_run(job, store):
    one = job(plan(real(store), *shell('cat {service}; echo done')))
    assert one.end() == 0, one.messages()
    services, output = split_conductor_output((one.folder / 'out').read_text())
    server = services.servers[0]
    assert server.address == '127.0.0.1' and server.program == store.name
    assert server.version == store.version and server.ready_ms > 0
    assert f'server 127.0.0.1 {server.port}' in output and 'done' in output
    assert services.steps['measure'].counter_increase('commands') > 0
    assert not one.leftovers()


def test_the_password_is_in_no_file_and_no_command(job, store):
    one = job(replace(plan(real(store)), steps=(Step('measure', (Program(shell(
        'cp {service} secret; cp $(dirname {service})/conductor told; '
        'cat /proc/[0-9]*/cmdline | tr "\\0" " "')),), 20, gate=True),)))
    assert one.end() == 0, one.messages()
    secret = (one.folder / 'secret').read_text()
    (one.folder / 'secret').unlink()
    words = [line.split()[-1] for line in secret.splitlines()
             if line.startswith('password')]
    words.append(json.loads(
        (one.folder / 'told').read_text())['secret'])
    (one.folder / 'told').unlink()
    assert len(words) == 2 and min(map(len, words)) >= 32
    for path in one.folder.rglob('*'):
        if path.is_file():
            text = path.read_text(errors='replace')
            assert not any(word in text for word in words), path


def test_server_and_client_have_cpus_of_their_own(job, store):
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip('one CPU')
    one = job(plan(real(store), *shell(
        'grep Cpus_allowed_list /proc/self/status')))
    assert one.end() == 0, one.messages()
    services, output = split_conductor_output((one.folder / 'out').read_text())
    subset = cpus.parse_cpu_list(output.split()[-1])
    assert not set(subset) & set(services.servers[0].cpus)
    assert not services.shared


def test_more_cpus_than_there_are_is_told(job, store):
    one = job(plan(real(store, cpus=10_000)))
    assert one.end() == 0, one.messages()
    node = os.uname().nodename
    cores = len(os.sched_getaffinity(0))
    assert split_conductor_output((one.folder / 'out').read_text())[0].shared == (
        f'1 server and 1 client shared {cores} CPU{"s" * (cores > 1)} of {node}')


@pytest.mark.parametrize('servers, clients, text', [
    ('n1', 'n1 n1', '1 server and 2 clients shared 2 CPUs of n1'),
    ('n1 n2', 'n1 n2', '1 server and 1 client shared 2 CPUs of n1 n2'),
    ('n1 n1 n1', 'n1', '3 servers and 1 client shared 2 CPUs of n1'),
    # Nodes that one side has for itself.
    ('n1', 'n2 n2 n2', '1 server had 2 CPUs of n1, 3 clients shared 2 CPUs of n2'),
    # A node with enough CPUs.
    ('n1 n1 n3', 'n3', '2 servers shared 2 CPUs of n1'), ('n3', 'n3', '')])
def test_who_shared_cpus_with_whom(servers, clients, text):
    assert shared_cpus_text(
        [{'node': name, 'cpus': [0, 1]} for name in servers.split()],
        [{'node': name, 'cpus': [0, 1]} for name in clients.split()],
        [name for name in ('n1', 'n2') if name in f'{servers} {clients}']) == text


def test_three_servers_form_a_cluster(job, store):
    server = real(store, instances=3, cluster=True)
    one = job(plan(replace(server, config=CONFIG + 'cluster-enabled yes\n'),
                   *shell('grep -c ^server {service}; '
                          'grep ^cluster {service}')))
    assert one.end() == 0, one.messages()
    services, output = split_conductor_output((one.folder / 'out').read_text())
    assert output.split() == ['3', 'cluster']
    assert len({server.port for server in services.servers}) == 3
    assert not one.leftovers()


def test_clients_begin_together(job, store):
    # The step only ends when the conductor opens the gate.
    client = ('import os, sys\n'
              'assert "gate" in open(sys.argv[1]).read().split()\n'
              'os.write(0, b"ready\\n")\n'
              'print(os.read(0, 10))')
    program = f"{PYTHON} -c '{client}' {{service}}"
    both = replace(plan(real(store)), clients=(Clients(instances=2),), steps=(
        Step('measure', (Program(shell(program)),), 20, gate=True),))
    one = job(both)
    assert one.end() == 0, one.messages()
    assert (
        split_conductor_output((one.folder / 'out').read_text())[1].count(
            "b'go"
        )
        == 2
    )


def test_tls_with_a_certificate_of_the_run(job, store_with_tls):
    config = CONFIG.replace('port {port}', 'port 0\ntls-port {port}\n'
                            'tls-cert-file {cert}\ntls-key-file {key}\n'
                            'tls-ca-cert-file {ca}\ntls-auth-clients no')
    one = job(plan(replace(real(store_with_tls, tls=True), config=config),
                   *shell('grep -E "^(tls|ca)" {service}')))
    assert one.end() == 0, one.messages()
    assert not one.leftovers()


def test_a_socket_and_no_port(job, store):
    config = 'port 0\nunixsocket {data}/socket\nsave ""\n'
    one = job(plan(replace(real(store, socket=True, password=False),
                           config=config), *shell('test -S {host}')))
    assert one.end() == 0, one.messages()


# What breaks -------------------------------------------------------------

def test_port_that_is_taken(job, store):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(job, plan(real(store, port=port)))
    assert f'port {port} on ' in line and 'is in use by' in line
    assert f'process {os.getpid()}' in line and 'stop that program' in line


def test_server_that_never_answers(job):
    line = refused(job, plan(Server(
        'mute', shell('echo I am here; sleep 60'), ready_limit=1.0)))
    assert 'mute (server 0 on' in line and 'did not answer in 1 s' in line
    assert 'I am here' in line


def test_server_that_ends_before_it_answers(job):
    line = refused(job, plan(Server(
        'weak', shell('echo no library; exit 3'))))
    assert 'ended with exit code 3 before it answered' in line
    assert 'no library' in line


def test_server_that_cannot_be_started(job):
    line = refused(job, plan(Server('none', ('/no/such/store-server',))))
    assert '/no/such/store-server cannot be started: No such file' in line


def test_another_server_answers_on_the_port(job, tmp_path):
    # What answers has left the session of what was started.
    program = tmp_path / 'any.py'
    program.write_text(ANY)
    line = refused(job, plan(Server('any', shell(
        f'setsid {PYTHON} {program} {{address}} {{port}} & wait'))))
    assert 'another server has the port' in line


def test_wrong_password(job, store):
    server = replace(real(store), config=CONFIG.replace(
        'requirepass {password}', 'requirepass another'))
    line = refused(job, plan(server))
    assert 'refuses the password of this run (WRONGPASS' in line
    assert 'another password' in line


def test_server_that_dies_under_load(job, store):
    one = job(plan(real(store), 'sleep', '600', limit=600))
    one.wait_for_file('run.measure.0.out')
    os.kill(one.wait_for(f'{store.name}-server')[0], signal.SIGKILL)
    assert one.end() == 1                   # and not after the client's 600
    (line,) = one.messages()
    assert 'was killed by signal 9 (SIGKILL) while it served' in line
    assert not one.leftovers()


def test_too_few_open_files(job, store):
    line = refused(job, plan(real(store, connections=4000)),
                   before='ulimit -n 1000')
    assert 'open files, but the limit' in line and 'the limit is 1000' in line
    assert 'ulimit -Hn' in line


def test_wrong_interface(job, store):
    line = refused(job, plan(real(store), interface='ib7'))
    assert "no interface 'ib7'" in line and 'lo (127.0.0.1)' in line
    assert 'service_interface' in line


def test_more_memory_than_the_node_has(job, store):
    line = refused(job, plan(replace(real(store), memory=1 << 40)))
    assert 'MiB of memory, but' in line and 'are free' in line


def test_scratch_that_cannot_be_written(job, store):
    one = job(plan(real(store)))
    shutil.rmtree(one.scratch)
    assert one.end() == 1
    assert "set another scratch in the site's system.py" in one.messages()[0]


def test_client_that_fails_and_client_that_hangs(job, store):
    line = refused(job, plan(real(store), *shell(
        'echo cannot do it >&2; exit 7')))
    assert 'client 0 on ' in line and 'ended with exit code 7' in line
    assert 'cannot do it' in line
    line = refused(job, plan(real(store), 'sleep', '60', limit=1.0))
    assert 'step measure: client 0 on ' in line
    assert 'did not end in 1 s' in line


def test_client_that_never_comes_to_the_gate(job, store):
    waiting = replace(plan(real(store)), steps=(
        Step('measure', (Program(('sleep', '60')),), 1.0, gate=True),))
    line = refused(job, waiting)
    assert 'client 0 on ' in line and 'did not become ready in 1 s' in line


def test_launcher_that_fails(job, store):
    line = refused(job, plan(real(store)), launcher=(
        'sh', '-c', '"echo no such host >&2; exit 5"'))
    assert 'the launcher ended early with exit code 5' in line
    assert 'no such host' in line


def test_launcher_that_is_killed_is_no_riddle(job, store):
    # Its last line has no end, and its words are no cause.
    line = refused(job, plan(real(store)), launcher=(
        'sh', '-c', '"printf warning >&2; kill -9 \\$\\$"'))
    assert line.startswith('service: the launcher was killed by signal 9 ')
    assert 'warning' not in line


def test_an_agent_that_is_lost_as_the_last_step_ends(tmp_path, monkeypatch):
    """Ranks of an MPI program end well without the agent of their node."""
    monkeypatch.setattr(conduct, 'LAUNCHER_MESSAGE_TIMEOUT', 0)
    none = Server('none', ('true',))
    one = conduct.Conductor(Plan(none, (Clients(),), (Step(
        'last', (), 1),)), str(tmp_path / 'service.json'), [])
    one.client_slots, one.ancestor_pids = {}, []
    for name in ('start_agents', 'start_servers'):
        monkeypatch.setattr(one, name, lambda: None)
    monkeypatch.setattr(one.events, 'wait', time.sleep)
    monkeypatch.setattr(one, 'run_step', lambda step: one.note_lost_agent(
        'node n4 was lost'))
    with pytest.raises(Failed, match='node n4 was lost'):
        one.run_plan()


@pytest.mark.parametrize('nodes, words', [
    (2, 'node n4 was lost: no heartbeat from it'),
    (1, 'the ranks of client: 3 ranks asked for')])
def test_ranks_that_did_not_start_may_have_lost_their_node(
        tmp_path, monkeypatch, nodes, words):
    """mpirun was seen to end with 0 then; a node that is cut off is noticed
    by its silence alone."""
    none = Server('none', ('true',))
    one = conduct.Conductor(Plan(none, (Clients(nodes=nodes),), (Step(
        'last', (), 1),)), str(tmp_path / 'service.json'), [])
    ended = SimpleNamespace(exit_reason=lambda: 'ended', log=None,
                            process=SimpleNamespace(returncode=0))
    one.running, one.launched = {0: 'the ranks of client'}, {
        0: SimpleNamespace(process=ended, first_error_lines=lambda: '',
                           describe_wrong_rank_placement=lambda: (
                               '3 ranks asked for, 0 started'))}

    def silent(seconds):
        assert seconds > one.plan.heartbeat_timeout
        raise Failed('node n4 was lost: no heartbeat from it for 10 s')
    monkeypatch.setattr(one, 'wait_for_failure_cause', silent)
    with pytest.raises(Failed, match=words):
        one.collect_ended_mpi_programs()


def test_a_launcher_that_ends_agents_says_why(job, store):
    # One of two agents dies before it says hello: mpirun ends the other.
    two = plan(real(store, beside=False))
    line = refused(job, two, launcher=(
        'sh', '-c', '\'"$@" & sleep 2; kill $!; wait; echo "rank 1 exited on '
        'signal 9" >&2; exit 137\'', 'sh'))
    assert 'the agent was ended by SIGTERM' in line
    assert 'output of the launcher: rank 1 exited on signal 9' in line


def test_agents_that_cannot_reach_the_conductor_say_so(job, store):
    line = refused(job, plan(real(store)), launcher=(
        'sh', '-c', '\'echo half >service.json.private/conductor; exec "$@"'
        '\'', 'sh'))
    assert 'the launcher ended early with exit code 1' in line
    assert 'plumbline agent: cannot find the conductor' in line


def test_fewer_nodes_than_asked_for(job, store):
    two = replace(plan(real(store, beside=False), start_limit=2.0))
    assert '1 of 2 agents connected in 2 s' in refused(job, two)


def test_two_agents_on_one_node(job, store):
    two = plan(real(store, beside=False))
    line = refused(job, two, launcher=(
        'sh', '-c', "'\"$@\" & \"$@\"'", 'both'))
    assert 'started two agents on' in line


def talk(keys, then):
    """A client that sets keys, with values that cannot be compressed, and
    does something else."""
    return shell(
        f'sleep 1; exec {PYTHON} - {{service}} <<"E"\n'
        'import secrets, sys, time\n'
        f'sys.path.insert(0, "{ROOT}")\n'
        'from checks.services import ask\n'
        'lines = dict(l.split(" ", 1) for l in open(sys.argv[1]))\n'
        'host, port = lines["server"].split()\n'
        'where = ask.Server(host, int(port), lines["password"].strip())\n'
        'with ask.Resp().open_authenticated_connection(where) as session:\n'
        f'    for key in range({keys}):\n'
        '        session.send_command("SET", key, secrets.token_hex(50000))\n'
        f'    {then}\n'
        'E')


def on_small_disk(size='2m'):
    """A launcher of agents whose scratch has little room."""
    if subprocess.run(['unshare', '-rm', 'mount', '-t', 'tmpfs', 'none',
                       '/mnt'], capture_output=True).returncode:
        pytest.skip('no user namespaces with mounts here')
    return ('unshare', '-rm', 'sh', '-c',
            f"'mount -t tmpfs -o size={size} none $TEST_SCRATCH && "
            'exec "$@"\'', 'sh')


@pytest.mark.parametrize('seconds', [0, 3])
def test_a_snapshot_that_finds_the_disk_full_under_a_load_of_reads(
        job, store, seconds):
    # Nothing is refused to who only reads: SETs end before the first save,
    # and the store removes the file that it could not write.
    server = replace(real(store, persistence='rdb'), config=CONFIG.replace(
        'save ""', 'save 2 1\nstop-writes-on-bgsave-error no'))
    one = job(plan(server, *talk(
        100, f'[(session.send_command("GET", 1), time.sleep(0.1)) for _ in '
        f'range({10 * seconds})]')), launcher=on_small_disk())
    assert one.end() == 1
    (line,) = one.messages()
    assert 'did not save its data (rdb_last_bgsave_status is err)' in line
    assert 'the disk of ' in line and ' is full: free space' in line, line
    assert not one.leftovers()


def test_a_store_that_is_to_save_and_does(job, store):
    server = replace(real(store, persistence='rdb'), config=CONFIG.replace(
        'save ""', 'save 1 1'))
    one = job(plan(server, *talk(10, 'session.send_command("GET", 1)')))
    assert one.end() == 0, one.messages()
    # The last snapshot was waited for, with its changes.
    log = (one.folder / 'run.server0.log').read_text()
    assert 'DB saved on disk' in log
    assert not one.leftovers()


def test_a_store_that_keeps_no_file_where_it_is_to(job, store):
    line = refused(job, plan(real(store, persistence='aof')))
    assert ('writes nothing on disk, but the plan requires an append-only file'
            in line), line


@pytest.mark.parametrize('left_on, message', [
    (['--appendonly', 'yes', '--appendfsync', 'always'],
     'an append-only file'),
    (['--save', '900', '1'], 'snapshots')])
def test_persistence_that_was_left_on(job, store, tmp_path, left_on, message):
    # As a wrapper does that a site has put before the store.
    wrapper = tmp_path / 'wrapper'
    wrapper.write_text(
        f'#!/bin/sh\nexec {shlex.quote(str(store.binary))} "$@" '
        f'{" ".join(left_on)}\n')
    wrapper.chmod(0o755)
    line = refused(job, plan(replace(real(store),
                                     command=(str(wrapper), '-'))))
    assert (f'writes {message}, but the plan requires nothing on disk'
            in line), line
    assert f'a wrapper at {wrapper}' in line


def wrapped(store, path, end):
    """A wrapper that a site has put before the store."""
    command = end.format(shlex.quote(str(store.binary)))
    path.write_text(f'#!/bin/sh\nexec {command}\n')
    path.chmod(0o755)
    return replace(real(store), command=(str(path), '-'))


@pytest.mark.parametrize('threads', [1, 3])
def test_a_server_with_other_threads_than_asked_for(job, store, tmp_path,
                                                    threads):
    server = replace(wrapped(store, tmp_path / 'wrapper',
                             f'{{}} "$@" --io-threads {threads}'),
                     threads=2, config=CONFIG + 'io-threads 2\n')
    line = refused(job, plan(server))
    assert f'serves with {threads} thread' in line, line
    assert 'but the plan requires 2: ' in line
    assert f'a wrapper at {tmp_path / "wrapper"}' in line


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='one CPU')
def test_a_server_that_may_run_on_other_cpus(job, store, tmp_path):
    server = wrapped(store, tmp_path / 'wrapper',
                     'taskset -c 0-$(($(nproc --all) - 1)) {} "$@"')
    line = refused(job, plan(server))
    assert 'was bound to the CPUs [' in line, line
    assert 'but may run on [0, 1' in line, line


def test_full_disk_under_an_append_only_file(job, store):
    server = replace(real(store, persistence='aof'),
                     config=CONFIG + 'appendonly yes\nappendfsync always\n')
    one = job(plan(server, *talk(100, 'session.send_command("GET", 1)')),
              launcher=on_small_disk())
    assert one.end() == 1
    (line,) = one.messages()
    assert 'the disk of ' in line and ' is full: free space' in line, line
    assert not one.leftovers()


# What ends it from outside -------------------------------------------------

@pytest.mark.parametrize('victim, number, cause', [
    # Either its connection or its process is seen first.
    ('services agent', signal.SIGKILL, 'was lost|was killed by signal 9'),
    ('services agent', signal.SIGTERM, 'the agent was ended by SIGTERM'),
    ('services agent', signal.SIGSTOP, 'no heartbeat from it for 8 s'),
    ('conduct', signal.SIGTERM, 'ended by SIGTERM'),
    ('conduct', signal.SIGINT, 'ended by SIGINT'),
    ('conduct', signal.SIGKILL, ''),
    ('batch', signal.SIGKILL, 'the batch script was killed'),
    ('sleep 30', signal.SIGKILL, 'was killed by signal 9'),
])
def test_whoever_is_killed_nothing_is_left(job, store, victim, number, cause):
    one = job(plan(real(store), 'sleep', '30'))
    one.wait_for_file('run.measure.0.out')
    pids = ([one.process.pid] if victim == 'batch' else
            one.wait_for(victim.replace(' ', '\0')))
    os.kill(pids[0], number)
    one.end()
    until(lambda: not one.processes())
    if cause:
        assert re.search(cause, ' '.join(one.messages()))
    if victim == 'services agent' and number != signal.SIGTERM:
        # Nobody could; the next agent on the node does.
        until(lambda: all(path.name.startswith(PREFIX) for path in one.left()))
        again = job(replace(plan(real(store))))
        assert again.end() == 0, again.messages()
    else:
        assert not one.leftovers()


def test_a_conductor_that_does_something_else_is_not_lost(tmp_path,
                                                          monkeypatch):
    """It asks servers and starts launchers, which may take long."""
    monkeypatch.setenv('PLUMBLINE_RUN', str(tmp_path / 'run'))
    path = str(tmp_path / 'service.json')
    idle = replace(NO_SERVERS, heartbeat_timeout=4)
    idle.write(Path(path))
    one = conduct.Conductor(idle, path, [sys.executable, SERVING, 'agent', path])
    try:
        one.start_agents()
        time.sleep(6)
        one.process_events()
        assert not one.outside
    finally:
        one.stop()


def handles_sigterm(pid):
    """Whether a process has begun: of SIGTERM the bit is 1 << 14."""
    status = Path('/proc', str(pid), 'status').read_text()
    return 1 << 14 & int(status.partition('SigCgt:')[2].split()[0], 16)


def agent_alone(folder, conductor=''):
    """An agent, and its private folder with what a conductor left there."""
    NO_SERVERS.write(folder / 'service.json')
    private = folder / 'service.json.private'
    private.mkdir(mode=0o700)
    if conductor:
        path = private / 'conductor'
        path.touch(mode=0o600)
        path.write_text(conductor)
    return private, subprocess.Popen(
        [sys.executable, SERVING, 'agent', 'service.json'], cwd=folder,
        stderr=subprocess.PIPE, text=True)


def rendezvous(port, secret=b'x' * 32):
    """What a conductor leaves for its agents."""
    return Rendezvous(('127.0.0.1', port), 'run.1', secret).to_json()


def test_an_agent_without_a_conductor_removes_its_secrets(tmp_path):
    with socket.create_server(('127.0.0.1', 0)) as closed:
        port = closed.getsockname()[1]
    private, agent = agent_alone(tmp_path, rendezvous(port))
    assert 'cannot connect to the conductor' in agent.communicate()[1]
    assert agent.returncode == 1 and not private.exists()


def test_an_agent_without_a_plan_says_so(tmp_path):
    private, agent = agent_alone(tmp_path)
    (tmp_path / 'service.json').unlink()
    draft = tmp_path / 'draft'
    draft.touch(mode=0o600)
    draft.write_text(rendezvous(1))
    draft.rename(private / 'conductor')
    error = agent.communicate()[1]
    assert error.startswith('plumbline agent: ') and error.count('\n') == 1
    assert 'service.json' in error
    assert agent.returncode == 1 and not private.exists()


def test_an_agent_that_is_ended_before_it_began_removes_them_too(tmp_path):
    private, agent = agent_alone(tmp_path)
    until(lambda: handles_sigterm(agent.pid), agent)
    agent.terminate()
    agent.communicate()
    assert agent.returncode == 143 and not private.exists()


def test_an_agent_that_nobody_waits_for_ends(tmp_path):
    """Its launcher is killed before it has found a conductor."""
    NO_SERVERS.write(tmp_path / 'service.json')
    launcher = subprocess.Popen(
        ['sh', '-c', f'{SERVE} agent service.json & echo $!; wait'], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    agent = int(launcher.stdout.readline())
    until(lambda: handles_sigterm(agent), launcher)
    launcher.kill()
    assert 'the launcher has ended' in launcher.communicate(timeout=LIMIT)[1]


def test_a_batch_script_that_died_before_the_conductor_began(tmp_path, store):
    plan(real(store)).write(tmp_path / 'service.json')
    measure = ROOT / 'checks' / 'core' / 'src' / 'measure.sh'
    conduct = ('touch begun; until [ -e died ]; do sleep 0.05; done; '
               f'exec {SERVE} conduct service.json -- sleep 600')
    batch = subprocess.Popen(
        ['bash', '-c', f'{shlex.join([str(measure), "--", "sh", "-c"])} '
         f'{shlex.quote(conduct)} & wait'], cwd=tmp_path, stdout=subprocess.PIPE)
    until((tmp_path / 'begun').exists, batch)
    batch.kill()
    batch.wait()
    (tmp_path / 'died').touch()
    batch.communicate(timeout=LIMIT)
    assert (tmp_path / 'run.1.err').read_text().strip() == (
        'service: the batch script was killed')


def test_the_batch_script_removes_the_secrets_of_a_killed_conductor(tmp_path):
    subprocess.run([ROOT / 'checks' / 'core' / 'src' / 'measure.sh', '--',
                    'sh', '-c', 'mkdir service.json.private; kill -9 $$'],
                   cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert (tmp_path / 'runs.tsv').read_text().split('\t')[1] == '137'
    assert not (tmp_path / 'service.json.private').exists()


def test_the_next_agent_removes_what_a_killed_one_left(job, store):
    one = job(plan(real(store), 'sleep', '30'))
    one.wait_for_file('run.measure.0.out')
    os.kill(one.wait_for('services\0agent')[0], signal.SIGKILL)
    one.end()
    left = list(one.scratch.glob(f'{PREFIX}*'))
    foreign = one.scratch / f'{PREFIX}of-somebody'
    foreign.mkdir()
    assert len(left) == 1
    subprocess.run([sys.executable, '-c', f'''
import sys
sys.path.insert(0, {str(ROOT)!r})
from checks.services.agent import create_data_folder
create_data_folder({str(one.scratch)!r})
'''], check=True)
    assert not left[0].exists() and foreign.exists()


# Its parts ---------------------------------------------------------------

def two_sockets(smt=1):
    """2 NUMA nodes of 2 cores, with so many threads a core."""
    return sorted(cpus.Cpu(core // 2, core // 2, core % 2,
                           core + 4 * thread)
                  for core in range(4) for thread in range(smt))


@pytest.mark.parametrize('machine, wants, by, sets', [
    (two_sockets(), [('server', 1, 1), ('client', 1, 3)], 'core',
     {'server': [[0]], 'client': [[1, 2, 3]]}),
    (two_sockets(), [('server', 1, 1), ('client', 1, 2)], 'core',
     {'server': [[0]], 'client': [[2, 3]]}),
    (two_sockets(2), [('server', 2, 1), ('client', 1, 4)], 'core',
     {'server': [[0, 4], [1, 5]], 'client': [[2, 3, 6, 7]]}),
    (two_sockets(2), [('server', 4, 1), ('client', 4, 1)], 'thread', None),
    (two_sockets(), [('server', 4, 1), ('client', 1, 1)], 'shared',
     {'server': [[0, 1, 2, 3]] * 4, 'client': [[0, 1, 2, 3]]}),
])
def test_placement(machine, wants, by, sets):
    placed = cpus.assign_cpus(machine, [cpus.CpuRequest(*want) for want in wants])
    assert placed.by == by
    if sets:
        assert placed.sets == sets
    if by != 'shared':
        every = [cpu for role in placed.sets.values() for one in role
                 for cpu in one]
        assert len(every) == len(set(every))


def test_topology_is_read_from_the_kernel(tmp_path):
    for number, (core, package) in enumerate([(0, 0), (0, 0), (0, 1)]):
        folder = tmp_path / 'cpu' / f'cpu{number}' / 'topology'
        folder.mkdir(parents=True)
        (folder / 'core_id').write_text(f'{core}\n')
        (folder / 'physical_package_id').write_text(f'{package}\n')
    for number, text in enumerate(['0-1', '2']):
        folder = tmp_path / 'node' / f'node{number}'
        folder.mkdir(parents=True)
        (folder / 'cpulist').write_text(f'{text}\n')
    result = cpus.available_cpus(str(tmp_path), [0, 1, 2])
    assert result == [(0, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 2)]
    assert cpus.numa_nodes_of_cpus(result, [1, 2]) == [0, 1]


def test_plans_survive_the_way_to_the_node(tmp_path):
    server = Server('redis', ('redis-server', '-'), CONFIG,
                    files={'flags': 'x'})
    sent = plan(server, 'true', interface='ib0')
    sent.write(tmp_path / 'plan')
    assert Plan.read(tmp_path / 'plan') == sent
    for text in ('', '{}', '[]', '{"server": 3}'):
        (tmp_path / 'plan').write_text(text)
        with pytest.raises(PlanError, match='cannot read the plan'):
            Plan.read(tmp_path / 'plan')


def test_template_that_names_what_nobody_knows(job, store):
    line = refused(job, plan(real(store), 'echo', '{colour}'))
    assert "contains the unknown value 'colour'; known" in line


@pytest.mark.parametrize('broken', ['', 'no line of it', '# service {',
                                    '# service {"servers": []}'])
def test_output_of_a_conductor_that_did_not_end(broken):
    with pytest.raises(ParseError, match='conductor|is damaged'):
        split_conductor_output(broken + '\n')


def test_a_strange_answer_is_no_readiness():
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.Popen([sys.executable, '-c', f'''
import sys
sys.path.insert(0, {str(ROOT)!r})
from checks.services import ask
try:
    ask.Resp().ping(ask.Server('127.0.0.1', {port}))
except ask.Refusal as err:
    print(err)
'''], stdout=subprocess.PIPE, text=True)
        connection, _ = server.accept()
        connection.sendall(b'HTTP/1.1 400 Bad Request\r\n')
        assert 'does not speak RESP' in done.communicate()[0]
        connection.close()


# Ranks of an MPI program, and several roles --------------------------------

#: Starts so many ranks on this machine, as a launcher does, and ends as one
#: of them does.
LAUNCHER = ('sh', '-c', 'n=0; rc=0; while [ $n -lt $0 ]; do '
            'OMPI_COMM_WORLD_LOCAL_RANK=$n "$@" & p="$p $!"; n=$((n+1)); '
            'done; for one in $p; do wait $one || rc=$?; done; exit $rc')


def ranks(server, *command, started='{ranks}', instances=3, limit=20.0,
          **more):
    """As many ranks of a program beside one server."""
    return Plan(server, (Clients(instances=instances),), (Step(
        'measure', (Program(command, mpi=True),), limit),),
        launcher=(*LAUNCHER, started), **more)


def test_ranks_are_started_by_the_launcher_each_on_its_cpus(job, store):
    one = job(ranks(real(store), *shell(
        'grep -c ^server {service}; echo {count}; echo mine '
        '$(grep Cpus_allowed_list /proc/self/status)')))
    assert one.end() == 0, one.messages()
    services, output = split_conductor_output((one.folder / 'out').read_text())
    assert output.count('mine') == 3 and services.clients == 3
    words = output.splitlines()
    assert words.count('1') == words.count('3') == 3
    record = json.loads(next(
        line for line in (one.folder / 'out').read_text().splitlines()
        if line.startswith('# service ')).removeprefix('# service '))
    assert sorted(client['cpus'] for client in record['clients']) == sorted(
        cpus.parse_cpu_list(line.split()[-1]) for line in words if 'mine' in line)
    assert not one.leftovers()


def test_producer_and_consumer_run_at_once(job, store):
    # Each waits for the other's file; and each has CPUs of its own.
    def meets(own, other):
        return shell(f'touch {own}; until [ -e {other} ]; do sleep 0.05; '
                     f'done; echo {own} {{index}}/{{count}}')

    both = Plan(real(store), (
        Clients(instances=2, name='producer'), Clients(name='consumer')), (
        Step('measure', (
            Program(meets('a', 'b'), role='producer', mpi=True),
            Program(meets('b', 'a'), role='consumer')), 20),),
        launcher=(*LAUNCHER, '{ranks}'))
    one = job(both)
    assert one.end() == 0, one.messages()
    services, output = split_conductor_output((one.folder / 'out').read_text())
    assert sorted(output.splitlines()) == ['a 0/2', 'a 0/2', 'b 0/1']
    assert services.clients == 3
    assert both.required_cpus_per_node() == 4 and both.node_count == 1


def test_a_rank_that_fails_is_told_in_its_own_words(job, store):
    line = refused(job, ranks(real(store), *shell(
        'echo no such tensor >&2; exit 3'), instances=2))
    assert 'the ranks of client ended with exit code 3: no such tensor' in line


def test_a_dead_server_is_the_cause_of_failed_ranks(job, store):
    one = job(ranks(real(store), *shell(
        'touch here; while [ -e here ]; do sleep 0.02; done; exit 1')))
    one.wait_for_file('here')
    for pid in one.processes(f'{store.binary.name} '):
        os.kill(pid, signal.SIGKILL)
    (one.folder / 'here').unlink()
    assert one.end() == 1
    (line,) = one.messages()
    assert f'{store.name} (server 0 on ' in line
    assert 'was killed by signal 9' in line
    assert not one.leftovers()


@pytest.mark.parametrize('started, words', [
    ('2', '2 of 3 ranks started where the plan placed them'),
    ('4', 'the launcher started too many ranks')])
def test_ranks_are_counted(job, store, started, words):
    assert words in refused(job, ranks(real(store), 'true', started=started))


def test_ranks_without_end_are_ended(job, store):
    line = refused(job, ranks(real(store), 'sleep', '60', limit=1.0))
    assert 'step measure: the ranks of client did not end in 1 s' in line


def test_ranks_end_with_a_killed_conductor(job, store):
    one = job(ranks(real(store), 'sleep', '60'))
    one.wait_for('sleep')
    for pid in one.processes('conduct'):
        os.kill(pid, signal.SIGKILL)
    assert one.end() != 0
    # Those that saw it die end by themselves, a moment after the launcher.
    until(lambda: not one.leftovers())


@pytest.mark.parametrize('change, words', [
    ({'launcher': ()}, 'does not know how'),
    ({'steps': (Step('measure', (Program(('true',), mpi=True),), 5,
                     gate=True),)}, 'a gate is not possible'),
    ({'steps': (Step('measure', (Program(('true',), role='x'),), 5),)},
     "no client role 'x', only client")])
def test_a_step_that_cannot_be_run(job, store, change, words):
    assert words in refused(job, replace(
        ranks(real(store), 'true'), **change))


def test_where_the_roles_of_a_plan_are():
    server = Server('x', (), cpus=2, nodes=2, beside=False)
    roles = (Clients(nodes=3, cpus=4, name='a'),
             Clients(nodes=1, cpus=1, name='b'),
             Clients(nodes=2, instances=9, name='c', apart=True))
    plan = Plan(server, roles, ())
    assert {
        name: list(where)
        for name, where in plan.node_numbers_by_role().items()
    } == {'server': [0, 1], 'a': [2, 3, 4], 'b': [2], 'c': [5, 6]}
    assert plan.node_count == 7 and plan.required_cpus_per_node() == 9
    beside = replace(plan, server=replace(server, beside=True),
                     clients=roles[:2])
    assert beside.node_count == 3 and beside.required_cpus_per_node() == 7
    assert replace(beside, clients=(replace(roles[0], unbound=True),)
                   ).required_cpus_per_node() == 4


def test_the_launcher_of_a_step():
    one = launch.step_launch_command('mpirun', 'openmpi 5.0', 1)
    assert 'mpirun' in one and '--host' not in one
    assert launch.step_launch_command('mpirun', 'openmpi 5.0', 2)[-1] == '{slots}'
    assert (
        launch.step_launch_command('srun', 'mpich 5.0', 2)[-1]
        == '--nodelist={names}'
    )
    assert launch.step_launch_command('ibrun', '', 2) == []


@pytest.mark.parametrize('is_mpi', [True, False])
def test_a_check_must_declare_whether_its_plan_has_mpi_programs(is_mpi):
    step = Step('load', (Program(('true',), mpi=is_mpi),), 1)
    check = SimpleNamespace(
        has_mpi_steps=not is_mpi, current_partition=SimpleNamespace(extras={}),
        service_plan=lambda: SimpleNamespace(steps=(step,)),
        mpi_launcher_command=lambda: ())
    with pytest.raises(TypeError, match=f'SimpleNamespace: has_mpi_steps does not '
                                        f'agree .*; set it to {is_mpi}'):
        ServiceBenchmark.write_plan_and_set_executable(check)
