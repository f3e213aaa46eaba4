"""The original's programs on the services, with a stand-in for them that
speaks as they do and moves nothing; with $OPTCAST_PREFIX the real ones."""
from __future__ import annotations

import os
import socket
import threading

import pytest

from checks.core.parsers import ParseError
from checks.optcast import programs, settings, shim
from checks.optcast.original import Original
from checks.optcast.scenarios import ORIGINAL, SCALES
from tests.conftest import LIMIT, of_family, python_script
from tests.serving.job import Job

#: Server and client. As the real one, a server counts everybody who connects,
#: and it leaves when one of them does: the last sums, which go over other
#: connections, may be due to others then. Where these end it panics.
STANDIN = """
import os, select, socket, sys, time
words = dict(zip(sys.argv[1:], sys.argv[2:]))
size = int(words['--count']) * 4
def say(text, level='TRACE', module='server'):
    t = time.time_ns()
    if level != 'TRACE' or os.environ['RUST_LOG'] == 'TRACE':
        print(time.strftime('[%Y-%m-%dT%H:%M:%S', time.gmtime(t // 10**9))
              + f'.{t % 10**9:09d}Z {level:5} optcast_reduction_server::'
              f'{module}] {text}', flush=True)
def timed(row, what, moved):
    say(f'{row} {what} ' + ('requested' if moved else 'start'))
    begin = time.time_ns()
    time.sleep(0.002)
    us = (time.time_ns() - begin) // 1000
    say(f'{row} {what} latency: {us}us'
        + f', {size * 8e-3 / us:.2f}Gbps' * moved)
assert os.environ['NCCL_PLUGIN_P2P'] == 'socket'
assert os.environ['NCCL_SOCKET_IFNAME'] == 'lo'
assert os.environ['LD_LIBRARY_PATH'].startswith(os.path.dirname(sys.argv[0]))
if '-c' in sys.argv:
    where = words['-a'].split(',')
    held = [socket.create_connection((h, int(p))) for h, p in
            (one.split(':') for one in where)]
    data = [socket.create_connection((one.getpeername()[0],
                                      int(one.recv(5)))) for one in held]
    n, begin = int(words['--try-count']), time.time_ns()
    for _ in range(n):
        for j in range(len(where)):
            for kind in ('send  ', 'recv '):
                say(f'{kind}: idx: 0, j: {j} start', module='client')
        time.sleep(0.002)
        if (os.environ.get('STANDIN') == 'panic'
                and os.environ['RUST_LOG'] == 'TRACE'):
            say("thread '<unnamed>' panicked at src/client.rs:1:1:", 'INFO')
            sys.exit(101)
        for j in range(len(where)):
            for kind in ('send  ', 'recv '):
                say(f'{kind}: idx: 0, j: {j} done', module='client')
    took = (time.time_ns() - begin) / 1e9 / n
    for one in data:
        if one.recv(3) != b'sum':
            say("thread '<unnamed>' panicked at src/client.rs:134:90:", 'INFO')
            sys.exit(101)
    all = size * len(where)
    say(f'type: agg, nchannel: 1, nsplit: {len(where)}, nreq: 1, '
        f'count: {size // 4}, try_count: {n} #', 'INFO', 'utils')
    say(f'size: {all / 2**20:.2f}MB, bandwidth: {all * 8 / took / 2**30:.2f}'
        'Gbps #', 'INFO', 'utils')
else:
    with socket.create_server((words['--address'], int(words['--port']))) as s:
        held = [s.accept()[0] for _ in range(int(words['--nrank']))]
    if os.environ.get('STANDIN') == 'server':
        sys.exit(3)
    say(f'recv thread(0) all ranks get connected!, size: {size}', 'INFO')
    with socket.create_server((words['--address'], 0)) as s:
        for one in held:
            one.sendall(b'%05d' % s.getsockname()[1])
        data = [s.accept()[0] for _ in held]
    for n in range(8):
        timed(f'rank(0)/job({n % 2})', 'recv', 1)
        timed(f'rank(0)/job({n % 2})', 'reduce', 0)
        timed(f'rank(0)/job({n % 2})', 'send', 1)
    if os.environ.get('STANDIN') == 'panic':
        time.sleep(99)
    data[0].sendall(b'sum')
    if select.select(data[:1], [], [], 0.5)[0]:
        say('[socket.c:63] Connection closed by remote peer <9>', 'WARN')
        say("thread '<unnamed>' (9) panicked at src/server.rs:451:80:", 'INFO')
    if select.select(held, [], [], 0.1)[0]:
        sys.exit()
    for one in data[1:]:
        one.sendall(b'sum')
    for one in held:
        one.recv(1)
    say('handle_connection: exiting ret Ok(0)', 'INFO')
"""


