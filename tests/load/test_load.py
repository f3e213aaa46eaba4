"""The embedded memtier_benchmark: against fake servers for what goes wrong, against
real ones for what must go right, and beside the original.

Real servers are `redis-server`, `valkey-server` and `memcached` on PATH or
among the stores that the set-up found. The original is `memtier_benchmark` on PATH,
or the program that the variable MEMTIER_BENCHMARK names. A test that needs a missing
one is skipped.
"""
from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.keyvalue import parser
from checks.loadgen import memtier
from config.records import metrics
from tests.conftest import (
    LIMIT,
    ROOT,
    accepts_connections,
    free_port,
    skip_missing,
    until,
)

BUILD = ROOT / 'checks/loadgen/src/build.sh'

#: One connection of one thread, unless a test has others.
USUAL = {'--threads': 1, '--clients': 1}
JSON = ('--out-file', '/dev/null', '--json-out-file', '/proc/self/fd/1')
GET, SET = ('--ratio', '0:1'), ('--ratio', '1:0')
MIXED = ('--ratio', '1:1')
FILL = (*SET, '--key-pattern', 'P:P', '--requests', 'allkeys', '--verify', 'bytes')
#: Reads that must find what a fill wrote.
READ = (*GET, '--verify', 'bytes', '--on-miss', 'fail')
WRITE = (*SET, '--verify', 'bytes')


def keys(count: int) -> tuple[str, ...]:
    return ('--key-prefix', 'key:', '--key-maximum', str(count - 1))


@pytest.fixture(scope='session')
def program(programs) -> Path:
    return programs / 'memtier_benchmark'


@pytest.fixture
def load(program) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*args: object, **more) -> subprocess.CompletedProcess[str]:
        usual = [word for option, value in USUAL.items() if option not in args
                 for word in (option, value)]
        words = map(str, (*args, *usual, *JSON))
        return subprocess.run([program, *words], timeout=LIMIT,
                              capture_output=True, text=True, **more)
    return run


def values(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stderr
    return {r.metric: r.value for r in memtier.read_run(done.stdout).records}


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert done.returncode == 0, done.stderr
    return {name: row['Count'] for name, row in json.loads(done.stdout)[
        'ALL STATS'].items() if 'Count' in row}


def refused(done: subprocess.CompletedProcess[str], code: int, words: str
            ) -> None:
    """One line with the reason, and no values."""
    assert done.returncode == code, done
    assert re.fullmatch('memtier_benchmark: [^\n]+\n', done.stderr), done.stderr
    assert re.search(words, done.stderr), done.stderr
    assert not done.stdout


# --- the command line --------------------------------------------------------

@pytest.mark.parametrize('args, words', [
    (['--sever', 'x'], 'unknown option --sever: see --help'),
    (['server'], 'unknown option server'),
    (['--port'], '--port .*: expected a whole number'),
    (['--key-maximum', '1.5'], 'a whole number from 0'),
    (['--rate-limiting', 'fast'], '--rate-limiting fast: expected a number'),
    (['--clients', '1', '--clients', '2'], 'given twice'),
    (['--ratio', '0:0'], 'expected SETS:GETS'),
    (['--key-pattern', 'S:S'], 'expected R:R or P:P'),
    (['--key-pattern', 'P:P'], 'go together'),
    (['--requests', 'allkeys'], 'go together'),
    (['--requests', '0'], 'expected a whole number from 1'),
    (['--protocol', 'memcache_binary', '--command', 'LPUSH __key__ x'],
     'memcached has none'),
    (['--verify', 'some'], '--verify some: unknown'),
    (['--ratio', '1:0', '--on-miss', 'set'], 'is for GETs'),
    (['--data-size', '0'], 'a size in bytes'),
    (['--data-size-list', '10:3,ten:1'], "both above 0, at 'ten:1'"),
    (['--key-prefix', 'a b'], 'no blanks'),
    (['--key-prefix', 'x' * 230], 'at most 220 bytes'),
    (['--print-percentiles', '50,101'], 'numbers from 0 to 100'),
    (['--service', 'nowhere'], 'No such file'),
])
def test_usage(load, args, words):
    refused(load(*args), 2, words)


def test_help_has_every_option_of_the_table(load):
    text = load('--help').stdout
    source = (BUILD.parent / 'options.c').read_text()
    names = re.findall(r'^    \{"([a-z-]+)", (?:"|NULL)', source, re.M)
    assert len(names) > 20
    assert all(f'--{name}' in text for name in names)
    assert max(map(len, text.splitlines())) < 80


def service(folder: Path, where: str, *lines: str) -> list[object]:
    """Options for a service file with this server and these lines."""
    path = folder / 'service'
    path.write_text(''.join(f'{line}\n' for line in (
        f'server {where if "unix:" in where else where.replace(":", " ")}', *lines)))
    return ['--service', path]


@pytest.mark.parametrize('lines, options, words', [
    (['cluster'], ['--protocol', 'memcache_binary'], 'speaks RESP'),
    (['password x'], ['--protocol', 'memcache_binary'], 'no password'),
    (['user bench'], [], 'a user without a password')])
def test_lines_of_a_service_file_that_contradict(load, tmp_path, lines, options,
                                                 words):
    refused(load(*service(tmp_path, '127.0.0.1:1', *lines), *options), 2, words)


def test_a_damaged_service_file_tells_the_line_and_not_the_password(
        load, tmp_path):
    file = tmp_path / 'service'
    file.write_text('server 127.0.0.1 1\npasword hunter2\n')
    done = load('--service', file)
    refused(done, 2, 'service:2: not a line of a service file')
    assert 'hunter2' not in done.stderr

# --- a server that does as it is told ----------------------------------------


def address(listener: socket.socket) -> str:
    return f'127.0.0.1:{listener.getsockname()[1]}'


class Fake:
    """A store of RESP2 for a few connections; `answer` may spoil things."""

    def __init__(self, answer: Callable[..., bytes | None] | None = None):
        self.data: dict[bytes, bytes] = {}
        self.seen: list[list[bytes]] = []
        self.spoilt = answer
        #: Bytes that it sends at once.
        self.piece = 1 << 20
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=64)
        self.where = address(self.listener)
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        # Closed under its feet, accept() would take the next one's.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()

    def listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=[connection],
                                 daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError), \
                connection, connection.makefile('rb') as stream:
            while head := stream.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = int(stream.readline()[1:])
                    words.append(stream.read(size + 2)[:-2])
                self.seen.append(words)
                reply = self.spoilt(self, words) if self.spoilt else None
                if reply is None:
                    reply = self.answer(words)
                if reply == b'':
                    return
                for i in range(0, len(reply), self.piece):
                    connection.sendall(reply[i:i + self.piece])

    def answer(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        if name == b'PING':
            return b'+PONG\r\n'
        if name in (b'SET', b'MSET'):
            self.data.update(zip(words[1::2], words[2::2], strict=True))
            return b'+OK\r\n'
        value = self.data.get(words[1])
        return b'$-1\r\n' if value is None else b'$%d\r\n%s\r\n' % (
            len(value), value)


class FakeBinary(Fake):
    """The same with memcached's binary protocol."""

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), connection, \
                connection.makefile('rb') as stream:
            while True:
                opcode, key, extras, total, opaque = struct.unpack(
                    '>xBHBxxxII8x', stream.read(24))
                body = stream.read(total)[extras:]
                words = [NAMES[opcode], body[:key], body[key:]]
                reply = (
                    self.spoilt(self, words, opaque) if self.spoilt else None
                ) or self.special_reply(opcode, words, opaque)
                connection.sendall(reply)

    def special_reply(
        self, opcode: int, words: list[bytes], opaque: int
    ) -> bytes:
        name, key, value = words
        if name == b'VERSION':
            return binary(opcode, value=b'1.6.0', opaque=opaque)
        if name == b'SET':
            self.data[key] = value
            return binary(opcode, opaque=opaque)
        if key not in self.data:
            return binary(opcode, 1, b'Not found', opaque)
        return binary(opcode, 0, self.data[key], opaque, bytes(4))


