#!/usr/bin/env python3
"""Starts a server or a client of a job on its node, on CPUs of its own.

The job script (:mod:`.script`) has it in front of each program:

    node.py serve  [OPTION]... -- SERVER...   until SIGUSR1
    node.py client [OPTION]... -- CLIENT...   becomes the client

--roles has all servers and clients of the node that are bound to CPUs,
`server=2x4,client=1x8`: two servers with four CPUs each, and a client with eight; `2x0`
divides all CPUs of the node. Each process computes the same assignment from it and
takes its own part, so that no process has to know another. A server that is ready
prints one line of JSON on standard output; its own output is standard error. A failure
is one line `failed: TEXT` on standard output.
"""
from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

if __name__ == '__main__':              # the suite is not on the path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from checks.machine import cpus
from checks.machine.processes import set_parent_death_signal
from checks.services import ask
from checks.services.ask import Failed

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

#: Variables in which launchers pass a rank its number on its node. Slurm's
#: is last, because mpirun in a batch job passes on the variable of the script.
LOCAL_RANK = ('OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID',
              'PALS_LOCAL_RANKID', 'SLURM_LOCALID')

#: Signals on which a server stops, and what ends a wait. Launchers pass SIGUSR1 on;
#: after SIGTERM some kill their programs at once.
STOP = {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SIGNALS = {*STOP, signal.SIGCHLD}

#: ioctl for the address of an interface, see netdevice(7).
SIOCGIFADDR = 0x8915


# CPUs and memory -----------------------------------------------------------

def own_cpus(roles: str, role: str, slot: int) -> list[int]:
    """The CPUs of a process of this node; all, if its role is not among `roles`.

    :param roles: see the head of this file
    :param slot: number of the process on the node; -1: its local rank
    :raises Failed: the node has no such process.
    :raises ValueError: it has fewer cores than servers that divide it.
    """
    available = cpus.available_cpus()
    requests = [cpus.CpuRequest(name, *map(int, each.split('x'))) for name, each in
                (text.split('=') for text in roles.split(',') if text)]
    sets = cpus.assign_cpus(available, [one for one in requests if one.cpus]).sets
    for one in requests:
        if not one.cpus:
            sets[one.role] = cpus.divide_cpus(available, one.instances)
    if role not in sets:
        return [cpu.number for cpu in available]
    if slot < 0:
        slot = next((int(os.environ[name]) for name in LOCAL_RANK
                     if name in os.environ), -1)
        if slot < 0:
            raise Failed('the launcher does not pass the number of the rank on its '
                         f'node: none of {", ".join(LOCAL_RANK)} is set')
    if slot >= len(sets[role]):
        raise Failed(f'the launcher started more than {len(sets[role])} {role} '
                     f'processes on {host_name()}')
    return sets[role][slot]


def free_memory() -> float:
    """Memory that processes of this job may still get on this node. Unit: MiB.

    It is the smaller of what the node has and of what the cgroup allows.
    """
    free = float('inf')
    for line in read_lines('/proc/meminfo'):
        if line.startswith('MemAvailable'):
            free = int(line.split()[1]) / 1024
    for line in read_lines('/proc/self/cgroup'):
        # Version 2 has one path, and no controllers in it.
        _, controllers, path = line.split(':', 2)
        if controllers and 'memory' not in controllers.split(','):
            continue
        root = Path('/sys/fs/cgroup', 'memory' if controllers else '')
        names = (('memory.limit_in_bytes', 'memory.usage_in_bytes') if controllers else
                 ('memory.max', 'memory.current'))
        folder = root / path.strip('/')
        for one in [folder, *folder.parents]:
            limit, used = (read_lines(str(one / name))[:1] for name in names)
            if limit and used and limit[0].isdigit():
                free = min(free, (int(limit[0]) - int(used[0])) / 2**20)
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


# Addresses and ports ---------------------------------------------------------

def interface_addresses() -> dict[str, str]:
    """The IPv4 addresses of this node, interface -> address."""
    result = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack(
                    '256s', name.encode()[:15]))
                result[name] = socket.inet_ntoa(answer[20:24])
    return result


