#!/usr/bin/env python3
"""Starts a server or a client of a job on its node, on CPUs of its own.

The job script (:mod:`.script`) has it in front of each program:

    node.py serve  ROLES [OPTION]... -- SERVER...   until SIGUSR1
    node.py client ROLES [OPTION]... -- CLIENT...   becomes the client

ROLES has all servers and clients of the node, `server=2x4,client=1x8`: two servers
with four CPUs each, and a client with eight. `2/` divides all CPUs of the node, `2*`
binds to none. Each process computes the same assignment from it and takes its own part,
so that no process has to know another. A server that is ready prints one line
of JSON on standard output; its own output is standard error. A failure is one line
`failed: TEXT` on standard output.
"""
from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import pwd
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

if __name__ == '__main__':              # the suite is not on the path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from checks.machine import cpus
from checks.services import ask, network
from checks.services.processes import set_parent_death_signal

#: Ends processes that have a variable in their environment.
LEFTOVERS = Path(__file__).resolve().parents[1] / 'core' / 'src' / 'leftovers.sh'

#: Names of the servers' data folders begin with this.
PREFIX = 'plumbline-data-'

#: Time between SIGTERM and SIGKILL for a server. Unit: seconds.
TERMINATE_TIMEOUT = 3.0

#: Interval between two checks whether a server is ready. Unit: seconds.
POLL_INTERVAL = 0.02

#: Starts of a server whose port another program takes first.
STARTS = 3

#: Kinds of persistence in words; the keys are those of a plan.
PERSISTENCE_NAMES = {'aof': 'an append-only file', 'rdb': 'snapshots'}

#: Open files of a program besides its connections.
SPARE_FILES = 128

#: Variables in which launchers pass a rank its number on its node. Slurm's
#: is last, because mpirun in a batch job passes on the variable of the script.
LOCAL_RANK = ('OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID',
              'PALS_LOCAL_RANKID', 'FLUX_TASK_LOCAL_ID', 'SLURM_LOCALID')

class Failed(Exception):
    """Something cannot be started or ended too early; one line."""


# CPUs and memory -----------------------------------------------------------

class Role(NamedTuple):
    """A role on this node: processes, and the CPUs of each (0: see `kind`)."""
    name: str
    instances: int
    kind: str               # x: so many CPUs each, /: all divided, *: unbound
    cpus: int


def parse_roles(text: str) -> list[Role]:
    """The roles of a node; see the head of this file for the form."""
    roles = []
    for part in filter(None, text.split(',')):
        name, _, rest = part.partition('=')
        kind = next(sign for sign in 'x/*' if sign in rest)
        count, _, each = rest.partition(kind)
        roles.append(Role(name, int(count), kind, int(each or 0)))
    return roles


def assign_cpus(available: list[cpus.Cpu], roles: list[Role]) -> cpus.Placement:
    """The CPU sets of all roles of a node.

    :raises Failed: the node has fewer cores than servers that divide it.
    """
    placed = cpus.assign_cpus(available, [
        cpus.CpuRequest(role.name, role.instances, role.cpus)
        for role in roles if role.kind == 'x'])
    for role in roles:
        if role.kind == '*':
            placed.sets[role.name] = [[cpu.number for cpu in available]
                                      ] * role.instances
        if role.kind == '/':
            try:
                placed.sets[role.name] = cpus.divide_cpus(available, role.instances)
            except ValueError as err:
                raise Failed(f'servers on {host_name()}: {err}') from None
    return placed


def own_placement(options: argparse.Namespace) -> tuple[list[int], str]:
    """The CPUs of this process, and what no two processes of the node share.

    :raises Failed: the node has no such process.
    """
    slot = options.slot
    if slot < 0:
        slot = next((int(os.environ[name]) for name in LOCAL_RANK
                     if name in os.environ), -1)
        if slot < 0:
            raise Failed('the launcher does not pass the number of the rank on its '
                         f'node: none of {", ".join(LOCAL_RANK)} is set')
    placed = assign_cpus(cpus.available_cpus(), parse_roles(options.roles))
    sets = placed.sets.get(options.role, [])
    if slot >= len(sets):
        raise Failed(f'the launcher started more than {len(sets)} {options.role} '
                     f'processes on {host_name()}')
    return sets[slot], placed.by


