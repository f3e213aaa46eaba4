#!/usr/bin/env python3
"""Compares the embedded reduction server with the server of osrg/optcast.

    OPTCAST_PREFIX=CLONE bench/optcast_embedded.py [--rounds 5]

CLONE is a clone of the original with its plugin and with a server that sleeps
between two polls, as in the original's own tests:

    cd CLONE/reduction_server && cargo rustc -r -- --cfg no_spinloop

The threads of the usual server poll without sleep, so its CPU time is not that
of its work, and it is refused.

The protocols differ, so each server has the clients of its own program. Both
servers get the same options, and the same number of messages of the same size
over TCP on this machine. The value is the data received per CPU time of the
server: for receive, additions and send. Goal: the median ratio embedded /
original of each row is at least --minimum.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import resource
import secrets
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from common import (
    ROOT,
    Missing,
    measure_alternately,
    median_ratio,
    option_parser,
    print_table_head,
    print_table_row,
    run,
    run_main_and_exit,
    set_parent_death_signal,
    unused_port,
)

from checks.optcast import programs, scenarios

BUILD = ROOT / 'checks' / 'optcast' / 'src' / 'build.sh'
#: The embedded client cuts an array into at least 32 messages per server.
MESSAGES = 32
#: Seconds that one client may take.
LIMIT = 600.0


class Original(NamedTuple):
    """The original's server, and the folder of the plugin with its transports."""
    server: str
    plugin: str


def find_original() -> Original:
    """The original's files below $OPTCAST_PREFIX.

    :raises Missing: one is missing
    """
    prefix = os.environ.get('OPTCAST_PREFIX', '')
    paths = [prefix and programs.find_installed_file(prefix, name)
             for name in (programs.SERVER, programs.LIBRARY)]
    if not all(paths):
        raise Missing(f'OPTCAST_PREFIX={prefix}: no {programs.SERVER} and '
                      f'{programs.LIBRARY}; set it to a clone of osrg/optcast with '
                      'its builds (see --help)')
    return Original(paths[0], str(Path(paths[1]).parent))


def measure_server(args: argparse.Namespace, original: Original | None, embedded: Path,
                   data_type: str, clients: int) -> float:
    """Data that a server receives per second of its CPU time. Unit: GB/s.

    :arg original: None: the embedded server and its clients
    """
    port, size = unused_port(), scenarios.parse_size(args.chunksize)
    count = size // scenarios.DATA_TYPES[data_type]
    requests = args.iterations * MESSAGES
    common = ['--nrank', clients, '--data-type', data_type, '--count', count]
    secret = f'password {secrets.token_hex(16)}\n'
    server = [original.server if original else embedded, *common,
              '--address', '127.0.0.1', '--port', port,
              '--reduce-jobs', args.num_jobs, '--reduce-threads', args.num_threads]
    if original:
        env = {**os.environ, 'NCCL_PLUGIN_P2P': 'socket', 'NCCL_SOCKET_IFNAME': 'lo',
               'LD_LIBRARY_PATH': original.plugin, 'RUST_LOG': 'warn'}
        # It waits for the server.
        commands = [[original.server, '--client', *common, '--address',
                     f'127.0.0.1:{port}', '--try-count', requests]] * clients
    else:
        env = dict(os.environ)
        commands = [[embedded, '--client', *common, '--rank', rank, '--chunksize', size,
                     '--size', size * MESSAGES, '-n', args.iterations, '-w', 0]
                    for rank in range(clients)]
    with contextlib.ExitStack() as stack:
        started = []
        for command in (server, *commands):
            process = stack.enter_context(subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, text=True, env=env,
                stdout=subprocess.DEVNULL,
                # A client of the original may panic when another one has ended.
                stderr=subprocess.DEVNULL if original else None,
                preexec_fn=set_parent_death_signal))
            stack.callback(process.kill)
            started.append(process)
            assert process.stdin
            if not original:
                process.stdin.write(f'server 127.0.0.1 {port}\n{secret}')
            process.stdin.close()
        try:
            codes = [process.wait(LIMIT) for process in started[1:]]
        except subprocess.TimeoutExpired:
            raise Missing(f'{server[0]}: clients killed after {LIMIT:g} s') from None
        # The original's server ends all connections when one client has all sums.
        if any(codes) and not (original and 0 in codes):
            raise Missing(f'{server[0]}: clients ended with {codes}')
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started[0].terminate()
        started[0].wait(LIMIT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # A thread that sleeps between two polls does so at least once per request.
    if original and (after.ru_nvcsw - before.ru_nvcsw
                     < requests * (args.num_threads + 2 * clients)):
        raise Missing(f'{original.server} polls without sleep, so its CPU time is not '
                      'that of its work; build it with no_spinloop (see --help)')
    return clients * requests * size / 1e9 / (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> bool:
    options = option_parser(__doc__)
    options.add_argument('--chunksize', default='4M')
    options.add_argument('--data-types', default='f32,f16')
    options.add_argument('--clients', default='2,4')
    options.add_argument('--num-jobs', type=int, default=2)
    options.add_argument('--num-threads', type=int, default=2)
    options.add_argument('--iterations', type=int, default=1,
                         help=f'{MESSAGES} messages of each client (default: 1)')
    options.add_argument('--rounds', type=int, default=5)
    options.add_argument('--minimum', type=float, default=1)
    args = options.parse_args()
    original, good = find_original(), True
    with tempfile.TemporaryDirectory(prefix='plumbline-optcast.') as folder:
        embedded = Path(folder, 'optcast')
        run([BUILD, embedded], 'building optcast')
        print_table_head('type, clients', 'original, GB/s', 'embedded, GB/s', 'ratio')
        for data_type in args.data_types.split(','):
            for clients in map(int, args.clients.split(',')):

                def measure(name: str, data_type: str = data_type,
                            clients: int = clients) -> float:
                    return measure_server(args, original if name == 'original' else
                                          None, embedded, data_type, clients)

                rates = measure_alternately(args.rounds, ('original', 'embedded'),
                                            measure)
                theirs, ours = rates.values()
                ratio = median_ratio(ours, theirs)
                good &= ratio >= args.minimum
                print_table_row(f'{data_type}, {clients}',
                                f'{statistics.median(theirs):.2f}',
                                f'{statistics.median(ours):.2f}', f'{ratio:.2f}')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