NAMES = {0: b'GET', 1: b'SET', 11: b'VERSION'}


def binary(opcode: int, status: int = 0, value: bytes = b'', opaque: int = 0,
           extras: bytes = b'', magic: int = 0x81) -> bytes:
    return struct.pack('>BBHBBHIIQ', magic, opcode, 0, len(extras), 0, status,
                       len(extras) + len(value), opaque, 7) + extras + value


KINDS_OF_FAKES = {'redis': Fake, 'memcache_binary': FakeBinary}


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def make(answer: Callable[..., bytes | None] | None = None,
             protocol: str = 'redis') -> Fake:
        made.append(KINDS_OF_FAKES[protocol](answer))
        return made[-1]
    yield make
    for server in made:
        server.stop()


def on(name: bytes, reply: bytes) -> Callable[..., bytes | None]:
    return lambda server, words: reply if words[0] == name else None


def at(server: Fake) -> list[str]:
    """Options for a server."""
    host, port = server.where.split(':')
    return ['--server', host, '--port', port]


def timeout_for(words: str) -> list[object]:
    """A short timeout where it is what ends the load, else none: on a loaded
    machine the fake answers late."""
    return ['--timeout', 0.3] if 'no answer for 0.3 s' in words else []


@pytest.mark.parametrize('name, reply, words', [
    (b'PING', b'-NOAUTH Authentication required.\r\n',
     'NOAUTH .*: give the password'),
    (b'PING', b'-LOADING Redis is loading the dataset in memory\r\n',
     'LOADING .*: the store still reads its data'),
    (b'GET', b'-OOM command not allowed when used memory > maxmemory\r\n',
     r'127.0.0.1:\d+: OOM .*: the store is full: its memory limit is below'),
    (b'GET', b'-MISCONF Errors writing to the AOF file\r\n',
     'MISCONF .*is the disk full'),
    (b'GET', b'-MOVED 866 10.0.0.1:1\r\n', 'MOVED .*needs the line .cluster.'),
    (b'GET', b'-ERR odd\r\n', "ERR odd: the server's log may say why"),
    (b'GET', b'', r'closed the connection after \d+ operations .*did the '
     'server die'),
    (b'PING', b'-ERR max number of clients reached\r\n',
     'ask for fewer connections'),
    (b'PING', b'', 'closed the connection before it answered'),
    (b'GET', b'$5\r\nhel', 'no answer for 0.3 s on connection 1 of 1'),
    (b'GET', b'$5\r\nhelloXX$', 'longer than was said'),
    (b'GET', b'$five\r\n', 'a length that is not a number'),
    (b'GET', b':1\r\n', 'another kind than was asked for'),
    (b'GET', b'HTTP/1.1 400\r\n', 'another kind'),
    (b'GET', b'$-1\r\n$-1\r\n', 'an answer to no request'),
    (b'GET', b'x' * 600, 'a line without end'),
    (b'GET', b'+OK\n', 'does not end in CR LF'),
    (b'PING', b'HTTP/1.1 400\r\n', "answers the greeting with 'HTTP/1.1 400', "
     'of another kind .*: no redis server'),
])
def test_a_server_that_fails(load, fake, name, reply, words):
    refused(load(*at(fake(on(name, reply))), '--test-time', 5, *GET, '--data-size', 5,
                 '--verify', 'length', *timeout_for(words)), 1, words)


