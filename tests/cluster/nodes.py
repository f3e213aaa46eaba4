"""Creates a cluster's namespaces and the daemons in them. Forks: for ``box``.

A node's first process reports each step over a channel and waits for `go`: up
to then it exits when the other end of the channel is closed; afterwards its
pid is in the cluster's folder, where ``down`` finds it.
"""
from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import namespaces as ns
from cluster import (
    ACCOUNTS,
    HERE,
    LIMIT,
    LOGIN,
    PATH,
    PRIVATE,
    SWITCH,
    CannotRunHere,
    Cluster,
    ClusterError,
    compiled,
)


def up(cluster: Cluster) -> None:
    """Starts switch, login and nodes; returns when all nodes are idle."""
    start_switch(cluster)
    start(cluster, [LOGIN])
    start(cluster, cluster.nodes)
    cluster.wait_idle(cluster.nodes)


def boot(cluster: Cluster, node: str) -> None:
    cluster.address(node)
    if cluster.pid(node) is not None:
        raise ClusterError(f'{node} is alive already')
    start(cluster, [node])
    cluster.wait_idle(cluster.nodes if node == LOGIN else [node])


# ------------------------------------------------------------------ switch

def start_switch(cluster: Cluster) -> None:
    """The outer namespaces, with the bridge that connects all nodes."""
    channel = ns.Channel()

    def first() -> None:
        with report_errors(channel.there):
            try:
                ns.unshare(ns.NODE | ns.NEWPID, 'NEWNS|NEWNET|NEWPID|...')
            except PermissionError:
                ns.become_root()
                ns.unshare(ns.NODE | ns.NEWPID, 'NEWNS|NEWNET|NEWPID|...')
            if os.fork():
                os._exit(0)
            prepare_switch(cluster)
            report(channel.there, 'ready')
            await_go(channel.there)
        reap_children()

    ns.detached(first, cluster.log(SWITCH), channel.there.fileno())
    channel.there.close()
    pid = await_report(cluster, SWITCH, channel)
    cluster.remember(SWITCH, pid)
    if Path(f'/proc/{pid}/setgroups').read_text().strip() == 'deny':
        compiled('setgroups.so', cluster.folder)
    channel.here.send(b'go')


def prepare_switch(cluster: Cluster) -> None:
    socket.sethostname(SWITCH)
    ns.own_mounts()
    ns.own_folders(['/run'], cluster.settings['shared'])
    for path in ('/run/cluster', '/run/munge'):
        os.mkdir(path, 0o755)
    ns.bind(cluster.folder, '/run/cluster')
    names = ['hosts']
    if cluster.settings['ssh']:
        names += ACCOUNTS
    else:
        ns.bind(cluster.folder / 'etc', '/etc/slurm')
        ns.bind(HERE / 'sacct', '/usr/bin/sacct')
    for name in names:
        ns.bind(cluster.folder / 'etc' / name, f'/etc/{name}')
    ns.mount('proc', '/proc', 'proc')
    ns.ip('link set lo up', 'link add br0 type bridge', 'link set br0 up')


# ------------------------------------------------------------------- nodes

def start(cluster: Cluster, nodes: list[str]) -> None:
    """Starts nodes side by side; returns when their daemons run."""
    channels = {}
    for node in nodes:
        channels[node] = ns.Channel()
        inside(cluster, node, channels[node])
        channels[node].there.close()
    for node, channel in channels.items():
        cluster.remember(node, await_report(cluster, node, channel))
        channel.here.send(b'go')
    for node, channel in channels.items():
        await_report(cluster, node, channel)


def inside(cluster: Cluster, node: str, channel: ns.Channel) -> None:
    """Forks the first process of a node, below the switch's."""
    switch = cluster.alive(SWITCH)

    def first() -> None:
        with report_errors(channel.there):
            ns.enter(switch)
            # setns() of a pid namespace applies to children only: fork.
            if os.fork():
                os._exit(0)
            ns.unshare(ns.NEWPID, 'CLONE_NEWPID')
            if os.fork():
                os._exit(0)
            prepare_node(cluster, node)
            report(channel.there, 'ready')
            await_go(channel.there)
            start_daemons(cluster, node)
            report(channel.there, 'up')
            channel.there.close()
        reap_children()

    ns.detached(first, cluster.log(node), channel.there.fileno())


def prepare_node(cluster: Cluster, node: str) -> None:
    switch = os.open('/proc/1/ns/net', os.O_RDONLY)
    ns.unshare(ns.NODE, 'NEWNS|NEWNET|NEWUTS|NEWIPC')
    socket.sethostname(node)
    ns.own_mounts()
    # The link of a dead node, if the kernel has not removed it yet.
    subprocess.run(['ip', 'link', 'del', node], stderr=subprocess.DEVNULL,
                   preexec_fn=lambda: ns.setns(switch, ns.NEWNET, 'switch'))
    ns.ip('link set lo up',
          f'link add eth0 type veth peer name {node} netns /proc/1/ns/net',
          f'addr add {cluster.address(node)}/24 dev eth0',
          'link set eth0 up')
    ns.ip(f'link set {node} master br0', f'link set {node} up', net=switch)
    os.close(switch)
    ns.own_folders(PRIVATE, [*cluster.settings['shared'], '/run/cluster',
                             '/run/munge'])
    ns.mount('proc', '/proc', 'proc')
    ns.mount('sysfs', '/sys', 'sysfs')


