"""The embedded programs: results bit for bit, faults in one clear line.

Built with -Werror, AddressSanitizer and UBSan where the compiler has them.
"""
from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from checks.optcast import logs, parser
from tests.conftest import LIMIT, ROOT, accepts_connections, free_port, until

SOURCES = [*sorted((ROOT / 'checks/optcast/src').glob('*.c')),
           *sorted((ROOT / 'checks/core/src/common').glob('*.c'))]
FLAGS = ['-g', '-O1', '-std=gnu11', '-pthread', '-Wall', '-Wextra',
         '-Werror', '-lm']
SECRET = 'password of-this-run\n'


@pytest.fixture(scope='module')
def optcast(once):
    """The program, with sanitizers where there are such."""
    def make(folder):
        for more in (['-fsanitize=address,undefined',
                      '-fno-sanitize-recover=all'], []):
            done = subprocess.run(
                ['cc', *FLAGS, *more, '-o', folder / 'optcast',
                 *SOURCES], capture_output=True, text=True)
            if done.returncode == 0:
                return
        raise AssertionError(done.stderr)
    return once('optcast', make) / 'optcast'


class Run:
    """Servers and clients of one all-reduce, in a folder."""

    def __init__(self, program, folder, ranks, servers=1, type='f32',
                 chunk=16, ring=False, more=(), timeout=20):
        self.program, self.folder, self.ranks = program, Path(folder), ranks
        self.common = ['--nrank', str(ranks), '--data-type', type,
                       '--timeout', str(timeout)]
        self.chunk = chunk
        self.more = (*more, '--ring') if ring else more
        self.count = chunk * 1024 // (4 if type == 'f32' else 2)
        self.ports = [free_port() for _ in range(servers)]
        self.servers, self.clients = [], []

    def start(self, words, name, **more):
        with (self.folder / f'{name}.out').open('w') as out, (
                self.folder / f'{name}.err').open('w') as err:
            return subprocess.Popen(
                [self.program, *map(str, words)], stdout=out, stderr=err,
                env={**os.environ, 'ASAN_OPTIONS': 'detect_leaks=0'}, **more)

    def serve(self, **change):
        for number, port in enumerate(self.ports):
            options = {'count': self.count, 'port': port, **change}
            one = self.start(
                [*(word for key, value in options.items()
                   for word in (f'--{key.replace("_", "-")}', value)),
                 *self.common, *(['--trace', self.folder / 'server.log']
                                 if number == 0 else [])],
                f'server{number}', stdin=subprocess.PIPE, text=True)
            one.stdin.write(SECRET)
            one.stdin.close()
            self.servers.append(one)
        return self

    def ask(self, sizes='64K,100K', secret=SECRET, ranks=None, chunk=0):
        service = self.folder / 'service'
        service.write_text(''.join(f'server 127.0.0.1 {port}\n'
                                   for port in self.ports) + secret)
        for rank in ranks if ranks is not None else range(self.ranks):
            self.clients.append(self.start(
                ['--client', '--rank', rank, '--service', service,
                 '--chunksize', f'{chunk or self.chunk}K', '--size', sizes,
                 *self.common,
                 *self.more, *(['--trace', self.folder / 'client0.trace']
                               if rank == 0 else [])], f'client{rank}'))
        return self

    def ends(self):
        """Exit codes of the clients."""
        return [one.wait(LIMIT) for one in self.clients]

    def client_log(self):
        """Trace and table of the first client, as in a folder of logs."""
        return ''.join((self.folder / f'client0.{end}').read_text()
                       for end in ('trace', 'out'))

    def output(self, name='client0'):
        """The one line on a program's standard error."""
        [line] = (self.folder / f'{name}.err').read_text().splitlines()
        return line

    def stop(self):
        for one in (*self.servers, *self.clients):
            if one.poll() is None:
                one.kill()
            one.wait()


@pytest.fixture
def run(optcast, tmp_path):
    """run(RANKS, ...): a Run that is stopped after the test."""
    runs = []

    def make(*args, **more):
        runs.append(Run(optcast, tmp_path, *args, **more))
        return runs[-1]
    yield make
    for one in runs:
        one.stop()


@pytest.mark.parametrize('type', ['f32', 'f16', 'bf16'])
@pytest.mark.parametrize('ranks, servers, ring', [
    (3, 2, False), (2, 3, False), (4, 1, False), (8, 1, False), (3, 1, True)])
def test_results_are_right_bit_for_bit(run, type, ranks, servers, ring):
    job = run(ranks, servers, type, 16, ring, more=('-n', '3'))
    assert job.serve().ask('4,64K,100K').ends() == [0] * ranks, [
        file.read_text() for file in sorted(job.folder.glob('*.err'))]
    text = (job.folder / 'client0.out').read_text()
    result = parser.read_table(enumerate(text.split('\n'), 1))
    assert result.ranks == ranks
    assert [row.size for row in result.rows] == [4, 65536, 102400]


