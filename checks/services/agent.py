"""The agent: starts and stops servers and clients on its node.

It stops everything that it started and exits if the conductor sends `stop`,
if its connection to the conductor is closed or without a heartbeat, and on
SIGTERM. If it is killed with SIGKILL, the kernel kills its children, and the
next agent on the node removes its data.
"""
from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import random
import resource
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from ..machine import cpus
from . import ask, network, private
from .listener import Peer
from .plan import Plan, PlanError, fill_template
from .processes import (
    TERMINATION_SIGNALS,
    Events,
    adopt_orphans,
    reap_and_list_descendants,
    set_parent_death_signal,
)
from .usage import Usage
from .wire import (
    AGENT,
    HANDSHAKE_TIMEOUT,
    AuthenticationError,
    Channel,
    Handshake,
    Heartbeat,
    derive_secret,
)

#: Names of agents' data folders begin with this.
PREFIX = 'plumbline-agent-'

#: Wait for the conductor's address to appear in its folder. Unit: seconds.
CONDUCTOR_TIMEOUT = 20.0

#: Retry a connection that the conductor drops because it has too many
#: unauthenticated peers. Unit: seconds.
RECONNECT_TIMEOUT = 60.0

#: Time between SIGTERM and SIGKILL. Unit: seconds.
TERMINATE_TIMEOUT = 3.0

#: Kinds of persistence in words; the keys are those of a plan.
PERSISTENCE_NAMES = {'aof': 'an append-only file', 'rdb': 'snapshots'}

#: A disk with at most this much free space counts as full. Unit: bytes.
DISK_FULL_BELOW = 1 << 20

#: After a client failed, or a server did not answer: wait for a report that a
#: server died, which would be the cause. Unit: seconds.
CAUSE_TIMEOUT = 0.5

#: Interval between two checks whether a server is ready, or whether the
#: conductor has answered. Unit: seconds.
POLL_INTERVAL = 0.02

#: Open files of a server besides its clients' connections.
SPARE_FILES = 128


class Failed(Exception):
    """Something cannot be started or ended too early; one line."""


def full_disk_message(err: OSError, host: str) -> str:
    """The message of a full disk; empty if it is another error."""
    if err.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ''
    return (f'the disk of {err.filename or os.getcwd()} on {host} is full '
            f'({err.strerror}): free space there')


class Ended(Failed):
    """The agent got a signal to exit, without a message of the conductor."""


def address_of_interface(interface: str) -> str:
    """The address of an interface.

    :raises Failed: it does not exist, or has no address.
    """
    result = network.interface_addresses()
    if interface not in result:
        there = ', '.join(f'{name} ({address})'
                          for name, address in sorted(result.items()))
        raise Failed(f'the node has no interface {interface!r} with an IPv4 '
                     f'address, only {there or "none"}: correct '
                     "service_interface in the site's system.py")
    return result[interface]


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def interface_and_link_speed(address: str) -> tuple[str, int]:
    """The name of the interface with this address, and its speed in Mb/s; 0:
    the kernel does not report it."""
    interface = network.find_interface(address)
    lines = _read_lines(f'/sys/class/net/{interface}/speed') if interface else []
    return interface, max(int((lines or ['0'])[0]), 0)


def check_link_speed(interface: str, speed: int, minimum: float) -> None:
    """Check that an interface is fast enough, if its speed is known.

    :param speed: 0: unknown. Unit: Mb/s.
    :param minimum: required speed. Unit: Mb/s.
    :raises Failed: it is slower.
    """
    if 0 < speed < minimum:
        raise Failed(
            f'interface {interface} has {speed} Mb/s, but the plan needs '
            f'{minimum:g}: set a faster one as service_interface in the '
            "site's system.py"
        )


def numactl_prefix(nodes: Iterable[int], needed: bool, host: str) -> list[str]:
    """The numactl prefix that binds a command's memory to NUMA nodes.

    :returns: empty if numactl is neither installed nor needed.
    :raises Failed: it is needed, but numactl is missing on this host.
    """
    if shutil.which('numactl'):
        return ['numactl', f'--membind={",".join(map(str, nodes))}']
    if needed:
        raise Failed(f'numactl is missing on {host}, which has several NUMA '
                     'nodes: install it, or do not bind memory (bind_mem: 0)')
    return []