def start_daemons(cluster: Cluster, node: str) -> None:
    """:raises ClusterError: one of them ended, or does not answer."""
    if cluster.settings['ssh']:
        if node != LOGIN:
            os.mkdir('/run/sshd', 0o755)
            name = f'sshd-{node}'
            sshd = daemon(
                cluster, name, shutil.which('sshd', path=PATH) or 'sshd', '-D', '-e',
                '-f', str(cluster.ssh_folder / 'sshd_config'),
                '-o', f'ListenAddress={cluster.address(node)}')
            await_ready(cluster, name, sshd, lambda: listening(node, 22))
        return
    if node != LOGIN:
        name = f'slurmd-{node}'
        slurmd = daemon(cluster, name, 'slurmd', '-D', '-N', node)
        await_ready(cluster, name, slurmd, lambda: listening(node, 6818))
        return
    munged = daemon(
        cluster, 'munged', 'munged', '--foreground', '--force',
        '--key-file=/run/cluster/etc/munge.key', '--pid-file=/run/munged.pid',
        '--seed-file=/run/munge.seed', '--num-threads=2')
    await_ready(cluster, 'munged', munged,
            lambda: Path('/run/munge/munge.socket.2').exists())
    slurmctld = daemon(cluster, 'slurmctld', 'slurmctld', '-D')
    await_ready(cluster, 'slurmctld', slurmctld,
                lambda: listening(LOGIN, 6817))


def daemon(cluster: Cluster, name: str, *command: str
           ) -> subprocess.Popen[bytes]:
    env = {'PATH': PATH}
    preload = cluster.folder / 'setgroups.so'
    if preload.exists():
        env['LD_PRELOAD'] = '/run/cluster/setgroups.so'
    with open(cluster.log(name), 'ab') as out:
        return subprocess.Popen(command, env=env, cwd='/', stdout=out,
                                stderr=out, stdin=subprocess.DEVNULL)


def await_ready(cluster: Cluster, name: str, process: subprocess.Popen[bytes],
            ready: Callable[[], bool], limit: float = LIMIT) -> None:
    end = time.monotonic() + limit
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            output = cluster.log(name).read_text(errors='replace').splitlines()
            raise ClusterError(
                f'{name} '
                + ('does not answer' if process.poll() is None else
                   f'ended with exit code {process.returncode}')
                + f': {output[-1] if output else "no output"}')
        time.sleep(0.01)


def listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


# ------------------------------------------------- messages of first processes

def report(there: socket.socket, words: str) -> None:
    there.send(words.encode())


def await_report(cluster: Cluster, node: str, channel: ns.Channel) -> int:
    """Waits for a first process's next step; its pid.

    :raises ClusterError: it failed, with its message or its log's last line.
    """
    pid, words = channel.receive()
    if words in ('ready', 'up'):
        return pid
    if words.startswith(('unshare(', 'mount(')):
        raise CannotRunHere(f'namespaces are forbidden here: {words}')
    log = cluster.log(node)
    output = log.read_text(errors='replace').splitlines()
    raise ClusterError(
        f'{node}: {words}' if words else
        f'{node} ended: {output[-1] if output else "no output"} ({log})')


class report_errors:
    """Reports an exception over the channel and exits."""

    def __init__(self, there: socket.socket) -> None:
        self.there = there

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None,
                 trace: object) -> None:
        if error is not None:
            # Errors of our own system calls have a complete text.
            report(self.there, getattr(error, 'strerror', None) or str(error)
                or repr(error))
            os._exit(1)


def await_go(there: socket.socket) -> None:
    """Waits for `go`; exits if the channel is closed instead."""
    if there.recv(16) != b'go':
        os._exit(1)


def reap_children() -> None:
    """The rest of a first process's life: reaps orphans, for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


# -------------------------------------------------------------------- exec

def execute(cluster: Cluster, node: str, command: list[str]) -> int:
    """Runs a command on a node as a child of this process.

    The child is gone when this process is, even if it was killed.
    """
    pid, where = cluster.alive(node), os.getcwd()
    ns.enter(pid)
    child = os.fork()
    if child == 0:
        ns.die_with_parent()
        try:
            os.chdir(where)
        except OSError:
            os.chdir('/')
        try:
            os.execvp(command[0], command)
        except OSError as err:
            os.write(2, f'box: {command[0]} on {node}: {err.strerror}\n'
                     .encode())
            os._exit(127)
    # Ctrl-C is the command's: the terminal sends it to both.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: os.kill(child, n))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
