"""Servers and clients of a job script: what runs, what fails, what is left."""
from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from checks.core.parsers import ParseError
from checks.machine import cpus
from checks.services import ask, client, service
from checks.services import server as servers
from checks.services.parser import Process, shared_cpus_text, split_service_record
from checks.services.plan import (
    Clients,
    Plan,
    Program,
    Server,
    Step,
)
from checks.services.script import Launching
from tests.conftest import ROOT, until
from tests.serving.job import CONFIG, LOCAL, Job, redis_like

PYTHON = shlex.quote(sys.executable)

#: A server that answers PONG to all requests, and INFO with process 1.
IMPOSTOR = '''import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    while True:
        connection, _ = server.accept()
        while data := connection.recv(4096):
            connection.sendall(b'+PONG\\r\\n' if b'PING' in data
                               else b'$14\\r\\nprocess_id:1\\r\\n\\r\\n')
'''

#: A launcher as `mpirun --host SLOTS`, whose nodes are names on this machine.
LAUNCHER = '''#!/bin/bash
slots=$1 pids=() rc=0
shift
for slot in ${slots//,/ }; do
    for ((rank = 0; rank < ${slot#*:}; rank++)); do
        OMPI_COMM_WORLD_LOCAL_RANK=$rank unshare UNSHARE sh -c '
            hostname "$1"; shift; exec "$@"' sh "${slot%:*}" "$@" &
        pids+=($!)
    done
done
for name in TERM USR1; do trap 'kill -'$name' "${pids[@]}"' $name; done
for pid in "${pids[@]}"; do
    wait "$pid"
    code=$?
    # A signal ends `wait`, too.
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done
    # The process may have ended between the signal and kill; 127: nothing is known.
    wait "$pid" 2>/dev/null
    again=$?
    if [ "$again" != 127 ]; then code=$again; fi
    if [ "$code" != 0 ]; then rc=$code; fi
done
exit "$rc"
'''


def plan_of(server, *command, limit=60.0, gate=False, apart=False, **more):
    """One client beside the servers."""
    program = Program(command or ('true',))
    return Plan(server, (Clients(apart=apart),),
                (Step('measure', (program,), limit, gate),), **more)


def shell(text):
    return ('sh', '-c', text)


def requests(count, then):
    """A client that sets keys with values that cannot be compressed, and then runs a
    line of Python."""
    return shell(f'exec {PYTHON} - {{service}} <<"E"\n'
                 'import secrets, sys, time\n'
                 f'sys.path.insert(0, "{ROOT}")\n'
                 'from checks.services import ask\n'
                 'lines = dict(line.split(" ", 1) for line in open(sys.argv[1]))\n'
                 'host, port = lines["server"].split()\n'
                 'server = ask.Server(host, int(port), lines["password"].strip())\n'
                 'with ask.resp_session(server) as send:\n'
                 f'    for key in range({count}):\n'
                 '        send("SET", key, secrets.token_hex(50000))\n'
                 f'    {then}\n'
                 'E')


#: A client that does not end.
SLEEP = shell('touch begun; exec sleep 600')


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(plan, launching=LOCAL, **more):
        jobs.append(Job(tmp_path / f'job{len(jobs)}', plan, launching, **more))
        return jobs[-1]

    yield start
    for one in jobs:
        one.kill()


@pytest.fixture
def launcher(tmp_path):
    """Path of the launcher of this file."""
    options = '-u' if os.geteuid() == 0 else '-ru'
    if subprocess.run(['unshare', options, 'true'], capture_output=True).returncode:
        pytest.skip('no namespaces for host names here')
    path = tmp_path / 'launcher'
    path.write_text(LAUNCHER.replace('UNSHARE', options))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def on_nodes(job, launcher, tmp_path):
    """Starts a job on nodes n0, n1, ..."""
    def start(plan, words=(launcher, '{slots}'), count=0, **more):
        hosts = tmp_path / 'hosts'
        hosts.write_text(''.join(f'n{n}\n' for n in range(count or plan.node_count)))
        return job(plan, Launching(words, words, True, 'lo'),
                   PBS_NODEFILE=str(hosts), SLURM_JOB_NODELIST='', **more)
    return start