def can_bind(address: str, port: int) -> bool:
    """Whether a server could bind to this address and port now.

    :raises Failed: this machine does not have the address.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as err:
            if err.errno == errno.EADDRNOTAVAIL:
                raise Failed(f'{address} is not an address of this machine: '
                             "correct service_interface in the site's "
                             'system.py') from None
            return False
    return True


def find_free_port(address: str, taken: set[int]) -> int:
    """A free port whose port + 10000 (the cluster bus) is free, too.

    Both are below the ephemeral ports of the kernel (from 32768 on), because
    a client could get one of those before the server binds to it.

    :raises Failed: no port is free.
    """
    for _ in range(200):
        port = random.randrange(10000, 22000)
        if (port not in taken and can_bind(address, port)
                and can_bind(address, port + 10000)):
            return port
    raise Failed(f'no port is free on {address} between 10000 and 22000: '
                 'stop programs that occupy them')


class Process:
    """A program started by the agent, in a session of its own."""

    def __init__(self, command: list[str], cpu_set: list[int], files: int,
                 stdin: str, out: Path, err: Path,
                 folder: str | None = None, gate: bool = False,
                 death: int = signal.SIGKILL) -> None:
        """Start the program.

        :arg files: open files that it may need.
        :arg stdin: text for its standard input.
        :arg gate: its standard input is a socket, for a common start.
        :arg death: signal that it gets when this process dies.
        :raises Failed: it cannot be started.
        """
        self.log = err
        #: Our end of its standard input, for clients that start together.
        self.gate: socket.socket | None = None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and files > hard:
            raise Failed(f'the connections need {files} open files, but the '
                         f'limit is {hard}: raise it (ulimit -Hn, '
                         'limits.conf, LimitNOFILE of slurmd), or request '
                         'fewer connections')
        parent = os.getpid()

        def prepare_child() -> None:
            set_parent_death_signal(death)
            if os.getppid() != parent:
                os._exit(1)
            os.sched_setaffinity(0, cpu_set)
            resource.setrlimit(resource.RLIMIT_NOFILE,
                               (max(soft, files), hard))

        client_end = None
        if gate:
            self.gate, client_end = socket.socketpair()
            self.gate.setblocking(False)
        with out.open('ab') as to, err.open('ab') as errors:
            try:
                self.process = subprocess.Popen(
                    command, stdin=(client_end.fileno() if client_end
                                    else subprocess.PIPE),
                    stdout=to, stderr=errors,
                    preexec_fn=prepare_child, start_new_session=True,
                    cwd=folder)
            except OSError as err_:
                raise Failed(f'{command[0]} cannot be started: '
                             f'{err_.strerror}') from None
            finally:
                if client_end:
                    client_end.close()
        if self.process.stdin:
            with contextlib.suppress(OSError), self.process.stdin as pipe:
                pipe.write(stdin.encode())

    def has_reported_ready(self) -> bool | None:
        """Whether it has just reported that it waits at its gate.

        None: it has closed the gate, so no further call is needed.
        """
        assert self.gate
        try:
            output = self.gate.recv(256)
        except BlockingIOError:
            return False
        except OSError:
            output = b''
        return b'ready\n' in output if output else None

    def send_start_signal(self) -> None:
        """Open its gate: the client starts."""
        if self.gate:
            # If the client has ended, `check_servers_and_clients` reports it.
            with contextlib.suppress(OSError):
                self.gate.send(b'go\n')

    def exit_reason(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ''
        return (f'was killed by signal {-code} '
                f'({signal.Signals(-code).name})' if code < 0
                else f'ended with exit code {code}')

    def log_tail(self, lines: int = 3) -> str:
        """The last lines of its log, joined into one."""
        try:
            text = self.log.read_bytes()[-4000:].decode(errors='replace')
        except OSError:
            text = ''
        messages = [line.strip() for line in text.splitlines() if line.strip()]
        return (f'; the last lines of {self.log.name}: '
                f'{" | ".join(messages[-lines:])}' if messages else
                f'; {self.log.name} is empty')

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def wait_or_kill_at_deadline(self, deadline: float) -> None:
        """Wait for its end; kill it at the deadline (monotonic seconds)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        self.send_signal(signal.SIGKILL)
        self.process.wait()


