"""A server of a job, on CPUs of its node: its start, readiness, record and end.

A server that is ready prints one line of JSON on standard output; its own output is
standard error.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from checks.machine.cpus import read_text

from . import Failed, ask
from .client import host_name, own_cpus

#: Ends processes that have a variable in their environment.
LEFTOVERS = os.path.abspath(f'{__file__}/../../core/src/leftovers.sh')

#: Names of the servers' data folders begin with this.
PREFIX = 'plumbline-data-'

#: Time between SIGTERM and SIGKILL for a server. Unit: seconds.
TERMINATE_TIMEOUT = 3.0

#: Interval between two checks whether a server is ready. Unit: seconds.
POLL_INTERVAL = 0.02

#: Signals on which a server stops, and what ends a wait. Launchers pass SIGUSR1 on;
#: after SIGTERM some kill their programs at once.
STOP = {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SIGNALS = {*STOP, signal.SIGCHLD}

#: ioctl for the address of an interface, see netdevice(7).
SIOCGIFADDR = 0x8915


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
    ephemeral = read_text('/proc/sys/net/ipv4/ip_local_port_range', '32768 60999')
    low, high = map(int, ephemeral.split())
    begin = int.from_bytes(os.urandom(4), 'big')
    # The number of ports has no divisor in common with the stride.
    ports = [1024 + (begin + 7919 * number) % 54512 for number in range(5000)]

    def is_ephemeral(port: int) -> bool:
        return any(low <= one <= high for one in (port, port + 10000))

    for port in sorted(ports, key=is_ephemeral):
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

def make_data_folder(scratch: str) -> str:
    """Make a folder for the data of a server, locked while this process runs.

    Folders of servers that were killed are removed first.

    :raises Failed: the scratch folder cannot be written.
    """
    parent = scratch or os.environ.get('TMPDIR') or '/tmp'
    try:
        for name in os.listdir(parent):
            if name.startswith(PREFIX):
                remove_if_unlocked(f'{parent}/{name}')
        folder = f'{parent}/{PREFIX}{os.urandom(6).hex()}'
        os.mkdir(folder, 0o700)
        # The kernel closes and unlocks it when this process ends.
        lock = os.open(f'{folder}/new', os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, host_name().encode())
        os.rename(f'{folder}/new', f'{folder}/lock')
    except OSError as err:
        raise Failed('cannot create a folder for the data of the servers in '
                     f'{parent}: {err.strerror}; set another scratch in the '
                     "site's system.py") from None
    return folder


def remove_if_unlocked(folder: str, max_seconds: float = float('inf')) -> None:
    """Remove a folder of this user whose owner, on this node, has ended.

    :param max_seconds: age at which owners on other nodes have ended, too
    """
    with contextlib.suppress(OSError):
        about = os.lstat(folder)
        if os.path.islink(folder) or about.st_uid != os.geteuid():
            return
        # Without the file, its owner has only begun.
        with open(f'{folder}/lock') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not every file system has the locks of other nodes.
            if (lock.read().strip().partition('.')[0] == host_name()
                    or time.time() - about.st_mtime > max_seconds):
                remove_folder(folder)


def remove_folder(folder: str) -> None:
    """Remove a folder with all its files."""
    os.spawnlp(os.P_WAIT, 'rm', 'rm', '-rf', '--', folder)


class Server:
    """One server: its start, its checks until it is ready, and its end.

    :param options: --NAME VALUE of node.py (:meth:`.script.Writer.server_command`)
    :raises Failed: it cannot be started.
    """

    def __init__(self, options: Mapping[str, str], command: list[str]) -> None:
        self.options, self.command = options, command
        self.program, self.index = options['program'], int(options.get('index', 0))
        self.ready_limit = float(options['ready-limit'])
        self.slot = int(options.get('slot', 0))
        self.cpu_set = own_cpus(options.get('roles', ''), 'server', self.slot)
        self.address = own_address(options.get('interface', ''),
                                   options.get('peer', ''))
        self.password = ask.read_password(options['secrets'])
        self.mark = f'{host_name()}.{os.getpid()}'
        # Folders of the suite are shared with other nodes, this one is not.
        self.data = make_data_folder(options.get('scratch', ''))
        try:
            self.start()
        except BaseException:
            remove_folder(self.data)
            raise

    @property
    def name(self) -> str:
        """The server in messages: program, number, host, and port or socket."""
        where = f'{self.address}:{self.port}' if self.port else 'socket'
        return f'{self.program} (server {self.index} on {host_name()}, {where})'

    def start(self) -> None:
        """Start it on a free port, or on a socket.

        :raises Failed: no port is free.
        """
        self.port = 0 if 'socket' in self.options else find_free_port(self.address)
        self.where = ask.Server(
            self.address if self.port else f'{self.data}/socket', self.port,
            self.password, self.options.get('user', ''))
        values = {'address': self.address, 'port': self.port, 'data': self.data}
        config = ''
        if 'config' in self.options:
            with open(self.options['config']) as file:
                config = file.read().format(password=self.password, **values)
        # It ends with this process.
        command = ['observe', '--tied', str(int(signal.SIGKILL)), str(os.getpid()),
                   *(word.format_map(values) for word in self.command)]
        read_end, write_end = os.pipe()
        self.code: int | None = None
        self.began, self.at = time.monotonic(), time.time()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()
                os.chdir(self.data)
                os.dup2(read_end, 0)
                os.dup2(2, 1)
                os.sched_setaffinity(0, self.cpu_set)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                os.execve(f'{self.options["programs"]}/observe', command,
                          {**os.environ, 'PLUMBLINE_RANK': self.mark})
            except OSError as err:
                os.write(2, f'{err}\n'.encode())
            finally:
                os._exit(127)
        os.close(read_end)
        # Less than a pipe holds. A server may have ended already.
        with contextlib.suppress(BrokenPipeError):
            os.write(write_end, config.encode())
        os.close(write_end)

    def exit_reason(self) -> str:
        """How it ended, in words; empty while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return ''
            self.code = os.waitstatus_to_exitcode(status)
        return (f'was killed by signal {-self.code} ({signal.Signals(-self.code).name})'
                if self.code < 0 else f'ended with exit code {self.code}')

    def has_become_ready(self) -> bool:
        """Whether it answers now; one attempt.

        :raises Failed: it ended, runs on other CPUs, or its time limit has passed.
        """
        if ended := self.exit_reason():
            raise Failed(f'{self.name} {ended} before it answered')
        try:
            self.check_listener()
            self.counters = ask.COUNTERS[self.options['dialect']](self.where)
        except ask.NO_ANSWER as err:
            if time.monotonic() - self.began < self.ready_limit:
                return False
            raise Failed(f'{self.name} did not answer in '
                         f'{self.ready_limit:g} s '
                         f'({str(err) or type(err).__name__})') from None
        self.seconds = time.monotonic() - self.began
        self.check_cpus()
        return True

    def processes(self) -> Iterator[int]:
        """The processes in the session of this server."""
        for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
            with contextlib.suppress(OSError):
                if os.getsid(pid) == self.pid:
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
                for link in os.listdir(f'/proc/{pid}/fd'):
                    with contextlib.suppress(OSError):
                        if os.readlink(f'/proc/{pid}/fd/{link}') in sockets:
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
                    f'may run on {sorted(usable)}: check whether a wrapper '
                    f'at {self.command[0]} or an option of the server changes its CPUs')

    def record(self) -> dict[str, object]:
        """The line of a server that is ready; parser.py has the meaning."""
        return {'index': self.index, 'node': host_name(),
                'address': self.where.host, 'port': self.port,
                'cpus': self.cpu_set, 'program': self.counters.name or self.program,
                'version': self.counters.version,
                'ready_ms': round(self.seconds * 1e3, 3), 'at': self.at,
                'name': self.name, 'scratch': os.path.dirname(self.data),
                'counters': self.counters._asdict()}

    def stop(self) -> None:
        """End it with all its processes, and remove its data. A server that ends on
        SIGTERM prints `stopped`; the others were killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            while not self.exit_reason() and signal.sigtimedwait(
                    {signal.SIGCHLD}, TERMINATE_TIMEOUT):
                pass
            if number == signal.SIGTERM and self.exit_reason():
                # The launcher that reads it may have ended.
                with contextlib.suppress(OSError):
                    print('stopped', flush=True)
        # Those that have left the session of the server.
        os.spawnl(os.P_WAIT, LEFTOVERS, LEFTOVERS, f'PLUMBLINE_RANK={self.mark}')
        remove_folder(self.data)


def serve(options: Mapping[str, str], command: list[str]) -> int:
    """Start a server, report when it is ready, and stop it on a signal.

    :returns: the exit code.
    :raises Failed: it cannot be started, or ends by itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
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
