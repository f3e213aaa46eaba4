#!/usr/bin/env python3
"""Requests to servers: readiness, identity, counters, persistence.

The job script calls it (services.sh):

    ask.py counters RUN SECRETS DIALECT USER PERSISTENCE SERVER...
    ask.py saved    RUN SECRETS DIALECT USER PERSISTENCE SERVER...
    ask.py cluster  RUN SECRETS DIALECT USER PERSISTENCE SERVER...

RUN begins the names of the job's files, SECRETS is the folder of the password and the
certificate of the run (services.sh), SERVER the number of a server. `counters` prints a
JSON list. `saved` waits until the servers have written their data, `cluster` forms a
cluster of them. A failure is one line on standard output.
"""
from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

#: Timeout of one answer. Unit: seconds.
ANSWER_TIMEOUT = 3.0

#: Wait for servers to write their data to disk after the workload, and to form a
#: cluster. Unit: seconds.
WRITE_TIMEOUT = 120.0
CLUSTER_TIMEOUT = 60.0

#: Slots of a Redis cluster.
SLOTS = 16384


class Refusal(Exception):
    """A server answered with an error, or in another protocol."""


class SaveError(Exception):
    """A server could not write its data; with its own message."""


class PasswordRefused(Exception):
    """A server rejects the password; a retry would not help."""

    def __init__(self, output: object) -> None:
        super().__init__(f'refuses the password of this run ({output}): it is '
                         'another server, or its configuration has another '
                         'password')


class Server(NamedTuple):
    """The address of a server, its password and user, and its certificate (file).

    If the port is 0, `host` is the path of a Unix socket.
    """
    host: str
    port: int
    password: str = ''
    user: str = ''
    certificate: str = ''

    def __str__(self) -> str:
        return f'{self.host}:{self.port}'

    def connect(self) -> socket.socket:
        """A connection, encrypted if the server has a certificate."""
        if not self.port:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(ANSWER_TIMEOUT)
            sock.connect(self.host)
            return sock
        sock = socket.create_connection((self.host, self.port), ANSWER_TIMEOUT)
        if not self.certificate:
            return sock
        import ssl  # slow, and few servers need it

        context = ssl.create_default_context(cafile=self.certificate)
        # Clients know the server by its certificate, which belongs to one run.
        context.check_hostname = False
        return context.wrap_socket(sock)


class Counters(NamedTuple):
    """Counters of a server; 0 if the server does not report one.

    `pid` of the process that answers, `cpu` seconds in user mode and in the
    kernel, `memory` in bytes, `commands` served, `keys` stored, `misses` of
    reads, keys `evicted`, `connections` accepted since its start.
    """
    name: str
    version: str
    pid: int
    cpu: float
    memory: int
    commands: int
    keys: int
    misses: int
    evicted: int
    connections: int


class Dialect:
    """The requests that the suite needs, in one protocol.

    The defaults are those of a store without persistence that does not report
    its settings.
    """

    def ping(self, server: Server) -> None:
        """Check that the server is ready.

        :raises OSError: no server listens.
        :raises Refusal: it is not ready.
        """
        raise NotImplementedError

    def counters(self, server: Server) -> Counters:
        """The counters of the server."""
        raise NotImplementedError

    def persistence_kinds(self, server: Server) -> Set[str] | None:
        """Kinds of persistence that are on: aof, rdb; None: unknown."""
        return None

    def thread_count(self, server: Server) -> int | None:
        """Threads that serve connections; None: unknown."""
        return None

    def is_data_on_disk(self, server: Server, persistence: str) -> bool:
        """Whether all its data is on disk.

        :raises SaveError: it could not write.
        """
        return True