def test_its_logs_are_read_as_the_originals(run):
    job = run(2, 2, chunk=8)
    assert job.serve(reduce_threads=1, recv_threads=1, send_threads=2
                     ).ask('256K').ends() == [0, 0]
    job.servers[0].terminate()
    job.servers[0].wait()
    (job.folder / 'setting.yaml').write_text(
        'type: optcast\nnum_recvs: 1\nnum_sends: 2\nnum_threads: 1\n')
    (job.folder / 'client.log').write_text(job.client_log())
    result = parser.analyse_log_folder(job.folder)
    names = [(log.side, one.name, one.len) for log in (
        result.client, result.server) for one in log.statistics]
    # 32 parts, measured once after one warm-up, half of them dropped: of 64
    # requests, of 32 parts that the first server got.
    assert names == [
        ('client', 'e2e', 32), ('client', 'req', 32), ('client', 'send', 32),
        ('client', 'recv', 32), ('server', 'recv', 16),
        ('server', 'reduce', 16), ('server', 'send', 32)]


def test_a_small_all_reduce_goes_in_small_parts(run):
    """32 for each server, none below 8 KiB, and the last one may be smaller."""
    job = run(2, 2, chunk=64)
    assert job.serve().ask('1M,518K').ends() == [0, 0]
    job.servers[0].terminate()
    job.servers[0].wait()
    log = (job.folder / 'server.log').read_text()
    # Of two ranks, twice.
    assert log.count('recv latency') == 2 * 2 * (32 + 33)
    assert {span.kind for span in logs.read_log('server', log).spans} == {
        'recv', 'reduce', 'send'}


#: A link that can hold nothing at every other attempt that need not wait.
BUSY_LINK = """\
#include <errno.h>
#include <sys/socket.h>
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    static int attempts;
    if (flags & MSG_DONTWAIT && ++attempts % 2) {
        errno = EAGAIN;
        return -1;
    }
    return __real_sendmsg(fd, message, flags);
}
"""


def test_each_message_begins_once_in_the_trace(run, tmp_path):
    """Also if it has to wait before its first byte."""
    (tmp_path / 'busy_link.c').write_text(BUSY_LINK)
    subprocess.run(['cc', *FLAGS, '-Wl,--wrap=sendmsg', '-o', tmp_path / 'optcast',
                    *SOURCES, tmp_path / 'busy_link.c'], check=True)
    job = run(3, 2)
    job.program = tmp_path / 'optcast'
    assert job.serve().ask('96K').ends() == [0] * 3
    result = logs.read_log('client', job.client_log())
    # Twelve parts of 8 K, twice.
    assert {one.name: one.len for one in result.statistics} == {
        'e2e': 12, 'req': 12, 'send': 12, 'recv': 12}


@pytest.mark.parametrize('threads', [3, 1])
def test_servers_serve_one_session_after_the_other(run, threads):
    """Also if one thread receives from all ranks, which end one after the other."""
    job = run(3)
    job.serve(recv_threads=threads, send_threads=threads)
    assert job.ask().ends() == [0, 0, 0]
    job.clients.clear()
    assert job.ask().ends() == [0, 0, 0]
    # A ring meets at the same server.
    job.clients.clear()
    job.more = ('--ring',)
    assert job.ask().ends() == [0, 0, 0]


@pytest.mark.parametrize('words, why', [
    (['--nrank', '4', '--recv-threads', '3'], 'must divide --nrank 4'),
    (['--nrank', '0'], 'expected a whole number from 1 to 256'),
    (['--port', '99999999999999999999'], 'expected a whole number from 1 to'),
    (['--data-type', 'f64'], '--data-type f64: unknown'),
    (['--size', '-4K'], '--size -4K: expected sizes'),
    (['--size', '9999999999G'], '--size 9999999999G: expected sizes'),
    (['--client', '--nrank', '2', '--rank', '2'], 'names no server'),
    (['much'], 'unknown option much')])
def test_wrong_options(optcast, words, why):
    done = subprocess.run([optcast, *words], input=SECRET, text=True,
                          capture_output=True, timeout=LIMIT)
    assert done.returncode in (1, 2)
    [line] = done.stderr.splitlines()
    assert line.startswith('optcast: ')
    assert why in line


def test_no_secret_is_no_server(optcast):
    done = subprocess.run([optcast, '--port', '1'], input='', text=True,
                          capture_output=True, timeout=LIMIT)
    assert done.returncode == 1 and "no line 'password WORD'" in done.stderr


def test_an_unknown_line_of_a_service_file(optcast):
    """It may hold the secret, so it is not shown."""
    done = subprocess.run([optcast, '--port', '1'], text=True, timeout=LIMIT,
                          input=f'{SECRET}passwort geheim\n',
                          capture_output=True)
    assert (done.returncode, done.stderr) == (
        2, 'optcast: standard input:2: not a line of a service file: see '
        '--help\n')