def own_address(interface: str, peer: str) -> str:
    """The address at which a server of this node listens.

    :param interface: network interface; empty: the one towards `peer`.
    :param peer: another node of the job; empty: there is none, and the server
        listens on loopback.
    :raises Failed: there is no such address.
    """
    if interface:
        result = interface_addresses()
        if interface in result:
            return result[interface]
        there = ', '.join(f'{name} ({result[name]})' for name in sorted(result))
        raise Failed(f'the node has no interface {interface!r} with an IPv4 address, '
                     f'only {there}: correct service_interface in system.py')
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


def can_bind(address: str, port: int) -> bool:
    """Whether a server could bind to this address and port now."""
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        return True
    return False


def find_free_port(address: str) -> int:
    """A free port whose port + 10000 (the cluster bus) is free, too.

    Ephemeral ports of the kernel come last, because a client could get one of those
    before the server binds to it.

    :raises Failed: no port is free.
    """
    lines = read_lines('/proc/sys/net/ipv4/ip_local_port_range')
    low, high = map(int, lines[0].split()) if lines else (32768, 60999)
    ports = random.sample(range(1024, 55536), 5000)
    ports.sort(key=lambda port: any(low <= one <= high for one in (port, port + 10000)))
    for port in ports:
        if can_bind(address, port) and can_bind(address, port + 10000):
            return port
    raise Failed(f'no port is free on {address}: stop programs that occupy them')


def listening_sockets(port: int) -> set[str]:
    """Sockets that listen on a port of this node, as /proc/PID/fd names them."""
    result = set()
    for table in ('/proc/net/tcp', '/proc/net/tcp6'):
        with contextlib.suppress(OSError), open(table) as lines:
            next(lines, None)
            for fields in map(str.split, lines):
                listens = fields[3] == '0A'
                if listens and int(fields[1].rpartition(':')[2], 16) == port:
                    result.add(f'socket:[{fields[9]}]')
    return result


# Servers ---------------------------------------------------------------------