@pytest.mark.parametrize('name, reply, words', [
    (b'PING', b'-NOAUTH Authentication required.\r\n', 'give the password'),
    (b'PING', b'', 'closed the connection before it answered PING'),
    (b'CLUSTER', b'-ERR This instance has cluster support disabled\r\n',
     'remove the line .cluster.'),
    (b'CLUSTER', b'HTTP/1.1 400\r\n',
     "no RESP server: it answers CLUSTER SLOTS with 'HTTP"),
    (b'CLUSTER', b'*1\r\n', 'no answer for 0.3 s to CLUSTER SLOTS'),
    (b'CLUSTER', b'*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$2000000\r\n',
     'a text that is too long'),
])
def test_the_first_server_of_a_cluster_fails(load, fake, tmp_path, name, reply,
                                             words):
    refused(load(*service(tmp_path, fake(on(name, reply)).where, 'cluster'),
                 *timeout_for(words)), 1, words)


def test_nobody_listens(load):
    with socket.create_server(('127.0.0.1', 0)) as missing:
        port = missing.getsockname()[1]
    refused(load('--port', port), 1,
            f'127.0.0.1:{port}: Connection refused: does the server run')


def test_a_connection_that_breaks_after_some_operations(load, fake):
    server = fake(lambda server, words: b'' if len(server.seen) > 50 else None)
    refused(load(*at(server), '--test-time', 5), 1, r'after (4\d) operations')


def test_wrong_bytes_and_wrong_sizes_are_found(load, fake):
    server = fake()
    options = [*at(server), *keys(20), '--data-size-list', '100:1,250:1,300:1']
    read = [*options, *READ, '--requests', 500]
    values(load(*options, *FILL))
    assert len(server.data) == 20
    assert {len(value) for value in server.data.values()} == {100, 250, 300}
    values(load(*read))
    value = server.data[b'key:7']
    server.data[b'key:7'] = value[:50] + bytes([value[50] ^ 1]) + value[51:]
    refused(load(*read), 1, 'key key:7 is wrong at byte 50: 0x')
    server.data[b'key:7'] = value[:-1]
    refused(load(*read), 1, rf'key key:7 has {len(value) - 1} bytes, not '
            rf'{len(value)} as written')


# --- servers that lie --------------------------------------------------------

@pytest.mark.parametrize('protocol', KINDS_OF_FAKES)
@pytest.mark.parametrize('lie, words', [
    ('empty', 'key key:\\d+ has 0 bytes, not 64 as written'),
    ('long', 'key key:\\d+ has 65 bytes, not 64 as written'),
    ('wrong bytes', 'key key:\\d+ is wrong at byte 30'),
    ('another key', 'key key:\\d+ is wrong at byte'),
    ('misses', 'key key:\\d+ is not there: did the store lose or evict it'),
])
def test_a_store_that_gives_what_was_not_written(load, fake, protocol, lie, words):
    def answer(server, request, opaque=0):
        if request[0] != b'GET' or not reading:
            return None
        right = server.data[request[1]]
        other = server.data[b'key:1' if request[1] == b'key:2' else b'key:2']
        value = {'empty': b'', 'long': right + b'x', 'misses': None,
                 'wrong bytes': right[:30] + bytes([right[30] ^ 1]) + right[31:],
                 'another key': other}[lie]
        if protocol == 'memcache_binary':
            return (binary(0, 1, b'Not found', opaque) if value is None else
                    binary(0, 0, value, opaque, bytes(4)))
        return b'$-1\r\n' if value is None else b'$%d\r\n%s\r\n' % (
            len(value), value)

    reading = False
    options = [*at(fake(answer, protocol)), '--protocol', protocol, *keys(20),
               '--data-size', 64]
    values(load(*options, *FILL))
    reading = True
    refused(load(*options, *READ, '--requests', 100), 1, words)
    refused(load(*options, *READ[2:], *MIXED, '--requests', 1000), 1, words)


QUEUED, INTEGER, NULL = b'+QUEUED\r\n', b':1\r\n', b'$-1\r\n'


