"""The load generator: against fake servers for what goes wrong, against real
ones for what must go right, and its documents.

Real servers are `redis-server`, `valkey-server` and `memcached` on PATH or
among the stores that the set-up found; what is not there is skipped.
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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.loadgen import plumbload
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
GOLDEN = ROOT / 'tests' / 'load' / 'golden'
TWO = (GOLDEN / 'mixed-two-clients.json').read_text()


@pytest.fixture(scope='session')
def program(programs) -> Path:
    return programs / 'plumbload'


@pytest.fixture
def load(program) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*args: object, **more) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *map(str, args)], timeout=LIMIT,
                              capture_output=True, text=True, **more)
    return run


def values(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stderr
    return {r.metric: r.value for r in plumbload.parse(done.stdout)}


def refused(done: subprocess.CompletedProcess[str], code: int, words: str
            ) -> None:
    """One line that says so, and no figures."""
    assert done.returncode == code, done
    assert re.fullmatch('plumbload: [^\n]+\n', done.stderr), done.stderr
    assert re.search(words, done.stderr), done.stderr
    assert not done.stdout


# --- the command line --------------------------------------------------------

HERE = ['--server', '127.0.0.1:1']
#: For a store that nobody has filled.
COUNTED = ['--on-miss', 'count']


@pytest.mark.parametrize('args, words', [
    ([], 'no server: give --server'),
    (['--sever', 'x'], 'unknown option --sever: see --help'),
    (['server'], 'unknown option server'),
    (['--server'], 'needs a value'),
    (['--server', 'nowhere'], 'expected HOST:PORT'),
    ([*HERE, '--keys', '0'], 'a whole number from 1'),
    ([*HERE, '--keys', '1.5'], 'a whole number from 1'),
    ([*HERE, '--rate', 'fast'], '--rate fast: expected a number'),
    ([*HERE, '--keys', '1', '--keys', '2'], 'given twice'),
    ([*HERE, '--help=yes'], 'takes no value'),
    ([*HERE, '--operation', 'put'], '--operation put: unknown'),
    ([*HERE, '--protocol', 'binary', '--operation', 'lpush'],
     'memcached has none'),
    ([*HERE, '--service', 'x'], 'contradict'),
    ([*HERE, '--operation', 'fill', '--duration', '1'], 'not for .*fill'),
    ([*HERE, '--operation', 'connect', '--rate', '1'], 'not for .*connect'),
    ([*HERE, '--ratio', '1:1'], 'is for --operation mixed'),
    ([*HERE, '--operation', 'mixed', '--ratio', '0:0'], 'expected G:S'),
    ([*HERE, '--verify', 'some'], '--verify some: unknown'),
    ([*HERE, '--operation', 'set', '--on-miss', 'set'], 'get or mixed'),
    ([*HERE, '--share', '2/2'], 'expected I/N'),
    ([*HERE, '--value-size', '0'], 'from 1 byte'),
    ([*HERE, '--value-size', '9-3'], 'from 1 byte'),
    # 2^64 bytes and a GiB.
    ([*HERE, '--value-size', '17179869185G'], 'from 1 byte'),
    ([*HERE, '--value-size', '@nowhere'], 'No such file'),
    ([*HERE, '--key-prefix', 'a b'], 'no blanks'),
    ([*HERE, '--key-prefix', 'x' * 230], 'at most 220 bytes'),
    ([*HERE, '--threads', '2'], '2 threads for 1 connections'),
    ([*HERE, '--interval', '1'], 'go together'),
    (['--service', 'nowhere'], 'No such file'),
])
def test_usage(load, args, words):
    refused(load(*args), 2, words)


def test_help_names_every_option_of_the_table(load):
    text = load('--help').stdout
    source = (BUILD.parent / 'options.c').read_text()
    names = re.findall(r'^    \{"([a-z-]+)", (?:"|NULL)', source, re.M)
    assert len(names) > 20
    assert all(f'--{name}' in text for name in names)
    assert max(map(len, text.splitlines())) < 80


def service(folder: Path, where: str, *lines: str) -> list[object]:
    """Options for a service file with this server and these lines."""
    path = folder / 'service'
    server = where if where.startswith('unix:') else where.replace(':', ' ')
    path.write_text(''.join(f'{line}\n' for line in (f'server {server}', *lines)))
    return ['--service', path]


@pytest.mark.parametrize('lines, options, words', [
    (['cluster'], ['--protocol', 'binary'], 'speaks RESP'),
    (['tls'], [], "TLS needs a line 'ca PATH'"),
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


KINDS_OF_FAKES = {'resp2': Fake, 'binary': FakeBinary}


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def make(answer: Callable[..., bytes | None] | None = None,
             protocol: str = 'resp2') -> Fake:
        made.append(KINDS_OF_FAKES[protocol](answer))
        return made[-1]
    yield make
    for server in made:
        server.stop()


def on(name: bytes, reply: bytes) -> Callable[..., bytes | None]:
    return lambda server, words: reply if words[0] == name else None


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
     'of another kind .*: no resp2 server'),
])
def test_a_server_that_fails(load, fake, name, reply, words):
    server = fake(on(name, reply))
    refused(load('--server', server.where, '--duration', 5, *timeout_for(words),
                 '--value-size', 5, '--verify', 'length', *COUNTED), 1, words)


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


def test_a_connection_that_breaks_after_some_operations(load, fake):
    server = fake(lambda server, words: b'' if len(server.seen) > 50
                  else None)
    done = load('--server', server.where, '--duration', 5, *COUNTED)
    refused(done, 1, r'after (4\d) operations')


def test_nobody_listens(load):
    with socket.create_server(('127.0.0.1', 0)) as missing:
        port = missing.getsockname()[1]
    refused(load('--server', f'127.0.0.1:{port}'), 1,
            f'127.0.0.1:{port}: Connection refused: does the server run')


def test_wrong_bytes_and_wrong_sizes_are_found(load, fake):
    server = fake()
    options = ['--keys', 20, '--value-size', '100-300']
    where = ['--server', server.where]
    read = [*where, *options, '--requests', 500]
    values(load(*where, *options, '--operation', 'fill'))
    assert len(server.data) == 20
    assert len({len(v) for v in server.data.values()}) > 5
    values(load(*read))
    value = server.data[b'key:7']
    server.data[b'key:7'] = value[:50] + bytes([value[50] ^ 1]) + value[51:]
    refused(load(*read), 1, 'key key:7 is wrong at byte 50: 0x')
    server.data[b'key:7'] = value[:-1]
    refused(load(*read), 1, rf'key key:7 has {len(value) - 1} bytes, not '
            rf'{len(value)} as written')
    server.data[b'key:7'] = server.data[b'key:8'][:len(value)].ljust(
        len(value))
    refused(load(*read), 1, 'key key:7 is wrong at byte 0')


# --- servers that lie --------------------------------------------------------

def spoilt(value: bytes | None) -> Callable[[bytes], bytes]:
    """What a liar gives instead of a value: the same each time, or that value
    with a bit turned in the middle."""
    if value is not None:
        return lambda right: value
    return lambda right: (right[:30] + bytes([right[30] ^ 1]) + right[31:])


@pytest.mark.parametrize('protocol', KINDS_OF_FAKES)
@pytest.mark.parametrize('lie, words', [
    ('empty', 'key key:\\d+ has 0 bytes, not 64 as written'),
    ('long', 'key key:\\d+ has 65 bytes, not 64 as written'),
    ('wrong bytes', 'key key:\\d+ is wrong at byte 30'),
    ('another key', 'key key:\\d+ is wrong at byte'),
    ('all zero', 'key key:\\d+ is wrong at byte'),
    ('misses', 'key key:\\d+ is not there: did the store lose or evict it'),
])
def test_a_store_that_gives_what_was_not_written(load, fake, protocol, lie,
                                                 words):
    def answer(server, request, opaque=0):
        if request[0] != b'GET' or not reading:
            return None
        right = server.data[request[1]]
        value = {'empty': b'', 'long': right + b'x', 'all zero': bytes(64),
                 'wrong bytes': spoilt(None)(right), 'misses': None,
                 'another key': server.data[
                     b'key:1' if request[1] == b'key:2' else b'key:2']}[lie]
        if protocol == 'binary':
            return (binary(0, 1, b'Not found', opaque) if value is None else
                    binary(0, 0, value, opaque, bytes(4)))
        return b'$-1\r\n' if value is None else b'$%d\r\n%s\r\n' % (
            len(value), value)

    reading = False
    server = fake(answer, protocol)
    at = ['--server', server.where, '--protocol', protocol, '--keys', 20]
    values(load(*at, '--operation', 'fill'))
    values(load(*at, '--requests', 100, '--pipeline', 3))
    reading = True
    refused(load(*at, '--requests', 100), 1, words)
    refused(load(*at, '--requests', 1000, '--operation', 'mixed'), 1, words)


QUEUED, INTEGER, NULL = b'+QUEUED\r\n', b':1\r\n', b'$-1\r\n'


@pytest.mark.parametrize('operation, name, reply, words', [
    ('set', b'SET', QUEUED, "SET with '\\+QUEUED', of another kind"),
    ('set', b'SET', b'+OKAY\r\n', r"SET with '\+OKAY', of another kind"),
    ('set', b'SET', INTEGER, "SET with ':1'"),
    ('set', b'SET', NULL, r"SET with '\$-1'"),
    ('set', b'SET', b'$2\r\nOK\r\n', r"SET with '\$2'"),
    ('fill', b'SET', QUEUED, r"SET with '\+QUEUED'"),
    ('fill', b'SET', b'-OOM command not allowed\r\n', 'the store is full'),
    ('mset', b'MSET', QUEUED, r"MSET with '\+QUEUED'"),
    ('lpush', b'LPUSH', b':abc\r\n', "LPUSH with ':abc'"),
    ('lpush', b'LPUSH', b':0\r\n', "LPUSH with ':0'"),
    ('lpush', b'LPUSH', b':99999999999999999999\r\n',
     'an integer that is none'),
    ('lpush', b'LPUSH', QUEUED, "LPUSH with"),
    ('xadd', b'XADD', b'$5\r\nhello\r\n', "XADD with 'hello'"),
    ('xadd', b'XADD', NULL, 'XADD with'),
    ('get', b'GET', QUEUED, r"GET with '\+QUEUED'"),
    ('get', b'GET', b'*1\r\n$1\r\nx\r\n', 'GET with'),
    ('get', b'GET', b'$-2\r\n', 'a length that is not a number'),
    ('get', b'GET', b'$ 64\r\n', 'a length that is not a number'),
    ('get', b'PING', b'+OK\r\n', r"greeting with '\+OK'"),
    ('get', b'GET', b'-\x1b[2Jgone\r\n', r'\?\[2Jgone'),
])
def test_an_answer_that_the_protocol_does_not_give(
        load, fake, operation, name, reply, words):
    more = [] if operation == 'fill' else ['--requests', 20]
    refused(load('--server', fake(on(name, reply)).where, '--operation',
                 operation, *more), 1, words)


@pytest.mark.parametrize('operation, reply', [
    ('fill', b'+OK\r\n'), ('set', b'+OK\r\n'), ('mset', b'+OK\r\n'),
    ('lpush', INTEGER), ('xadd', b'$3\r\n1-0\r\n')])
def test_a_store_that_keeps_nothing(load, fake, operation, reply):
    def answer(server, words):
        if words[0] == b'XREVRANGE':
            return b'*0\r\n'
        return reply if words[0].lower() in (b'set', operation.encode()
                                             ) else None
    more = [] if operation == 'fill' else ['--requests', 20]
    refused(load('--server', fake(answer).where, '--operation', operation,
                 *more), 1, 'is not there: did the store lose')


def dropping(share: float, protocol: str) -> Callable[..., bytes | None]:
    """A store that acknowledges all overwrites and drops a share of them."""
    drops = random.Random(1)

    def answer(server, words, opaque=0):
        if (words[0] not in (b'SET', b'MSET') or words[1] not in server.data
                or drops.random() >= share):
            return None
        return binary(1, opaque=opaque) if protocol == 'binary' else b'+OK\r\n'
    return answer


@pytest.mark.parametrize('protocol', KINDS_OF_FAKES)
@pytest.mark.parametrize('operation', ['set', 'mixed'])
@pytest.mark.parametrize('size', [64, 100_000])
def test_a_store_that_drops_overwrites(load, fake, protocol, operation, size):
    at = ['--server', fake(dropping(1, protocol), protocol).where, '--keys',
          20, '--protocol', protocol, '--value-size', size]
    values(load(*at, '--operation', 'fill'))
    refused(load(*at, '--operation', operation, '--requests', 300), 1,
            r'key key:\d+ holds what it held before it was overwritten: the '
            'store acknowledges a write and drops it')


def test_a_store_that_drops_few_overwrites(load, fake):
    """Not the last of them: a sample is read when all is written."""
    server = fake(dropping(0.02, 'resp2'))
    at = ['--server', server.where, '--keys', 2000, '--connections', 3]
    values(load(*at, '--operation', 'fill', '--threads', 3))
    refused(load(*at, '--operation', 'set', '--requests', 2000,
                 '--threads', 3), 1, 'acknowledges a write and drops it')


@pytest.mark.parametrize('protocol', KINDS_OF_FAKES)
def test_what_fills_and_sets_wrote_is_read_by_all(load, fake, protocol):
    server = fake(protocol=protocol)
    at = ['--server', server.where, '--protocol', protocol, '--keys', 40,
          '--value-size', '1-300', '--pipeline', 4]
    values(load(*at, '--operation', 'fill'))
    stored = dict(server.data)
    for operation in ('mixed', 'get', 'set', 'get', 'mixed'):
        values(load(*at, '--operation', operation, '--requests', 400,
                    '--ratio' if operation == 'mixed' else '--timeout',
                    '3:1' if operation == 'mixed' else 10,
                    '--connections', 4, '--threads', 2))
    assert all(
        server.data[key] != value
        for key, value in stored.items()
        if len(value) > 8
    )
    # A piece at a time: it begins as the one and is the other.
    server.piece = 1
    values(load(*at, '--requests', 100))
    # And all is again as a fill leaves it.
    server.piece = 1 << 20
    values(load(*at, '--operation', 'fill'))
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
        if request[0] != name:
            return None
        opcode = {v: k for k, v in NAMES.items()}[name]
        right = {'opcode': opcode, 'opaque': opaque,
                 'value': server.data[request[1]] if name == b'GET' else b'',
                 'extras': bytes(4) if name == b'GET' else b''}
        return binary(**{**right, **change})

    server = fake(answer, 'binary')
    at = ['--server', server.where, '--protocol', 'binary', '--keys', 3]
    if name == b'GET':
        values(load(*at, '--operation', 'fill', '--verify', 'none'))
    refused(load(*at, '--requests', 20, '--operation', 'mixed', '--ratio',
                 '1:0' if name == b'GET' else '0:1'), 1, words)


def test_replies_in_pieces_of_one_byte(load, fake):
    server = fake()
    where = ['--server', server.where, '--keys', 5]
    values(load(*where, '--operation', 'fill'))
    server.piece = 1
    result = values(load(*where, '--requests', 30, '--pipeline', 4))
    assert result['hit_ratio'] == 1


def test_misses_are_counted_and_filled_where_asked(load, fake):
    server = fake()
    where = ['--server', server.where, '--keys', 50]
    result = values(load(*where, '--requests', 100, *COUNTED))
    assert result['hit_ratio'] == 0
    refused(load(*where, '--requests', 100), 1, r'key key:\d+ is not there: '
            'did the store lose or evict it')
    done = load(*where, '--requests', 400, '--on-miss', 'set')
    kinds = json.loads(done.stdout)['kinds']
    assert kinds['get']['misses'] == kinds['set']['count'] == 50
    assert len(server.data) == 50
    assert values(done)['hit_ratio'] == 1 - 50 / 400


def test_what_waited_is_in_the_latency(load, fake):
    def answer(server, words):
        if words[0] == b'GET':
            time.sleep(0.02)

    at = ['--server', fake(answer).where, '--rate', 200, '--requests', 30,
          *COUNTED]
    # Half of them waited for fifteen others.
    assert values(load(*at))['latency_p50'] > 2 * 0.02e6


def test_values_of_a_load_with_another_seed(load, fake):
    server = fake()
    at = ['--server', server.where, '--keys', 30, '--requests', 300,
          '--value-size', '50-90']
    values(load(*at, '--on-miss', 'set', '--value-seed', 1))
    result = values(load(*at, '--on-miss', 'set', '--value-seed', 1,
                         '--seed', 2))
    assert result['hit_ratio'] == 1
    refused(load(*at, '--seed', 2), 1, 'another (--value-size or )?--seed')


def test_clients_draw_each_their_own_keys_and_always_the_same(load, fake):
    def keys(*more: object) -> list[bytes]:
        server = fake()
        done = load('--server', server.where, '--keys', 1000, '--requests', 50,
                    *COUNTED, *more)
        assert done.returncode == 0, done.stderr
        return [words[1] for words in server.seen if words[0] == b'GET']

    first = keys('--share', '0/2')
    assert first == keys('--share', '0/2') and len(set(first)) > 40
    assert first != keys('--share', '1/2')
    assert first != keys('--share', '0/2', '--seed', 5)


def test_shares_fill_every_key_once(load, fake):
    server = fake()
    for i in range(3):
        done = load('--server', server.where, '--operation', 'fill',
                    '--keys', 100, '--share', f'{i}/3', '--connections', 4,
                    '--threads', 2)
        assert done.returncode == 0, done.stderr
    sets = [words[1] for words in server.seen if words[0] == b'SET']
    assert sorted(sets) == sorted(b'key:%d' % k for k in range(100))


def test_sizes_from_a_file(load, fake, tmp_path):
    (tmp_path / 'sizes').write_text('# size weight\n10 3\n1K 1\n')
    server = fake()
    values(load('--server', server.where, '--operation', 'fill', '--keys',
                400, '--value-size', f'@{tmp_path}/sizes'))
    seen = Counter(map(len, server.data.values()))
    assert set(seen) == {10, 1024} and 250 < seen[10] < 350
    (tmp_path / 'sizes').write_text('10 3\nten 1\n')
    refused(load('--server', server.where, '--value-size',
                 f'@{tmp_path}/sizes'), 2, 'sizes:2: expected SIZE WEIGHT')


def test_the_requests_asked_for_are_made(load, fake):
    server = fake()
    done = load('--server', server.where, '--requests', 1001, '--threads', 2,
                '--connections', 3, '--pipeline', 3, *COUNTED)
    assert json.loads(done.stdout)['kinds']['get']['count'] == 1001
    assert sum(words[0] == b'GET' for words in server.seen) == 1001


def test_a_service_file_says_it_all(load, fake, tmp_path):
    server = fake(on(b'AUTH', b'+OK\r\n'))
    host, port = server.where.split(':')
    file = tmp_path / 'service'
    file.write_text(f'# made for a run\nserver {host} {port}\nuser bench\n'
                    'password two words\n')
    values(load('--service', file, '--requests', 10, *COUNTED))
    assert [b'AUTH', b'bench', b'two words'] in server.seen


def test_series(load, fake, tmp_path):
    server = fake()
    done = load('--server', server.where, '--duration', 0.5, '--interval',
                0.1, '--series', tmp_path / 'series.csv', *COUNTED)
    head, *rows = (tmp_path / 'series.csv').read_text().splitlines()
    assert head == ('time_s,operations,errors,misses,p50_us,p99_us,max_us,'
                    'cpu')
    assert rows
    count = sum(int(row.split(',')[1]) for row in rows)
    assert count == json.loads(done.stdout)['kinds']['get']['count']


def test_too_few_open_files(load, fake):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    refused(load('--server', fake().where, '--connections', 100,
                 preexec_fn=limit), 1,
            r'open files limit 64 \(ulimit -Hn\) is too low for 100 '
            'connections: raise it or ask for fewer')


def test_the_soft_limit_is_raised(load, fake):
    def limit() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))
    done = load('--server', fake().where, '--connections', 50, '--requests',
                100, *COUNTED, preexec_fn=limit)
    assert json.loads(done.stdout)['connections'] == 50


def test_without_openssl(tmp_path):
    (tmp_path / 'openssl').mkdir()
    (tmp_path / 'openssl' / 'ssl.h').write_text('#error none\n')
    done = subprocess.run(
        [BUILD, tmp_path / 'plumbload'], capture_output=True, text=True,
        env={**os.environ, 'CC': f'cc -I{tmp_path}', 'CFLAGS': '-Werror'})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ('plumbload: without TLS: openssl/ssl.h not '
                           'found\n')
    refused(subprocess.run(
        [tmp_path / 'plumbload', *service(tmp_path, '127.0.0.1:1', 'tls', 'ca x')],
        capture_output=True, text=True), 2, 'built without TLS')


# --- the gate ----------------------------------------------------------------

@pytest.fixture
def service_file(fake, tmp_path):
    """A service file with a gate."""
    path = tmp_path / 'service'
    path.write_text(f'server {fake().where.replace(":", " ")}\ngate\n')
    return path


@pytest.fixture
def gate(program, service_file):
    """A client that has reported that it is ready."""
    with subprocess.Popen(
            [program, '--service', service_file, '--name', 'c7',
             '--requests', '100', *COUNTED], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        assert client.stderr.readline() == 'ready\n'
        yield client
        client.kill()


def test_the_gate_starts_a_client(gate):
    assert gate.poll() is None
    out, err = gate.communicate('go\n', timeout=LIMIT)
    assert gate.returncode == 0, err
    assert json.loads(out)['name'] == 'c7'


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
def resp(name: str, folder: Path, *more: object, port: int = 0
         ) -> Iterator[tuple[str, subprocess.Popen]]:
    port = port or free_port()
    with running(port, find(name), '--port', port, '--bind', '127.0.0.1',
                 '--save', '', '--dir', folder, *more) as server:
        yield f'127.0.0.1:{port}', server


@contextlib.contextmanager
def memcached(*more: object) -> Iterator[str]:
    port = free_port()
    user = ['-u', 'nobody'] if os.geteuid() == 0 else []
    with running(port, find('memcached'), *user, '-l', '127.0.0.1', '-p',
                 port, '-U', 0, *more):
        yield f'127.0.0.1:{port}'


@pytest.mark.parametrize('store', ['redis', 'valkey'])
def test_operations_of_a_redis_like_store(load, tmp_path, store):
    with resp(f'{store}-server', tmp_path, '--requirepass', 'geheim') as (
            where, _):
        sizes = ['--connections', 5, '--threads', 2, '--value-size', '1-50K',
                 '--keys', 100]
        refused(load('--server', where, *sizes), 1, 'NOAUTH.*: give the password')
        at = [*service(tmp_path, where, 'password geheim'), *sizes]
        assert values(load(*at, '--operation', 'fill'))['operations'] > 0
        at += ['--requests', 2000]
        for more in (['--pipeline', 16],
                     ['--operation', 'mixed'],
                     ['--operation', 'set', '--pipeline', 3],
                     ['--operation', 'mset'],
                     ['--operation', 'lpush', '--key-prefix', 'l'],
                     ['--operation', 'xadd', '--key-prefix', 'x'],
                     ['--rate', 20000]):
            done = load(*at, *more)
            assert values(done).get('hit_ratio', 1) == 1
            document = json.loads(done.stdout)
            assert sum(k['count'] for k in document['kinds'].values()) \
                == 2000
        result = values(load(*at, '--operation', 'connect'))
        assert result['connection_rate'] > 0
        refused(load(*service(tmp_path, where, 'password falsch'), *sizes), 1,
                'WRONGPASS.*: user or password is not')


def test_enough_requests_end_a_load_before_its_time(load, fake):
    at = ['--server', fake().where, '--operation', 'set', '--requests']
    done = load(*at, 50, '--duration', 60)
    assert values(done)['operations'] > 50
    message = json.loads(done.stdout)
    assert message['kinds']['set']['count'] == 50 and message['measured_s'] < 60
    message = json.loads(load(*at, 10 ** 9, '--duration', 0.2).stdout)
    assert message['measured_s'] >= 0.2


def test_a_store_without_a_password(load, tmp_path):
    with resp('redis-server', tmp_path) as (where, _):
        refused(load(*service(tmp_path, where, 'password geheim')), 1, 'give none')


def test_a_unix_socket(load, tmp_path):
    with resp('redis-server', tmp_path, '--unixsocket', tmp_path / 's') as (
            _, server):
        result = values(load('--server', f'unix:{tmp_path}/s', '--requests',
                             1000, '--connections', 20, *COUNTED))
        assert result['operations'] > 0


def test_operations_of_memcached(load):
    with memcached() as where:
        at = ['--server', where, '--protocol', 'binary', '--connections', 5,
              '--value-size', '1-50K', '--keys', 100, '--key-prefix',
              'x' * 219]
        values(load(*at, '--operation', 'fill'))
        at += ['--requests', 2000]
        for more in (['--pipeline', 16],
                     ['--operation', 'mixed'],
                     ['--operation', 'set', '--pipeline', 3]):
            assert values(load(*at, *more)).get('hit_ratio', 1) == 1
        assert values(load(*at, '--operation', 'connect'))
        result = values(load(*at[:-4], '--requests', 2000, '--on-miss',
                             'set'))
        assert result['hit_ratio'] >= 1 - 105 / 2000
        refused(load('--server', where, '--protocol', 'binary',
                     '--operation', 'fill', '--value-size', '2M'), 1,
                'above the store')


def test_memory_limits(load, tmp_path):
    data = ['--operation', 'fill', '--keys', 3000, '--value-size', '10K',
            '--connections', 4]
    with resp('redis-server', tmp_path, '--maxmemory', '4mb') as (where, _):
        refused(load('--server', where, *data), 1, 'OOM.*the store is full')
    with memcached('-m', 8, '-M') as where:
        refused(load('--server', where, '--protocol', 'binary', *data), 1,
                '(?i)out of memory.*the store is full')


def test_values_larger_than_the_buffers(load, tmp_path):
    with resp('redis-server', tmp_path) as (where, _):
        at = ['--server', where, '--keys', 3, '--value-size', '24M',
              '--connections', 3]
        values(load(*at, '--operation', 'fill'))
        assert values(load(*at, '--requests', 12))[
            'hit_ratio'] == 1


def test_more_connections_than_a_server_takes(load, tmp_path):
    with resp('redis-server', tmp_path, '--maxclients', 10) as (where, _):
        refused(load('--server', where, '--connections', 50), 1,
                'max number of clients.*ask for fewer connections')
    with memcached('-c', 100) as where:
        refused(load('--server', where, '--connections', 200, '--protocol',
                     'binary'), 1, 'Too many open conn.*ask for fewer')


def test_a_server_that_dies_under_load(load, tmp_path):
    with resp('redis-server', tmp_path) as (where, server):
        threading.Timer(0.5, server.kill).start()
        refused(load('--server', where, '--connections', 20, '--duration',
                     20, *COUNTED), 1,
                'did the server die|does the server run')


def operations(where: str) -> int:
    """How many commands a Redis-like server has executed."""
    answer = re.search(rb'total_commands_processed:(\d+)', talk(where, 'INFO', 'stats'))
    assert answer
    return int(answer[1])


def stalled(program: Path, where: str, server: subprocess.Popen, *args: object
            ) -> dict[str, float]:
    with subprocess.Popen([program, '--server', where, '--duration', '3',
                           '--warmup', '0.2', *COUNTED, *map(str, args)],
                          stdout=subprocess.PIPE, text=True) as client:
        before = operations(where)
        until(lambda: operations(where) > before + 100, client)
        time.sleep(0.5)                     # longer than the warm-up
        server.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        server.send_signal(signal.SIGCONT)
        out = client.communicate(timeout=LIMIT)[0]
    assert client.returncode == 0
    return {r.metric: r.value for r in plumbload.parse(out)}


@pytest.mark.strict
@pytest.mark.alone
def test_an_open_loop_shows_a_stall_that_a_closed_loop_hides(
        program, tmp_path):
    with resp('redis-server', tmp_path) as (where, server):
        closed = stalled(program, where, server)
        even = stalled(program, where, server, '--rate', 1000)
    # A tenth of the open loop's requests were to be sent during the stall,
    # and one of the closed loop's thousands.
    assert even['latency_p99'] > 3 * closed['latency_p99']
    assert closed['latency_max'] > 3 * closed['latency_p99']
    assert even['operations'] == pytest.approx(1000, rel=0.2)


def test_a_rate_beyond_the_server_is_told(load, tmp_path):
    with resp('redis-server', tmp_path) as (where, _):
        done = load('--server', where, '--rate', 1e7, '--requests', 20000,
                    *COUNTED)
    document = json.loads(done.stdout)
    assert document['limited'] != 'rate'
    assert document['rate']['lag_end_ns'] > 0


def talk(where: str, *words: object) -> bytes:
    host, port = where.split(':')
    with socket.create_connection((host, int(port))) as connection:
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
            port = free_port()
            nodes.append(stack.enter_context(resp(
                'redis-server', tmp_path / str(i), '--cluster-enabled',
                'yes', port=port))[0])
        at = [*service(tmp_path, nodes[0], 'cluster'), '--connections', 7,
              '--threads', 2, '--keys', 500]
        refused(load(*at), 1, 'slot 0 is served by no node')
        ends = [0, 5000, 11000, 16384]
        for i, node in enumerate(nodes):
            talk(node, 'CLUSTER', 'ADDSLOTS', *range(ends[i], ends[i + 1]))
            talk(node, 'CLUSTER', 'MEET', *nodes[0].split(':'))
        until(lambda: all(b'cluster_state:ok' in talk(node, 'CLUSTER', 'INFO')
                          and talk(node, 'CLUSTER', 'SLOTS')[:2] == b'*3'
                          for node in nodes))
        assert values(load(*at, '--operation', 'fill'))
        sizes = [int(talk(node, 'DBSIZE')[1:]) for node in nodes]
        assert sum(sizes) == 500 and min(sizes) > 0
        at += ['--requests', 3000]
        assert values(load(*at, '--pipeline', 4))[
            'hit_ratio'] == 1
        assert values(load(*at, '--operation', 'mset'))
        assert values(load(*at, '--operation', 'mixed'))
        refused(load(*at, '--key-prefix', '{one}'), 1, 'none of the keys')
        refused(load('--server', nodes[0], '--requests', 100), 1,
                'MOVED.*needs the line .cluster.')


def test_tls(load, program, tmp_path):
    if not shutil.which('openssl'):
        skip_missing('openssl', 'no openssl to make certificates with')
    if b'built without' in subprocess.run(
            [program, *service(tmp_path, '127.0.0.1:1', 'tls', 'ca x')],
            capture_output=True).stderr:
        skip_missing('openssl/ssl.h', 'plumbload was built without TLS')
    server = find('redis-server')
    # One that knows TLS finds fault with the number, not with the name.
    if b'Bad directive' in subprocess.run(
            [server, '--tls-port', 'none'], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT).stdout:
        skip_missing('redis-server', f'{server} was built without TLS')
    for name in ('one', 'other'):
        subprocess.run(
            ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes',
             '-subj', f'/CN={name}', '-days', '2', '-keyout',
             tmp_path / f'{name}.key', '-out', tmp_path / f'{name}.crt'],
            check=True, capture_output=True)
    port = free_port()
    with running(port, server, '--port', 0, '--tls-port', port,
                 '--bind', '127.0.0.1', '--save', '', '--dir', tmp_path,
                 '--tls-cert-file', tmp_path / 'one.crt', '--tls-key-file',
                 tmp_path / 'one.key', '--tls-ca-cert-file',
                 tmp_path / 'one.crt'):
        where, data = f'127.0.0.1:{port}', ['--keys', 50, '--value-size', '100K']
        refused(load('--server', where, '--requests', 10), 1, 'needs TLS')
        refused(load(*service(tmp_path, where, 'tls', f'ca {tmp_path}/other.crt'),
                     '--requests', 10), 1, 'is the CA its own')
        at = [*service(tmp_path, where, 'tls', f'ca {tmp_path}/one.crt',
                       f'cert {tmp_path}/one.crt', f'key {tmp_path}/one.key'),
              *data, '--connections', 3]
        assert values(load(*at, '--operation', 'fill'))
        done = load(*at, '--requests', 1000, '--pipeline', 4)
        assert values(done)['hit_ratio'] == 1
        assert json.loads(done.stdout)['tls'] is True
        assert values(load(*at, '--operation', 'connect', '--requests', 50))


# --- the documents -----------------------------------------------------------

def test_two_clients_become_one_run():
    run = plumbload.read_run(TWO)
    one, two = map(json.loads, TWO.splitlines())
    result = {r.metric: r for r in run.records}
    assert result['operations'].value == pytest.approx(
        one['rate']['achieved'] + two['rate']['achieved'], rel=1e-4)
    assert result['latency_max'].value == max(
        k['max_ns'] for c in (one, two) for k in c['kinds'].values()) / 1e3
    assert {r.size for r in run.records} == {100}
    assert {r.program for r in run.records} == {'plumbload'}
    for record in run.records:
        assert metrics.metric(record.metric).unit == record.unit


def test_look_aside_with_a_rate():
    run = plumbload.read_run((GOLDEN / 'look-aside-open-loop.json').read_text())
    assert run.limited == {'client-0': 'rate'}
    assert 0 < {r.metric: r.value for r in run.records}['hit_ratio'] < 1
    assert {r.size for r in run.records} == {None}


def test_a_limited_client_is_told():
    text = TWO.replace('"limited": "server"', '"limited": "client"', 1)
    run = plumbload.read_run(text)
    assert {r.metric: r.value for r in run.records}['client_limited'] == 1
    assert set(run.limited.values()) == {'client', 'server'}


@pytest.mark.parametrize('old, new, reason', [
    (r'(?s).*', '', 'output is empty|not a document'),
    (r'.*', r'\g<0>\n\g<0>', 'differ|2 clients are named'),
    (r'\n[^\n]*\n\Z', '\n', '1 documents of 2 clients'),
    (r'.{10}\n\Z', '', 'JSON document is incomplete'),
    (r'\A\{', 'noise {', 'JSON document is incomplete'),
    ('"program": "plumbload"', '"program": "memtier"', 'not a document of'),
    ('"schema": 1', '"schema": 2', 'schema 2; this suite reads 1'),
    ('"name": "client-1"', '"name": "client-0"', '2 clients are named'),
    (r'"share": \[1, 2\]', '"share": [0, 2]', '2 clients are the share 0/2'),
    ('"keys": 1000', '"keys": 1001', 'differ in parameters: keys 1000 and '
     '1001'),
    ('"protocol": "resp2', '"protocol": "resp3', 'differ in protocol'),
    ('"errors": 0', '"errors": 3', 'client-0: 3 errors of get'),
    ('"misses": 0', '"misses": -1', '-1 misses'),
    (r'"count": (\d)', r'"count": 1\1', 'holds'),
    (r'\[\[(\d+),(\d+)\]', r'[[\1,1\2]', 'holds'),
    (r'"sum_ns": (\d)', r'"sum_ns": 9\1', 'contradict'),
    (r'"max_ns": (\d)', r'"max_ns": 9\1', 'contradict'),
    (r'"measured_s": 0.', '"measured_s": 0.1', 'a second'),
    (r'"measured_s": 0.', '"measured_s": 9.', 'measured 9'),
    (r'"achieved": \d', '"achieved": NaN, "x": 1', 'NaN is not a number'),
    (r'"cpu_user_s": ', '"cpu_user_s": -', 'CPU time is not possible'),
    (r'"cpu_system_s": ', '"cpu_system_s": 9', 'CPU time is not possible'),
    (r'"threads": \[', '"threads": [], "x": [', 'connections'),
    (r'"kinds": \{', '"kinds": {}, "x": {', 'kinds of requests none'),
    ('"limited": "server"', '"limited": "god"', "limited by 'god'"),
    ('"wall_s"', '"wall"', "KeyError 'wall_s'"),
])
def test_mutilated_documents_give_no_metric(old, new, reason):
    broken = re.sub(old, new, TWO, count=1)
    assert broken != TWO
    with pytest.raises(ParseError, match=reason):
        plumbload.parse(broken)


def test_cut_anywhere_there_is_no_metric():
    for end in range(0, len(TWO.rstrip()), 97):
        with pytest.raises(ParseError):
            plumbload.parse(TWO[:end])


@pytest.mark.parametrize('share, expected', [
    (0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4), (0.0, 1)])
def test_a_percentile_is_the_nearest_rank(share, expected):
    """The request with the rank ceil(share * n)."""
    assert plumbload.histogram_percentile(dict.fromkeys((1, 2, 3, 4), 1),
                                          share) == expected
