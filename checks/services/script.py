"""The part of a job script that starts the servers and clients of a plan.

A person can read it, and run the job script again (docs/explanation/services.md).
"""
from __future__ import annotations

import itertools
import math
import shlex
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .plan import Clients, Plan, Program, Step

SERVICES = Path(__file__).resolve().parent

#: Fields of a client's command -> their shell text, for the server with number {server}
#: (in {only}, if it is the only one that the client uses) and the client with number
#: {number} of a step. client.py replaces {node}.
FIELDS = {'service': '"$secrets/service{only}"',
          'own_service': '"$secrets/service.{{node}}"', 'host': '"${{host[{server}]}}"',
          'port': '"${{port[{server}]}}"', 'output': '"$run.{step}.{number}"',
          'index': '{index}'}

#: In front of a launcher, which gets SIGTERM when this script dies, and no signal to
#: the process group (services.sh).
GUARD = '"${guard[@]}"'


@dataclass(frozen=True)
class Launching:
    """How a site starts the processes of a job; see config/sites/launch.py.

    Words may contain {ranks}, {nodes}, {each} (processes per node), {names} (n2,n3)
    and {slots} (n2:4,n3:4).
    """

    #: In front of a process; empty: it is started on the node of the script.
    words: Sequence[str]
    #: In front of the ranks of an MPI program; empty: it is not known how.
    mpi_words: Sequence[str]
    #: Whether the launcher needs the signal of a script that dies.
    guarded: bool
    #: Interface of the servers, and folder for their data; empty: the defaults.
    interface: str = ''
    scratch: str = ''
    #: Folder of the program observe, and the words that start a program on each node
    #: beside servers and clients (rank.sh).
    programs: str = ''
    rank: str = ''


def job_script_lines(plan: Plan, launching: Launching) -> list[str]:
    """Lines of the job script, which define the function run_services."""
    return list(Writer(plan, launching).lines())