# Servers and clients ---------------------------------------------------------

def test_a_store_serves_while_the_clients_run(job, store):
    one = job(plan_of(redis_like(store), *shell('cat {service}; echo {host} {port}')))
    services, output = one.services()
    [server] = services.servers
    assert server.address == '127.0.0.1' and server.program == store.name
    assert server.version == store.version and server.ready_ms > 0
    assert f'server 127.0.0.1 {server.port}\n' in output
    assert f'\n127.0.0.1 {server.port}\n' in output and 'gate' not in output
    step = services.steps['measure']
    assert step.counter_increase('commands') > 0 and step.seconds > 0
    assert not one.leftovers()


def test_a_secret_is_in_no_file_and_on_no_command_line(job, store):
    # The client looks while all processes run.
    one = job(plan_of(redis_like(store), *shell(
        'cp {service} kept; cat /proc/[0-9]*/cmdline | tr "\\0" " "; '
        'find . -type f ! -path "./secrets.private.*" ! -name kept ! -name "*.out" '
        '-exec cat {{}} +')))
    _, output = one.services()
    kept = (one.folder / 'kept').read_text()
    (one.folder / 'kept').unlink()
    [password] = [line.split()[1] for line in kept.splitlines()
                  if line.startswith('password ')]
    assert len(password) >= 32 and password not in output and 'node.py' in output
    for path in one.folder.rglob('*'):
        assert not path.is_file() or password not in path.read_text(), path
        assert path.stat().st_mode & 0o77 == 0 or path.name in (
            'out', 'err', 'rfm_job.sh'), path


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='one CPU')
def test_server_and_client_have_cpus_of_their_own(job, store):
    services, output = job(plan_of(redis_like(store), *shell(
        'grep Cpus_allowed_list /proc/self/status'))).services()
    subset = cpus.parse_cpu_list(output.split()[-1])
    assert not set(subset) & set(services.servers[0].cpus)
    assert not services.shared


def test_too_few_cpus_are_reported(job, store):
    services, _ = job(plan_of(redis_like(store, cpus=10_000))).services()
    count = len(os.sched_getaffinity(0))
    assert services.shared == (f'1 server and 1 client shared {count} '
                               f'CPU{"s" * (count > 1)} instead of 10001 on '
                               f'{client.host_name()}')


@pytest.mark.parametrize('servers, clients, text', [
    ('n1', 'n1 n1', '1 server and 2 clients shared 2 CPUs instead of 3 on n1'),
    ('n1 n2', 'n1 n1 n2 n2',
     '1 server and 2 clients shared 2 CPUs instead of 3 on n1 n2'),
    # Nodes that one side has for itself.
    ('n1 n1 n1', 'n2 n2 n2', '3 servers shared 2 CPUs instead of 3 on n1, '
     '3 clients shared 2 CPUs instead of 3 on n2'),
    # A node with enough CPUs.
    ('n1 n1 n1 n3', 'n3', '3 servers shared 2 CPUs instead of 3 on n1'),
    ('n3', 'n3', '')])
def test_roles_that_shared_cpus(servers, clients, text):
    assert shared_cpus_text(
        [*(Process(name, 'server', [0, 1]) for name in servers.split()),
         *(Process(name, 'client', [0, 1]) for name in clients.split())],
        {'server': 1, 'client': 1}) == text


def test_three_servers_form_a_cluster(job, store):
    one = job(plan_of(replace(redis_like(store, instances=3, cluster=True),
                              config=CONFIG + 'cluster-enabled yes\n'),
                      *shell('grep -c ^server {service}; grep ^cluster {service}')))
    services, output = one.services()
    assert output.split() == ['3', 'cluster']
    assert len({server.port for server in services.servers}) == 3
    assert not one.leftovers()


def test_clients_begin_together(job, store):
    # The step ends only if the script opens the gate for both at once.
    client = shell('grep -qx gate {service} && echo ready >&2 && read word && '
                   'echo "$word"')
    both = replace(plan_of(redis_like(store), *client, gate=True),
                   clients=(Clients(instances=2),))
    assert job(both).services()[1] == 'go\ngo\n'