class Resp(Dialect):
    """RESP2, the protocol of Redis, Valkey, KeyDB and Dragonfly."""

    @contextlib.contextmanager
    def open_authenticated_connection(self, server: Server) -> Iterator[RespSession]:
        """An authenticated connection."""
        with server.connect() as sock, sock.makefile('rb') as stream:
            session = RespSession(sock, stream)
            if server.password:
                try:
                    session.send_command(
                        'AUTH', *([server.user] if server.user else []),
                        server.password)
                except Refusal as err:
                    raise PasswordRefused(err) from None
            yield session

    def ping(self, server: Server) -> None:
        with self.open_authenticated_connection(server) as session:
            if session.send_command('PING') != 'PONG':
                raise Refusal('does not answer PING with PONG')

    def counters(self, server: Server) -> Counters:
        with self.open_authenticated_connection(server) as session:
            info = _parse_info_fields(session.send_command('INFO'))
        name = ('valkey' if 'valkey_version' in info else
                'dragonfly' if 'dragonfly_version' in info else
                info.get('server_name', 'redis'))

        def numeric_field(key: str) -> float:
            return float(info.get(key, 0))

        keys = sum(int(cell.removeprefix('keys='))
                   for line, value in info.items() if line.startswith('db')
                   for cell in value.split(',') if cell.startswith('keys='))
        return Counters(
            name, info.get(f'{name}_version', info.get('redis_version', '')),
            int(numeric_field('process_id')),
            numeric_field('used_cpu_user') + numeric_field('used_cpu_sys'),
            int(numeric_field('used_memory')),
            int(numeric_field('total_commands_processed')), keys,
            int(numeric_field('keyspace_misses')), int(numeric_field('evicted_keys')),
            int(numeric_field('total_connections_received')))

    def persistence_kinds(self, server: Server) -> Set[str] | None:
        with self.open_authenticated_connection(server) as session:
            info = _parse_info_fields(session.send_command('INFO', 'persistence'))
            try:
                save = session.send_command('CONFIG', 'GET', 'save')
            except Refusal:                     # not every RESP server has it
                save = []
        return {kind for kind, on in (
            ('aof', info.get('aof_enabled') == '1'),
            ('rdb', any(save[1:]))) if on}

    #: Fields of INFO with the result of the last write; `ok` without one.
    WRITTEN = ('rdb_last_bgsave_status', 'aof_last_write_status',
               'aof_last_bgrewrite_status')

    #: Fields of INFO that are 0 when all data is written: for every kind of
    #: persistence, and for rdb.
    WRITING = ('rdb_bgsave_in_progress', 'aof_rewrite_in_progress',
               'aof_rewrite_scheduled', 'aof_pending_bio_fsync')
    UNWRITTEN = {'rdb': ('rdb_changes_since_last_save',)}

    def thread_count(self, server: Server) -> int | None:
        with self.open_authenticated_connection(server) as session:
            try:
                answer = session.send_command('CONFIG', 'GET', '*-threads')
            except Refusal:                     # as above
                return None
        has = dict(zip(answer[::2], answer[1::2], strict=False))
        # KeyDB has both keys, and serves with the first.
        number = has.get('server-threads') or has.get('io-threads')
        return int(number) if number else None

    def is_data_on_disk(self, server: Server, persistence: str) -> bool:
        with self.open_authenticated_connection(server) as session:
            info = _parse_info_fields(session.send_command('INFO', 'persistence'))
        for key in self.WRITTEN:
            if info.get(key, 'ok') != 'ok':
                raise SaveError(f'{key} is {info[key]}')
        return not any(int(info.get(key, 0)) for key in (
            *self.WRITING, *self.UNWRITTEN.get(persistence, ())))


def _parse_info_fields(text: str) -> dict[str, str]:
    """Parse lines `name:value`."""
    return {name: value for name, colon, value in
            (line.partition(':') for line in text.splitlines()) if colon}


class RespSession(NamedTuple):
    """One connection of :class:`Resp`."""
    sock: socket.socket
    stream: Any

    def send_command(self, *words: object) -> Any:
        """The answer to a command: str, int, None or a list of them.

        :raises Refusal: the server answered with an error.
        """
        out = [b'*%d\r\n' % len(words)]
        for word in words:
            data = str(word).encode()
            out.append(b'$%d\r\n%s\r\n' % (len(data), data))
        self.sock.sendall(b''.join(out))
        return self._read_answer()

    def _read_answer(self) -> Any:
        line = self.stream.readline()
        if not line.endswith(b'\r\n'):
            raise ConnectionError('closed the connection')
        kind, rest = line[:1], line[1:-2].decode(errors='replace')
        if kind == b'-':
            raise Refusal(rest)
        if kind == b'+':
            return rest
        if kind == b':':
            return int(rest)
        if kind == b'$':
            if rest == '-1':
                return None
            return self.stream.read(int(rest) + 2)[:-2].decode(
                errors='replace')
        if kind == b'*':
            return [self._read_answer() for _ in range(int(rest))]
        raise Refusal(f'does not speak RESP: {line[:40]!r}')