class Writer:
    """Writes the lines of one plan."""

    def __init__(self, plan: Plan, launching: Launching) -> None:
        self.plan, self.launching = plan, launching
        self.layout = plan.node_numbers_by_role()
        #: Node number of each server.
        self.server_nodes = [node for node in self.layout['server']
                             for _ in range(plan.server.instances)]
        #: Group of a heterogeneous job of each node.
        self.het_groups = {node: role.het_group for role in plan.roles
                           for node in self.layout[role.name]}

    def lines(self) -> Iterator[str]:
        """All lines."""
        plan, server = self.plan, self.plan.server
        yield '# Servers and clients. To run them again: docs/explanation/services.md'
        yield f'python={shlex.quote(sys.executable)} services={quoted(SERVICES)}'
        yield f'programs={quoted(self.launching.programs)}'
        # The daemon of Slurm starts programs in threads that may end before them.
        how = '--tied 9 0' if self.launching.guarded else '--forward'
        yield f'tied=("$programs/observe" {how})'
        yield '. "$services/services.sh"'
        yield f'node_count={plan.node_count}'
        # Groups in the order of their nodes in the plan.
        groups = [*dict.fromkeys(self.het_groups[node]
                                 for node in range(plan.node_count))]
        order = ''.join(f' {group}' for group in groups if len(groups) > 1)
        yield f'mapfile -t nodes < <(nodes{order})'
        yield (f'server_user={quoted(server.user)} '
               f'with_password={"yes" if server.password else ""} '
               f'is_cluster={"yes" if server.cluster else ""}')
        yield f"asked=({server.dialect} '{server.user}' {server.persistence})"
        if server.socket and plan.node_count > 1:
            yield 'on_node() {  # number command...'
            yield '    case $1 in'
            for index, node in enumerate(self.server_nodes):
                yield f'        {index}) shift; {self.launch([node])} "$@" ;;'
            yield '    esac'
            yield '}'
        yield 'run_services() {'
        yield '    begin_services || return'
        if server.config:
            yield '    cat >"$secrets/server.conf" <<\'END\''
            yield server.config.rstrip('\n')
            yield 'END'
        yield '    # The observer of each node'
        for group in sorted({*self.het_groups.values()}):
            nodes = [node for node in range(plan.node_count)
                     if self.het_groups[node] == group]
            yield ' '.join(filter(None, [
                '    watch', self.launch(nodes), '"${tied[@]}"',
                self.launching.rank, '"$programs/observe" --wait',
                f'{plan.sample:g} "$run.cpu"' if plan.sample else '', '|| return']))
        for index, node in enumerate(self.server_nodes):
            yield f'    # {server.program}, on node {node}'
            yield f'    server {index} {self.server_command(index, node)}'
        yield (f'    wait_for_servers {math.ceil(server.ready_limit * 4 + 10)} '
               f'{len(self.server_nodes)} || return')
        if server.cluster:
            yield '    form_cluster || return'
        for step in plan.steps:
            yield from self.step_lines(step)
        yield '    finish_services'
        yield '}'

    def launch(self, nodes: Sequence[int], each: int = 1, mpi: bool = False) -> str:
        """Words in front of processes.

        :param nodes: numbers of the nodes, in one group of a heterogeneous job
        :param each: processes per node
        :param mpi: they are ranks of an MPI program
        """
        words = self.launching.mpi_words if mpi else self.launching.words
        if any(self.het_groups.values()):
            words = [*words, f'--het-group={self.het_groups[nodes[0]]}']
        names = [f'${{nodes[{number}]}}' for number in nodes]
        values = {'ranks': len(nodes) * each, 'nodes': len(nodes), 'each': each,
                  'names': ','.join(names),
                  'slots': ','.join(f'{name}:{each}' for name in names)}
        # Of the suite, or options of the site: without blanks, and with $ only here.
        parts = [word.format_map(values) for word in words]
        guard = [GUARD] if parts and self.launching.guarded else []
        return ' '.join([*guard, *(f'"{part}"' if '$' in part else shlex.quote(part)
                                   for part in parts)])

    def roles_on(self, node: int) -> str:
        """The servers and clients of a node that are bound; node.py has the form."""
        return quoted(','.join(
            f'{role.name}={role.instances}x{role.cpus}'
            for role in self.plan.roles
            if role.instances and node in self.layout[role.name] and not role.unbound))

    def server_command(self, index: int, node: int) -> str:
        """The command of a server."""
        plan, server = self.plan, self.plan.server
        peer = next((number for number in range(plan.node_count) if number != node),
                    None)
        options = {
            'programs': '"$programs"', 'roles': self.roles_on(node),
            'slot': index % server.instances,
            'index': index, 'program': quoted(server.program),
            'dialect': server.dialect,
            'config': '"$secrets/server.conf"' if server.config else '',
            'secrets': '"$secrets"', 'user': quoted(server.user),
            'ready-limit': f'{server.ready_limit:g}',
            'interface': quoted(plan.interface or self.launching.interface),
            'scratch': quoted(self.launching.scratch),
            'peer': '' if peer is None else f'"${{nodes[{peer}]}}"',
            'socket': 'yes' if server.socket else ''}
        words = server.commands[index] if server.commands else server.command
        return ' '.join(filter(None, [
            self.launch([node]), '"${node[@]}" serve', options_text(options),
            '--', shlex.join(words)]))

    def step_lines(self, step: Step) -> Iterator[str]:
        """The lines of a step."""
        yield f'    # Step {step.name}'
        if step.rest:
            yield f"    sleep {step.rest:g}; counted=''"
        gate = ' gate' if step.gate else ''
        yield f'    begin_step {step.name} {math.ceil(step.limit)}{gate} || return'
        number = itertools.count()
        for program in step.programs:
            role = next(one for one in self.plan.clients if one.name == program.role)
            # Node number and slot of each client.
            slots = [(node, slot) for slot in range(role.instances)
                     for node in self.layout[role.name]][:len(program.commands) or None]
            for index in range(1 if program.mpi else len(slots)):
                yield self.client_line(step, program, role, slots, next(number), index)
        yield f'    end_step{" check" if step.check else ""} || return'

    def client_line(self, step: Step, program: Program, role: Clients,
                    slots: Sequence[tuple[int, int]], number: int, index: int) -> str:
        """The line that starts a client, or all ranks of an MPI program.

        :param slots: node number and slot of each client of the program
        :param number: number of the line in the step
        :param index: number of the client in its role; 0 for ranks
        """
        node, slot = slots[index]
        launcher, name, ranks = self.launch([node]), f'{role.name} {index}', 1
        if program.mpi:
            nodes, ranks = sorted({node for node, _ in slots}), len(slots)
            launcher = self.launch(nodes, ranks // len(nodes), mpi=True)
            name, slot = f'the MPI program of {role.name}', -1
        server = index % max(1, len(self.server_nodes))
        fields = {key: text.format(
            number=number, step=step.name, index=index, server=server,
            only=server if role.one_server else '') for key, text in FIELDS.items()}
        words = program.commands[index] if program.commands else program.command
        return ' '.join(filter(None, [
            f"    client {number} '{name}' {ranks}",
            launcher, '"${node[@]}" client', options_text(
                {'roles': self.roles_on(node), 'role': role.name, 'slot': slot}),
            '--', '"${program[@]}"',
            *(fill_template(word, fields) for word in words)]))


def quoted(value: object) -> str:
    """A word of the shell."""
    return shlex.quote(str(value))


def options_text(options: Mapping[str, object]) -> str:
    """Options of node.py, without those that have no value; values are words of
    the shell."""
    return ' '.join(f'--{name} {value}' for name, value in options.items()
                    if value not in ('', "''", 0))


def fill_template(template: str, fields: Mapping[str, str]) -> str:
    """A word of the shell from a template, with shell text for its fields."""
    parts = []
    for text, field, _, _ in string.Formatter().parse(template):
        parts += [shlex.quote(text)] if text else []
        parts += [fields[field]] if field else []
    return ''.join(parts) or "''"
