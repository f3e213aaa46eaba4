"""tao_server, the embedded server of TaoBench: over real sockets, by a small
client of its own protocol and by the embedded memtier_benchmark.
"""
from __future__ import annotations

import contextlib
import json
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from checks.services import ask
from tests.conftest import (
    LIMIT,
    ROOT,
    accepts_connections,
    free_port,
    until,
)

BUILD = ROOT / 'checks/taobench/src/build.sh'
#: Number of sizes that are drawn.
DRAWN = 300_000
LINE = re.compile(
    r'fast_qps = (?P<fast_qps>\d+\.\d), hit_rate = (?P<hit_rate>\d\.\d{3}), '
    r'slow_qps = (?P<slow_qps>\d+\.\d), wh_qps = (?P<wh_qps>\d+\.\d), '
    r'curr_it = (?P<curr_it>\d+\.\d\d)M, '
    r'slow_qps_oom =  (?P<slow_qps_oom>\d+\.\d), '
    r'crnt_conn = (?P<crnt_conn>\d+), slow_th = (?P<slow_th>\d+), '
    r'slow_reqs = (?P<slow_reqs>\d+), slow_resp = (?P<slow_resp>\d+), '
    r'nanosleeps_per_sec = (?P<nanosleeps>\d+\.\d\d)')
GET, SET, QUIT, NOOP, VERSION, STAT = 0, 1, 7, 10, 11, 16
FINE, NOT_FOUND, INVALID, UNKNOWN, OUT_OF_MEMORY = 0, 1, 4, 0x81, 0x82


@pytest.fixture(scope='session')
def program(programs) -> Path:
    return programs / 'tao_server'


@pytest.fixture(scope='session')
def memtier(programs) -> Path:
    return programs / 'memtier_benchmark'


class Reply(NamedTuple):
    opcode: int
    status: int
    key: bytes
    value: bytes
    opaque: int


def request(opcode: int, key: bytes = b'', opaque: int = 0) -> bytes:
    return struct.pack('>BBHBBHIIQ', 0x80, opcode, len(key), 0, 0, 0, len(key),
                       opaque, 0) + key


class Client:
    """One connection that speaks the binary protocol."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.stream = sock.makefile('rb')

    def send(self, *args, **more) -> None:
        self.sock.sendall(request(*args, **more))

    def read(self) -> Reply:
        head = self.stream.read(24)
        assert len(head) == 24, 'closed'
        magic, opcode, key, extras, _, status, total, opaque, _ = (
            struct.unpack('>BBHBBHIIQ', head))
        assert magic == 0x81
        body = self.stream.read(total)[extras:]
        return Reply(opcode, status, body[:key], body[key:], opaque)

    def ask(self, *args, **more) -> Reply:
        self.send(*args, **more)
        return self.read()


class Tao:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], port: int, out: Path):
        self.process, self.port, self.out = process, port, out

    def socket(self) -> socket.socket:
        sock = socket.create_connection(('127.0.0.1', self.port), 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def client(self) -> Client:
        return Client(self.socket())

    @property
    def stats(self) -> dict[str, float]:
        with self.socket() as sock:
            client, stats = Client(sock), {}
            client.send(STAT)
            while (reply := client.read()).key:
                stats[reply.key.decode()] = float(reply.value)
            client.ask(QUIT)
            # It is closed, and no longer one of the open ones.
            assert client.stream.read() == b''
        return stats

    def stop(self) -> list[str]:
        """Its lines."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LIMIT) == 0
        return self.out.read_text().splitlines()

    def memory(self, name: str) -> int:
        """Bytes of VmRSS, VmData."""
        text = Path(f'/proc/{self.process.pid}/status').read_text()
        match = re.search(rf'{name}:\s+(\d+) kB', text)
        assert match
        return int(match[1]) << 10

    def all_threads_sleep(self) -> bool:
        return {path.read_text().rpartition(')')[2].split()[0] for path in
                Path(f'/proc/{self.process.pid}/task').glob('*/stat')} == {'S'}