def install_stand_in(prefix):
    """The prefix of an installation whose server is STANDIN."""
    (prefix / 'bin').mkdir(parents=True)
    (prefix / 'bin' / programs.LIBRARY).touch()
    program = prefix / 'bin' / programs.SERVER
    program.write_text(python_script(STANDIN))
    program.chmod(0o755)
    return prefix


@pytest.fixture
def started(tmp_path):
    """started(servers, ...): an evaluation and its job."""
    jobs = []

    def start(servers=1, clients=2, real='', **more):
        prefix = real or install_stand_in(tmp_path / 'prefix')
        of = settings.parse_settings(
            {'size': '1M', 'chunksize': '128K', 'num_threads': 1,
             'num_recvs': 1, 'num_sends': 1,
             'nccl_test_options': '-n 2'}, clients, servers, bf16=False)
        evaluation = Original(of, str(prefix), timeout=20)
        jobs.append(Job(tmp_path / 'job', evaluation.service_plan(), **more))
        return evaluation, jobs[-1]
    yield start
    for job in jobs:
        job.kill()


def values(evaluation, job):
    services, _ = job.services()
    folder = evaluation.collect_run_logs(job.folder, 'run.1', services)
    result = evaluation.analyse_logs(folder)
    assert evaluation.summary_sentences(result, {})
    return {record.metric if record.size is None
            else f'{record.metric}@{record.size}B': record.value
            for record in result.records} | evaluation.compute_derived_values(result)


@pytest.mark.parametrize('servers', [1, 2])
def test_the_original_on_the_services(started, servers):
    evaluation, job = started(servers)
    assert evaluation.request_count == 16 // servers
    result = values(evaluation, job)
    assert set(result) == set(evaluation.expected_metrics())
    size = servers * (128 << 10)
    # Two clients: the factor is 1. A request takes 2 ms and a little more.
    assert result[f'busbw@{size}B'] == result[f'algbw@{size}B']
    assert 0 < result[f'busbw@{size}B'] < size / 2e6
    assert job.leftovers() == []


def test_more_threads_that_spin_than_cpus_are_inconclusive(suite):
    """Otherwise the bandwidth of threads that wait for a CPU could become a
    reference."""
    done = suite.reframe(
        '-r', '-Sbringup=1', *of_family('optcast'), '-n', 'OptcastOriginal', '-E',
        'scenario.client_nodes == 0 and scenario.data_type == "f32"',
        '-SOptcastOriginal.settings=size:1M,chunksize:128K,num_threads:4096,'
        'nccl_test_options:-n 2',
        OPTCAST_PREFIX=str(install_stand_in(suite.tmp / 'prefix')))
    assert 'PASSED' in done.stdout, done.stdout
    values = [r for r in suite.records if r['metric'] == 'client_bandwidth']
    assert {r['result'] for r in values} == {'inconclusive'}
    # Two threads receive, and two send.
    assert 'too few CPUs: 1 server and 2 clients with 4102 threads that spin' in (
        next(iter(values))['reason']), values


@pytest.mark.skipif('OPTCAST_PREFIX' not in os.environ,
                    reason='OPTCAST_PREFIX is not set to the prefix of an '
                           'Optcast')
def test_the_real_one(started):
    evaluation, job = started(2, real=os.environ['OPTCAST_PREFIX'])
    result = values(evaluation, job)
    assert set(result) == set(evaluation.expected_metrics())
    assert result['busbw@262144B'] > 0


