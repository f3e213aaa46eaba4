"""The conductor: starts servers, runs the clients, stops everything.

It runs in the batch script, in front of the launcher. On standard output it
prints one line `# service {...}` (the record of servers and clients), then
the output of the clients of the last step. A failure is one line on standard
error that begins with `service: `. The names of its files begin with
$PLUMBLINE_RUN.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..machine import cpus
from . import ask, outside, private, rank
from .agent import (
    CAUSE_TIMEOUT,
    Failed,
    Process,
    Rendezvous,
    address_of_interface,
    full_disk_message,
)
from .certificates import NoCertificates, make_certificate
from .listener import Listener
from .plan import (
    Clients,
    Outside,
    Plan,
    PlanError,
    Program,
    Step,
    fill_template,
)
from .processes import Events, is_alive, note_launcher, parent_pid
from .wire import Channel, Heartbeat, derive_secret

#: Wait for the agents to stop all servers and clients. Unit: seconds.
STOP_TIMEOUT = 8.0

#: Wait for the servers to write their data to disk after the workload. Unit:
#: seconds.
SAVE_TIMEOUT = 120.0

#: After an agent was lost: wait for the launcher's error message, which names
#: the cause. Less than Slurm's KillWait. Unit: seconds.
LAUNCHER_MESSAGE_TIMEOUT = 1.0

#: Wait for the launcher to exit after the agents: observe.c gives processes
#: that were left behind 5 s. Unit: seconds.
LAUNCHER_EXIT_TIMEOUT = 8.0


def find_ancestor_pids() -> list[int]:
    """Pids of processes that the conductor must not outlive.

    They are its parents up to the batch script, the first process of this
    process session. measure.sh passes the batch script's pid, because it may
    be dead already.
    """
    results = [pid for pid in (int(os.environ.get('PLUMBLINE_BATCH', 0)),)
               if pid > 1]
    pid = os.getppid()
    # getppid() is 0 for a parent in another pid namespace, 1 for init.
    while pid > 1 and os.getsid(pid) == os.getsid(0):
        results.append(pid)
        pid = parent_pid(pid)
    return results


class Node:
    """A node: its agent's connection, its CPUs and their placement."""

    def __init__(self, name: str, channel: Channel) -> None:
        self.name = name
        self.channel = channel
        self.cpus: list[cpus.Cpu] = []
        self.placed: cpus.Placement | None = None
        self.stopped = False


