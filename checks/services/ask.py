#!/usr/bin/env python3
"""Requests to servers: readiness, identity, counters, persistence.

The job script calls it (services.sh):

    ask.py counters RUN SECRETS DIALECT USER PERSISTENCE SERVER...
    ask.py saved    RUN SECRETS DIALECT USER PERSISTENCE SERVER...
    ask.py cluster  RUN SECRETS DIALECT USER PERSISTENCE SERVER...

RUN begins the names of the job's files, SECRETS is the folder of the password of the
run (services.sh), SERVER the number of a server. `counters` prints a
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


class PasswordRefused(Exception):
    """A server rejects the password; a retry would not help."""

    def __init__(self, output: object) -> None:
        super().__init__(f'refuses the password of this run ({output}): it is '
                         'another server, or its configuration has another '
                         'password')


class Server(NamedTuple):
    """The address of a server, its password and user.

    If the port is 0, `host` is the path of a Unix socket.
    """
    host: str
    port: int
    password: str = ''
    user: str = ''

    def __str__(self) -> str:
        return f'{self.host}:{self.port}'

    def connect(self) -> socket.socket:
        """A connection."""
        if not self.port:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(ANSWER_TIMEOUT)
            sock.connect(self.host)
            return sock
        return socket.create_connection((self.host, self.port), ANSWER_TIMEOUT)


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


class Settings(NamedTuple):
    """How a server serves; None: it does not report it."""
    #: Kinds of persistence that are on: aof, rdb.
    persistence: Set[str] | None = None
    #: Threads that serve connections.
    threads: int | None = None


# RESP2, the protocol of Redis, Valkey, KeyDB and Dragonfly ---------------------

#: Fields of INFO with the result of the last write; `ok` without one.
WRITTEN = ('rdb_last_bgsave_status', 'aof_last_write_status',
           'aof_last_bgrewrite_status')

#: Fields of INFO that are 0 when all data is written: for every kind of
#: persistence, and for rdb.
WRITING = ('rdb_bgsave_in_progress', 'aof_rewrite_in_progress',
           'aof_rewrite_scheduled', 'aof_pending_bio_fsync')
UNWRITTEN = {'rdb': ('rdb_changes_since_last_save',)}


@contextlib.contextmanager
def resp_session(server: Server) -> Iterator[Callable[..., Any]]:
    """An authenticated connection, as a function: command -> answer, which is str,
    int, None or a list of them.

    :raises OSError: no server listens.
    :raises Refusal: the server answers with an error, or not in RESP.
    """
    with server.connect() as sock, sock.makefile('rb') as stream:
        def send(*words: object) -> Any:
            out = [b'*%d\r\n' % len(words)]
            for word in words:
                data = str(word).encode()
                out.append(b'$%d\r\n%s\r\n' % (len(data), data))
            sock.sendall(b''.join(out))
            return _read_resp(stream)

        if server.password:
            try:
                send('AUTH', *filter(None, [server.user]), server.password)
            except Refusal as err:
                raise PasswordRefused(err) from None
        yield send


def _read_resp(stream: Any) -> Any:
    line = stream.readline()
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
        return None if rest == '-1' else stream.read(int(rest) + 2)[:-2].decode(
            errors='replace')
    if kind == b'*':
        return [_read_resp(stream) for _ in range(int(rest))]
    raise Refusal(f'does not speak RESP: {line[:40]!r}')


def _info(send: Callable[..., Any], *sections: str) -> dict[str, str]:
    """The fields of an answer to INFO or CLUSTER INFO."""
    lines = send(*(sections or ('INFO',))).splitlines()
    return {name: value for name, colon, value in
            (line.partition(':') for line in lines) if colon}


def resp_counters(server: Server) -> Counters:
    with resp_session(server) as send:
        info = _info(send)
    name = ('valkey' if 'valkey_version' in info else
            'dragonfly' if 'dragonfly_version' in info else
            info.get('server_name', 'redis'))
    keys = sum(int(cell.removeprefix('keys='))
               for line, value in info.items() if line.startswith('db')
               for cell in value.split(',') if cell.startswith('keys='))
    return Counters(
        name, info.get(f'{name}_version', info.get('redis_version', '')),
        _int(info, 'process_id'),
        float(info.get('used_cpu_user', 0)) + float(info.get('used_cpu_sys', 0)),
        _int(info, 'used_memory'), _int(info, 'total_commands_processed'), keys,
        _int(info, 'keyspace_misses'), _int(info, 'evicted_keys'),
        _int(info, 'total_connections_received'))


def _int(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, 0))


def resp_settings(server: Server) -> Settings:
    with resp_session(server) as send:
        def config(name: str) -> dict[str, str]:
            try:
                answer = send('CONFIG', 'GET', name)
            except Refusal:                     # not every RESP server has it
                return {}
            return dict(zip(answer[::2], answer[1::2], strict=False))

        aof = _info(send, 'INFO', 'persistence').get('aof_enabled') == '1'
        # KeyDB has both keys, and serves with the first.
        threads = config('*-threads')
        number = threads.get('server-threads') or threads.get('io-threads')
        return Settings({kind for kind, on in (
            ('aof', aof), ('rdb', config('save').get('save'))) if on},
            int(number) if number else None)


def has_unsaved_data(name: str, server: Server, persistence: str) -> bool:
    """Whether some data is not on disk yet.

    :raises Failed: the server could not write.
    """
    with resp_session(server) as send:
        info = _info(send, 'INFO', 'persistence')
    for key in WRITTEN:
        if info.get(key, 'ok') != 'ok':
            raise Failed(f'{name} did not save its data ({key} is {info[key]})')
    return any(_int(info, key)
               for key in (*WRITING, *UNWRITTEN.get(persistence, ())))


# The protocols of memcached -----------------------------------------------------

def _memcached_stats(server: Server, command: str) -> dict[str, str]:
    """The answer to a command `stats ...` of the text protocol."""
    stats = {}
    with server.connect() as sock, sock.makefile('rb') as stream:
        sock.sendall(f'{command}\r\n'.encode())
        while (line := stream.readline().decode(errors='replace')) != 'END\r\n':
            if not line.endswith('\r\n'):
                raise ConnectionError('closed the connection')
            if not line.startswith('STAT '):
                raise Refusal(line.strip())
            name, value = line.split(None, 2)[1:]
            stats[name] = value.strip()
    return stats


def memcached_counters(server: Server) -> Counters:
    return _counters_of_stats(_memcached_stats(server, 'stats'))


def memcached_settings(server: Server) -> Settings:
    # It writes nothing to disk.
    settings = _memcached_stats(server, 'stats settings')
    return Settings(set(), _int(settings, 'num_threads') or None)


def _counters_of_stats(stats: Mapping[str, str]) -> Counters:
    """Counters from `stats`, of either protocol."""
    return Counters(
        'memcached', stats.get('version', ''), _int(stats, 'pid'),
        float(stats.get('rusage_user', 0)) + float(stats.get('rusage_system', 0)),
        _int(stats, 'bytes'),
        sum(_int(stats, name) for name in ('cmd_get', 'cmd_set', 'cmd_touch')),
        _int(stats, 'curr_items'), _int(stats, 'get_misses'),
        _int(stats, 'evictions'), _int(stats, 'total_connections'))


def memcached_binary_counters(server: Server) -> Counters:
    """Counters of a server without the text protocol (tao_server)."""
    # Magic, opcode, lengths of key and extras, status, length of the body.
    header, stat, stats = struct.Struct('>BBHBBHIIQ'), 0x10, {}
    with server.connect() as sock, sock.makefile('rb') as stream:
        sock.sendall(header.pack(0x80, stat, 0, 0, 0, 0, 0, 0, 0))
        key = 'the last answer has no key'
        while key:
            head = stream.read(header.size)
            if len(head) < header.size:
                raise ConnectionError('closed the connection')
            magic, opcode, keys, extras, _, status, size, *_ = header.unpack(head)
            if magic != 0x81 or opcode != stat:
                raise Refusal("does not speak memcached's binary protocol")
            body = stream.read(size).decode(errors='replace')
            if status:
                raise Refusal(body)
            key = body[extras:extras + keys]
            stats[key] = body[extras + keys:]
    # The plan has the name.
    return _counters_of_stats(stats)._replace(name='')


def tcp_counters(server: Server) -> Counters:
    """No counters: a server of an unknown protocol only accepts connections."""
    server.connect().close()
    return Counters('', '', 0, 0.0, 0, 0, 0, 0, 0, 0)


#: Protocol of a plan -> its counters; a server that answers is ready.
COUNTERS: Mapping[str, Callable[[Server], Counters]] = {
    'resp': resp_counters, 'memcached': memcached_counters,
    'memcached_binary': memcached_binary_counters, 'tcp': tcp_counters}

#: Protocol -> its settings, for those that report some.
SETTINGS: Mapping[str, Callable[[Server], Settings]] = {
    'resp': resp_settings, 'memcached': memcached_settings}


# Clusters of Redis ---------------------------------------------------------------

def form_cluster(servers: Sequence[Server]) -> None:
    """Assign slots to every server and join all of them into one cluster."""
    share, rest = divmod(SLOTS, len(servers))
    first = 0
    for index, server in enumerate(servers):
        last = first + share + (index < rest)
        with resp_session(server) as send:
            send('CLUSTER', 'ADDSLOTS', *range(first, last))
            # Servers need seconds to resolve equal epochs, none for different
            # ones.
            send('CLUSTER', 'SET-CONFIG-EPOCH', index + 1)
            if index:
                send('CLUSTER', 'MEET', *servers[0][:2])
        first = last


def reason_cluster_is_incomplete(servers: Sequence[Server]) -> str:
    """The reason why the cluster is not complete.

    Empty if every server is connected with all others, and has state ok: it knows a
    server for each slot.
    """
    for server in servers:
        with resp_session(server) as send:
            info = _info(send, 'CLUSTER', 'INFO')
        if info.get('cluster_state') != 'ok':
            return f'{server} is in state {info.get("cluster_state")}'
        if _int(info, 'cluster_known_nodes') != len(servers):
            return (f'{server} is connected with {info.get("cluster_known_nodes")} of '
                    f'{len(servers)} nodes')
    return ''


# What the job script asks -----------------------------------------------------

class Failed(Exception):
    """A server does not answer, or answers with an error; one line."""


def read_password(folder: Path) -> str:
    """The password of a run; '': there is none."""
    password = folder / 'password'
    return password.read_text().strip() if password.exists() else ''


def lines_of_servers(run: str) -> list[dict[str, Any]]:
    """What node.py printed of each server of a run, in their order."""
    paths = Path(f'{run}.x').parent.glob(f'{Path(run).name}.server*.line')
    found_lines = [json.loads(line) for path in paths
                   for line in path.read_text().splitlines() if line.startswith('{')]
    return sorted(found_lines, key=lambda line: line['index'])


def read_counters(dialect: str, servers: Mapping[str, Server]
                  ) -> list[dict[str, Any]]:
    """The counters of servers, by their names.

    :raises Failed: a server does not answer.
    """
    result = []
    for name, server in servers.items():
        try:
            result.append(COUNTERS[dialect](server)._asdict())
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


def wait_until_saved(servers: Mapping[str, Server], persistence: str) -> None:
    """Wait until servers have written their data to disk.

    A workload that only reads would not notice a full disk.

    :raises Failed: a server failed to write, or has not written in time.
    """
    def describe_unsaved() -> str:
        for name, server in servers.items():
            try:
                if has_unsaved_data(name, server, persistence):
                    return f'{name} has not written its data to disk'
            except (OSError, Refusal, ValueError) as err:
                return f'{name} does not answer ({err})'
        return ''

    wait_until(describe_unsaved, WRITE_TIMEOUT)


def main(words: list[str]) -> int:
    """Do what the command line says; see the head of this file.

    :returns: the exit code.
    """
    action, run, secrets, dialect, user, persistence, *numbers = words
    try:
        password = read_password(Path(secrets))
        servers = {line['name']: Server(line['address'], line['port'], password, user)
                   for line in lines_of_servers(run) if str(line['index']) in numbers}
        if action == 'counters':
            print(json.dumps(read_counters(dialect, servers)))
        elif action == 'saved':
            wait_until_saved(servers, persistence)
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