class Instance:
    """One server of the plan: its start and its checks until it is ready."""

    def __init__(self, agent: Agent, spec: Mapping[str, Any]) -> None:
        self.server = agent.plan.server
        self.index: int = spec['index']
        self.address = agent.address
        self.cpu_set: list[int] = spec['cpus']
        self.spec = spec
        self.agent = agent
        self.password = agent.password if self.server.password else ''
        self.data = agent.folder / f'server{self.index}'
        self.counters: ask.Counters | None = None
        self.measurements = 0
        self.start()

    @property
    def name(self) -> str:
        where = 'socket' if self.server.socket else (
            f'{self.address}:{self.port}')
        return (f'{self.server.program} (server {self.index} on '
                f'{self.agent.host}, {where})')

    def start(self) -> None:
        """Start it on a free port.

        :raises Failed: it cannot be started.
        """
        self.measurements += 1
        self.port = self.pick_port()
        self.data.mkdir(mode=0o700, exist_ok=True)
        values = {**self.spec['values'], 'password': self.password,
                  'address': self.address,
                  'port': self.port, 'bus_port': self.port + 10000,
                  'data': str(self.data), 'index': self.index,
                  'cpus': ','.join(map(str, self.cpu_set)),
                  'memory': self.server.memory, 'user': getpass.getuser()}
        for name, text in self.server.files.items():
            with open(self.data / name, 'w', opener=lambda path, flags:
                      os.open(path, flags, 0o600)) as file:
                file.write(fill_template(text, values))
        words = (self.server.commands[self.index] if self.server.commands
                 else self.server.command)
        command = [fill_template(word, values) for word in words]
        self.program = command[0]
        numa = cpus.numa_nodes_of_cpus(self.agent.cpus, self.cpu_set)
        if (self.server.bind_memory != 'never'
                and len({cpu.numa for cpu in self.agent.cpus}) > 1):
            command = [*numactl_prefix(numa, self.server.bind_memory == 'must',
                                       self.agent.host), *command]
        log = Path(f'{self.spec["log"]}.server{self.index}.log')
        self.began, self.at = time.monotonic(), time.time()
        self.process = Process(
            command,
            self.cpu_set,
            self.server.connections + SPARE_FILES,
            fill_template(self.server.config, values),
            log,
            log,
            str(self.data),
        )
        if self.server.socket:
            self.address = f'{self.data}/socket'
        self.where = ask.Server(self.address, self.port, self.password,
                                self.spec['values']['ca'], self.server.user)

    def pick_port(self) -> int:
        """The port of the plan, or a free one; 0: it listens on a socket.

        :raises Failed: no port is free, or the port of the plan is in use.
        """
        if self.server.socket:
            if len(f'{self.data}/socket') > 107:
                raise Failed(f'{self.data}/socket is too long for the path '
                             'of a socket: set a shorter folder as scratch in '
                             "the site's system.py")
            return 0
        if not self.server.port:
            port = find_free_port(self.address, self.agent.taken)
            self.agent.taken |= {port, port + 10000}
            return port
        port = self.server.port + self.spec['slot']
        if not can_bind(self.address, port):
            raise Failed(f'port {port} on {self.agent.host} is in use by '
                         f'{network.find_listening_program(port)}: stop that '
                         'program, or request another port (0: any free port)')
        return port

    def is_ready(self) -> bool:
        """Whether it answers now; one attempt.

        :raises Failed: it ended, another server answers, it differs from the
            plan, or its time limit has passed.
        """
        ended = self.process.exit_reason()
        if ended:
            # Another program took the port between can_bind and the start.
            if (self.port and not self.server.port and self.measurements < 3
                    and not can_bind(self.address, self.port)):
                self.start()
                return False
            raise Failed(f'{self.name} {ended} before it answered'
                         f'{self.process.log_tail()}')
        dialect = ask.DIALECTS[self.server.dialect]
        try:
            self.check_listening_user()
            dialect.ping(self.where)
            self.seconds = time.monotonic() - self.began
            counters = dialect.counters(self.where)
            kept = dialect.persistence_kinds(self.where)
            threads = dialect.thread_count(self.where)
        except ask.PasswordRefused as err:
            raise Failed(f'{self.name} {err}') from None
        except (OSError, ask.Refusal, ValueError) as err:
            why = str(err) or type(err).__name__
            if time.monotonic() - self.began < self.server.ready_limit:
                return False
            raise Failed(f'{self.name} did not answer in '
                         f'{self.server.ready_limit:g} s ({why})'
                         f'{self.process.log_tail()}') from None
        if not self.is_own_process(counters.pid):
            raise Failed(f'{self.name}: process {counters.pid} answers on '
                         'this port, but the suite started process '
                         f'{self.process.process.pid}: another server has '
                         'the port')
        self.check_persistence(kept)
        self.check_thread_count(threads)
        self.check_cpu_affinity(counters.pid)
        self.counters = counters
        return True

    def check_listening_user(self) -> None:
        """Check the owner of the port, before the password is sent.

        :raises OSError: no process listens.
        :raises Failed: a process of another user listens.
        """
        if self.port:
            # A port has one listener, which keeps it until it ends.
            socket.create_connection(self.where[:2],
                                     ask.ANSWER_TIMEOUT).close()
            if network.find_listening_user(self.port) not in (None, os.geteuid()):
                raise Failed(f'{self.name}: another user listens on this '
                             'port: another server has the port')

    def check_persistence(self, persistence_kinds: Set[str] | None) -> None:
        """Check that the persistence is that of the plan: it costs time.

        :raises Failed: the server has more persistence, or less.
        """
        request = {self.server.persistence} - {'off'}
        if persistence_kinds is None or persistence_kinds == request:
            return
        has, expected = (' and '.join(PERSISTENCE_NAMES[kind]
                                      for kind in sorted(kinds))
                         or 'nothing on disk' for kinds in (persistence_kinds, request))
        raise Failed(
            f'{self.name} writes {has}, but the plan requires {expected}: '
            'find what changes its configuration (a wrapper at '
            f'{self.program}, a default of its build)'
        )

    def check_thread_count(self, thread_count: int | None) -> None:
        """Check that it serves with as many threads as the plan requires.

        :raises Failed: it has more threads, or fewer.
        """
        if thread_count is None or self.server.threads in (0, thread_count):
            return
        raise Failed(
            f'{self.name} serves with {thread_count} thread{"s" * (thread_count > 1)}, '
                     f'but the plan requires {self.server.threads}: find what '
                     'changes its configuration (a wrapper at '
                     f'{self.program}, a default of its build)')

    def check_cpu_affinity(self, pid: int) -> None:
        """Check that it may run only on the CPUs of the plan.

        :raises Failed: it may run on others.
        """
        try:
            has = os.sched_getaffinity(pid or self.process.process.pid)
        except OSError:                         # ended, or in a container
            return
        if has - set(self.cpu_set):
            raise Failed(f'{self.name} was bound to the CPUs '
                         f'{sorted(self.cpu_set)}, but may run on '
                         f'{sorted(has)}: find what unbinds it (a wrapper at '
                         f'{self.program}, an option of its own)')

    def is_own_process(self, pid: int) -> bool:
        """Whether this agent started process `pid` (0: unknown, true)."""
        try:
            return not pid or os.getsid(pid) == self.process.process.pid
        except ProcessLookupError:
            return False

    def server_record(self) -> dict[str, Any]:
        """The server's part of the record of services."""
        assert self.counters
        return {'index': self.index, 'node': self.agent.host,
                'address': self.address, 'port': self.port,
                'interface': self.agent.interface, 'link': self.agent.link,
                'cpus': self.cpu_set, 'program': self.counters.name
                or self.server.program, 'version': self.counters.version,
                'ready_ms': round(self.seconds * 1e3, 3), 'at': self.at}