@pytest.mark.parametrize('command, reply, words', [
    ('SET', QUEUED, "SET with '\\+QUEUED', of another kind"),
    ('SET', b'+OKAY\r\n', r"SET with '\+OKAY', of another kind"),
    ('SET', INTEGER, "SET with ':1'"),
    ('SET', NULL, r"SET with '\$-1'"),
    ('SET', b'-OOM command not allowed\r\n', 'the store is full'),
    ('MSET', QUEUED, r"MSET with '\+QUEUED'"),
    ('LPUSH', b':abc\r\n', 'LPUSH with'),
    ('LPUSH', b':0\r\n', "LPUSH with ':0'"),
    ('LPUSH', b':99999999999999999999\r\n', 'an integer that is none'),
    ('XADD', NULL, 'XADD with'),
    ('INCR', QUEUED, 'INCR with'),
    ('GET', QUEUED, r"GET with '\+QUEUED'"),
    ('GET', b'*1\r\n$1\r\nx\r\n', 'GET with'),
    ('KEYS', b'*0\r\n', 'KEYS with'),
    ('GET', b'$-2\r\n', 'a length that is not a number'),
    ('PING', b'+OK\r\n', r"greeting with '\+OK'"),
    ('GET', b'-\x1b[2Jgone\r\n', r'\?\[2Jgone'),
])
def test_an_answer_that_the_protocol_does_not_give(load, fake, command, reply, words):
    what = {'GET': GET, 'PING': GET, 'SET': SET}.get(
        command, ('--command', f'{command} __key__ __data__'))
    refused(load(*at(fake(on(command.encode(), reply))), *what, '--requests', 20), 1,
            words)


@pytest.mark.parametrize('what', [
    FILL, (*WRITE, '--requests', 20),
    ('--command', 'MSET __key__ __data__', '--verify', 'bytes', '--requests', 20)])
def test_a_store_that_keeps_nothing(load, fake, what):
    server = fake(lambda server, words: b'+OK\r\n' if b'SET' in words[0] else None)
    refused(load(*at(server), *what, *keys(50)), 1,
            'is not there: did the store lose')


def dropping(share: float, protocol: str) -> Callable[..., bytes | None]:
    """A store that acknowledges all overwrites and drops a share of them."""
    drops = random.Random(1)

    def answer(server, words, opaque=0):
        if (words[0] not in (b'SET', b'MSET') or words[1] not in server.data
                or drops.random() >= share):
            return None
        return (binary(1, opaque=opaque) if protocol == 'memcache_binary'
                else b'+OK\r\n')
    return answer


@pytest.mark.parametrize('protocol', KINDS_OF_FAKES)
@pytest.mark.parametrize('ratio', ['1:0', '1:1'])
@pytest.mark.parametrize('size', [64, 100_000])
@pytest.mark.parametrize('share', [1, 0.02])
def test_a_store_that_drops_overwrites(load, fake, protocol, ratio, size, share):
    """Of a few it finds one among the last thousand writes."""
    options = [*at(fake(dropping(share, protocol), protocol)), *keys(200), '--protocol',
               protocol, '--data-size', size]
    values(load(*options, *FILL))
    refused(load(*options, '--ratio', ratio, '--verify', 'bytes', '--requests', 300), 1,
            r'key key:\d+ holds what it held before it was overwritten: the '
            'store acknowledges a write and drops it')


@pytest.mark.parametrize('protocol', KINDS_OF_FAKES)
def test_what_fills_and_sets_wrote_is_read_by_all(load, fake, protocol):
    server = fake(protocol=protocol)
    options = [*at(server), '--protocol', protocol, *keys(40), '--data-size-list',
               '1:1,20:1,300:1', '--pipeline', 4]
    values(load(*options, *FILL))
    stored = dict(server.data)
    for what in (MIXED, GET, SET, GET, MIXED):
        values(load(*options, *what, '--verify', 'bytes', '--requests', 100,
                    '--clients', 2, '--threads', 2))
    assert all(server.data[key] != value for key, value in stored.items()
               if len(value) > 8)
    # A piece at a time: it begins as the one and is the other.
    server.piece = 1
    values(load(*options, *READ, '--requests', 100))
    # And all is again as a fill leaves it.
    server.piece = 1 << 20
    values(load(*options, *FILL))
    assert server.data == stored


@pytest.mark.parametrize('name, change, words', [
    (b'GET', {'opaque': 77}, 'it answers request 77 where the answer to '
     'request'),
    (b'SET', {'opaque': 0}, 'it answers request 0 where the answer to'),
    (b'GET', {'opcode': 1}, "GET with 'magic 0x81, opcode 0x01'"),
    (b'GET', {'magic': 0x80}, "GET with 'magic 0x80"),
    (b'GET', {'extras': b''}, "GET with 'status 0"),
    (b'SET', {'value': b'QUEUED'}, "SET with 'status 0, a body of 6"),
    (b'SET', {'status': 0x85, 'value': b'Too\nbusy'},
     r'status 0x0085 Too\?busy'),
    (b'SET', {'status': 1}, 'status 0x0001'),
    (b'VERSION', {'opaque': 9}, 'it answers request 9 where the answer to'),
])
def test_an_answer_of_memcached_that_is_none(load, fake, name, change, words):
    def answer(server, request, opaque):
        if request[0] != name or not reading:
            return None
        opcode = {v: k for k, v in NAMES.items()}[name]
        right = {'opcode': opcode, 'opaque': opaque,
                 'value': server.data[request[1]] if name == b'GET' else b'',
                 'extras': bytes(4) if name == b'GET' else b''}
        return binary(**{**right, **change})

    reading = False
    options = [*at(fake(answer, 'memcache_binary')), '--protocol', 'memcache_binary',
               *keys(3)]
    values(load(*options, *FILL))
    reading = True
    refused(load(*options, '--requests', 20, *(GET if name == b'GET' else SET)), 1,
            words)


