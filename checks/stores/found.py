"""The stores of a machine, identified by their servers."""
from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from pathlib import Path
from typing import Any

from config.sites.programs import command_output

#: Store -> name of its server.
SERVERS = {'redis': 'redis-server', 'valkey': 'valkey-server',
           'keydb': 'keydb-server', 'dragonfly': 'dragonfly',
           'memcached': 'memcached'}

#: Store -> beginning of the output of the server's `--version`.
BANNERS = {
    'redis': re.compile(r'Redis server v=(\S+)'),
    'valkey': re.compile(r'Valkey server v=(\S+)'),
    'keydb': re.compile(r'KeyDB server v=(\S+)'),
    'dragonfly': re.compile(r'dragonfly v([\d.]+)'),
    'memcached': re.compile(r'memcached (\S+)'),
}


def find_store_servers(wheels: Path) -> list[dict[str, Any]]:
    """The stores of PATH, and those of wheels.

    :param wheels: prefix in which set-up installs the wheels
    """
    result = [identify_store_server(store, Path(on_path), 'system')
              for store, server in SERVERS.items()
              if (on_path := shutil.which(server))]
    installed = [identify_store_server(store, path, 'wheel')
                 for store, server in SERVERS.items()
                 if (path := wheels / 'bin' / server).is_file()]
    result += [store and {**store, 'spec': wheel_of_server(wheels, store['store'])}
               for store in installed]
    return [store for store in result if store]


def wheel_of_server(wheels: Path, store: str) -> str:
    """Name and version of the wheel that has a store's server, `NAME==VERSION`; ''
    if none has it.

    :param wheels: prefix in which set-up installs the wheels
    """
    folders = map(str, wheels.glob('lib*/python3*/site-packages'))
    return next((f'{wheel.name}=={wheel.version}'
                 for wheel in importlib.metadata.distributions(path=[*folders])
                 if f'/{SERVERS[store]},' in (wheel.read_text('RECORD') or '')), '')


def identify_store_server(store: str, server: Path, source: str) -> dict[str,
                                                                         Any] | None:
    """Identify a store's server.

    :returns: store, version, prefix (its bin/ has the server), source, bench (its
        own load generator and client are beside it);
        None if it is another program.
    """
    # A link with a store's name may lead to another store (Valkey installs a
    # redis-server), or to a folder with its other programs. Debian's link
    # leads to a program that behaves according to the name of the link.
    beside = server.resolve().with_name(server.name)
    server = beside if beside.exists() else server
    match = BANNERS[store].match(
        command_output(str(server), '--version', timeout_seconds=10))
    if not match or server.parent.name != 'bin':
        return None
    return {'store': store, 'version': match[1],
            'prefix': str(server.parents[1]), 'source': source,
            'bench': all(os.access(server.parent / f'{store}-{part}', os.X_OK)
                         for part in ('benchmark', 'cli'))}
