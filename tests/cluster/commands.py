"""The command line of ``box``."""
from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import nodes
from cluster import (
    PATH,
    PROGRAMS,
    CannotRunHere,
    Cluster,
    ClusterError,
    default_folder,
    missing,
)
from packages import install, package_of


def arguments(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='box', description=doc.partition('\n')[0],
        epilog=doc.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--dir', type=Path, default=default_folder(),
                        help='folder of the cluster (default: '
                             '$PLUMBLINE_WORK/cluster)')
    actions = parser.add_subparsers(dest='action', required=True,
                                    metavar='COMMAND')
    actions.add_parser(
        'install', help='Debian packages, as root; nothing else installs')
    up = actions.add_parser('up', help='bring a cluster up')
    up.add_argument('-n', type=int, default=4, dest='nodes',
                    choices=range(1, 201), metavar='N',
                    help='compute nodes (default: 4)')
    up.add_argument('--cpus', type=int, default=2, metavar='C',
                    help='cores that each node claims (default: 2)')
    up.add_argument('--ssh', action='store_true',
                    help='sshd in each node instead of Slurm')
    up.add_argument('--bind', action='store_true',
                    help='tasks are bound to their CPUs (task/affinity)')
    up.add_argument('--switch', type=int, default=0, metavar='N',
                    help='leaf switches of N nodes each under one at the '
                         'top, as Slurm is told (topology/tree)')
    up.add_argument('--share', action='append', default=[], metavar='FOLDER',
                    help='a folder below /tmp that all nodes see')
    actions.add_parser('down', help='end it; nothing is left')
    actions.add_parser('status', help='nodes, links and jobs')
    execute = actions.add_parser('exec', help='run a command on a node')
    execute.add_argument('node', nargs='?', default='login')
    for name, text in (('kill', 'a power cut'), ('boot', 'bring it back')):
        actions.add_parser(name, help=text).add_argument('node')
    for name, text, value, example in (
            ('rate', 'limit a link, both ways', 'rate', '100mbit, none'),
            ('delay', 'make a link slow, each way', 'delay', '200us, 0'),
            ('loss', 'lose frames of a link, each way', 'share', '1%%, 0')):
        action = actions.add_parser(name, help=text)
        action.add_argument('node')
        action.add_argument(value, help=example)
    return parser


def main(doc: str) -> int:
    words, command = sys.argv[1:], []
    if '--' in words:
        at = words.index('--')
        words, command = words[:at], words[at + 1:]
    parser = arguments(doc)
    args = parser.parse_args(words)
    if (args.action == 'exec') != bool(command):
        parser.error('exec needs a command after --, and nothing else does')
    os.environ['PATH'] = PATH
    cluster = Cluster(args.dir)
    try:
        if args.action == 'exec':
            return nodes.execute(cluster, args.node, command)
        ACTIONS[args.action](cluster, args)
    except ClusterError as err:
        print(f'box: {err}', file=sys.stderr)
        return 2 if isinstance(err, CannotRunHere) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def prepare() -> None:
    """Installs what a cluster needs."""
    code = install(sorted({package_of()[program] for programs in PROGRAMS.values()
                           for program in programs}))
    if code == 2:
        raise CannotRunHere('install needs root, and apt-get')
    if code:
        raise ClusterError('apt-get failed: see above')


def up(cluster: Cluster, args: argparse.Namespace) -> None:
    lost = missing(args.ssh)
    if lost:
        raise CannotRunHere(lost)
    # SIGTERM is handled like Ctrl-C: unfinished things are removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster.make_folder(args.nodes, args.cpus, args.share, args.bind, args.switch,
                        args.ssh)
    try:
        nodes.up(cluster)
    except BaseException:
        cluster.down()
        raise


def status(cluster: Cluster, args: argparse.Namespace) -> None:
    ssh = cluster.settings['ssh']
    states = {} if ssh else cluster.states()
    for node in cluster.nodes:
        alive = 'alive' if cluster.pid(node) else 'dead'
        link = ' '.join(f'{k}={v}' for k, v in cluster.link(node).items())
        print(f'{node:6} {cluster.address(node):12} {alive:6} '
              f'{states.get(node, "unknown"):12} {link}'.rstrip())
    if not ssh:
        print(cluster.ask('squeue'), end='')


#: Function of each command; `exec` is separate, for its exit code.
ACTIONS: dict[str, Callable[[Cluster, argparse.Namespace], None]] = {
    'install': lambda *_: prepare(),
    'up': up,
    'down': lambda cluster, _: cluster.down(),
    'status': status,
    'kill': lambda cluster, args: cluster.kill(args.node),
    'boot': lambda cluster, args: nodes.boot(cluster, args.node),
    'rate': lambda cluster, args: cluster.rate(args.node, args.rate),
    'delay': lambda cluster, args: cluster.delay(args.node, args.delay),
    'loss': lambda cluster, args: cluster.loss(args.node, args.share),
}
