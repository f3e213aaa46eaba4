"""Requests to servers: readiness, identity, counters, persistence.

The job script asks (:mod:`.node`):

    node.py counters RUN SECRETS DIALECT USER PERSISTENCE SERVER...
    node.py saved    RUN SECRETS DIALECT USER PERSISTENCE SERVER...
    node.py cluster  RUN SECRETS DIALECT USER PERSISTENCE SERVER...

RUN begins the names of the job's files, SECRETS is the folder of the password of the
run (services.sh), SERVER the number of a server. `counters` prints a JSON list. `saved`
waits until the servers have written their data, `cluster` forms a cluster of them.
"""
from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence

from . import Failed

#: Timeout of one answer. Unit: seconds.
ANSWER_TIMEOUT = 3.0

#: Wait for servers to write their data to disk after the workload, and to form a
#: cluster. Unit: seconds.
WRITE_TIMEOUT = 120.0
CLUSTER_TIMEOUT = 60.0

#: Slots of a Redis cluster.
SLOTS = 16384


#: Why a server gives no answer: nothing listens, or it answers with an error or in
#: another protocol.
NO_ANSWER = (OSError, ValueError)


#: The address of a server, its password and user. If the port is 0, `host` is the path
#: of a Unix socket.
Server = namedtuple('Server', 'host port password user', defaults=('', ''))


def connect(server: Server) -> socket.socket:
    """A connection to a server."""
    if server.port:
        return socket.create_connection((server.host, server.port), ANSWER_TIMEOUT)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(ANSWER_TIMEOUT)
    sock.connect(server.host)
    return sock


#: Counters of a server; 0 if the server does not report one: `cpu` seconds in user mode
#: and in the kernel, `memory` in bytes, `commands` served, `keys` stored, `misses` of
#: reads, keys `evicted`.
Counters = namedtuple(
    'Counters', 'name version cpu memory commands keys misses evicted',
    defaults=('', '', 0.0, 0, 0, 0, 0, 0))


# RESP2, the protocol of Redis, Valkey, KeyDB and Dragonfly ---------------------

@contextlib.contextmanager
def resp_session(server: Server) -> Iterator[Callable]:
    """An authenticated connection, as a function: command -> answer, which is str,
    int or None.

    :raises OSError: no server listens.
    :raises ValueError: the server answers with an error, or not in RESP.
    """
    with connect(server) as sock, sock.makefile('rb') as stream:
        def send(*words: object):
            out = [b'*%d\r\n' % len(words)]
            for data in (str(word).encode() for word in words):
                out.append(b'$%d\r\n%s\r\n' % (len(data), data))
            sock.sendall(b''.join(out))
            return _read_resp(stream)

        if server.password:
            send('AUTH', *filter(None, [server.user]), server.password)
        yield send


def _read_resp(stream):
    line = stream.readline()
    if not line.endswith(b'\r\n'):
        raise ConnectionError('closed the connection')
    kind, rest = line[:1], line[1:-2].decode(errors='replace')
    if kind == b'-':
        raise ValueError(rest)
    if kind == b'+':
        return rest
    if kind == b':':
        return int(rest)
    if kind == b'$':
        return None if rest == '-1' else stream.read(int(rest) + 2)[:-2].decode(
            errors='replace')
    raise ValueError(f'does not speak RESP: {line[:40]!r}')


def _info(server: Server, *words: str) -> dict[str, str]:
    """The fields of an answer to INFO or CLUSTER INFO."""
    with resp_session(server) as send:
        lines = send(*words).splitlines()
    return {name: value for name, colon, value in
            (line.partition(':') for line in lines) if colon}


def _int(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, 0))


def resp_counters(server: Server) -> Counters:
    """Version and counters of a server that speaks RESP, from its answer to INFO."""
    info = _info(server, 'INFO')
    name = next((name for name in ('valkey', 'dragonfly') if f'{name}_version' in info),
                info.get('server_name', 'redis'))
    keys = sum(int(cell.removeprefix('keys='))
               for line, value in info.items() if line.startswith('db')
               for cell in value.split(',') if cell.startswith('keys='))
    return Counters(
        name, info.get(f'{name}_version', info.get('redis_version', '')),
        float(info.get('used_cpu_user', 0)) + float(info.get('used_cpu_sys', 0)),
        _int(info, 'used_memory'), _int(info, 'total_commands_processed'), keys,
        _int(info, 'keyspace_misses'), _int(info, 'evicted_keys'))


# The binary protocol of memcached and of tao_server ------------------------------