SOCKET = 'port 0\nunixsocket {data}/socket\nsave ""\n'


def test_a_socket_without_a_port(job, store):
    one = job(plan_of(replace(redis_like(store, socket=True, password=False),
                              config=SOCKET), *shell('test -S {host}')))
    assert one.services()[0].servers[0].port == 0


def test_servers_and_clients_run_on_their_nodes(on_nodes, store):
    plan = Plan(redis_like(store), (Clients(nodes=2, apart=True),), (
        Step('measure', (Program(shell('hostname; grep ^server {service}')),), 60),))
    one = on_nodes(plan)
    services, output = one.services()
    assert [server.node for server in services.servers] == ['n0']
    assert services.client_nodes == ('n1', 'n2')
    line = f'server 127.0.0.1 {services.servers[0].port}'
    assert output.splitlines() == ['n1', line, 'n2', line]
    assert not one.leftovers()


def test_each_node_has_a_server_with_a_socket(on_nodes, store):
    # Its counters can be read only on its node.
    server = replace(redis_like(store, nodes=2, socket=True, password=False),
                     config=SOCKET)
    one = on_nodes(Plan(server, (Clients(nodes=2, one_server=True),), (
        Step('measure', (Program(shell(
            'test -S {host} && grep -qx "server unix:{host}" {own_service}')),), 60),)))
    assert [server.node for server in one.services()[0].servers] == ['n0', 'n1']
    assert 'n1) shift' not in (one.folder / 'rfm_job.sh').read_text()
    assert not one.leftovers()


# Failures before and while servers serve ---------------------------------------

@pytest.mark.parametrize('command, words', [
    (shell('echo I am here; sleep 60'),
     ('odd (server 0 on', 'did not answer in 1 s', 'I am here')),
    (shell('echo no library; exit 3'),
     ('ended with exit code 3 before it answered', 'no library')),
    (('/no/such/store-server',), ('ended with exit code 127 before it answered',
                                  '/no/such/store-server: No such file')),
    # The process that answers is outside the session of the one that was started.
    (shell(f'setsid {PYTHON} -c {shlex.quote(IMPOSTOR)} '.replace('{', '{{').replace(
        '}', '}}') + '{address} {port} & wait'),
     ('did not answer in 1 s', 'another program listens on its port')),
], ids=['mute', 'ends', 'missing', 'impostor'])
def test_a_server_that_does_not_become_ready(job, command, words):
    limit = 60 if 'exit 3' in command[-1] else 1
    line = job(plan_of(Server('odd', command, ready_limit=limit))).refusal()
    assert all(word in line for word in words), line


def test_a_server_with_another_password(job, store):
    server = replace(redis_like(store, ready_limit=1), config=CONFIG.replace(
        'requirepass {password}', 'requirepass another'))
    assert 'did not answer in 1 s (WRONGPASS' in job(plan_of(server)).refusal()


def test_an_interface_that_the_node_lacks(job, store):
    line = job(plan_of(redis_like(store), interface='ib7')).refusal()
    assert all(word in line for word in (
        "no interface 'ib7'", 'lo (127.0.0.1)', 'service_interface')), line


def test_scratch_that_cannot_be_written(job, store):
    line = job(plan_of(redis_like(store)), Launching(
        [], [], True, scratch='/no/such/folder')).refusal()
    assert "set another scratch in the site's system.py" in line


# Clients and launchers that fail -----------------------------------------------

@pytest.mark.parametrize('command, limit, gate, words', [
    (shell('echo cannot do it >&2; exit 7'), 60, False,
     ('client 0 ended with exit code 7', 'cannot do it')),
    (('sleep', '600'), 1, False, ('step measure: client 0 did not end in 1 s',)),
    (('sleep', '600'), 1, True, ('client 0 did not become ready in 1 s',)),
    (('/no/such/client',), 60, False, ('/no/such/client: No such file',)),
], ids=['fails', 'hangs', 'gate', 'missing'])
def test_a_client_that_fails(job, store, command, limit, gate, words):
    line = job(plan_of(redis_like(store), *command, limit=limit, gate=gate)).refusal()
    assert all(word in line for word in words), line