def raise_file_limit(files: int) -> None:
    """Allow this process so many open files.

    :raises Failed: the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and files > hard:
        raise Failed(f'the connections need {files} open files, but the limit is '
                     f'{hard}: raise it (ulimit -Hn, limits.conf, LimitNOFILE of '
                     'slurmd), or request fewer connections')
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))


def numactl_prefix(subset: list[int], rule: str) -> list[str]:
    """Words before a command that bind its memory to the NUMA nodes of its CPUs.

    :param rule: never, may (if numactl is installed) or must.
    :raises Failed: it must, but numactl is missing.
    """
    available = cpus.available_cpus()
    if rule == 'never' or len({cpu.numa for cpu in available}) < 2:
        return []
    if shutil.which('numactl'):
        nodes = cpus.numa_nodes_of_cpus(available, subset)
        return ['numactl', f'--membind={",".join(map(str, nodes))}']
    if rule == 'must':
        raise Failed(f'numactl is missing on {host_name()}, which has several NUMA '
                     'nodes: install it, or do not bind memory (bind_mem: 0)')
    return []


def free_memory() -> float:
    """Memory that processes of this job may still get on this node. Unit: MiB.

    It is the smaller of what the node has and of what the cgroup allows.
    """
    free = float('inf')
    for line in read_lines('/proc/meminfo'):
        if line.startswith('MemAvailable'):
            free = int(line.split()[1]) / 1024
    # Version 2: one path, which begins with 0::.
    for line in read_lines('/proc/self/cgroup'):
        number, controllers, path = line.split(':', 2)
        version_2 = number == '0' and not controllers
        if not version_2 and 'memory' not in controllers.split(','):
            continue
        root = Path('/sys/fs/cgroup', '' if version_2 else 'memory')
        names = (('memory.max', 'memory.current') if version_2 else
                 ('memory.limit_in_bytes', 'memory.usage_in_bytes'))
        folder = root / path.strip('/')
        for one in [folder, *folder.parents]:
            limit, used = (read_lines(str(one / name))[:1] for name in names)
            if limit and used and limit[0].isdigit():
                free = min(free, (int(limit[0]) - int(used[0])) / 2**20)
            if one == root:
                break
    return free


def check_free_memory(needed: float) -> None:
    """Check that enough memory is free for the servers of this node.

    :param needed: in MiB
    :raises Failed: less memory is free.
    """
    free = free_memory()
    if needed > free:
        raise Failed(f'the servers on {host_name()} need {needed:g} MiB of memory, but '
                     f'{max(free, 0):.0f} MiB are free: request less, or a larger node')


def read_lines(path: str) -> list[str]:
    """The lines of a file; empty if it cannot be read."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def host_name() -> str:
    """The name of this node without its domain."""
    return socket.gethostname().partition('.')[0]


def user_name() -> str:
    """The name of this user; the number if there is no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


# Addresses and ports ---------------------------------------------------------

def own_address(interface: str, peer: str) -> str:
    """The address at which a server of this node listens.

    :param interface: network interface; empty: the one towards `peer`.
    :param peer: another node of the job; empty: there is none, and the server
        listens on loopback.
    :raises Failed: there is no such address.
    """
    if interface:
        result = network.interface_addresses()
        if interface in result:
            return result[interface]
        there = ', '.join(f'{name} ({address})'
                          for name, address in sorted(result.items()))
        raise Failed(f'the node has no interface {interface!r} with an IPv4 '
                     f'address, only {there or "none"}: correct '
                     "service_interface in the site's system.py")
    if not peer:
        return '127.0.0.1'
    with contextlib.suppress(OSError), socket.socket(
            socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # Sends nothing: the kernel picks the source address of a route.
        sock.connect((peer, 9))
        address = str(sock.getsockname()[0])
        if not address.startswith('127.'):
            return address
    raise Failed(f'{host_name()} has no address towards {peer}: set service_interface '
                 "in the site's system.py")


def check_link_speed(interface: str, speed: int, minimum: float) -> None:
    """Check that an interface is fast enough, if its speed is known.

    :param speed: 0: unknown. Unit: Mb/s.
    :param minimum: required speed. Unit: Mb/s.
    :raises Failed: it is slower.
    """
    if 0 < speed < minimum:
        raise Failed(f'interface {interface} has {speed} Mb/s, but the plan needs '
                     f'{minimum:g}: set a faster one as service_interface in the '
                     "site's system.py")


def can_bind(address: str, port: int) -> bool:
    """Whether a server could bind to this address and port now."""
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        return True
    return False


def find_free_port(address: str) -> int:
    """A free port whose port + 10000 (the cluster bus) is free, too.

    Both are outside the ephemeral ports of the kernel, because a client could get
    one of those before the server binds to it. If these cover everything, any
    free port is taken.

    :raises Failed: no port is free.
    """
    low, high = ephemeral_ports()
    candidates = [port for port in range(1024, 55536)
                  if not any(low <= one <= high for one in (port, port + 10000))]
    candidates = candidates or [*range(1024, 55536)]
    for port in random.sample(candidates, min(len(candidates), 500)):
        if can_bind(address, port) and can_bind(address, port + 10000):
            return port
    raise Failed(f'no port is free on {address}: stop programs that occupy them')


def ephemeral_ports() -> tuple[int, int]:
    """The first and the last port that the kernel gives to clients."""
    lines = read_lines('/proc/sys/net/ipv4/ip_local_port_range')
    low, high = map(int, lines[0].split()) if lines else (32768, 60999)
    return low, high


# Servers ---------------------------------------------------------------------

class DataFolder:
    """A folder for the data of a server, locked while this process runs.

    Folders of servers that were killed are removed first.

    :raises Failed: the scratch folder cannot be written.
    """

    def __init__(self, scratch: str) -> None:
        parent = Path(scratch or os.environ.get('TMPDIR') or '/tmp')
        try:
            for old in parent.glob(f'{PREFIX}*'):
                remove_if_unlocked(old)
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            # The kernel closes and unlocks it when this process ends.
            self._lock = os.open(self.folder / 'new', os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, host_name().encode())
            os.rename(self.folder / 'new', self.folder / 'lock')
        except OSError as err:
            raise Failed('cannot create a folder for the data of the servers in '
                         f'{parent}: {err.strerror}; set another scratch in the '
                         "site's system.py") from None

    def remove(self) -> None:
        """Remove the folder with all its files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_if_unlocked(folder: Path, max_seconds: float = float('inf')) -> None:
    """Remove a folder of this user whose owner, on this node, has ended.

    :param max_seconds: age at which owners on other nodes have ended, too
    """
    with contextlib.suppress(OSError):
        about = folder.lstat()
        if folder.is_symlink() or about.st_uid != os.geteuid():
            return
        # Without the file, its owner has only begun.
        with open(folder / 'lock') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not every file system has the locks of other nodes.
            if (lock.read().strip().partition('.')[0] == host_name()
                    or time.time() - about.st_mtime > max_seconds):
                shutil.rmtree(folder, ignore_errors=True)