def test_misses_are_counted_and_filled_where_asked(load, fake):
    server = fake()
    options = [*at(server), *keys(50), *GET, '--requests', 400]
    assert values(load(*options))['hit_ratio'] == 0
    refused(load(*options, '--on-miss', 'fail'), 1, r'key key:\d+ is not there: '
            'did the store lose or evict it')
    done = load(*options, '--on-miss', 'set')
    assert counts(done)['Sets'] == len(server.data) == 50
    # From rates with few digits.
    assert values(done)['hit_ratio'] == pytest.approx(1 - 50 / 400, abs=1e-4)


def test_what_waited_is_in_the_latency_of_an_open_loop(load, fake):
    def answer(server, words):
        if words[0] == b'GET':
            time.sleep(0.02)

    done = load(*at(fake(answer)), *GET, '--rate-limiting', 200, '--requests', 30)
    # Half of them waited for fifteen others.
    assert values(done)['latency_p50'] > 2 * 0.02e6


def test_values_do_not_depend_on_the_seed_of_the_keys(load, fake):
    options = [*at(fake()), *keys(30), '--requests', 300, *GET, '--verify', 'bytes',
               '--data-size-list', '50:1,90:1', '--on-miss']
    values(load(*options, 'set'))
    assert values(load(*options, 'fail', '--seed', 2))['hit_ratio'] == 1


def test_clients_draw_each_their_own_keys_and_always_the_same(load, fake):
    def drawn(*more: object) -> list[bytes]:
        server = fake()
        values(load(*at(server), *keys(1000), *GET, '--requests', 50, *more))
        return [words[1] for words in server.seen if words[0] == b'GET']

    first = drawn()
    assert first == drawn('--seed', 1) and len(set(first)) > 40
    assert first != drawn('--seed', 2)


def test_sizes_of_a_list_and_keys_of_other_programs(load, fake):
    server = fake()
    values(load(*at(server), *FILL, *keys(400), '--key-digits', 5,
                '--data-size-list', '10:3,1K:1'))
    assert sorted(server.data) == [b'key:%05d' % key for key in range(400)]
    seen = Counter(map(len, server.data.values()))
    assert set(seen) == {10, 1024} and 250 < seen[10] < 350


def test_the_requests_asked_for_are_made(load, fake):
    server = fake()
    done = load(*at(server), *GET, '--requests', 101, '--threads', 2, '--clients', 3,
                '--pipeline', 3)
    assert counts(done)['Gets'] == 606
    assert sum(words[0] == b'GET' for words in server.seen) == 606


def test_words_of_a_command(load, fake):
    server = fake()
    values(load(*at(server), '--command', 'MSET __key__ __data__ fix __data__',
                '--requests', 3, *keys(1), '--data-size', 4))
    assert {tuple(words[:2]) for words in server.seen if words[0] == b'MSET'} == {
        (b'MSET', b'key:0')}
    assert set(server.data) == {b'key:0', b'fix'}


def test_user_and_password(load, fake, tmp_path):
    server = fake(on(b'AUTH', b'+OK\r\n'))
    values(load(*service(tmp_path, server.where, 'user bench', 'password two words'),
                *GET, '--requests', 10))
    assert [b'AUTH', b'bench', b'two words'] in server.seen


def test_requests_of_each_second(load, fake):
    """In the original's format; what was in flight at the end comes in a last one."""
    done = load(*at(fake()), '--ratio', '1:1', '--test-time', 2)
    for name, row in json.loads(done.stdout)['ALL STATS'].items():
        if 'Time-Serie' in row:
            seconds = row['Time-Serie']
            assert [*seconds] == [str(second) for second in range(len(seconds))]
            assert sum(one['Count'] for one in seconds.values()) == row['Count']
            assert name == 'Waits' or len(seconds) in (2, 3)
    [table] = memtier.read_tables(done.stdout)
    assert all(len(row.by_second) == 2 and min(row.by_second) > 0
               for row in table.rows if row.name != 'Waits')