class Agent:
    """Servers and clients of one node, and the connection to the conductor."""

    def __init__(self, channel: Channel, plan: Plan, password: str) -> None:
        self.channel = channel
        self.plan = plan
        self.password = password
        self.host = socket.gethostname().partition('.')[0]
        self.address = self.interface = ''
        #: Speed of this interface; 0: unknown. Unit: Mb/s.
        self.link = 0
        self.cpus = cpus.available_cpus()
        self.taken: set[int] = set()
        self.instances: list[Instance] = []
        self.clients: dict[int, Process] = {}
        self.usage: Usage | None = None
        #: The conductor sent `stop`.
        self.stopping = False
        self.events = Events()
        self.owned = create_data_folder(plan.scratch)
        self.folder = self.owned.folder

    # Messages of the conductor -------------------------------------------

    def start_servers(self, message: Mapping[str, Any]) -> None:
        """Start instances and send `ready` when all of them are ready.

        :raises Failed: one does not become ready.
        """
        interface = self.plan.interface
        self.address = (address_of_interface(interface) if interface else
                        self.channel.sock.getsockname()[0])
        self.interface, self.link = interface_and_link_speed(self.address)
        check_link_speed(self.interface, self.link, self.plan.link)
        self.check_free_memory(len(message['instances']))
        if self.plan.sample:
            log = message['instances'][0]['log']
            self.usage = Usage(Path(f'{log}.cpu.{self.host}.csv'), (
                cpu.number for cpu in self.cpus), self.plan.sample)
        for spec in message['instances']:
            self.instances.append(Instance(self, spec))
        waiting = list(self.instances)
        while waiting and not self.stopping:
            # One server at a time: a check may take seconds, and messages
            # are handled in between.
            one = waiting.pop(0)
            if not one.is_ready():
                waiting.append(one)
            self.process_events(POLL_INTERVAL)
        if not self.stopping:
            self.channel.send(type='ready', instances=[
                one.server_record() for one in self.instances])

    def check_free_memory(self, servers: int) -> None:
        """Check that enough memory is free for this number of servers.

        :raises Failed: less memory is free than the servers may use.
        """
        needed = servers * self.plan.server.memory
        free = next((int(line.split()[1]) // 1024 for line in
                     _read_lines('/proc/meminfo')
                     if line.startswith('MemAvailable')), needed)
        if needed > free:
            raise Failed(
                f'the servers on {self.host} need {needed} MiB of memory, '
                f'but {free} MiB are free: request less, or a larger node'
            )

    def start_clients(self, message: Mapping[str, Any]) -> None:
        """Start clients.

        :raises Failed: one cannot be started.
        """
        for one in message['clients']:
            self.check_server_reachable(one, sum(
                other['connections'] for other in message['clients']
                if (other['address'], other['port'])
                == (one['address'], one['port'])))
            base = one['output']
            command = one['command']
            print('+', shlex.join(command), file=sys.stderr, flush=True)
            client = Process(
                command, one['cpus'], one['connections'] + SPARE_FILES, '',
                Path(f'{base}.out'), Path(f'{base}.err'), gate=one['gate'])
            self.clients[one['index']] = client
            if client.gate:
                self.events.selector.register(client.gate, selectors.EVENT_READ)

    def check_server_reachable(self, client: Mapping[str, Any], connections: int
                        ) -> None:
        """Check that a client can reach its server.

        :raises Failed: the server's host name resolves to another address, or
            there are too few ports for the connections.
        """
        name, address = client['hostname'], client['address']
        if name:
            try:
                resolved = socket.gethostbyname(name)
            except OSError as err:
                raise Failed(f'{self.host} cannot resolve {name!r}, the name '
                             f'of the server ({err.strerror}): set a name '
                             'that all clients can resolve, or the address '
                             f'{address}') from None
            if resolved != address:
                raise Failed(
                    f'{name!r} is {resolved} on {self.host}, but the server '
                    f'listens on {address}: set another host name'
                )
        ports = _read_lines('/proc/sys/net/ipv4/ip_local_port_range')
        low, high = map(int, ports[0].split()) if ports else (0, 1 << 16)
        if address and connections > high - low:
            raise Failed(f'{self.host} has {high - low} ports for '
                         f'{connections} connections to one server: request '
                         'fewer connections or more client nodes, or widen '
                         'net.ipv4.ip_local_port_range')

    def send_answers(self, question: str) -> None:
        """Send the conductor the answer of each server; see `Conductor.ask_agents`.

        :raises Failed: a server has ended, does not answer, or failed to write.
        :raises Ended: a signal came.
        """
        answers: dict[int, Any] = {}
        match question:
            case 'who':
                peers = network.count_local_connections(
                    one.port for one in self.instances)
                answers = {one.index: peers[one.port] for one in self.instances}
            case 'counters':
                answers = {one.index: self.server_counters(one)
                           for one in self.instances}
            case 'save':
                answers = {one.index: self.name_of_unsaved_server(one)
                           for one in self.instances}
        self.channel.send(type='answers', answers=answers)

    def server_counters(self, one: Instance) -> dict[str, Any]:
        """The counters of a server.

        :raises Failed: it has ended, or does not answer.
        :raises Ended: a signal came.
        """
        try:
            return ask.DIALECTS[one.server.dialect].counters(one.where)._asdict()
        except (OSError, ask.Refusal, ValueError) as err:
            # A server that ends closes its connections first.
            deadline = time.monotonic() + CAUSE_TIMEOUT
            while time.monotonic() < deadline:
                self.process_events(POLL_INTERVAL)
            raise Failed(f'{one.name} no longer answers: {err}') from None

    def name_of_unsaved_server(self, one: Instance) -> str:
        """The name of a server with data that is not on disk yet; else empty.

        :raises Failed: it failed to write.
        """
        try:
            saved = ask.DIALECTS[one.server.dialect].is_data_on_disk(
                one.where, one.server.persistence)
        except ask.SaveError as err:
            raise Failed(f'{one.name} did not save its data ({err})'
                         + self.log_tail_with_full_disk_hint(one.process)) from None
        except (OSError, ask.Refusal, ValueError) as err:
            return f'{one.name} ({err})'
        return '' if saved else one.name

    # Main loop -----------------------------------------------------------

    def check_servers_and_clients(self) -> None:
        """Report clients that wait at the gate or have ended.

        :raises Failed: a server has ended.
        """
        for one in self.instances:
            ended = one.process.exit_reason()
            if ended and one.counters:
                raise Failed(f'{one.name} {ended} while it served'
                             + self.log_tail_with_full_disk_hint(one.process))
        for index, client in list(self.clients.items()):
            self.report_ready_client(index, client)
            ended = client.exit_reason()
            if ended:
                self.close_gate_socket(client)
                del self.clients[index]
                code = client.process.returncode
                self.channel.send(
                    type='ended', client=index, code=code, how=ended,
                    words=self.log_tail_with_full_disk_hint(client, 1) if code else '')

    def report_ready_client(self, index: int, client: Process) -> None:
        """Report a client that waits at its gate."""
        if client.gate:
            waits = client.has_reported_ready()
            if waits:
                self.channel.send(type='at gate', client=index)
            elif waits is None:
                self.close_gate_socket(client)

    def close_gate_socket(self, client: Process) -> None:
        if client.gate:
            self.events.selector.unregister(client.gate)
            client.gate.close()
            client.gate = None

    def log_tail_with_full_disk_hint(self, process: Process, lines: int = 3) -> str:
        """The end of a log, and a hint if a full disk explains it."""
        words = process.log_tail(lines)
        return words + self.full_disk_hint(words)

    def full_disk_hint(self, words: str) -> str:
        """A hint that the disk is full; empty: no sign of that.

        Free space alone proves nothing, because a store may have removed its
        partial file.
        """
        room = os.statvfs(self.folder)
        full = (room.f_bavail * room.f_frsize <= DISK_FULL_BELOW
                or os.strerror(errno.ENOSPC) in words
                or os.strerror(errno.EDQUOT) in words)
        if not full or all(one.server.persistence == 'off'
                           for one in self.instances):
            return ''
        return (f'; the disk of {self.folder.parent} on {self.host} is full: '
                "free space there, or set another scratch in the site's "
                'system.py')

    def process_events(self, seconds: float) -> None:
        """Wait for one event (or the time) and handle all pending events.

        :raises Failed: as `check_servers_and_clients`; the conductor has ended
            or is silent.
        :raises Ended: a signal came.
        """
        self.events.wait(seconds)
        self.owned.touch_lock_file()
        messages = self.channel.receive_messages()
        if self.events.signal:
            raise Ended(f'{self.host}: the agent was ended by '
                        f'{signal.Signals(self.events.signal).name}, sent because '
                        'of the time limit, a cancelled job or a launcher '
                        'that gave up')
        if messages is None:
            raise Failed('the connection to the conductor is lost: it '
                         f'{self.channel.fault}')
        if self.channel.peer_silence_seconds() > self.plan.heartbeat_timeout:
            raise Failed('the connection to the conductor is lost: no '
                         f'heartbeat for {self.plan.heartbeat_timeout:g} s'
                         ' (service_heartbeat_timeout of the partition)')
        self.channel.flush()
        if self.usage:
            self.usage.write_row_if_due()
        self.check_servers_and_clients()
        for message in messages:
            if message['type'] == 'stop':
                self.stopping = True
            elif message['type'] == 'servers':
                self.start_servers(message)
            elif message['type'] == 'run':
                self.start_clients(message)
            elif message['type'] == 'go':
                for client in self.clients.values():
                    client.send_start_signal()
            elif message['type'] == 'question':
                self.send_answers(message['question'])

    def run_until_stopped(self) -> None:
        """Run until the conductor sends `stop`, or until a failure."""
        self.events.watch_signals()
        self.events.selector.register(self.channel.sock, selectors.EVENT_READ)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
        try:
            self.channel.send(type='hello', name=self.host, cpus=self.cpus)
            while not self.stopping:
                self.process_events(0.25)
        except Ended as err:
            self.channel.send(type='ended from outside', why=str(err))
        except (Failed, PlanError) as err:
            self.channel.send(type='failed', why=str(err))
        except OSError as err:
            why = full_disk_message(err, self.host)
            if not why:
                raise
            self.channel.send(type='failed', why=why)
        finally:
            self.stop()

    def stop(self) -> None:
        """End all processes and remove their data."""
        everything = [*self.clients.values(),
                      *(one.process for one in self.instances)]
        for process in everything:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_TIMEOUT
        for process in everything:
            process.wait_or_kill_at_deadline(deadline)
        if not self.stopping:
            # After a good run our parent, observe.c, reports leftovers.
            kill_orphaned_descendants()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.channel.send(type='stopped')