def make_data_folder(scratch: str) -> Path:
    """Make a folder for the data of a server, locked while this process runs.

    Folders of servers that were killed are removed first.

    :raises Failed: the scratch folder cannot be written.
    """
    parent = Path(scratch or os.environ.get('TMPDIR') or '/tmp')
    try:
        for old in parent.glob(f'{PREFIX}*'):
            remove_if_unlocked(old)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # The kernel closes and unlocks it when this process ends.
        lock = os.open(folder / 'new', os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, host_name().encode())
        os.rename(folder / 'new', folder / 'lock')
    except OSError as err:
        raise Failed('cannot create a folder for the data of the servers in '
                     f'{parent}: {err.strerror}; set another scratch in the '
                     "site's system.py") from None
    return folder


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
    """One server: its start, its checks until it is ready, and its end.

    :raises Failed: it cannot be started.
    """

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self.options, self.command = options, command
        self.cpu_set = own_cpus(options.roles, 'server', options.slot)
        check_free_memory(options.memory)
        self.address = own_address(options.interface, options.peer)
        self.password = ask.read_password(Path(options.secrets))
        self.starts, self.mark = 0, f'{host_name()}.{os.getpid()}'
        # Folders of the suite are shared with other nodes, this one is not.
        self.data = make_data_folder(options.scratch)
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self.data, ignore_errors=True)
            raise

    @property
    def name(self) -> str:
        return (f'{self.options.program} (server {self.options.index} on '
                f'{host_name()}, {self.where})')

    def start(self) -> None:
        """Start it on its port.

        :raises Failed: it cannot be started.
        """
        self.starts += 1
        self.port = self.pick_port()
        data = str(self.data)
        self.where = ask.Server(
            f'{data}/socket' if self.options.socket else self.address, self.port,
            self.password, self.options.user)
        values = {'address': self.address, 'port': self.port, 'data': data}
        config = (Path(self.options.config).read_text().format(
            password=self.password, **values) if self.options.config else '')
        command = [word.format_map(values) for word in self.command]
        parent = os.getpid()

        def prepare_child() -> None:
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.sched_setaffinity(0, self.cpu_set)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

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

    def pick_port(self) -> int:
        """The port of the plan, or a free one; 0: it listens on a socket.

        :raises Failed: no port is free, or the port of the plan is in use.
        """
        if self.options.socket:
            return 0
        if not self.options.port:
            return find_free_port(self.address)
        port = int(self.options.port) + self.options.slot
        if not can_bind(self.address, port):
            raise Failed(f'port {port} on {host_name()} is in use: stop the program '
                         'that has it (ss -ltnp), or request another port (0: any free '
                         'port)')
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

        :raises Failed: it ended, runs on other CPUs, or its time limit has passed.
        """
        if ended := self.exit_reason():
            # Another program took the port between can_bind and the start.
            if (self.port and not self.options.port and self.starts < STARTS
                    and not can_bind(self.address, self.port)):
                self.start()
                return False
            raise Failed(f'{self.name} {ended} before it answered')
        try:
            self.check_listener()
            self.counters = ask.COUNTERS[self.options.dialect](self.where)
        except ask.NO_ANSWER as err:
            if time.monotonic() - self.began < self.options.ready_limit:
                return False
            raise Failed(f'{self.name} did not answer in '
                         f'{self.options.ready_limit:g} s '
                         f'({str(err) or type(err).__name__})') from None
        self.seconds = time.monotonic() - self.began
        self.check_cpus()
        return True

    def processes(self) -> Iterator[int]:
        """The processes in the session of this server."""
        for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
            with contextlib.suppress(OSError):
                if os.getsid(pid) == self.process.pid:
                    yield pid

    def check_listener(self) -> None:
        """Check that this server has its port, before the password is sent. It keeps
        the port until it ends.

        :raises OSError: no program listens there, or another one.
        """
        if not self.port:
            return
        sockets = listening_sockets(self.port)
        if not sockets:
            raise ConnectionError('no program listens on its port')
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for link in Path(f'/proc/{pid}/fd').iterdir():
                    if os.readlink(link) in sockets:
                        return
        raise ConnectionError('another program listens on its port')

    def check_cpus(self) -> None:
        """Check that the server runs on its CPUs.

        :raises Failed: it may run on others.
        """
        for pid in self.processes():
            usable = os.sched_getaffinity(pid)
            if usable - set(self.cpu_set):
                raise Failed(
                    f'{self.name} was bound to the CPUs {sorted(self.cpu_set)}, but '
                    f'may run on {sorted(usable)}: find what unbinds it (a wrapper at '
                    f'{self.command[0]}, an option of its own)')

    def record(self) -> dict[str, Any]:
        """The line of a server that is ready; parser.py has the meaning."""
        interface = next((name for name, address in interface_addresses().items()
                          if address == self.address), '')
        speed = read_lines(f'/sys/class/net/{interface}/speed')
        return {'index': self.options.index, 'node': host_name(),
                'address': self.where.host, 'port': self.port, 'interface': interface,
                'link': max(int((speed or ['0'])[0]), 0), 'cpus': self.cpu_set,
                'program': self.counters.name or self.options.program,
                'version': self.counters.version,
                'ready_ms': round(self.seconds * 1e3, 3), 'at': self.at,
                'name': self.name, 'scratch': str(self.data.parent),
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
        shutil.rmtree(self.data, ignore_errors=True)


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

    :raises Failed: it has no CPUs here.
    """
    subset = own_cpus(options.roles, options.role, options.slot)
    os.sched_setaffinity(0, subset)
    # In one call: other ranks write to this file, too.
    os.write(2, f'plumbline-client {host_name()} {options.role} '
             f'{",".join(map(str, subset))}\n'.encode())
    command = [word.replace('{cpus}', str(len(subset))) for word in command]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.execvp(command[0], command)      # program.sh


def parse_arguments(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of this program, and the command behind `--`."""
    place = words.index('--') if '--' in words else len(words)
    parser = argparse.ArgumentParser(prog='node.py', description=__doc__)
    parser.add_argument('action', choices=('serve', 'client'))
    for name, default in (
            ('roles', ''), ('role', ''), ('slot', 0), ('index', 0), ('program', ''),
            ('dialect', 'resp'), ('config', ''), ('memory', 0), ('port', 0),
            ('secrets', ''), ('user', ''), ('ready-limit', 30.0), ('interface', ''),
            ('peer', ''), ('scratch', '')):
        parser.add_argument(f'--{name}', type=type(default), default=default)
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
    except (Failed, ValueError) as err:
        text = str(err)
    except OSError as err:
        if err.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = (f'the disk of {err.filename or os.getcwd()} on {host_name()} is full '
                f'({err.strerror}): free space there')
    print(f'failed: {text}', flush=True)
    return 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
