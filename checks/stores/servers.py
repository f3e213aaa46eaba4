"""Server roles of the stores: commands and configuration."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.options import SET_BY_CHECK
from ..services.plan import Server

#: Stores that speak RESP, and those with a configuration like Redis.
RESP = ('redis', 'valkey', 'keydb', 'dragonfly')
REDIS_LIKE = ('redis', 'valkey', 'keydb')

#: The user with all rights, if clients send no password.
ADMIN = 'plumbline'

#: All stores: features of environments.
STORES = (*RESP, 'memcached')


#: Options of stores that speak RESP which decide what is measured, and what replaces
#: them; the same of memcached.
RESERVED = {
    '--maxmemory': 'use the setting memory',
    '--io-threads --server-threads --proactor_threads --appendonly --save '
    '--cluster-enabled': 'select another scenario',
    '--bind --port --unixsocket --protected-mode --requirepass --masterauth --user '
    '--aclfile --rename-command --tls-port --dir --daemonize --include --dbfilename '
    '--flagfile': SET_BY_CHECK}
RESERVED_OF_MEMCACHED = {
    '-m --memory-limit': 'use the setting memory',
    '-t --threads -c --conn-limit': 'select another scenario',
    '-p --port -l --listen -s --unix-socket -U --udp-port -u --user -d --daemon '
    '-S --enable-sasl -Y --auth-file -Z --enable-ssl': SET_BY_CHECK}
#: Letters of memcached's options without a value.
MEMCACHED_FLAGS = 'AdkhivVLMrCFSZ'


@dataclass(frozen=True)
class Needs:
    """Requirements of a test case on a store."""
    #: io threads (server threads of keydb, memcached and dragonfly).
    threads: int = 1
    #: Memory for the data. Unit: MiB.
    memory: int = 256
    #: Connections of all clients.
    connections: int = 50
    #: off, aof (append-only file, synced every second), rdb (snapshots).
    persistence: str = 'off'
    cluster: bool = False
    #: A socket and no port.
    socket: bool = False
    #: Clients send no password (Redis and its forks): all users of the nodes
    #: can use the data while it runs, but no administrative command.
    open: bool = False
    #: Arguments of `loadmodule`, for Redis and its forks.
    modules: tuple[str, ...] = ()
    #: More options of the command line; what they set has precedence.
    options: tuple[str, ...] = ()


def make_server_role(store: str, prefix: str, needs: Needs, **more: Any) -> Server:
    """The server role of a plan.

    :arg prefix: the folder that has `bin/`.
    :arg more: placement, see :class:`Server`.
    """
    start = {'memcached': _start_of_memcached, 'dragonfly': _start_of_dragonfly
             }.get(store, _start_of_redis)
    return Server(
        program=store, **start(store, f'{prefix}/bin', needs),
        cpus=needs.threads, cluster=needs.cluster, socket=needs.socket,
        persistence=needs.persistence, **more)


# Fields of a server role: its command, its configuration and its password.

def _start_of_redis(store: str, folder: str, needs: Needs) -> dict[str, Any]:
    """Redis and its forks; the configuration with the password comes on
    standard input."""
    lines = ['dir "{data}"', 'daemonize no',
             f'protected-mode {"no" if needs.open else "yes"}',
             f'maxmemory {needs.memory}mb', 'maxmemory-policy noeviction',
             # Connections of the cluster bus and of our requests count too.
             f'maxclients {needs.connections + 64}',
             f'appendonly {"yes" if needs.persistence == "aof" else "no"}',
             'appendfsync everysec',
             # A snapshot after every second with a change in it.
             'save 1 1' if needs.persistence == 'rdb' else 'save ""']
    if needs.socket:
        lines += ['port 0', 'unixsocket "{data}/socket"', 'unixsocketperm 700']
    else:
        lines += ['bind {address}', *(
            ['user default on nopass ~* &* +@all -@admin -@dangerous '
             '+cluster|slots',
             f'user {ADMIN} on >{{password}} ~* &* +@all'] if needs.open else
            ['requirepass {password}', 'masterauth {password}']), 'port {port}']
    if needs.threads > 1:
        lines.append(f'server-threads {needs.threads}' if store == 'keydb'
                     else f'io-threads {needs.threads}')
    lines += [f'loadmodule {module}' for module in needs.modules]
    if needs.cluster:
        lines += ['cluster-enabled yes', 'cluster-config-file nodes.conf']
    # A - is standard input only as the last word.
    return {'command': (f'{folder}/{store}-server', *needs.options, '-'),
            'config': ''.join(f'{line}\n' for line in lines),
            'password': not needs.socket, 'user': ADMIN if needs.open else ''}


def _start_of_dragonfly(store: str, folder: str, needs: Needs) -> dict[str, Any]:
    """Dragonfly; its flags with the password come on standard input."""
    flags = ['--bind={address}', '--port={port}', '--requirepass={password}',
             '--dir={data}', f'--maxmemory={needs.memory}mb',
             f'--proactor_threads={needs.threads}', '--dbfilename=',
             '--logtostderr']
    return {'command': (f'{folder}/dragonfly', '--flagfile=/dev/stdin',
                        *needs.options),
            'config': ''.join(f'{flag}\n' for flag in flags)}


def _start_of_memcached(store: str, folder: str, needs: Needs) -> dict[str, Any]:
    """memcached without a password: with one it speaks only its text
    protocol."""
    # Only root needs a user.
    command = [f'{folder}/memcached', '-u', 'root', '-U', '0',
               '-m', str(needs.memory), '-t', str(needs.threads),
               '-c', str(needs.connections + 64),
               # The largest value is 1 MiB, and an item has a header.
               '-I', '2m']
    command += (['-s', '{data}/socket'] if needs.socket else
                ['-l', '{address}', '-p', '{port}'])
    return {'command': (*command, *needs.options), 'dialect': 'memcached',
            'password': False}