def kill_orphaned_descendants() -> None:
    """Kill processes that servers forked and left to us as subreaper."""
    while subset := reap_and_list_descendants():
        for pid in subset:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_INTERVAL)


def create_data_folder(scratch: str) -> private.OwnedFolder:
    """Create a data folder; remove those of agents that were killed.

    :raises Failed: the scratch folder cannot be written.
    """
    parent = Path(scratch or os.environ.get('TMPDIR') or '/tmp')
    try:
        for old in parent.glob(f'{PREFIX}*'):
            private.remove_if_owner_dead(old)
        return private.OwnedFolder(Path(tempfile.mkdtemp(prefix=PREFIX,
                                                         dir=parent)))
    except OSError as err:
        raise Failed(f'cannot create a folder for the data of the servers in '
                     f'{parent}: {err.strerror}; set another scratch in the '
                     "site's system.py") from None


class Rendezvous(NamedTuple):
    """Data that agents need to connect; a file in the conductor's folder."""
    address: tuple[str, int]
    run: str
    secret: bytes

    def to_json(self) -> str:
        return json.dumps({**self._asdict(), 'secret': self.secret.hex()})

    @classmethod
    def from_json(cls, text: str) -> Rendezvous:
        """Parse the text of the file.

        :raises ValueError: it is damaged.
        """
        data = json.loads(text)
        try:
            host, port = data['address']
            return cls((str(host), int(port)), data['run'],
                       bytes.fromhex(data['secret']))
        except (KeyError, TypeError) as err:
            raise ValueError(f'damaged: {err!r}') from None