class Memcached(Dialect):
    """memcached's text protocol."""

    def _send_request(self, server: Server, command: str, last: str) -> list[str]:
        with server.connect() as sock, sock.makefile('rb') as stream:
            if server.password:
                # `memcached -Y`: the first set, of any key, authenticates.
                sock.sendall(f'set auth 0 0 {len(server.password)}\r\n'
                             f'{server.password}\r\n'.encode())
                if stream.readline() != b'STORED\r\n':
                    raise PasswordRefused('AUTH')
            sock.sendall(f'{command}\r\n'.encode())
            lines: list[str] = []
            while not lines or not lines[-1].startswith(last):
                line = stream.readline().decode(errors='replace')
                if not line.endswith('\r\n'):
                    raise ConnectionError('closed the connection')
                if line.startswith(('ERROR', 'CLIENT_ERROR', 'SERVER_ERROR')):
                    raise Refusal(line.strip())
                lines.append(line.strip())
        return lines

    def ping(self, server: Server) -> None:
        self._send_request(server, 'version', 'VERSION')

    def counters(self, server: Server) -> Counters:
        stats = dict(line.split(' ', 2)[1:] for line in
                     self._send_request(server, 'stats', 'END')
                     if line.startswith('STAT '))

        return _memcached_counters(stats)

    def persistence_kinds(self, server: Server) -> Set[str] | None:
        return set()                            # memcached writes nothing

    def thread_count(self, server: Server) -> int | None:
        return next((int(line.split()[2]) for line in self._send_request(
            server, 'stats settings', 'END')
            if line.startswith('STAT num_threads ')), None)


def _memcached_counters(stats: Mapping[str, str]) -> Counters:
    """Counters from `stats`, of either protocol."""
    def numeric_field(key: str) -> float:
        return float(stats.get(key, 0))

    return Counters(
        'memcached', stats.get('version', ''), int(numeric_field('pid')),
        numeric_field('rusage_user') + numeric_field('rusage_system'),
        int(numeric_field('bytes')),
        int(numeric_field('cmd_get') + numeric_field('cmd_set')
            + numeric_field('cmd_touch')),
        int(numeric_field('curr_items')), int(numeric_field('get_misses')),
        int(numeric_field('evictions')), int(numeric_field('total_connections')))


class MemcachedBinary(Dialect):
    """memcached's binary protocol, for servers without the text protocol."""

    #: Request and answer: magic, opcode, lengths of key and extras, status,
    #: length of the body.
    HEADER = struct.Struct('>BBHBBHIIQ')
    VERSION, STAT = 0x0b, 0x10

    def _send_request(self, server: Server, opcode: int) -> Iterator[tuple[str, str]]:
        """Key and value of each answer up to the last, which has no key."""
        with server.connect() as sock, sock.makefile('rb') as stream:
            sock.sendall(self.HEADER.pack(0x80, opcode, 0, 0, 0, 0, 0, 0, 0))
            while True:
                head = stream.read(self.HEADER.size)
                if len(head) < self.HEADER.size:
                    raise ConnectionError('closed the connection')
                magic, of, keys, extras, _, status, size, *_ = (
                    self.HEADER.unpack(head))
                if magic != 0x81 or of != opcode:
                    raise Refusal("does not speak memcached's binary protocol")
                body = stream.read(size)
                if status:
                    raise Refusal(body.decode(errors='replace'))
                start = extras + keys
                yield (body[extras:start].decode(errors='replace'),
                       body[start:].decode(errors='replace'))
                if not keys:
                    return

    def ping(self, server: Server) -> None:
        next(self._send_request(server, self.VERSION))

    def counters(self, server: Server) -> Counters:
        # tao_server speaks this protocol, too: the plan has the name.
        return _memcached_counters(dict(self._send_request(server, self.STAT))
                             )._replace(name='')


class Tcp(Dialect):
    """A server of an unknown protocol: it only accepts connections."""

    def ping(self, server: Server) -> None:
        server.connect().close()

    def counters(self, server: Server) -> Counters:
        return Counters('', '', 0, 0.0, 0, 0, 0, 0, 0, 0)


#: Name in a plan -> protocol.
DIALECTS: Mapping[str, Dialect] = {
    'resp': Resp(), 'memcached': Memcached(),
    'memcached_binary': MemcachedBinary(), 'tcp': Tcp()}


def form_cluster(servers: Sequence[Server]) -> None:
    """Assign slots to every server and join all of them into one cluster."""
    share, rest = divmod(SLOTS, len(servers))
    first = 0
    for index, server in enumerate(servers):
        last = first + share + (index < rest)
        with Resp().open_authenticated_connection(server) as session:
            session.send_command('CLUSTER', 'ADDSLOTS', *range(first, last))
            # Servers need seconds to resolve equal epochs, none for different
            # ones.
            session.send_command('CLUSTER', 'SET-CONFIG-EPOCH', index + 1)
            if index:
                session.send_command('CLUSTER', 'MEET', *servers[0][:2])
        first = last