def memcached_counters(server: Server) -> Counters:
    """Version and counters of a server that speaks memcached's binary protocol, from
    its answer to STAT.

    :raises ConnectionError: the server closes the connection before the last answer
    :raises ValueError: the answer has another protocol or reports an error
    """
    # Magic, opcode, lengths of key and extras, status, length of the body.
    header, stat, stats = struct.Struct('>BBHBBHIIQ'), 0x10, {}
    with connect(server) as sock, sock.makefile('rb') as stream:
        sock.sendall(header.pack(0x80, stat, 0, 0, 0, 0, 0, 0, 0))
        key = 'the last answer has no key'
        while key:
            head = stream.read(header.size)
            if len(head) < header.size:
                raise ConnectionError('closed the connection')
            magic, opcode, keys, extras, _, status, size, *_ = header.unpack(head)
            if magic != 0x81 or opcode != stat:
                raise ValueError("does not speak memcached's binary protocol")
            body = stream.read(size).decode(errors='replace')
            if status:
                raise ValueError(body)
            key = body[extras:extras + keys]
            stats[key] = body[extras + keys:]
    return Counters(
        '', stats.get('version', ''),
        float(stats.get('rusage_user', 0)) + float(stats.get('rusage_system', 0)),
        _int(stats, 'bytes'),
        sum(_int(stats, name) for name in ('cmd_get', 'cmd_set', 'cmd_touch')),
        _int(stats, 'curr_items'), _int(stats, 'get_misses'),
        _int(stats, 'evictions'))


def tcp_counters(server: Server) -> Counters:
    """No counters: a server of an unknown protocol only accepts connections."""
    connect(server).close()
    return Counters()


#: Protocol of a plan -> its counters; a server that answers is ready.
COUNTERS: Mapping[str, Callable[[Server], Counters]] = {
    'resp': resp_counters, 'memcached': memcached_counters, 'tcp': tcp_counters}


# What the job script asks -----------------------------------------------------

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


def reason_server_is_outside(server: Server, count: int) -> str:
    """The reason why a server is not in a complete cluster; empty: it is.

    :param count: servers of the cluster. One with state ok knows a server for each
        slot.
    """
    info = _info(server, 'CLUSTER', 'INFO')
    if info.get('cluster_state') != 'ok':
        return f'is in state {info.get("cluster_state")}'
    known = _int(info, 'cluster_known_nodes')
    return '' if known == count else f'is connected with {known} of {count} nodes'


def reason_data_are_unsaved(server: Server, persistence: str) -> str:
    """The reason why some data of a server are not on disk yet; empty: all are.

    A workload that only reads would not notice a full disk.

    :raises Failed: the server could not write, or does not do it.
    """
    info = _info(server, 'INFO', 'persistence')
    for key in ('rdb_last_bgsave_status', 'aof_last_write_status',
                'aof_last_bgrewrite_status'):
        if info.get(key, 'ok') != 'ok':
            raise Failed(f'did not save its data ({key} is {info[key]})')
    if persistence == 'aof' and not _int(info, 'aof_enabled'):
        raise Failed('does not write an append-only file: check its configuration')
    busy = ['rdb_bgsave_in_progress', 'aof_rewrite_in_progress',
            'aof_rewrite_scheduled', 'aof_pending_bio_fsync',
            *(['rdb_changes_since_last_save'] if persistence == 'rdb' else [])]
    return 'has not written its data to disk' * any(_int(info, key) for key in busy)


def ask_server(name: str, server: Server, question: Callable):
    """The answer of a server to a question.

    :raises Failed: it does not answer, or does not do what the job needs.
    """
    try:
        return question(server)
    except Failed as err:
        raise Failed(f'{name} {err}') from None
    except NO_ANSWER as err:
        raise Failed(f'{name} no longer answers: {err}') from None


def wait_until(servers: Mapping[str, Server], reason: Callable[[Server], str],
               seconds: float) -> None:
    """Wait until no server has a reason against it.

    :raises Failed: one still has one after this time.
    """
    deadline = time.monotonic() + seconds
    for name, server in servers.items():
        while text := ask_server(name, server, reason):
            if time.monotonic() > deadline:
                raise Failed(f'{name} {text} after {seconds:g} s')
            time.sleep(0.25)


def read_password(folder: str) -> str:
    """The password of a run; '': there is none."""
    with contextlib.suppress(FileNotFoundError), open(f'{folder}/password') as file:
        return file.read().strip()
    return ''


def ask_servers(action: str, run: str, secrets: str, dialect: str, user: str,
                persistence: str, *numbers: str) -> int:
    """Do what the command line says; see the head of this file.

    :returns: the exit code.
    :raises Failed: a server does not do it
    """
    password, servers = read_password(secrets), {}
    for number in numbers:
        with open(f'{run}.server{number}.line') as file:
            # The launcher may have added others.
            [line] = [json.loads(line) for line in file if line[:1] == '{']
        servers[line['name']] = Server(line['address'], line['port'], password, user)
    if action == 'counters':
        print(json.dumps([ask_server(name, server, COUNTERS[dialect])._asdict()
                          for name, server in servers.items()]))
    elif action == 'saved':
        wait_until(servers, lambda server: reason_data_are_unsaved(server, persistence),
                   WRITE_TIMEOUT)
    else:
        form_cluster([*servers.values()])
        wait_until(servers, lambda server: reason_server_is_outside(
            server, len(servers)), CLUSTER_TIMEOUT)
    return 0