def program(path, text):
    """A shell script."""
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return str(path)


def test_a_launcher_that_fails(on_nodes, store, tmp_path):
    line = on_nodes(plan_of(redis_like(store), apart=True), words=[
        program(tmp_path / 'start', 'echo no such host >&2; exit 5')]).refusal()
    # The launchers of server and observers end at once.
    assert re.search('(server 0 ended with|the nodes ended early with) exit code 5',
                     line), line
    assert 'no such host' in ''.join(
        path.read_text() for path in tmp_path.glob('job0/run.1.*'))


def test_a_job_with_too_few_nodes(on_nodes, store):
    line = on_nodes(plan_of(redis_like(store), apart=True), count=1).refusal()
    assert 'need 2 nodes, but the job has 1 (n0)' in line


# Disks, persistence, CPUs ---------------------------------------------

@pytest.fixture
def on_small_disk(job, tmp_path):
    """Starts a job whose scratch folder has room for two MiB."""
    if subprocess.run(['unshare', '-rm', 'mount', '-t', 'tmpfs', 'none', '/mnt'],
                      capture_output=True).returncode:
        pytest.skip('no user namespaces with mounts here')
    disk = tmp_path / 'disk'
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=2m none {disk} && exec bash rfm_job.sh'
    return lambda plan: job(
        plan, Launching([], [], True, scratch=str(disk)),
        before=f"[ -n \"${{SMALL-}}\" ] || SMALL=1 exec unshare -rm sh -c '{mount}'")


def snapshots(store, lines):
    return replace(redis_like(store, persistence='rdb'),
                   config=CONFIG.replace('save ""', lines))


def test_snapshots_are_awaited(job, store):
    one = job(plan_of(snapshots(store, 'save 1 1'),
                      *requests(10, 'send("GET", 1)')))
    assert one.end() == 0, one.messages()
    assert 'DB saved on disk' in (one.folder / 'run.1.server0.log').read_text()
    assert not one.leftovers()


@pytest.mark.parametrize('seconds', [0, 3])
def test_a_full_disk_under_snapshots(on_small_disk, store, seconds):
    # Reads are not refused: the SETs end before the first snapshot, and the store
    # removes the file that it could not write.
    one = on_small_disk(plan_of(
        snapshots(store, 'save 2 1\nstop-writes-on-bgsave-error no'), *requests(
            100, '[(send("GET", 1), time.sleep(0.1)) for _ in '
            f'range({10 * seconds})]')))
    line = one.refusal()
    assert 'did not save its data (rdb_last_bgsave_status is err)' in line
    assert 'the disk of ' in line and ' is full: free space' in line, line


def test_a_full_disk_under_an_append_only_file(on_small_disk, store):
    server = replace(redis_like(store, persistence='aof'),
                     config=CONFIG + 'appendonly yes\nappendfsync always\n')
    line = on_small_disk(plan_of(server, *requests(
        100, 'send("GET", 1)'))).refusal()
    assert 'the disk of ' in line and ' is full: free space' in line, line


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='one CPU')
def test_a_server_on_other_cpus(job, store, tmp_path):
    wrapper = program(tmp_path / 'wrapper', 'exec taskset -c 0-$(($(nproc --all) - 1)) '
                      f'{shlex.quote(str(store.binary))} "$@"')
    line = job(plan_of(replace(redis_like(store), command=(wrapper, '-')))).refusal()
    assert 'was bound to the CPUs [' in line and f'a wrapper at {wrapper}' in line