def read_rendezvous_file(folder: Path, check_parent: Callable[[], None]
                    ) -> Rendezvous:
    """Wait for the conductor's file and read it.

    :raises Failed: it does not appear, or another user made it.
    """
    deadline = time.monotonic() + CONDUCTOR_TIMEOUT
    while True:
        try:
            return Rendezvous.from_json(private.read_secret_file(folder))
        except FileNotFoundError as err:
            # A shared file system may show a new file late.
            if time.monotonic() > deadline:
                raise Failed('cannot find the conductor of this run: '
                             f'{err}') from None
        except (OSError, ValueError, private.NotPrivate) as err:
            raise Failed(f'cannot find the conductor of this run: {err}'
                         ) from None
        check_parent()
        time.sleep(0.2)


def connect_to_conductor(to: Rendezvous, check_parent: Callable[[], None]
                      ) -> Channel:
    """An authenticated connection to the conductor.

    :raises Failed: no program listens there, or another program does.
    """
    deadline = time.monotonic() + RECONNECT_TIMEOUT
    where = '{}:{}'.format(*to.address)
    while True:
        sock = None
        try:
            sock = socket.create_connection(to.address, HANDSHAKE_TIMEOUT)
            handshake = Handshake(AGENT, to.secret, to.run)
            sock.sendall(handshake.opening_message())
            peer = Peer(sock, where, handshake)
            while not peer.continue_handshake():
                check_parent()
                time.sleep(POLL_INTERVAL)
            return Channel(sock, *handshake.keys)
        except AuthenticationError as err:
            assert sock
            sock.close()
            raise Failed(f'cannot connect to the conductor: the program that '
                         f'listens at {where} {err}; the run is over, and '
                         'another program has its port') from None
        except OSError as err:
            if sock:
                sock.close()
            # The listener drops the oldest of too many unknown peers.
            if (not isinstance(err, ConnectionResetError | BrokenPipeError
                               | TimeoutError)
                    or time.monotonic() > deadline):
                raise Failed('cannot connect to the conductor at '
                             f'{where}: {err}') from None
        check_parent()
        time.sleep(random.uniform(0.01, 0.2))


