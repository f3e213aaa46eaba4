"""How the programs of a run are called: templates for a plan of services.

Pure. What differs from the original's command lines, and why, is in
README.md.
"""
from __future__ import annotations

from dataclasses import replace

from .sizing import (
    KEY_BYTES,
    Client,
    Instance,
    client_command,
    server_command,
)

#: Before the number of every key: all but one of its bytes, whatever they
#: are, as long as they are the same.
PREFIX = ('the_associations_of_an_object_' * 8)[:KEY_BYTES - 1]

#: Sizes of values that a look-aside client stores, and their weights: what
#: the published sizes are once they have been compressed (src/README.md).
STORED = ((31, 50, 3), (51, 100, 8), (101, 150, 9), (151, 200, 14),
          (201, 242, 16), (243, 266, 25), (267, 273, 24), (274, 521, 1))

_CERTIFICATES = '{cert}', '{key}'
#: Options of the original that ours has no use for.
_OTHERS = ('lru_crawler',)


def server(program: str, instance: Instance, prefix: str,
           connections: int) -> tuple[str, ...]:
    """The command of one server.

    Its CPUs are given to it by who starts it, and so is its port.

    :param prefix: folder of the program
    :param connections: that it must be able to take
    """
    options = {**instance.options, 'p': '{port}', 'u': '{user}'}
    if program == 'tao_bench_server':
        return tuple(server_command(
            replace(instance, options=options, bind=()), prefix, '{address}',
            _CERTIFICATES))
    tls = 'Z' in options
    words = ['-l', '{address}', '-p', '{port}', '-u', '{user}',
             '-m', str(instance.memory), '-t', str(instance.fast_threads),
             '-c', str(connections), *(['-Z'] if tls else [])]
    extended = ['ssl_chain_cert={cert}', 'ssl_key={key}'] if tls else []
    if program == 'memcached':
        words = [f'{prefix}/bin/memcached', '-U', '0', *words]
    else:
        words = [f'{prefix}/tao_server', *words]
        extended += [f'{name}={value}' for name, value in options.items()
                     if len(name) > 1 and name not in _OTHERS]
    return (*words, *(['-o', ','.join(extended)] if extended else []))


def client(program: str, one: Client, prefix: str, seconds: int,
           interval: float, seed: int, sizes: str = '') -> tuple[str, ...]:
    """The command of one client for one phase.

    :param prefix: folder of the program
    :param interval: between two rows of its figures over time. Unit: s
    :param seed: of its keys
    :param sizes: file of sizes for what it stores
    """
    if program == 'tao_bench_server':
        return tuple(client_command(one, prefix, seconds, _CERTIFICATES))
    words = [
        f'{prefix}/plumbload', '--service', '{service}', '--name',
        'client{index}', '--share', '{index}/{count}', '--protocol', 'binary',
        '--operation', 'get', '--threads', str(one.threads), '--connections',
        str(one.threads * one.connections), '--key-prefix', PREFIX, '--keys',
        str(one.keys), '--duration', str(seconds), '--seed', str(seed)]
    if program == 'memcached':
        words += ['--on-miss', 'set', '--value-size', f'@{sizes}', '--series',
                  '{output}.csv', '--interval', f'{interval:g}']
    return tuple(words)


def sizes_file() -> str:
    """The text of a file for plumbload's --value-size: each size of a range
    with its share of the weight."""
    return ''.join(f'{size} {weight / (last - first + 1):.6g}\n'
                   for first, last, weight in STORED
                   for size in range(first, last + 1))