class Server:
    """One server: its start, its checks until it is ready, and its end."""

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self.options, self.command = options, command
        self.cpu_set, self.placed_by = own_placement(options)
        check_free_memory(options.memory * sum(
            role.instances for role in parse_roles(options.roles)
            if role.name == options.role))
        self.address = own_address(options.interface, options.peer)
        self.interface = network.find_interface(self.address)
        lines = read_lines(f'/sys/class/net/{self.interface}/speed')
        #: Speed of the interface; 0: the kernel does not report it. Unit: Mb/s.
        self.link = max(int((lines or ['0'])[0]), 0)
        check_link_speed(self.interface, self.link, options.link)
        self.password = ask.read_password(Path(options.secrets))
        self.starts, self.mark = 0, f'{host_name()}.{os.getpid()}'
        # Folders of the suite are shared with other nodes, this one is not.
        self.data = DataFolder(options.scratch)
        try:
            self.start()
        except BaseException:
            self.data.remove()
            raise

    @property
    def name(self) -> str:
        where = 'socket' if self.options.socket else f'{self.address}:{self.port}'
        return (f'{self.options.program} (server {self.options.index} on '
                f'{host_name()}, {where})')

    def start(self) -> None:
        """Start it on its port.

        :raises Failed: it cannot be started.
        """
        self.starts += 1
        self.port = self.pick_port()
        data = self.data.folder
        values = {'address': self.address, 'port': self.port,
                  'bus_port': self.port + 10000, 'data': str(data),
                  'index': self.options.index, 'memory': self.options.memory,
                  'cpus': ','.join(map(str, self.cpu_set)), 'user': user_name()}
        for name, text in json.loads(self.options.files).items():
            with open(data / name, 'w', opener=lambda path, flags:
                      os.open(path, flags, 0o600)) as file:
                file.write(text.format(password=self.password, **values))
        config = (Path(self.options.config).read_text().format(
            password=self.password, **values) if self.options.config else '')
        command = [*numactl_prefix(self.cpu_set, self.options.bind_memory),
                   *(word.format_map(values) for word in self.command)]
        parent = os.getpid()

        def prepare_child() -> None:
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.sched_setaffinity(0, self.cpu_set)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

        raise_file_limit(self.options.connections + SPARE_FILES)
        self.began, self.at = time.monotonic(), time.time()
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=2, cwd=data,
                preexec_fn=prepare_child, start_new_session=True,
                env={**os.environ, 'PLUMBLINE_RANK': self.mark})
        except OSError as err:
            raise Failed(f'{command[0]} cannot be started: {err.strerror}') from None
        assert self.process.stdin
        with contextlib.suppress(OSError), self.process.stdin as pipe:
            pipe.write(config.encode())
        self.where = ask.Server(
            f'{data}/socket' if self.options.socket else self.address, self.port,
            self.password, self.options.user)

    def pick_port(self) -> int:
        """The port of the plan, or a free one; 0: it listens on a socket.

        :raises Failed: no port is free, or the port of the plan is in use.
        """
        if self.options.socket:
            path = f'{self.data.folder}/socket'
            if len(path) > 107:
                raise Failed(f'{path} is too long for the path of a socket: set a '
                             "shorter folder as scratch in the site's system.py")
            return 0
        if not self.options.port:
            return find_free_port(self.address)
        port = int(self.options.port) + self.options.slot
        if not can_bind(self.address, port):
            raise Failed(f'port {port} on {host_name()} is in use by '
                         f'{network.find_listening_program(port)}: stop that '
                         'program, or request another port (0: any free port)')
        return port

    def exit_reason(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ''
        return (f'was killed by signal {-code} ({signal.Signals(-code).name})'
                if code < 0 else f'ended with exit code {code}')

    def has_become_ready(self) -> bool:
        """Whether it answers now; one attempt.

        :raises Failed: it ended, another server answers, it differs from the
            plan, or its time limit has passed.
        """
        if ended := self.exit_reason():
            # Another program took the port between can_bind and the start.
            if (self.port and not self.options.port and self.starts < STARTS
                    and not can_bind(self.address, self.port)):
                self.start()
                return False
            raise Failed(f'{self.name} {ended} before it answered')
        dialect, settings = self.options.dialect, ask.Settings()
        try:
            self.check_listening_user()
            self.counters = ask.COUNTERS[dialect](self.where)
            self.seconds = time.monotonic() - self.began
            if dialect in ask.SETTINGS:
                settings = ask.SETTINGS[dialect](self.where)
        except ask.PasswordRefused as err:
            raise Failed(f'{self.name} {err}') from None
        except (OSError, ask.Refusal, ValueError) as err:
            why = str(err) or type(err).__name__
            if time.monotonic() - self.began < self.options.ready_limit:
                return False
            raise Failed(f'{self.name} did not answer in '
                         f'{self.options.ready_limit:g} s ({why})') from None
        self.check_is_as_planned(settings)
        return True

    def check_listening_user(self) -> None:
        """Check the owner of the port, before the password is sent.

        :raises OSError: no process listens.
        :raises Failed: a process of another user listens.
        """
        if self.port:
            # A port has one listener, which keeps it until it ends.
            socket.create_connection(self.where[:2], ask.ANSWER_TIMEOUT).close()
            if network.find_listening_user(self.port) not in (None, os.geteuid()):
                raise Failed(f'{self.name}: another user listens on this '
                             'port: another server has the port')

    def check_is_as_planned(self, settings: ask.Settings) -> None:
        """Check that the server that answers is this one, with the persistence, the
        threads and the CPUs of the plan.

        :raises Failed: it is another one, or differs.
        """
        pid, wrapper = self.counters.pid, f'a wrapper at {self.command[0]}'
        if pid and not self.has_started(pid):
            raise Failed(f'{self.name}: process {pid} answers on this port, but the '
                         f'suite started process {self.process.pid}: another server '
                         'has the port')
        has, expected = '', ''
        kinds, request = settings.persistence, {self.options.persistence} - {'off'}
        if kinds not in (None, request):
            has, expected = (
                ' and '.join(PERSISTENCE_NAMES[kind] for kind in sorted(some))
                or 'nothing on disk' for some in (kinds or (), request))
            has = f'writes {has}'
        elif self.options.threads and settings.threads not in (
                None, self.options.threads):
            has = (f'serves with {settings.threads} '
                   f'thread{"s" * (settings.threads > 1)}')
            expected = str(self.options.threads)
        if has:
            raise Failed(f'{self.name} {has}, but the plan requires {expected}: find '
                         f'what changes its configuration ({wrapper}, a default of '
                         'its build)')
        with contextlib.suppress(OSError):      # it has ended, or is in a container
            usable = os.sched_getaffinity(pid or self.process.pid)
            if usable - set(self.cpu_set):
                raise Failed(f'{self.name} was bound to the CPUs '
                             f'{sorted(self.cpu_set)}, but may run on '
                             f'{sorted(usable)}: find what unbinds it ({wrapper}, an '
                             'option of its own)')

    def has_started(self, pid: int) -> bool:
        """Whether a process is in the session of this server."""
        try:
            return os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return False

    def record(self) -> dict[str, Any]:
        """The line of a server that is ready; parser.py has the meaning."""
        return {'index': self.options.index, 'node': host_name(),
                'address': self.where.host, 'port': self.port,
                'interface': self.interface, 'link': self.link, 'cpus': self.cpu_set,
                'program': self.counters.name or self.options.program,
                'version': self.counters.version,
                'ready_ms': round(self.seconds * 1e3, 3), 'at': self.at,
                'placed_by': self.placed_by, 'name': self.name,
                'scratch': str(self.data.folder.parent),
                'counters': self.counters._asdict()}

    def stop(self) -> None:
        """End it with all its processes, and remove its data."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(TERMINATE_TIMEOUT)
        # Those that have left the session of the server.
        subprocess.run([LEFTOVERS, f'PLUMBLINE_RANK={self.mark}'],
                       stdout=subprocess.DEVNULL)
        self.data.remove()


#: Signals on which a server and an observer stop, and what ends a wait. Launchers
#: pass SIGUSR1 on; after SIGTERM some kill their programs at once.
STOP = {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SIGNALS = {*STOP, signal.SIGCHLD}


def serve(options: argparse.Namespace, command: list[str]) -> int:
    """Start a server, report when it is ready, and stop it on a signal.

    :raises Failed: it cannot be started, or ends by itself.
    """
    server = Server(options, command)
    try:
        while not server.has_become_ready():
            if signal.sigtimedwait(STOP, POLL_INTERVAL):
                return 0
        print(json.dumps(server.record()), flush=True)
        while not server.exit_reason():
            if signal.sigwait(STOP | {signal.SIGCHLD}) != signal.SIGCHLD:
                return 0
        raise Failed(f'{server.name} {server.exit_reason()} while it served')
    finally:
        server.stop()


# Clients ---------------------------------------------------------------------

def run_client(options: argparse.Namespace, command: list[str]) -> NoReturn:
    """Bind this process, report its CPUs, and become a client.

    :raises Failed: it has no CPUs here, or too few ports.
    """
    subset, placed_by = own_placement(options)
    check_port_count(options.connections)
    os.sched_setaffinity(0, subset)
    raise_file_limit(options.connections + SPARE_FILES)
    # In one call: other ranks write to this file, too.
    os.write(2, f'plumbline-client {host_name()} {options.role} '
             f'{",".join(map(str, subset))} {placed_by}\n'.encode())
    command = [word.replace('{cpus}', str(len(subset))) for word in command]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.execvp(command[0], command)      # program.sh


def check_port_count(connections: int) -> None:
    """Check that this node has enough ports for connections to one server.

    :raises Failed: it has too few.
    """
    low, high = ephemeral_ports()
    if connections > high - low:
        raise Failed(f'{host_name()} has {high - low} ports for {connections} '
                     'connections to one server: request fewer connections or more '
                     'client nodes, or widen net.ipv4.ip_local_port_range')


def parse_arguments(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of this program, and the command behind `--`."""
    place = words.index('--') if '--' in words else len(words)
    parser = argparse.ArgumentParser(prog='node.py', description=__doc__)
    parser.add_argument('action', choices=('serve', 'client'))
    parser.add_argument('roles')
    for name, kind, default in (
            ('role', str, 'server'), ('slot', int, 0), ('index', int, 0),
            ('program', str, ''), ('dialect', str, 'resp'), ('config', str, ''),
            ('files', str, '{}'), ('memory', int, 0), ('threads', int, 0),
            ('port', int, 0), ('secrets', str, ''), ('user', str, ''),
            ('persistence', str, 'off'), ('connections', int, 0),
            ('ready-limit', float, 30.0), ('bind-memory', str, 'may'),
            ('interface', str, ''), ('peer', str, ''), ('scratch', str, ''),
            ('link', float, 0.0)):
        parser.add_argument(f'--{name}', type=kind, default=default)
    parser.add_argument('--socket', action='store_true')
    return parser.parse_args(words[:place]), words[place + 1:]


def main(words: list[str]) -> int:
    """Do what the command line says; see the head of this file.

    :returns: the exit code.
    """
    options, command = parse_arguments(words)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        if options.action == 'serve':
            return serve(options, command)
        run_client(options, command)
    except Failed as err:
        print(f'failed: {err}', flush=True)
        return 1
    except OSError as err:
        if err.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f'failed: the disk of {err.filename or os.getcwd()} on {host_name()} is '
              f'full ({err.strerror}): free space there', flush=True)
        return 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
