"""Commands of the programs of a run, as templates for a plan of services.

comparison.md explains the differences from the original's commands.
"""
from __future__ import annotations

from ..services.plan import command_with_environment
from .sizing import Client, Instance

#: Length of a key: a constant prefix and the index.
KEY_BYTES = 220
#: Constant prefix of every key, with arbitrary bytes.
PREFIX = ('the_associations_of_an_object_' * 8)[:KEY_BYTES - 1]

#: Sizes of values that a look-aside client stores, with their weights: the
#: published sizes after compression (docs/reference/families/taobench.md).
STORED = ((31, 52, 5), (53, 71, 5), (72, 110, 10), (111, 134, 5),
          (135, 156, 5), (157, 203, 10), (204, 243, 10), (244, 266, 25),
          (267, 267, 15), (268, 273, 9), (274, 521, 1))

#: Options for tao_server, which creates the values; a full queue is a miss.
_BY_SERVER = '--verify', 'none', '--on-miss', 'count'
#: Options of the original that the embedded server does not have: its values
#: always have these sizes and contents, compressed.
_OTHERS = ('lru_crawler', 'tao_max_item_size', 'tao_gen_payload',
           'tao_compress_items')


def server_command_template(program: str, instance: Instance, prefix: str,
                            connections: int, libraries: str = '') -> tuple[str, ...]:
    """The command of one server.

    checks/services/node.py sets its CPUs and its port.

    :param prefix: folder of the program
    :param connections: maximum number of connections
    :param libraries: folder of libraries for LD_LIBRARY_PATH, or ''
    """
    options = instance.options
    if program == 'tao_bench_server':
        return command_with_environment(
            {'LD_LIBRARY_PATH': libraries} if libraries else {},
            *_original_server_command(instance, prefix, connections))
    tls = 'Z' in options
    words = ['-l', '{address}', '-p', '{port}', '-m', str(instance.memory),
             '-t', str(instance.fast_threads), '-c', str(connections),
             *(['-Z'] if tls else [])]
    extended = ['ssl_chain_cert={cert}', 'ssl_key={key}'] if tls else []
    if program == 'memcached':
        words = [f'{prefix}/bin/memcached', '-u', '{user}', '-U', '0', *words]
    else:
        words = [f'{prefix}/tao_server', *words]
        extended += [f'{name}={value}' for name, value in options.items()
                     if len(name) > 1 and name not in _OTHERS]
    return (*words, *(['-o', ','.join(extended)] if extended else []))


def _original_server_command(server: Instance, prefix: str, connections: int
                             ) -> list[str]:
    words = [f'{prefix}/tao_bench_server']
    extended = [f'tao_it_gen_file={prefix}/leader_sizes.json']
    # The original's 180 000 connections need as many open files, which only root
    # may have.
    for name, value in {**server.options, 'c': connections}.items():
        if len(name) == 1:
            words += [f'-{name}', *([] if value is None else [str(value)])]
        else:
            extended.append(name if value is None else f'{name}={value}')
    if 'Z' in server.options:
        extended += ['ssl_chain_cert={cert}', 'ssl_key={key}']
    return [*words, '-l', '{address}', '-o', ','.join(extended)]


def client_command_template(
    program: str,
    one: Client,
    prefix: str,
    seconds: int,
    interval: float,
    seed: int,
    sizes: str = '',
    requests: int = 0,
) -> tuple[str, ...]:
    """The command of one client for one phase.

    :param prefix: folder of the program
    :param interval: time between two rows of its series. Unit: s
    :param seed: seed of its keys
    :param sizes: file with the sizes of values that it stores
    :param requests: number of requests that ends the phase early, if the
        client can count them; 0: no limit
    """
    if program == 'tao_bench_server':
        return tuple(_original_client_command(one, prefix, seconds))
    words = [f'{prefix}/plumbload', '--service', '{service}', '--name',
             'client{index}', '--share', '{index}/{count}',
             *_plumbload_options(one, seconds, seed),
             *(['--requests', str(requests)] if requests else [])]
    if program == 'memcached':
        # Each phase has other keys, but the same values.
        words += ['--on-miss', 'set', '--value-size', f'@{sizes}',
                  '--value-seed', '1', '--series', '{output}.csv',
                  '--interval', f'{interval:g}']
    else:
        words += _BY_SERVER
    return tuple(words)


def _original_client_command(client: Client, prefix: str, seconds: int) -> list[str]:
    values = client.arguments
    words = [
        f'{prefix}/tao_bench_client', '-s', '{host}',
        '-p', '{port}', '-P', 'memcache_binary',
        '--key-pattern=R:R', '--distinct-client-seed', '--randomize', '-R',
        '--hide-histogram', '--expiry-range=1800-1802',
        f'--data-size-range={values["data_size_min"]}'
        f'-{values["data_size_max"]}', '--ratio=0:1', '--key-minimum=1',
        f'--key-maximum={client.keys}', '-t', str(client.threads),
        f'--clients={client.connections}', '--threads-coherence=0',
        '--clients-coherence=3', f'--key-bytes={KEY_BYTES}',
        f'--test-time={seconds}']
    if not values['disable_tls']:
        words += ['--cert={cert}', '--key={key}', '--tls', '--tls-skip-verify']
    return words


def _plumbload_options(client: Client, seconds: int, seed: int) -> list[str]:
    """Options of plumbload for the load of a client."""
    return ['--protocol', 'binary', '--operation', 'get', '--threads',
            str(client.threads), '--connections',
            str(client.threads * client.connections), '--key-prefix', PREFIX,
            '--keys', str(client.keys), '--duration', str(seconds), '--seed',
            str(seed)]


def format_value_sizes() -> str:
    """Text of a file for plumbload's --value-size: each size of a range with
    its share of the weight."""
    return ''.join(f'{size} {weight / (last - first + 1):.6g}\n'
                   for first, last, weight in STORED
                   for size in range(first, last + 1))