def test_limit_of_open_files(load, fake):
    def limit(soft: int, hard: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    options = [*at(fake()), *GET, '--clients', 100, '--requests', 2]
    refused(load(*options, preexec_fn=limit(64, 64)), 1,
            r'open files limit 64 \(ulimit -Hn\) is too low for 100 '
            'connections: raise it or ask for fewer')
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert counts(load(*options, preexec_fn=limit(32, hard)))['Gets'] == 200


def test_too_few_ports_for_the_connections(program):
    script = ('ip link set lo up && echo 40000 40009 '
              '>/proc/sys/net/ipv4/ip_local_port_range && exec "$0" -c "$1" "$2"')
    listen = ('import os, socket, sys\n'
              'with socket.create_server(("127.0.0.1", 50000)) as server:\n'
              '    server.set_inheritable(True)\n'
              '    os.execv(sys.argv[1], [sys.argv[1], "--port", "50000", '
              '"--threads", "1", "--clients", "20", "--requests", "1"])\n')
    command = ['unshare', '-rn', 'sh', '-c', script, sys.executable, listen,
               str(program)]
    if subprocess.run([*command[:4], 'ip link set lo up'],
                      capture_output=True).returncode:
        pytest.skip('no namespaces for networks here')
    refused(subprocess.run(command, capture_output=True, text=True), 1,
            'no port is free here for another of 20 connections')


# --- the gate ----------------------------------------------------------------

@pytest.fixture
def gate(program, fake, tmp_path):
    """A client that has reported that it is ready."""
    options = service(tmp_path, fake().where, 'gate')
    with subprocess.Popen(
            [program, *options, *GET, '--requests', '100', *JSON],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True) as client:
        assert client.stderr.readline() == 'ready\n'
        yield client
        client.kill()


def test_the_gate_starts_a_client(gate):
    assert gate.poll() is None
    out, err = gate.communicate('go\n', timeout=LIMIT)
    assert gate.returncode == 0, err
    assert memtier.read_run(out).records


@pytest.mark.parametrize('word, message', [
    ('no\n', "the word for the start is not 'go'\n"),
    ('', 'standard input was closed before the start\n')])
def test_a_gate_that_does_not_open(gate, word, message):
    out, err = gate.communicate(word, timeout=LIMIT)
    assert gate.returncode == 1 and not out
    assert err.endswith(message)


# --- real servers ------------------------------------------------------------

def find(name: str) -> str:
    work = os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline'
    result = shutil.which(name) or shutil.which(
        name, path=Path(work, 'stores', 'bin'))
    if not result:
        skip_missing(
            name, f'no {name} on PATH or among the stores of the suite')
    return result


@contextlib.contextmanager
def running(port: int, *command: object) -> Iterator[subprocess.Popen]:
    server = subprocess.Popen([*map(str, command)],
                              stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        until(lambda: accepts_connections(port), server)
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        server.terminate()
        server.wait(LIMIT)


@contextlib.contextmanager
def resp(name: str, folder: Path, *more: object, port: int = 0) -> Iterator[int]:
    """The port of a Redis-like server."""
    port = port or free_port()
    with running(port, find(name), '--port', port, '--bind', '127.0.0.1',
                 '--save', '', '--dir', folder, *more):
        yield port


@contextlib.contextmanager
def memcached(*more: object) -> Iterator[int]:
    """Its port."""
    port = free_port()
    user = ['-u', 'nobody'] if os.geteuid() == 0 else []
    with running(port, find('memcached'), *user, '-l', '127.0.0.1', '-p',
                 port, '-U', 0, *more):
        yield port


@pytest.mark.parametrize('store', ['redis', 'valkey'])
def test_operations_of_a_redis_like_store(load, tmp_path, store):
    with resp(f'{store}-server', tmp_path, '--requirepass', 'geheim') as port:
        sizes = ['--clients', 3, '--threads', 2, *keys(100),
                 '--data-size-list', '1:1,50:1,50K:1']
        refused(load('--port', port, *sizes), 1, 'NOAUTH.*: give the password')
        options = [*service(tmp_path, f'127.0.0.1:{port}', 'password geheim'), *sizes,
                   '--verify', 'bytes']
        assert values(load(*options[:-2], *FILL))['operations'] > 0
        options += ['--requests', 300]
        for what in ([*GET, '--on-miss', 'fail', '--pipeline', 16],
                     [*MIXED, '--on-miss', 'fail'],
                     [*SET, '--pipeline', 3],
                     ['--command', 'MSET' + ' __key__ __data__' * 10],
                     ['--command', 'LPUSH l:__key__ __data__'],
                     ['--command', 'XADD stream * v __data__'],
                     [*GET, '--reconnect-interval', 1],
                     [*GET, '--rate-limiting', 3000]):
            done = load(*options, *what)
            assert values(done).get('hit_ratio', 1) == 1
            assert counts(done)['Totals'] == 1800
        wrong = service(tmp_path, f'127.0.0.1:{port}', 'password falsch')
        refused(load(*wrong, *sizes), 1, 'WRONGPASS.*: user or password is not')


def test_enough_requests_end_a_load_before_its_time(load, fake):
    options = [*at(fake()), *SET, '--requests']
    assert counts(load(*options, 50, '--test-time', 60))['Sets'] == 50
    assert values(load(*options, 10 ** 9, '--test-time', 0.2))['operations'] > 0


def test_a_socket_without_a_password(load, tmp_path):
    with resp('redis-server', tmp_path, '--unixsocket', tmp_path / 's') as port:
        refused(load(*service(tmp_path, f'127.0.0.1:{port}', 'password geheim')), 1,
                'give none')
        done = load(*service(tmp_path, f'unix:{tmp_path}/s'), '--requests', 50)
        assert values(done)['operations'] > 0


def test_operations_of_memcached(load):
    with memcached() as port:
        options = ['--port', port, '--protocol', 'memcache_binary', '--clients', 5,
                   '--data-size-list', '1:1,50:1,50K:1', '--key-maximum', 99,
                   '--key-prefix', 'x' * 219]
        values(load(*options, *FILL))
        for what in ([*READ, '--pipeline', 16], [*MIXED, '--verify', 'bytes'],
                     [*WRITE, '--pipeline', 3], [*READ, '--reconnect-interval', 1]):
            done = load(*options, *what, '--requests', 300)
            assert values(done).get('hit_ratio', 1) == 1
        refused(load('--port', port, '--protocol', 'memcache_binary', '--key-maximum',
                     9, *FILL, '--data-size', '2M'), 1, 'above the store')


def test_memory_limits(load, tmp_path):
    data = [*FILL, *keys(3000), '--data-size', '10K', '--clients', 4]
    with resp('redis-server', tmp_path, '--maxmemory', '4mb') as port:
        refused(load('--port', port, *data), 1, 'OOM.*the store is full')
    with memcached('-m', 8, '-M') as port:
        refused(load('--port', port, '--protocol', 'memcache_binary', *data), 1,
                '(?i)out of memory.*the store is full')


def test_values_larger_than_the_buffers(load, tmp_path):
    with resp('redis-server', tmp_path) as port:
        options = ['--port', port, *keys(3), '--data-size', '24M', '--clients', 3]
        values(load(*options, *FILL))
        assert values(load(*options, *READ, '--requests', 4))['hit_ratio'] == 1


def test_more_connections_than_a_server_takes(load, tmp_path):
    with resp('redis-server', tmp_path, '--maxclients', 10) as port:
        refused(load('--port', port, '--clients', 50), 1,
                'max number of clients.*ask for fewer connections')
    with memcached('-c', 100) as port:
        refused(load('--port', port, '--clients', 200, '--protocol', 'memcache_binary'),
                1, 'Too many open conn.*ask for fewer')


def test_what_limits_is_reported(load, tmp_path):
    with resp('redis-server', tmp_path) as port:
        options = ['--port', port, *GET, '--requests', 20000, '--rate-limiting']
        assert memtier.read_run(load(*options, 1e7).stdout).limited[0] != 'rate'
        options[options.index(20000)] = 100
        # Unless another program has the server's CPU at that moment.
        until(lambda: memtier.read_run(load(*options, 200).stdout).limited == ('rate',))


def talk(port: int, *words: object) -> bytes:
    with socket.create_connection(('127.0.0.1', port)) as connection:
        connection.sendall(b'*%d\r\n' % len(words) + b''.join(
            b'$%d\r\n%s\r\n' % (len(w), w)
            for w in (str(word).encode() for word in words)))
        return connection.recv(65536)


def test_a_cluster(load, tmp_path):
    with contextlib.ExitStack() as stack:
        nodes = []
        for i in range(3):
            (tmp_path / str(i)).mkdir()
            # The bus listens 10 000 ports higher.
            nodes.append(stack.enter_context(resp(
                'redis-server', tmp_path / str(i), '--cluster-enabled',
                'yes', port=free_port())))
        options = ['--port', nodes[0], '--cluster-mode', '--clients', 4, '--threads', 2,
                   *keys(500)]
        refused(load(*options), 1, 'slot 0 is served by no node')
        ends = [0, 5000, 11000, 16384]
        for i, node in enumerate(nodes):
            talk(node, 'CLUSTER', 'ADDSLOTS', *range(ends[i], ends[i + 1]))
            talk(node, 'CLUSTER', 'MEET', '127.0.0.1', nodes[0])
        until(lambda: all(b'cluster_state:ok' in talk(node, 'CLUSTER', 'INFO')
                          and talk(node, 'CLUSTER', 'SLOTS')[:2] == b'*3'
                          for node in nodes))
        assert values(load(*options, *FILL))
        sizes = [int(talk(node, 'DBSIZE')[1:]) for node in nodes]
        assert sum(sizes) == 500 and min(sizes) > 0
        assert values(load(*options, *READ, '--requests', 400, '--pipeline', 4))[
            'hit_ratio'] == 1
        assert values(load(*options, *WRITE, '--requests', 400))
        refused(load('--port', nodes[0], '--cluster-mode', *keys(1)), 1,
                'none of the 1 keys')
        refused(load('--port', nodes[0], '--requests', 100), 1,
                'MOVED.*needs the line .cluster.')


# --- beside the original -----------------------------------------------------

@pytest.mark.parametrize('protocol', ['redis', 'memcache_binary'])
@pytest.mark.parametrize('what, commands', [
    (('--ratio', '0:1'), {'get'}), (('--ratio', '1:3'), {'get', 'set', 'all'}),
    (('--ratio', '1:0', '--key-pattern', 'P:P', '--requests', 'allkeys'), {'set'}),
    (('--command', 'LPUSH __key__ __data__', '--key-prefix', 'l:'), {'lpush'})])
def test_original_and_embedded_program_have_the_same_options_and_output(
        program, tmp_path, protocol, what, commands):
    """Both write JSON with the same commands, metrics and number of requests."""
    original = os.environ.get('MEMTIER_BENCHMARK') or shutil.which('memtier_benchmark')
    if not original:
        skip_missing('memtier_benchmark', 'no memtier_benchmark on PATH or in '
                     'MEMTIER_BENCHMARK')
    if protocol == 'memcache_binary' and '--command' in what:
        pytest.skip('memcached has no lists')
    place = (memcached() if protocol == 'memcache_binary'
             else resp('redis-server', tmp_path))
    seen, out = [], tmp_path / 'out.json'
    with place as port:
        for name in (original, program):
            command = [
                name, '--server', '127.0.0.1', '--port', str(port), '--protocol',
                protocol, '--threads', '2', '--clients', '5', '--pipeline', '4',
                '--data-size', '200', '--key-maximum', '29999', '--hide-histogram',
                '--distinct-client-seed', '--print-percentiles', '50,99,99.9,100',
                '--out-file', '/dev/null', '--json-out-file', str(out),
                *([] if '--requests' in what else ['--requests', '3000']), *what]
            # The original sometimes prints rates of 0 for a complete run.
            for _ in range(10):
                done = subprocess.run(command, capture_output=True, text=True,
                                      timeout=LIMIT)
                assert done.returncode == 0, done.stderr
                if json.loads(out.read_text())['ALL STATS']['Totals']['Ops/sec']:
                    break
            [output] = parser.parse_log(out.read_text())
            assert {r.params.removeprefix('operation=') for r in output.records
                    } == commands
            # The mean of Totals is 0 in the JSON of the original.
            seen.append((output.params, {
                (r.params, r.metric, r.unit) for r in output.records} - {
                ('operation=all', 'latency', 'us')},
                json.loads(out.read_text())['ALL STATS']['Totals']['Count']))
    assert seen[0] == seen[1]


# --- the documents -----------------------------------------------------------

@pytest.fixture
def document(load, fake) -> str:
    done = load(*at(fake()), *GET, '--requests', 200, '--clients', 3,
                '--print-percentiles', '50,99,100', '--data-size', 100)
    values(done)
    return done.stdout


def test_two_clients_become_one_run(document):
    alone, both = memtier.read_run(document), memtier.read_run(document * 2, 2)
    one = {r.metric: r.value for r in alone.records}
    for record in both.records:
        assert metrics.metric(record.metric).unit == record.unit
        assert record.size == 100
        double = record.metric in ('operations', 'miss_operations', 'bandwidth')
        # A percentile of one is never beyond its slowest request.
        assert record.value == pytest.approx(
            one[record.metric] * (2 if double else 1), rel=0.01)
    for count in (1, 3):
        with pytest.raises(ParseError, match=f'{count} clients ran, but the'):
            memtier.read_run(document * 2, count)


def test_a_limited_client_is_reported(document):
    text = re.sub('"Limited By": "[a-z]+"', '"Limited By": "client"', document)
    run = memtier.read_run(document.replace('"client"', '"server"') + text, 2)
    assert {r.metric: r.value for r in run.records}['client_limited'] == 1
    assert 'client' in run.limited


@pytest.mark.parametrize('old, new, reason', [
    (r'(?s).*', '', 'empty output'),
    (r'\}\n\}\n\Z', '', 'JSON document is incomplete'),
    (r'"Limited By": "[a-z]+"', '"Limited By": "god"', "limited by 'god'"),
    (r'"Histogram": \[\[(\d+),(\d+)\]', r'"Histogram": [[\1,1\2]', 'histogram'),
    (r'"CPU Seconds": ', '"CPU Seconds": -', 'CPU time is not possible'),
    (r'"Busiest Thread"', '"Busy Thread"', "'Busiest Thread' is missing"),
    (r'(?s)"Client": \{.*', '"x": {}\\n}\\n}\\n', 'no histogram, and'),
])
def test_damaged_documents_give_no_metric(document, old, new, reason):
    broken = re.sub(old, new, document, count=1)
    assert broken != document
    with pytest.raises(ParseError, match=reason):
        memtier.read_run(broken + document if 'no hist' in reason else broken,
                         2 if 'no hist' in reason else 1)


#: Share of four requests -> the rank of its percentile.
RANKS = {0.25: 1, 0.5: 2, 0.51: 3, 0.75: 3, 0.99: 4, 1.0: 4, 0.0: 1}


@pytest.mark.parametrize('share, expected', RANKS.items())
def test_a_percentile_is_the_nearest_rank(share, expected):
    """The request with the rank ceil(share * n)."""
    assert memtier.histogram_percentile(dict.fromkeys((1, 2, 3, 4), 1),
                                        share) == expected


def test_the_program_gives_the_nearest_rank(tmp_path):
    """Its percentiles are those of the values 1, 2, 3, 4."""
    source = tmp_path / 'ranks.c'
    source.write_text('''
#include "load.h"
#include <stdlib.h>
int main(int count, char **shares)
{
    static uint64_t bucket[BUCKETS];
    for (unsigned value = 1; value <= 4; value++)
        bucket[bucket_of(value)]++;
    for (int i = 1; i < count; i++)
        printf("%g\\n", percentile(bucket, 4, atof(shares[i])));
}
''')
    folder = BUILD.parent
    subprocess.run(['cc', '-std=gnu11', '-I', folder, '-o', tmp_path / 'ranks', source,
                    folder / 'histogram.c', '-lm'], check=True)
    done = subprocess.run([tmp_path / 'ranks', *map(str, RANKS)], check=True,
                          capture_output=True, text=True)
    assert [*map(int, done.stdout.split())] == [*RANKS.values()]