class Conductor:
    """One run of a plan."""

    def __init__(self, plan: Plan, path: str, launcher: list[str]) -> None:
        self.plan = plan
        self.run_name = os.path.abspath(
            os.environ.get('PLUMBLINE_RUN', 'run'))
        self.folder = Path(path + private.SUFFIX).absolute()
        self.private: private.Secrets | None = None
        self.command = launcher
        self.launcher: subprocess.Popen[bytes] | None = None
        self.run = f'{self.run_name} {secrets.token_hex(8)}'
        self.run_secret = secrets.token_bytes(32)
        self.password = (derive_secret(self.run_secret, 'password')
                         if plan.server.password else '')
        self.listener: Listener | None = None
        self.heartbeat = Heartbeat()
        #: Connected agents that have not sent `hello` yet.
        self.unregistered: list[Channel] = []
        self.nodes: dict[str, Node] = {}
        self.servers: list[dict[str, Any]] = []
        #: Clients of this step that wait at the gate.
        self.ready: set[int] = set()
        self.ended: dict[int, dict[str, Any]] = {}
        #: Clients of this step, in words.
        self.running: dict[int, str] = {}
        #: MPI programs of this step that have not ended.
        self.launched: dict[int, rank.Launched] = {}
        #: Logs of MPI programs, which contain the lines of the observers.
        self.observed: list[Path] = []
        #: Output files of the clients of the last step that measured.
        self.client_outputs: list[Path] = []
        #: Server -> its answer to the last question (`ask_agents`).
        self.answers: dict[int, Any] = {}
        self.events = Events()
        #: Why an agent was lost, and until when (monotonic seconds) to wait
        #: for the launcher's own message.
        self.outside, self.lost_deadline = '', 0.0
        self.record: dict[str, Any] = {}
        self.ancestor_pids = find_ancestor_pids()

    # Events --------------------------------------------------------------

    def process_events(self, seconds: float = 0.25) -> None:
        """Wait for one event (or the time) and handle all pending events.

        :raises Failed: an agent, the launcher or the batch script has ended.
        """
        self.events.wait(seconds)
        if self.events.signal:
            raise Failed('the conductor was ended by '
                         f'{signal.Signals(self.events.signal).name}, sent because '
                         'of the time limit, a cancelled job or a failed node')
        if not all(map(is_alive, self.ancestor_pids)):
            raise Failed('the batch script was killed')
        if self.private:
            self.private.touch_lock_file()
        self.accept_agents()
        for node in self.nodes.values():
            self.receive_agent_messages(node)
        self.collect_ended_mpi_programs()
        self.check_launcher_running()
        if self.outside and time.monotonic() > self.lost_deadline:
            raise Failed(self.outside)

    def accept_agents(self) -> None:
        """Accept agents until all are connected."""
        if self.listener:
            for channel in self.listener.accept_authenticated_channels():
                self.events.selector.register(channel.sock, selectors.EVENT_READ)
                self.heartbeat.add_channel(channel)
                self.unregistered.append(channel)
        for channel in list(self.unregistered):
            messages = channel.receive_messages()
            if messages is None or (
                    channel.peer_silence_seconds() > self.plan.heartbeat_timeout):
                self.unregistered.remove(channel)
                self.close_channel(channel)
            # A heartbeat may come first: the agent sends it from another thread.
            elif own := [one for one in messages if one['type'] != 'beat']:
                self.unregistered.remove(channel)
                self.register_agent(channel, own)

    def register_agent(self, channel: Channel, messages: list[dict[str, Any]]
                       ) -> None:
        """Handle an agent's first messages; the first names its node."""
        name = messages[0].get('name', '')
        if name in self.nodes:
            raise Failed(f'the launcher started two agents on {name} instead '
                         'of one on each node: correct launcher_spread in '
                         "the site's system.py")
        if not name:
            # It failed before it could send `hello`.
            name = channel.sock.getpeername()[0]
        self.nodes[name] = Node(name, channel)
        self.handle_messages(self.nodes[name], messages)

    def close_channel(self, channel: Channel) -> None:
        """Close a connection."""
        self.events.selector.unregister(channel.sock)
        channel.sock.close()

    def receive_agent_messages(self, node: Node) -> None:
        """Handle the messages of an agent.

        :raises Failed: it sent no heartbeat in time, or reports a failure.
        """
        if node.stopped:
            return
        self.handle_messages(node, node.channel.receive_messages() or [])
        if node.stopped:
            return
        if node.channel.fault:
            node.stopped = True
            self.close_channel(node.channel)
            # A launcher that loses one node kills the agents of all nodes;
            # only its own message names the lost node.
            self.note_lost_agent(f'node {node.name} was lost: its agent '
                                 f'{node.channel.fault}')
            return
        if node.channel.peer_silence_seconds() > self.plan.heartbeat_timeout:
            node.stopped = True
            raise Failed(f'node {node.name} was lost: no heartbeat from it '
                         f'for {self.plan.heartbeat_timeout:g} s'
                         ' (service_heartbeat_timeout of the partition)')
        node.channel.flush()

    def handle_messages(self, node: Node, messages: list[dict[str, Any]]
                        ) -> None:
        for message in messages:
            match message['type']:
                case 'hello':
                    node.cpus = [cpus.Cpu(*cpu) for cpu in message['cpus']]
                case 'ready':
                    self.servers += message['instances']
                case 'at gate':
                    self.ready.add(message['client'])
                case 'ended':
                    self.ended[message['client']] = message
                case 'ended from outside':
                    self.note_lost_agent(message['why'])
                case 'failed':
                    raise Failed(message['why'])
                case 'answers':
                    self.answers |= {int(server): answer for server, answer
                                     in message['answers'].items()}
                case 'stopped':
                    node.stopped = True
                    self.close_channel(node.channel)

    def note_lost_agent(self, why: str) -> None:
        """Note why an agent was lost; the launcher may name the cause."""
        if not self.outside:
            self.outside = why
            self.lost_deadline = time.monotonic() + LAUNCHER_MESSAGE_TIMEOUT

    def check_launcher_running(self) -> None:
        if not self.launcher or self.launcher.poll() is None:
            return
        # Agents that ended with it may have lost their connections since
        # `process_events` looked.
        for node in self.nodes.values():
            self.receive_agent_messages(node)
        code = self.launcher.returncode
        if code < 0:
            how = (f'the launcher was killed by signal {-code} '
                   f'({signal.Signals(-code).name}) from outside the suite')
            raise Failed(f'{self.outside}; {how}' if self.outside else how)
        output = Path(f'{self.run_name}.launcher.err').read_text(
            errors='replace').splitlines()
        # Skips the suite's own lines: hosts, and commands of clients.
        words = ' | '.join([
            line.strip() for line in output if line.strip(' -=')
            and not line.startswith(('plumbline-', '+ '))][:3])
        if self.outside:
            raise Failed(f'{self.outside}; output of the launcher: {words}'
                         if words else self.outside)
        raise Failed(f'the launcher ended early with exit code {code}; its '
                     f'output: {words or "none"}')

    def wait_for_failure_cause(self, seconds: float = CAUSE_TIMEOUT) -> None:
        """After a failure: wait for a report of its cause.

        :raises Failed: the cause.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or self.outside:
            self.process_events(0.1)

    def process_events_until(self, done: Callable[[], bool], limit: float,
                             late: Callable[[], str]) -> None:
        """Process events until `done()`.

        :arg limit: in seconds.
        :raises Failed: as `process_events`; after the limit, with `late()`.
        """
        deadline = time.monotonic() + limit
        while not done():
            if time.monotonic() > deadline:
                raise Failed(late())
            self.process_events(
                min(0.25, max(0.0, deadline - time.monotonic())))

    # Steps of a run -------------------------------------------------------

    def start_agents(self) -> None:
        """Let the launcher start one agent on every node."""
        address = self.reachable_address()
        self.listener = Listener(address, self.run_secret, self.run,
                                 self.events.selector)
        self.private = private.Secrets(self.folder)
        self.write_secret_file(private.RENDEZVOUS, Rendezvous(
            self.listener.where, self.run, self.run_secret).to_json())
        with open(f'{self.run_name}.launcher.err', 'wb') as errors:
            try:
                # A session of its own: a signal to our process group does
                # not reach the agents, which then stop what they started.
                self.launcher = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL,
                    stdout=errors, stderr=errors, start_new_session=True)
            except OSError as err:
                raise Failed('cannot start the launcher '
                             f'{self.command[0]}: {err.strerror}') from None
        note_launcher(self.launcher.pid)
        self.process_events_until(lambda: len(self.nodes) == self.plan.node_count
                                  and all(
            node.cpus for node in self.nodes.values()),
            self.plan.start_limit,
            lambda: f'only {len(self.nodes)} of {self.plan.node_count} agents '
            f'connected in {self.plan.start_limit:g} s (from nodes: '
            f'{", ".join(sorted(self.nodes)) or "none"}); read '
            f'{self.run_name}.launcher.err')
        # All agents are connected: accept no other connection.
        self.listener.close()
        self.listener = None

    def reachable_address(self) -> str:
        """The address at which other nodes reach this one."""
        if self.plan.interface:
            return address_of_interface(self.plan.interface)
        if self.plan.node_count == 1 and not self.plan.outside:
            return '127.0.0.1'
        with contextlib.suppress(OSError), socket.socket(
                socket.AF_INET, socket.SOCK_DGRAM) as sock:
            # Sends nothing: the kernel picks the source address of a route.
            sock.connect(('192.0.2.1', 9))
            return sock.getsockname()[0]
        raise Failed('this node has no address that other nodes could reach: '
                     "set service_interface in the site's system.py")

    def write_secret_file(self, name: str, text: str) -> Path:
        """Write a file that no other user can read."""
        assert self.private
        return self.private.write_file(name, text)

    def sorted_nodes(self) -> list[Node]:
        """All nodes; node2 comes before node10."""
        def key(node: Node) -> list[tuple[int, str]]:
            return [(int(part), '') if part.isdigit() else (-1, part)
                    for part in re.split(r'(\d+)', node.name) if part]
        return sorted(self.nodes.values(), key=key)

    def assign_cpu_sets(self) -> None:
        """Assign CPU sets to all roles on all nodes."""
        server, nodes = self.plan.server, self.sorted_nodes()
        layout = self.plan.node_numbers_by_role()
        for number, node in enumerate(nodes):
            serves = number in layout['server']
            roles = [role for role in self.plan.clients
                     if number in layout[role.name]]
            node.placed = cpus.assign_cpus(node.cpus, [
                *([cpus.CpuRequest('server', server.instances, server.cpus)]
                  if serves and not server.divided else []),
                *(cpus.CpuRequest(role.name, role.instances, role.cpus)
                  for role in roles if not role.unbound)])
            sets = node.placed.sets
            if server.divided and serves:
                try:
                    sets['server'] = cpus.divide_cpus(node.cpus, server.instances)
                except ValueError as err:
                    raise Failed(f'servers on {node.name}: {err}') from None
            for role in roles:
                if role.unbound:
                    sets[role.name] = [[cpu.number for cpu in node.cpus]
                                       ] * role.instances
        self.server_nodes = [nodes[number] for number in layout['server']]
        #: Role -> node and CPU set of each of its clients.
        self.client_slots = {role.name: [
            (nodes[number], placed.sets[role.name][slot])
            for slot in range(role.instances) for number in layout[role.name]
            if (placed := nodes[number].placed)][:role.total or None]
            for role in self.plan.clients}

    def start_servers(self) -> None:
        """Start all instances and wait until each is ready."""
        self.assign_cpu_sets()
        self.certificate = dict.fromkeys(('ca', 'cert', 'key'), '')
        if self.plan.server.tls:
            make_certificate(
                self.folder, [self.address_of_node(node) for node in self.server_nodes]
            )
            own = str(self.folder / 'server.crt')
            self.certificate = {'ca': own, 'cert': own,
                                'key': str(self.folder / 'server.key')}
        index = 0
        for node in self.server_nodes:
            assert node.placed
            instances = []
            for slot, cpu_set in enumerate(node.placed.sets['server']):
                instances.append({
                    'index': index, 'slot': slot, 'cpus': cpu_set,
                    'log': self.run_name,
                    'values': self.certificate})
                index += 1
            node.channel.send(type='servers', instances=instances)
        self.process_events_until(
            lambda: len(self.servers) == index,
            self.plan.server.ready_limit * 4 + 10,
            lambda: (
                f'only {len(self.servers)} of {index} servers '
                'became ready, and their agents reported no reason; read '
                f'{self.run_name}.server*.log'
            ),
        )
        self.servers.sort(key=lambda one: one['index'])
        self.where = [
            ask.Server(one['address'], one['port'], self.password,
                       self.certificate['ca'], self.plan.server.user)
            for one in self.servers]
        if self.plan.server.cluster:
            self.form_cluster()

    def address_of_node(self, node: Node) -> str:
        return node.channel.sock.getpeername()[0]

    def form_cluster(self) -> None:
        """Assign the slots and wait until every server agrees."""
        missing = 'no server was queried'

        def is_cluster_complete() -> bool:
            nonlocal missing
            missing = ask.reason_cluster_is_incomplete(self.where)
            return not missing

        try:
            ask.form_cluster(self.where)
            self.process_events_until(is_cluster_complete, self.plan.server.ready_limit,
                                      lambda: 'the servers did not form a cluster in '
                                      f'{self.plan.server.ready_limit:g} s: {missing}')
        except (OSError, ask.Refusal) as err:
            raise Failed('the servers cannot form a cluster: '
                         f'{err}') from None

    def ask_agents(self, question: str, what: str, limit: float = STOP_TIMEOUT
                   ) -> list[Any]:
        """The answer of each server to a question.

        Their agents ask them: a Unix socket is reached on its node only.

        :arg question: who (is connected), counters, or save (is there data to save).
        :arg what: the answer, in words.
        :raises Failed: an agent does not answer, or reports a failure.
        """
        self.answers.clear()
        for node in self.server_nodes:
            node.channel.send(type='question', question=question)
        self.process_events_until(
            lambda: len(self.answers) == len(self.servers), limit,
            lambda: f'the agents did not report {what} in {limit:g} s')
        return [self.answers[one['index']] for one in self.servers]

    def read_server_counters(self) -> list[dict[str, Any]]:
        """The counters of every server (ask.Counters), now.

        :raises Failed: a server does not answer.
        """
        return self.ask_agents(
            'counters', 'the counters of the servers',
            STOP_TIMEOUT + self.plan.server.instances * ask.ANSWER_TIMEOUT)

    def write_service_file(self, name: str, servers: list[ask.Server], gate: bool
                      ) -> Path:
        """Write the service file that the clients read."""
        ca = servers[0].ca
        return self.write_secret_file(name, '\n'.join([
            *(f'server {one.host} {one.port}' if one.port else
              f'server unix:{one.host}' for one in servers),
            *([f'user {servers[0].user}'] if servers[0].user else []),
            *([f'password {self.password}'] if self.password else []),
            *(['tls', f'ca {ca}'] if ca else []),
            *(['cluster'] if self.plan.server.cluster else []),
            *(['gate'] if gate else []), '']))

    def run_step(self, step: Step) -> dict[str, Any]:
        """Run the programs of a step at once.

        :raises Failed: a client failed, or the step's limit passed.
        """
        self.process_events_for(step.rest)
        before, began = self.read_server_counters(), time.monotonic()
        at = time.time()
        self.ready.clear()
        self.ended.clear()
        self.running, self.launched = {}, {}
        messages: dict[str, list[dict[str, Any]]] = {}
        for program in step.programs:
            role = self.plan.find_client_role(program.role)
            services = self.write_service_files(role, step.gate)
            clients = self.client_slots[role.name][
                : 1 if program.alone else None
            ]
            if program.mpi:
                self.launch_mpi_program(step, program, clients, services)
                continue
            for index, (node, cpu_set) in enumerate(clients):
                number = len(self.running)
                self.running[number] = f'{role.name} {index} on {node.name}'
                messages.setdefault(node.name, []).append(
                    {**self.client_start_message(step, program, index, number,
                                                 len(clients), services),
                     'cpus': cpu_set})
        if not step.check:
            self.client_outputs = [
                Path(f'{self.run_name}.{step.name}.{number}.out')
                for number in self.running
            ]
        for name, group in messages.items():
            self.nodes[name].channel.send(type='run', clients=group)
        if step.gate:
            self.process_events_until(
                lambda: (
                    self.ready >= set(self.running)
                    or self.have_clients_ended()
                ),
                step.limit,
                lambda: (
                    f'step {step.name}: '
                    + ', '.join(
                        self.running[number]
                        for number in sorted(set(self.running) - self.ready)
                    )
                    + f' did not become ready in {step.limit:g} s'
                ),
            )
            for node in self.sorted_nodes():
                node.channel.send(type='go')
        self.process_events_until(self.have_clients_ended, step.limit, lambda:
                                  f'step {step.name}: ' + ', '.join(
                       words for number, words in self.running.items()
                       if number not in self.ended)
                   + f' did not end in {step.limit:g} s')
        took, after = time.monotonic() - began, self.read_server_counters()
        self.find_servers_with_unsaved_data()
        return {'seconds': round(took, 3), 'at': at, 'before': before,
                'after': after}

    def write_service_files(self, role: Clients, gate: bool) -> list[Path]:
        """The service files of a role: one for each server, or for all."""
        if role.one_server:
            return [self.write_service_file(f'service{n}', [one], gate)
                    for n, one in enumerate(self.where)]
        return [self.write_service_file('service', self.where, gate)]

    def launch_mpi_program(self, step: Step, program: Program,
                           clients: list[tuple[Node, list[int]]], services: list[Path]
               ) -> None:
        """Let the launcher start the ranks of an MPI program.

        :raises Failed: it cannot be started.
        :raises PlanError: the plan cannot be executed.
        """
        number = len(self.running)
        if not self.plan.launcher or step.gate:
            raise PlanError(f'step {step.name}: '
                            + ('a gate is not possible for ranks of an MPI '
                               'program, which start together without it'
                               if step.gate else 'the suite does not know '
                               "how the partition's launcher starts an MPI "
                               'program (config/sites/launch.py, STEP)'))
        sets: dict[str, list[list[int]]] = {}
        for node, cpu_set in clients:
            sets.setdefault(node.name, []).append(cpu_set)
        each = {len(ranks) for ranks in sets.values()}
        if len(each) > 1:
            raise PlanError(f'step {step.name}: an MPI program needs the same '
                            'number of ranks on every node, not '
                            f'{", ".join(map(str, sorted(each)))}')
        message = self.client_start_message(step, program, 0, number, len(clients),
                                            services)
        values = {'ranks': len(clients), 'nodes': len(sets),
                  'each': max(each), 'names': ','.join(sets),
                  'slots': ','.join(f'{name}:{max(each)}' for name in sets)}
        where = self.write_secret_file(f'ranks{number}', json.dumps(sets))
        command = [
            *(fill_template(word, values) for word in self.plan.launcher),
            sys.executable,
            str(Path(__file__).parent),
            'rank',
            str(where),
            '--',
            *(
                [self.plan.observer, '--within', '--']
                if self.plan.observer
                else []
            ),
            *message['command'],
        ]
        print('+', shlex.join(command), file=sys.stderr, flush=True)
        base = message['output']
        self.running[number] = f'the ranks of {program.role}'
        launcher = Process(command, sorted(os.sched_getaffinity(0)), 0, '',
                           Path(f'{base}.out'), Path(f'{base}.err'),
                           death=signal.SIGTERM)
        note_launcher(launcher.process.pid)
        self.launched[number] = rank.Launched(launcher, sets)

    def collect_ended_mpi_programs(self) -> None:
        """Note MPI programs that have ended.

        :raises Failed: some rank did not run where the plan placed it.
        """
        for number, one in list(self.launched.items()):
            how = one.process.exit_reason()
            if not how:
                continue
            del self.launched[number]
            code, output = one.process.process.returncode, one.first_error_lines()
            self.observed.append(one.process.log)
            missing = '' if code else one.describe_wrong_rank_placement()
            if missing:
                # The cause may be a node that was cut off: it is only silent.
                if self.plan.node_count > 1:
                    self.wait_for_failure_cause(self.plan.heartbeat_timeout + 1)
                raise Failed(f'{self.running[number]}: {missing}')
            self.ended[number] = {'code': code, 'how': how,
                                  'words': f': {output}' if output else ''}

    def find_servers_with_unsaved_data(self) -> list[str]:
        """Servers with data that is not on disk yet.

        :raises Failed: a server failed to write.
        """
        if self.plan.server.persistence == 'off':
            return []
        return [*filter(None, self.ask_agents(
            'save', 'whether the servers have written their data'))]

    def wait_until_data_saved(self) -> None:
        """Wait until all servers have written their data.

        A workload that only reads would not notice a full disk.

        :raises Failed: a server has not written it after SAVE_TIMEOUT.
        """
        deadline = time.monotonic() + SAVE_TIMEOUT
        while late := self.find_servers_with_unsaved_data():
            if time.monotonic() > deadline:
                raise Failed(f'{", ".join(late)} did not write the data to '
                             f'disk in {SAVE_TIMEOUT:g} s after the workload')
            self.process_events_for(0.25)

    def measure_with_outside_clients(self, clients: Outside) -> dict[str, Any]:
        """Run phases with clients that people start on other machines.

        It writes instructions, waits until all clients are connected, and
        counts.
        """
        path = Path(f'{self.run_name}.clients.txt')
        # Renamed when complete: the check reads it as soon as it exists.
        draft = path.with_suffix('.part')
        draft.write_text(clients.words.replace(
            '{host}', self.plan.hostname or self.where[0].host).replace(
            '{pem}', Path(self.certificate['ca']).read_text().strip()
            if self.certificate['ca'] else ''))
        draft.replace(path)
        print(f'clients: instructions are in {path}', file=sys.stderr,
              flush=True)
        names = [str(one) for one in self.where]

        def have_all_clients_connected() -> bool:
            self.late = outside.describe_missing_connections(
                clients, names, self.query_connected_peers()
            )
            return not self.late

        self.process_events_until(have_all_clients_connected, clients.limit, lambda:
                                  f'not all clients connected in {clients.limit:g} s: '
                                  f'{self.late}; start them as described in {path}')
        steps = {}
        for name, seconds in clients.phases:
            at, before = time.time(), self.read_server_counters()
            self.process_events_for(seconds)
            steps[name] = {'seconds': seconds, 'at': at, 'before': before,
                           'after': self.read_server_counters()}
        # Clients that began a little late can finish, too.
        until = time.monotonic() + clients.linger
        while time.monotonic() < until and any(self.query_connected_peers()):
            self.process_events_for(0.5)
        return steps

    def query_connected_peers(self) -> list[dict[str, int]]:
        """The peers of each server, as its agent sees them."""
        return self.ask_agents('who', 'the connected clients')

    def process_events_for(self, seconds: float) -> None:
        """Wait, and process events meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.process_events(min(0.25, until - time.monotonic()))

    def client_start_message(
        self,
        step: Step,
        program: Program,
        index: int,
        number: int,
        count: int,
        services: list[Path],
    ) -> dict[str, Any]:
        """The message with which an agent starts one client.

        :arg index: number of the client in its role.
        :arg number: number of the client in the step.
        :arg count: clients of the role.
        """
        role = self.plan.find_client_role(program.role)
        server = self.where[index % len(self.where)]
        values = {'service': str(services[index % len(services)]),
                  'host': self.plan.hostname or server.host,
                  'port': server.port, 'index': index, 'count': count,
                  'cpus': len(self.client_slots[role.name][index][1]),
                  'connections': role.connections,
                  'output': f'{self.run_name}.{step.name}.{number}',
                  **self.certificate}
        command = (program.commands[index] if program.commands
                   else program.command)
        return {'index': number, 'address': server.host,
                'port': server.port,
                'hostname': self.plan.hostname,
                'connections': role.connections,
                'command': [fill_template(word, values) for word in command],
                'gate': step.gate,
                'output': values['output']}

    def have_clients_ended(self) -> bool:
        """Whether all clients of the step have ended.

        :raises Failed: one of them failed.
        """
        for number, one in self.ended.items():
            if one['code']:
                # A dead server fails its clients: it is the cause to name.
                self.wait_for_failure_cause()
                raise Failed(f'{self.running[number]} {one["how"]}'
                             f'{one["words"]}')
        return len(self.ended) == len(self.running)

    def run_plan(self) -> None:
        """Run the whole plan.

        :raises Failed: with the reason why it ended early.
        """
        self.start_agents()
        self.start_servers()
        steps = (self.measure_with_outside_clients(self.plan.outside)
                 if self.plan.outside
                 else {step.name: self.run_step(step)
                       for step in self.plan.steps})
        self.wait_until_data_saved()
        if self.outside:
            # Ranks of an MPI program continue without the agent of their
            # node.
            self.wait_for_failure_cause()
        self.record = {
            'servers': self.servers,
            'clients': [{'role': role, 'node': node.name, 'cpus': cpu_set}
                        for role, clients in self.client_slots.items()
                        for node, cpu_set in clients],
            'placed': {node.name: node.placed.by for node in self.sorted_nodes()
                       if node.placed},
            'steps': steps}

    def print_service_record(self) -> None:
        """Print the record of the services and the output of the clients."""
        print('# service', json.dumps(self.record))
        for path in self.client_outputs:
            text = path.read_text(errors='replace')
            print(text, end='' if text.endswith('\n') else '\n')

    # Shutdown -------------------------------------------------------------

    def stop(self) -> None:
        """Stop the agents, and with them all servers and clients."""
        if self.listener:
            self.listener.close()
        for one in self.launched.values():
            one.process.send_signal(signal.SIGTERM)
        for channel in self.unregistered:
            channel.send(type='stop')
        for node in self.nodes.values():
            node.channel.send(type='stop')
        # First of all: a scheduler that ends the job soon sends SIGKILL.
        if self.private:
            self.private.remove()
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline and not all(
                node.stopped for node in self.nodes.values()):
            self.events.wait(0.1)
            for node in self.nodes.values():
                # Failures during the shutdown are not reported.
                with contextlib.suppress(Failed):
                    self.receive_agent_messages(node)
        for one in self.launched.values():
            one.process.wait_or_kill_at_deadline(deadline)
        if self.launcher:
            self.stop_launcher()

    def stop_launcher(self) -> None:
        """Wait for the launcher, then end it with signals."""
        assert self.launcher
        for timeout, number in ((LAUNCHER_EXIT_TIMEOUT, signal.SIGTERM),
                                (3, signal.SIGKILL)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout)
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.launcher.pid, number)
        self.launcher.wait()