@pytest.fixture
def start(program, tmp_path) -> Iterator[Callable[..., Tao]]:
    """Starts servers; `-o` options by their names."""
    started: list[subprocess.Popen[str]] = []

    def run(*args: object, ready: bool = True, **options: object) -> Tao:
        port = free_port()
        more = ','.join(f'{name}={value}' for name, value in options.items())
        out = tmp_path / f'out-{port}'
        with out.open('w') as handle:
            process = subprocess.Popen(
                [program, '-p', str(port), *([] if '-t' in args else ['-t', '2']),
                 *map(str, args), *(['-o', more] if more else [])],
                stdout=handle, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        server = Tao(process, port, out)
        until(lambda: accepts_connections(port), process)
        return server
    yield run
    for process in started:
        process.kill()
        process.wait()


def unpacked(block: bytes) -> bytes:
    """What a block of LZ4 holds, by the description of its format."""
    out, at = bytearray(), 0

    def length(start: int) -> int:
        nonlocal at
        if start == 15:
            while True:
                start, byte, at = start + block[at], block[at], at + 1
                if byte != 255:
                    break
        return start

    while True:
        token, at = block[at], at + 1
        n = length(token >> 4)
        out += block[at:at + n]
        at += n
        if at == len(block):
            return bytes(out)
        offset, at = block[at] | block[at + 1] << 8, at + 2
        assert 0 < offset <= len(out)
        for _ in range(length(token & 15) + 4):
            out.append(out[-offset])


def payload(size: int) -> bytes:
    return (bytes(range(255)) * (size // 255 + 1))[:size]


# --- the command line --------------------------------------------------------

@pytest.mark.parametrize('args, words', [
    (['-x'], 'unknown option -x: see --help'),
    (['-p'], '-p needs a value'),
    (['-p', '11211x'], 'expected a port'),
    (['-t', '0'], '-t 0: expected a whole number from 1'),
    (['-m', '1', '-m', '2'], '-m is given twice'),
    (['-o', 'tao_max_slow_req=1'], '-o tao_max_slow_req: unknown'),
    (['-o', 'tao_max_slow_reqs'],
     'needs a value: tao_max_slow_reqs=N'),
    (['-o', 'tao_stats_sleep_ms=0'], 'from 10 to'),
])
def test_usage(program, args, words):
    done = subprocess.run([program, *args], capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert re.fullmatch('tao_server: [^\n]+\n', done.stderr), done.stderr
    assert re.search(words, done.stderr)


def failed(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 1
    assert re.fullmatch('tao_server: [^\n]+\n', done.stderr), done.stderr
    assert re.search(words, done.stderr)


def test_what_cannot_start_says_why(program, start, tmp_path):
    def run(*args: object, **more) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *map(str, args)], text=True,
                              capture_output=True, timeout=LIMIT, **more)
    failed(run('-p', start().port), 'Address already in use: another program '
           'has this port')
    failed(run('-p', free_port(), '-l', '192.0.2.1'),
           r'192\.0\.2\.1:\d+: .*not an address of this machine')
    failed(run('-p', free_port(), '-c', 1000, preexec_fn=lambda:
               resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))),
           r'open files limit 128 \(ulimit -Hn\) is too low for 1000')


def test_it_listens_at_its_address_only(start):
    server = start()
    port = f':{server.port:04X}'
    rows = [line.split() for name in ('tcp', 'tcp6') for line in
            Path(f'/proc/net/{name}').read_text().splitlines()[1:]]
    # 0A: listens.
    assert [row[1] for row in rows if row[1].endswith(port)
            and row[3] == '0A'] == [f'0100007F{port}']


# --- look-through ------------------------------------------------------------

VARIANTS = [
    {}, {'tao_slow_use_semaphore': 1, 'tao_smart_nanosleep': 1,
     'tao_pin_threads': 1},
    {'tao_worker_sleep_ns': 0, 'tao_slow_path_sleep_us': 1000},
]


@pytest.mark.parametrize('options', VARIANTS)
def test_a_miss_is_made_stored_and_from_then_on_a_hit(start, options):
    server = start(**options)
    client = server.client()
    first = [client.ask(GET, b'key:%d' % i) for i in range(50)]
    second = [client.ask(GET, b'key:%d' % i) for i in range(50)]
    assert first == second and {r.status for r in first} == {FINE}
    for reply in first:
        value = unpacked(reply.value)
        assert value == payload(len(value))
    stats = server.stats
    assert stats['cmd_get'] == 100
    assert stats['get_misses'] == stats['tao_slow_responses'] == 50
    assert stats['get_hits'] == stats['tao_fast_responses'] == 50
    assert stats['curr_items'] == 50


def test_other_requests(start):
    client = start().client()
    assert client.ask(NOOP, opaque=9)[::4] == (NOOP, 9)
    assert client.ask(VERSION).value == b'1.0'
    assert client.ask(QUIT).status == FINE
    assert client.stream.read() == b''


def test_no_queue_no_slow_path(start):
    server = start(tao_max_slow_reqs=0)
    client = server.client()
    assert client.ask(GET, b'a').status == NOT_FOUND
    stats = server.stats
    assert (stats['get_misses'], stats['tao_slow_requests']) == (1, 0)


def test_who_finds_the_queue_full_gets_a_plain_miss(start):
    server = start('-t', 8, tao_max_slow_reqs=1, tao_slow_dispatchers=1,
                   tao_dispatcher_sleep_ns=10 ** 9)
    clients = [server.client() for _ in range(8)]
    for i, client in enumerate(clients):
        client.send(GET, b'%d' % i)
    seen = Counter(client.read().status for client in clients)
    assert set(seen) == {FINE, NOT_FOUND}
    stats = server.stats
    assert stats['get_misses'] == 8
    assert stats['tao_slow_requests'] == seen[FINE]


def test_its_threads_are_those_asked_for(start):
    server = start('-t', 1, tao_slow_dispatchers=2, tao_num_slow_threads=3)
    client = server.client()
    # The misses of a connection go to both dispatchers.
    for i in range(9):
        assert client.ask(GET, b'%d' % i).status == FINE

    def names() -> Counter[str]:
        return Counter(Path(p, 'comm').read_text().strip().split('-')[0] for p in
                       Path(f'/proc/{server.process.pid}/task').iterdir())
    # A thread gives itself its name when it runs.
    until(lambda: names() == {
        'tao_server': 1, 'fast': 1, 'dispatch': 2, 'slow': 3, 'accept': 1})


# --- what is stored ----------------------------------------------------------

@pytest.fixture(scope='module')
def make_values(tmp_path_factory) -> bytes:
    """Sizes that are drawn, and blocks of all sizes: each with its size before."""
    folder = tmp_path_factory.mktemp('values')
    (folder / 'main.c').write_text(f'''
#include "{BUILD.parent / 'values.c'}"
static void put(unsigned size, unsigned bytes)
{{
    static char value[VALUE_MAX];
    unsigned stored = make_value(value, size);

    fwrite(&size, sizeof size, 1, stdout);
    fwrite(&stored, sizeof stored, 1, stdout);
    fwrite(value, 1, bytes ? stored : 0, stdout);
}}
int main(void)
{{
    for (int i = 0; i < {DRAWN}; i++)
        put(draw_size(), 0);
    for (unsigned size = 31; size <= 65536; size += size < 3000 ? 1 : 97)
        put(size, 1);
}}
''')
    subprocess.run(['cc', '-o', folder / 'main', folder / 'main.c', '-pthread'],
                   check=True)
    return subprocess.run([folder / 'main'], stdout=subprocess.PIPE, check=True).stdout


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[int(share * len(values))]


def test_sizes_have_the_published_quantiles(make_values):
    made, stored = zip(*struct.iter_unpack('=II', make_values[:8 * DRAWN]), strict=True)
    for share, published, within in (
            (0.5, 240, 0.02), (0.9, 538, 0.02), (0.99, 2250, 0.05),
            (0.999, 8900, 0.15)):
        assert quantile(made, share) == pytest.approx(published, rel=within)
    assert sum(made) / len(made) == pytest.approx(351, rel=0.03)
    assert max(made) <= 65536
    # As compressed as those of the original.
    assert sum(stored) / len(stored) == pytest.approx(200, rel=0.01)
    for share, seen in ((0.5, 242), (0.75, 266), (0.99, 273)):
        assert quantile(stored, share) == pytest.approx(seen, abs=2)
    assert max(stored) <= 521


def test_values_of_all_sizes_are_blocks_of_lz4(make_values):
    out = make_values[8 * DRAWN:]
    at, count = 0, 0
    while at < len(out):
        size, stored = struct.unpack_from('=II', out, at)
        at += 8 + stored
        assert unpacked(out[at - stored:at]) == payload(size), size
        count += 1
    assert count > 3500


# --- memory ------------------------------------------------------------------

def test_memory_is_bounded_and_what_is_read_stays(start):
    server = start('-m', 1, tao_slow_use_semaphore=1, tao_worker_sleep_ns=0)
    client = server.client()
    hot = [b'hot:%d' % i for i in range(20)]

    def fill(first: int) -> None:
        """As many again as there is room for, the hot ones read between."""
        for block in range(first, first + 6000, 50):
            for i in range(block, block + 50):
                assert client.ask(GET, b'cold:%d' % i).status == FINE
            for key in hot:
                client.send(GET, key)
            assert {client.read().status for _ in hot} == {FINE}
    fill(0)
    full, resident = server.stats, server.memory('VmRSS')
    fill(10000)
    stats = server.stats
    # The hot ones were made once.
    assert (full['get_misses'], stats['get_misses']) == (6020, 12020)
    assert full['evictions'] > 1000
    assert stats['evictions'] + stats['curr_items'] == 12020
    # A hundredth stays free; a class that comes late is given its first page.
    room = 0.99 * (1 << 20)
    assert room - (64 << 10) < stats['total_malloced'] <= room + (10 << 16)
    assert stats['limit_maxbytes'] == 1 << 20
    assert stats['bytes'] <= stats['total_malloced']
    assert server.memory('VmRSS') - resident < 1 << 20


def test_an_item_counts_as_in_memcached(start):
    server = start()
    value = server.client().ask(GET, b'k' * 228).value
    # Header with CAS, key, NUL, value, CR LF.
    assert server.stats['bytes'] == 56 + 228 + 1 + len(value) + 2
    assert server.stats['total_malloced'] in {
        65536 // size * size for size in (304, 384, 480, 600, 752, 944)}


def test_out_of_memory_is_told_and_answered(start):
    server = start('-m', 64, tao_stats_sleep_ms=50)
    client = server.client()
    # Each slow thread takes its buffers when it first runs, and then sleeps.
    until(server.all_threads_sleep)
    limit = server.memory('VmData') + (32 << 10)
    everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(server.process.pid, resource.RLIMIT_DATA,
                     (limit, resource.RLIM_INFINITY))
    replies = [client.ask(GET, b'%d' % i) for i in range(3)]
    assert {r.status for r in replies} == {OUT_OF_MEMORY}
    resource.prlimit(server.process.pid, resource.RLIMIT_DATA, everything)
    assert client.ask(GET, b'0').status == FINE
    assert server.stats['tao_slow_responses_oom'] == 3
    lines = server.stop()
    assert lines.count('OUT OF MEMORY when allocating item on slow path.'
                       ) == 1
    oom = [float(m['slow_qps_oom']) for m in map(LINE.fullmatch, lines) if m]
    assert any(oom)


# --- figures -----------------------------------------------------------------

def loaded(memtier: Path, server: Tao, *args: object) -> dict:
    """JSON of a load."""
    with tempfile.NamedTemporaryFile('w') as service:
        service.write(f'server 127.0.0.1 {server.port}\n')
        service.flush()
        done = subprocess.run(
            [memtier, '--service', service.name, '--protocol', 'memcache_binary',
             '--key-prefix', 'k' * 219, '--ratio', '0:1', '--out-file', '/dev/null',
             '--json-out-file', '/proc/self/fd/1', *map(str, args)],
            capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.alone
def test_values_agree_with_those_of_the_load(start, memtier):
    server = start('-t', 4, tao_stats_sleep_ms=200)
    gets = loaded(memtier, server, '--clients', 10, '--threads', 2, '--key-maximum',
                  499, '--requests', 4000)['ALL STATS']['Gets']
    # Its clients never see a miss: that is what looking through means.
    assert gets['Count'] == 80000 and gets['Misses/sec'] == 0
    stats = server.stats
    assert stats['cmd_get'] == 80000
    # Two that miss the same key at the same time both have it made.
    assert 500 <= stats['get_misses'] <= 700
    assert stats['tao_slow_responses'] == stats['get_misses']
    assert stats['curr_items'] == 500
    assert stats['total_connections'] >= 20
    lines = server.stop()
    rows = [m for m in map(LINE.fullmatch, lines) if m]
    assert lines[0].startswith('tao_server 1.0 (embedded) on 127.0.0.1')
    assert lines[-2] == 'Signal handled: Terminated.'
    assert len(rows) == len(lines) - 2
    assert {row['slow_th'] for row in rows[1:]} == {'12'}
    assert any(float(row['nanosleeps']) > 100 for row in rows)
    total = sum((float(row['fast_qps']) + float(row['slow_qps'])) * 0.2
                for row in rows[:-1])
    # Rows are no exact fifths of a second; the last one has no weight.
    assert total == pytest.approx(80000, rel=0.3)
    share = max(float(row['hit_rate']) for row in rows)
    assert share > 0.9


def test_connections_are_counted(start):
    server = start(tao_stats_sleep_ms=50)
    before = server.stats['total_connections']
    clients = [server.client() for _ in range(5)]
    for client in clients:
        client.ask(NOOP)
    # The one that asks is a connection, too.
    assert server.stats['curr_connections'] == 6
    # In the line, with the socket that listens.
    until(lambda: ', crnt_conn = 6, ' in server.out.read_text())
    for client in clients:
        client.stream.close()
        client.sock.close()
    until(lambda: server.stats['curr_connections'] == 1)
    assert server.stats['total_connections'] - before >= 8


def test_more_connections_than_allowed_are_refused(start):
    server = start('-c', 4)
    clients: list[Client] = []

    def has_room() -> bool:
        """Who came before, to see that it runs, may not have left."""
        client = server.client()
        # Who is refused may find the connection reset while it asks.
        with contextlib.suppress(ConnectionError):
            client.send(NOOP)
            if client.stream.read(1) == b'\x81':
                client.stream.read(23)
                clients.append(client)
                return True
        return False

    until(lambda: has_room() and len(clients) == 4)
    with server.socket() as one_more:
        assert one_more.makefile('rb').read() == (
            b'ERROR Too many open connections\r\n')
    assert clients[0].ask(NOOP).status == FINE
    clients[1].ask(QUIT)
    until(has_room)


def test_the_job_script_can_ask_it(start):
    server = start()
    server.client().ask(GET, b'a')
    counters = ask.memcached_counters(ask.Server('127.0.0.1', server.port))
    assert counters.version == '1.0'
    assert (counters.commands, counters.keys, counters.misses) == (1, 1, 1)
    assert counters.cpu > 0 and counters.memory > 56


# --- what goes wrong ---------------------------------------------------------

def head(**fields: int) -> bytes:
    f = {'magic': 0x80, 'opcode': GET, 'key': 1, 'extras': 0, 'total': 1,
         **fields}
    return struct.pack('>BBHBBHIIQ', f['magic'], f['opcode'], f['key'],
                       f['extras'], 0, 0, f['total'], 0, 0)


@pytest.mark.parametrize('data, status', [
    (head(key=0, total=0), INVALID),
    (head(key=251, total=251) + b'k' * 251, INVALID),
    (head(key=9, total=1) + b'k', INVALID),
    (head(extras=4, total=5) + b'0000k', INVALID),
    (head(total=9) + b'k12345678', INVALID),
    (head(opcode=STAT) + b'k', INVALID),
    (head(opcode=0x42) + b'k', UNKNOWN),
    # It creates the values.
    (head(opcode=SET, extras=8, total=10) + b'8' * 8 + b'kv', UNKNOWN),
    (head(total=2 ** 32 - 1) + b'x' * 100, INVALID),
])
def test_malformed_requests_are_answered_and_harm_nobody(start, data,
                                                         status):
    server = start()
    client = server.client()
    client.sock.sendall(data)
    assert client.read().status == status
    assert client.stream.read() == b''
    assert server.client().ask(NOOP).status == FINE


def test_noise_harms_nobody(start):
    server = start()
    chance = random.Random(11)
    for _ in range(300):
        noise = bytearray(chance.randbytes(chance.randrange(1, 300)))
        if chance.random() < 0.8:
            noise[:2] = bytes([0x80, chance.randrange(0x20)])
            noise[2:12] = head()[2:12]
        with contextlib.suppress(ConnectionError), server.socket() as sock:
            sock.sendall(noise)
            sock.shutdown(socket.SHUT_WR)
            if chance.random() < 0.5:
                sock.makefile('rb').read()
    assert server.client().ask(NOOP).status == FINE
    until(lambda: server.stats['curr_connections'] <= 2)


def test_requests_in_pieces_of_one_byte(start):
    client = start().client()
    for byte in 2 * request(GET, b'k' * 250):
        client.sock.sendall(bytes([byte]))
    first, second = (client.read() for _ in range(2))
    assert first == second and first.value


def test_who_reads_late_gets_all(start):
    """More answers than any socket holds wait, and nothing is lost."""
    server = start()
    client = server.client()
    value, count = client.ask(GET, b'k').value, 150_000
    sender = threading.Thread(target=client.sock.sendall, args=[
        count * request(GET, b'k') + request(GET, b'n')])
    sender.start()
    # Meanwhile it serves others of the same threads, and holds no heap of
    # answers: it stops to read, too.
    others = [other.ask(GET, b'n').value for other in (
        server.client(), server.client())]
    assert server.memory('VmRSS') < 40 << 20
    assert all(client.read().value == value for _ in range(count))
    assert [client.read().value] * 2 == others
    sender.join()


def test_a_client_that_leaves_while_its_miss_is_made(start):
    server = start('-t', 1, tao_slow_path_sleep_us=200000)
    with server.socket() as sock:
        sock.sendall(request(GET, b'a'))
    assert server.client().ask(GET, b'a').status == FINE
    until(lambda: server.stats['curr_items'] == 1)


def test_it_stops_at_once_under_load(start, memtier):
    server = start(tao_slow_path_sleep_us=1000000)
    load = subprocess.Popen(
        [memtier, '--port', f'{server.port}', '--protocol', 'memcache_binary',
         '--threads', '1', '--clients', '4', '--ratio', '0:1', '--test-time', '60'],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: server.stats['curr_connections'] >= 4
              if server.process.poll() is None else False)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LIMIT) == 0
        assert 'closed the connection' in load.communicate(timeout=LIMIT)[1]
    finally:
        load.kill()
    lines = server.out.read_text().splitlines()
    assert lines[-2].startswith('Signal handled: ')
    assert LINE.fullmatch(lines[-1])
    # The port is free again at once.
    socket.create_server(('127.0.0.1', server.port)).close()