def reason_cluster_is_incomplete(servers: Sequence[Server]) -> str:
    """The reason why the cluster is not complete.

    Empty if every server has state ok and the same complete map of slots.
    """
    maps = set()
    for server in servers:
        with Resp().open_authenticated_connection(server) as session:
            info = _parse_info_fields(session.send_command('CLUSTER', 'INFO'))
            slots = session.send_command('CLUSTER', 'SLOTS')
        if info.get('cluster_state') != 'ok':
            return f'{server} is in state {info.get("cluster_state")}'
        if int(info.get('cluster_known_nodes', 0)) != len(servers):
            return (f'{server} is connected with '
                    f'{info.get("cluster_known_nodes")} of {len(servers)} '
                    'nodes')
        maps.add(tuple(sorted((one[0], one[1], *one[2][:2])
                              for one in slots)))
    if len(maps) > 1:
        return 'the servers have different maps of the slots'
    covered = sum(last - first + 1 for first, last, *_ in next(iter(maps)))
    return ('' if covered == SLOTS
            else f'{covered} of {SLOTS} slots are assigned')


# What the job script asks -----------------------------------------------------

class Failed(Exception):
    """A server does not answer, or answers with an error; one line."""


def read_secrets(folder: Path) -> tuple[str, str]:
    """The password and the file of the certificate of a run; '': there is none."""
    password, certificate = folder / 'password', folder / 'server.crt'
    return (password.read_text().strip() if password.exists() else '',
            str(certificate) if certificate.exists() else '')


def lines_of_servers(run: str) -> list[dict[str, Any]]:
    """What node.py printed of each server of a run, in their order."""
    paths = Path(f'{run}.x').parent.glob(f'{Path(run).name}.server*.line')
    found_lines = [json.loads(line) for path in paths
                   for line in path.read_text().splitlines() if line.startswith('{')]
    return sorted(found_lines, key=lambda line: line['index'])


def read_counters(dialect: Dialect, servers: Mapping[str, Server]
                  ) -> list[dict[str, Any]]:
    """The counters of servers, by their names.

    :raises Failed: a server does not answer.
    """
    result = []
    for name, server in servers.items():
        try:
            result.append(dialect.counters(server)._asdict())
        except (OSError, Refusal, ValueError) as err:
            raise Failed(f'{name} no longer answers: {err}') from None
    return result


def wait_until(missing: Callable[[], str], seconds: float) -> None:
    """Wait until nothing is missing.

    :raises Failed: something is missing after this time.
    """
    deadline = time.monotonic() + seconds
    while reason := missing():
        if time.monotonic() > deadline:
            raise Failed(f'{reason} after {seconds:g} s')
        time.sleep(0.25)


def wait_until_saved(dialect: Dialect, servers: Mapping[str, Server],
                     persistence: str) -> None:
    """Wait until servers have written their data to disk.

    A workload that only reads would not notice a full disk.

    :raises Failed: a server failed to write, or has not written in time.
    """
    def describe_unsaved() -> str:
        for name, server in servers.items():
            try:
                if not dialect.is_data_on_disk(server, persistence):
                    return f'{name} has not written its data to disk'
            except SaveError as err:
                raise Failed(f'{name} did not save its data ({err})') from None
            except (OSError, Refusal, ValueError) as err:
                return f'{name} does not answer ({err})'
        return ''

    wait_until(describe_unsaved, WRITE_TIMEOUT if persistence != 'off' else 0)


def main(words: list[str]) -> int:
    """Do what the command line says; see the head of this file.

    :returns: the exit code.
    """
    action, run, secrets, kind, user, persistence, *numbers = words
    try:
        secret = read_secrets(Path(secrets))
        servers = {line['name']: Server(line['address'], line['port'], secret[0], user,
                                        secret[1])
                   for line in lines_of_servers(run) if str(line['index']) in numbers}
        dialect = DIALECTS[kind]
        if action == 'counters':
            print(json.dumps(read_counters(dialect, servers)))
        elif action == 'saved':
            wait_until_saved(dialect, servers, persistence)
        else:
            form_cluster([*servers.values()])
            wait_until(lambda: reason_cluster_is_incomplete([*servers.values()]),
                       CLUSTER_TIMEOUT)
    except Failed as err:
        print(err)
        return 1
    except (OSError, Refusal, ValueError, KeyError) as err:
        print(f'{action} of {run}: {type(err).__name__}: {err}')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