def test_a_server_that_ends_early_and_a_client_that_panics(started):
    _, job = started(STANDIN='server')
    line = job.refusal()
    assert 'server 0' in line or 'client' in line


def test_a_client_that_panics(started):
    """The other one, which gets no sum then, does not wait for its limit."""
    _, job = started(STANDIN='panic')
    line = job.refusal()
    assert 'exit code 101' in line and 'panicked at src/client.rs' in line


def carried(count):
    """Clients' connections through the shim: (client's end, server's)."""
    left, made = threading.Barrier(count), []
    for _ in range(count):
        (client, outer), (inner, server) = (socket.socketpair(),
                                            socket.socketpair())
        threading.Thread(target=shim.relay_client, args=(outer, inner, left),
                         daemon=True).start()
        server.settimeout(LIMIT)
        made.append((client, server))
    return made


def test_the_server_loses_its_clients_when_the_last_one_has_left():
    (client, server), (later, other) = carried(2)
    server.sendall(b'where')
    client.sendall(b'here')
    assert (client.recv(9), server.recv(9)) == (b'where', b'here')
    client.close()
    server.settimeout(0.3)
    with pytest.raises(TimeoutError):
        server.recv(9)
    server.settimeout(LIMIT)
    other.sendall(b'sum')
    assert later.recv(9) == b'sum'
    later.close()
    assert (server.recv(9), other.recv(9)) == (b'', b'')


def test_the_server_loses_a_client_when_another_never_leaves(monkeypatch):
    monkeypatch.setattr(shim, 'LIMIT', 0.2)
    (client, server), (later, other) = carried(2)
    client.close()
    assert server.recv(9) == b''
    later.sendall(b'here')
    assert other.recv(9) == b'here'
    later.close()
    assert other.recv(9) == b''


def test_values_that_contradict_each_other(started):
    evaluation, job = started()
    services, _ = job.services()
    folder = evaluation.collect_run_logs(job.folder, 'run.1', services)
    log = folder / 'client.log'
    text = log.read_text()
    log.write_text(text.replace('bandwidth: 0', 'bandwidth: 3'))
    with pytest.raises(ParseError, match='but the client printed'):
        evaluation.compute_derived_values(evaluation.analyse_logs(folder))
    log.write_text(''.join(line for line in text.splitlines(True)
                           if ' #' not in line))
    with pytest.raises(ParseError):
        evaluation.analyse_logs(folder)


@pytest.mark.parametrize('scenario', ORIGINAL, ids=str)
def test_every_case_of_the_original_has_a_plan(scenario, tmp_path):
    (tmp_path / programs.SERVER).touch()
    (tmp_path / programs.LIBRARY).touch()
    of = settings.parse_settings(
        {**SCALES[scenario.scale], 'data_type': scenario.data_type},
        scenario.clients,
        scenario.servers,
        bf16=False,
        x86_original=True,
    )
    evaluation = Original(of, str(tmp_path), max(1, scenario.client_nodes),
                          scenario.server_node_count, 4)
    plan = evaluation.service_plan()
    assert plan.node_count == scenario.node_count
    assert len(plan.server.commands) == scenario.servers
    assert evaluation.request_count * evaluation.request_size == 64 << 20
    # One server and one client trace.
    assert [sum('RUST_LOG=TRACE' in command for command in commands)
            for commands in (plan.server.commands,
                             plan.steps[0].programs[0].commands)] == [1, 1]


def test_what_the_original_lacks(tmp_path):
    of = settings.parse_settings({'nsplit': 2}, 4, 2, bf16=False)
    with pytest.raises(ValueError, match='sends one chunk to each server'):
        Original(of, str(tmp_path))
    assert programs.find_installed_file(str(tmp_path), programs.SERVER) == ''
    assert programs.program_features('system') == ('optcast_server',)
    assert programs.program_features('embedded') == ()
    assert shim.find_interface('127.0.0.1') == 'lo'
    assert shim.find_interface('192.0.2.1') == ''