def main(path: str, launcher: list[str]) -> int:
    """Run a plan.

    :returns: the exit code: 0, or 1 after a line with the reason.
    """
    why = ''
    try:
        conductor = Conductor(Plan.read(Path(path)), path, launcher)
    except PlanError as err:
        print(f'service: {err}', file=sys.stderr)
        return 1
    conductor.events.watch_signals()
    try:
        conductor.run_plan()
    except (Failed, PlanError, NoCertificates, private.NotPrivate) as err:
        why = str(err)
    except Exception as err:
        if isinstance(err, OSError):
            why = full_disk_message(err, socket.gethostname())
        if not why:
            traceback.print_exc()
            why = ('internal error of the suite (traceback above): '
                   f'{type(err).__name__}: {err}')
    finally:
        conductor.stop()
    launched = Path(f'{conductor.run_name}.launcher.err')
    if launched.exists():
        # Our message starts on a new line, whatever the launcher wrote last.
        words = launched.read_text(errors='replace')
        print(words, end='' if words.endswith('\n') else '\n',
              file=sys.stderr)
    for log in conductor.observed:
        print(*rank.read_observer_lines(log), sep='\n', file=sys.stderr)
    if why:
        print(f'service: {why}', file=sys.stderr)
        return 1
    conductor.print_service_record()
    return 0