def test_a_server_that_had_to_be_killed_is_recorded(job, store):
    """Its log may not be whole."""
    command = shell(f'trap "" TERM; {shlex.quote(str(store.binary))} -; sleep 600')
    unchecked = []
    for server in (redis_like(store), replace(redis_like(store), command=command)):
        one = job(plan_of(server))
        one.services()
        run = SimpleNamespace(name='run.1', **{
            name: (one.folder / f'run.1.{name}').read_text()
            for name in ('out', 'err')})
        check = SimpleNamespace(
            unchecked=[], unvalidated_data=str, service_plan=lambda one=one: one.plan,
            extract_service_values=lambda *_: {}, inconclusive_reasons=[])
        assert 'ready_time' in service.ServiceBenchmark.parse_values(check, run)
        unchecked.append(''.join(check.unchecked))
        assert not one.leftovers()
    assert unchecked == [
        '', 'shutdown: server 0 of run.1 did not end on SIGTERM and was killed']


def test_an_append_only_file_that_a_server_does_not_write(job, store):
    line = job(plan_of(redis_like(store, persistence='aof'))).refusal()
    assert 'does not write an append-only file' in line, line


# Kills ---------------------------------------------------------------------------

def remove_data(one):
    """Removes data of killed servers, as the next server on the node does.

    A process that ends has no command for a moment, and still its lock.
    """
    def is_removed():
        for folder in one.scratch.glob(f'{servers.PREFIX}*'):
            servers.remove_if_unlocked(str(folder))
        return not [*one.scratch.glob(f'{servers.PREFIX}*')]
    until(is_removed)


@pytest.mark.parametrize('victim, number, cause', [
    ('script', signal.SIGTERM, 'the job script was ended by SIGTERM'),
    ('script', signal.SIGKILL, ''),
    ('group', signal.SIGTERM, 'the job script was ended by SIGTERM'),
    ('STORE-server 1', signal.SIGKILL,
     'was killed by signal 9 (SIGKILL) while it served'),
    ('node.py\0serve', signal.SIGKILL, 'the launcher of server 0 ended with exit code'),
    ('observe\0--wait', signal.SIGKILL, 'the observers of the nodes ended early'),
    ('sleep\000600', signal.SIGKILL, 'client 0 was killed by signal 9'),
])
def test_nothing_is_left_when_a_process_is_killed(job, store, victim, number, cause):
    one = job(plan_of(redis_like(store), *SLEEP, limit=600))
    one.until((one.folder / 'begun').exists)
    if victim == 'group':
        os.killpg(one.process.pid, number)
    else:
        os.kill(one.process.pid if victim == 'script' else one.wait_for(
            victim.replace('STORE', store.name))[0], number)
    assert one.end() != 0
    assert cause in ' '.join(one.messages())
    until(lambda: not one.processes())
    if victim == 'node.py\0serve' or number == signal.SIGKILL and victim == 'script':
        # Data folders of killed processes: the next server on the node removes them.
        until(lambda: all(str(path).startswith(f'{one.scratch}/{servers.PREFIX}')
                          for path in one.left()))
        remove_data(one)
    assert not one.leftovers()


@pytest.mark.parametrize('slots, cause', [
    ('n0:1', 'the launcher of server 0 ended with exit code'),
    ('n1:1', 'client 0 '),
    ('n0:1,n1:1', 'the observers of the nodes ended early with exit code'),
    # The script instead.
    ('', '')])
def test_nothing_is_left_when_a_launcher_is_killed(on_nodes, store, monkeypatch, slots,
                                                   cause):
    one = on_nodes(plan_of(redis_like(store), *SLEEP, limit=600, apart=True))
    one.until((one.folder / 'begun').exists)
    os.kill(one.wait_for(f'launcher\0{slots}\0')[0] if slots else one.process.pid,
            signal.SIGKILL)
    assert one.end() != 0
    assert cause in ' '.join(one.messages())
    until(lambda: not one.processes())
    monkeypatch.setattr(servers, 'host_name', lambda: 'n0')
    remove_data(one)
    assert not one.leftovers()