def test_a_wrong_secret_is_not_served(run):
    job = run(2)
    assert job.serve().ask(secret='password guessed\n', ranks=[0]
                           ).ends() == [1]
    assert 'does it have the secret' in job.output()
    job.clients.clear()
    assert job.ask().ends() == [0, 0]
    log = (job.folder / 'server.log').read_text()
    assert "dropped: does not know this run's secret" in log
    assert 'guessed' not in log and 'of-this-run' not in log


def test_another_program_on_the_port_of_a_server(run):
    """The client notices it before it sends any data."""
    job = run(2)
    with socket.create_server(('127.0.0.1', job.ports[0])) as listener:
        job.ask(ranks=[1])
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b'+OK\r\n' * 100)
            assert job.ends() == [1]
    assert 'another program uses the server' in job.output('client1')


def test_a_wrong_count(run):
    job = run(2, 2)
    assert job.serve().ask(chunk=8, ranks=[0]).ends() == [1]
    assert 'the server was started with --count 4096' in job.output()


def test_different_chunks(run):
    job = run(2)
    job.serve().ask('64K', ranks=[0]).ask('8K', ranks=[1])
    assert any(job.ends())
    assert 'their size or chunksize differ' in job.output('server0')


def test_a_taken_port(run):
    job = run(2)
    with socket.create_server(('127.0.0.1', job.ports[0])):
        job.serve()
        assert job.servers[0].wait(LIMIT) == 1
    assert 'another program has this port' in job.output('server0')


def test_nobody_serves(run):
    job = run(2, timeout=1)
    assert job.ask(ranks=[0]).ends() == [1]
    assert 'cannot connect to the server' in job.output()


def begun(job):
    """Waits until data flow; of a ring, until its clients are connected."""
    name, words = (('client0.out', 'Using devices') if '--ring' in job.more else
                   ('server.log', 'recv latency'))
    log = job.folder / name
    until(lambda: log.exists() and words in log.read_text(), job.clients[0])


@pytest.mark.parametrize('ring, threads', [(False, 3), (False, 1), (True, 3)])
def test_a_client_dies(run, ring, threads):
    """One thread of the server may receive from all ranks."""
    job = run(3, ring=ring, more=('-n', '100000'))
    job.serve(recv_threads=threads, send_threads=threads).ask('1M')
    begun(job)
    job.clients[1].kill()
    codes = job.ends()
    assert codes[1] == -signal.SIGKILL and codes[0] == codes[2] == 1
    if ring:
        assert 'rank' in job.output('client2')
    else:
        assert job.servers[0].wait(LIMIT) == 1
        assert 'rank 1 (127.0.0.1:' in job.output('server0')
        assert 'closed the connection' in job.output('client2')


def test_a_server_dies(run):
    job = run(2, 2, more=('-n', '100000'))
    job.serve().ask('1M')
    begun(job)
    job.servers[1].kill()
    assert job.ends() == [1, 1]
    # The first to notice ends, and the other server with it: the other client
    # may name that one.
    messages = [job.output(f'client{rank}') for rank in range(2)]
    assert all('closed the connection' in one for one in messages), messages
    assert any(
        f'127.0.0.1:{job.ports[1]} closed' in one for one in messages
    ), messages


def test_a_server_that_hangs(run):
    job = run(2, more=('-n', '100000'), timeout=3)
    job.serve().ask('1M')
    begun(job)
    job.servers[0].send_signal(signal.SIGSTOP)
    assert job.ends() == [1, 1]
    assert 'for 3 s: it hangs, or its link is down' in job.output()


def test_hostile_peers_do_not_disturb_a_run(run):
    """They are dropped, and the run goes on."""
    job = run(2)
    job.serve()
    draw = random.Random(16)
    until(lambda: accepts_connections(job.ports[0]), job.servers[0])
    for _ in range(30):
        # One that is dropped already finds its connection reset.
        with contextlib.suppress(ConnectionError), \
                socket.create_connection(('127.0.0.1', job.ports[0])) as peer:
            peer.sendall(draw.randbytes(draw.choice([0, 1, 40, 88, 200])))
            if draw.random() < 0.5:
                peer.sendall(struct.pack('II', 0x3243504f, 0)
                             + b'\xff' * 80)
    assert job.ask().ends() == [0, 0]


def test_waiting_costs_no_cpu(run):
    job = run(2)
    job.serve().ask(ranks=[0])

    def used():
        return [sum(map(int, Path(f'/proc/{one.pid}/stat').read_text(
            ).rpartition(')')[2].split()[11:13])) for one in (
                *job.servers, *job.clients)]

    def wait_without_cpu():
        """Whether each process used at most 20 ms of CPU time within a second."""
        before = used()
        time.sleep(1)
        return max(b - a for a, b in zip(before, used(), strict=True)) <= 2
    # First they start.
    until(wait_without_cpu, job.clients[0])