def main(path: str) -> int:
    """Connect to the conductor of a plan and obey it until the end.

    :returns: the exit code.
    """
    folder = Path(path + private.SUFFIX)
    channel = None
    parent = os.getppid()

    def check_launcher_alive() -> None:
        # A dead parent is replaced by init; but in some containers init is
        # the launcher, and then only the missing folder shows the end.
        if os.getppid() != parent or (parent == 1 and not folder.exists()):
            raise Failed('the launcher has ended before the agent could '
                         'connect to the conductor')

    for number in TERMINATION_SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        # It waits for a shared file system, on which the plan is visible then, too.
        to = read_rendezvous_file(folder, check_launcher_alive)
        plan = Plan.read(Path(path))
        channel = connect_to_conductor(to, check_launcher_alive)
        Heartbeat().add_channel(channel)
        # From now on the main loop handles signals.
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        adopt_orphans()
        # SIGTERM, not SIGKILL, when our parent dies: the agent must stop its
        # servers and clients.
        set_parent_death_signal(signal.SIGTERM)
        Agent(channel, plan,
              derive_secret(to.secret, 'password')).run_until_stopped()
    except (Failed, PlanError) as err:
        if channel is None:
            print(f'plumbline agent: {err}', file=sys.stderr)
            return 1
        channel.send(type='failed', why=str(err))
    finally:
        # A conductor that was killed cannot remove its secrets.
        private.remove_secret_folder(folder)
    return 0