def test_what_a_killed_node_left_is_removed_by_the_next_run(job, store, tmp_path):
    one = job(plan_of(redis_like(store), *SLEEP))
    one.until((one.folder / 'begun').exists)
    pids = [one.process.pid, *one.processes()]
    # Stopped first: a process that is killed last would see the others end.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    one.process.wait()
    until(lambda: not one.processes())
    [secrets] = one.folder.glob('secrets.private.*')
    assert secrets.stat().st_mode & 0o77 == 0 and (secrets / 'password').exists()
    [data] = one.scratch.glob(f'{servers.PREFIX}*')
    remove_data(one)
    assert not data.exists()
    # ReFrame's folders: session, system, partition, environment, test case.
    stage = tmp_path / 'stage' / '1' / 'system' / 'partition' / 'environment' / 'case'
    stage.parent.mkdir(parents=True)
    one.folder.rename(stage)
    service.remove_secrets_of_dead_runs.cache_clear()
    service.remove_secrets_of_dead_runs(str(tmp_path / 'stage' / '2'))
    assert stage.exists() and not list(stage.glob('secrets.private.*'))


@pytest.mark.parametrize('host, age, locked, is_removed', [
    (socket.gethostname(), 0, False, True), (socket.gethostname(), 10, True, False),
    ('another', 0, False, False), ('another', 10, False, True)])
def test_only_secrets_of_dead_runs_are_removed(tmp_path, host, age, locked, is_removed):
    folder = tmp_path / 'stage/1/system/partition/environment/case/secrets.private.x'
    folder.mkdir(parents=True)
    (folder / 'lock').write_text(f'{host}\n')
    at = time.time() - age * 24 * 3600
    os.utime(folder, (at, at))
    service.remove_secrets_of_dead_runs.cache_clear()
    with open(folder / 'lock') as lock:
        if locked:
            fcntl.flock(lock, fcntl.LOCK_EX)
        service.remove_secrets_of_dead_runs(str(tmp_path / 'stage' / '2'))
    assert folder.exists() != is_removed


def test_only_data_of_dead_servers_is_removed(tmp_path):
    live = Path(servers.make_data_folder(str(tmp_path)))
    dead = tmp_path / f'{servers.PREFIX}dead'
    dead.mkdir()
    (dead / 'lock').write_text(client.host_name())
    new, elsewhere = (tmp_path / f'{servers.PREFIX}{name}' for name in ('new', 'other'))
    new.mkdir()
    elsewhere.mkdir()
    (elsewhere / 'lock').write_text('another')
    servers.make_data_folder(str(tmp_path))
    assert not dead.exists()
    assert live.exists() and new.exists() and elsewhere.exists()


# Ranks of an MPI program, and several roles ---------------------------------------

@pytest.fixture
def ranks(job, launcher):
    """Starts a job whose clients are ranks; `slots` are those of the launcher."""
    def start(server, *command, count=3, slots='{slots}', limit=60.0, roles=(),
              programs=()):
        return job(Plan(server, (Clients(instances=count), *roles), (Step(
            'measure', (Program(command, mpi=True), *programs), limit),)),
            Launching([], [launcher, slots], True))
    return start


def test_ranks_have_cpus_of_their_own(ranks, store):
    one = ranks(redis_like(store), *shell(
        'grep -c ^server {service}; '
        'echo own $(grep Cpus_allowed_list /proc/self/status)'))
    services, output = one.services()
    words = output.splitlines()
    assert len(services.client_nodes) == 3 and words.count('1') == 3
    lines = (one.folder / 'run.1.record').read_text().splitlines()
    assert sorted(cpus.parse_cpu_list(line.split()[6]) for line in lines
                  if line.startswith('# service client measure ')) == sorted(
        cpus.parse_cpu_list(line.split()[-1]) for line in words if 'own' in line)
    assert not one.leftovers()


def test_producer_and_consumer_run_at_once(ranks, store):
    # Each waits for the other's file.
    def meets(own, other):
        return shell(f'touch {own}; until [ -e {other} ]; do sleep 0.05; done; '
                     f'echo {own} {{index}}')

    one = ranks(redis_like(store), *meets('a', 'b'), count=2,
                roles=(Clients(name='consumer'),),
                programs=(Program(meets('b', 'a'), role='consumer'),))
    services, output = one.services()
    assert sorted(output.splitlines()) == ['a 0', 'a 0', 'b 0']
    assert len(services.client_nodes) == 3 and one.plan.required_cpus_per_node() == 4


@pytest.mark.parametrize('command, slots, limit, words', [
    (shell('echo no such tensor >&2; exit 3'), '{slots}', 60,
     ('the MPI program of client ended with exit code 3', 'no such tensor')),
    (('true',), 'x:2', 60,
     ('step measure: 2 of 3 processes of the MPI program of client started',)),
    (('true',), 'x:4', 60, ("the launcher started more than 3 processes 'client'",)),
    (('sleep', '600'), '{slots}', 1,
     ('step measure: the MPI program of client did not end in 1 s',)),
], ids=['fail', 'missing', 'too many', 'hang'])
def test_ranks_that_fail(ranks, store, command, slots, limit, words):
    line = ranks(redis_like(store), *command, slots=slots, limit=limit).refusal()
    assert all(word in line for word in words), line


def test_a_rank_that_is_killed_with_its_observer_is_missed(job, launcher, store,
                                                           tmp_path):
    # The launcher ends with 0 nevertheless.
    start = program(tmp_path / 'start', f'{launcher} "$@" || exit 0')
    kill = '[ $OMPI_COMM_WORLD_LOCAL_RANK = 0 ] || kill -9 $PPID'
    line = job(Plan(redis_like(store), (Clients(instances=2),), (Step(
        'measure', (Program(shell(kill), mpi=True),), 60),)), Launching(
        [], [start, '{slots}'], True)).refusal()
    assert ('step measure: 1 of 2 processes of the MPI program of client reported '
            'their end') in line


def test_a_dead_server_is_the_cause_of_failed_ranks(ranks, store):
    one = ranks(redis_like(store), *shell(
        'touch here; while [ -e here ]; do sleep 0.02; done; exit 1'))
    one.until((one.folder / 'here').exists)
    os.kill(one.wait_for(f'{store.name}-server 1')[0], signal.SIGKILL)
    (one.folder / 'here').unlink()
    line = one.refusal()
    assert f'{store.name} (server 0 on ' in line and 'was killed by signal 9' in line


# Plans and parts --------------------------------------------------------------------

def test_nodes_of_the_roles_of_a_plan():
    server = Server('x', (), cpus=2, nodes=2)
    roles = (Clients(nodes=3, cpus=4, name='a', apart=True),
             Clients(nodes=1, cpus=1, name='b'),
             Clients(nodes=2, instances=9, name='c', apart=True))
    plan = Plan(server, roles, ())
    assert {name: list(where) for name, where in plan.node_numbers_by_role().items()
            } == {'server': [0, 1], 'a': [2, 3, 4], 'b': [2], 'c': [5, 6]}
    assert plan.node_count == 7 and plan.required_cpus_per_node() == 9
    beside = replace(plan, clients=(replace(roles[0], apart=False), roles[1]))
    assert beside.node_count == 3 and beside.required_cpus_per_node() == 7
    assert replace(beside, clients=(replace(roles[0], apart=False, unbound=True),)
                   ).required_cpus_per_node() == 4
    # Without its CPUs a bound process is slower, an unbound one if its threads spin.
    assert [role.required_cpus for role in (
        server, replace(server, unbound=True),
        Clients(cpus=4, unbound=True, spinning=3))] == [2, 0, 3]


@pytest.mark.parametrize('broken', ['', 'another line', '# service server {',
                                    '# service client x', '# service step {}'])
def test_damaged_output(broken):
    with pytest.raises(ParseError, match='ended early|is damaged'):
        split_service_record(broken + '\n')


def test_an_answer_in_another_protocol_is_not_readiness():
    with socket.create_server(('127.0.0.1', 0)) as server:
        child = os.fork()
        if child == 0:
            connection, _ = server.accept()
            connection.sendall(b'HTTP/1.1 400 Bad Request\r\n')
            os._exit(0)
        with pytest.raises(ValueError, match='does not speak RESP'):
            ask.resp_counters(ask.Server(*server.getsockname()))
        os.waitpid(child, 0)
