"""A site's topology.yaml: the nodes of each switch.

The file has what `scontrol show topology` prints, with lists of hosts in
Slurm's short form::

    switches:
      leaf1: {nodes: 'n[1-2]'}
      leaf2: {nodes: 'n[3-4]'}
      top: {switches: 'leaf[1-2]'}

A switch has nodes or other switches.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ClusterShell.NodeSet import (
    RESOLVER_NOGROUP,
    NodeSet,
    NodeSetException,
)

from .. import schema, strict

#: In the site's folder.
NAME = 'topology.yaml'


class TopologyError(strict.Fault):
    """A file does not describe a tree of switches; names the line."""


@dataclass(frozen=True)
class Switch:
    """A switch with the nodes, or the switches, that are connected to it."""
    nodes: tuple[str, ...]
    switches: tuple[str, ...]


def expand_host_list(text: str) -> list[str]:
    """The names of a list of hosts, sorted; commas or blanks separate them.

    :raises ValueError: it is not a list of hosts

    >>> expand_host_list('n[08-10,12],login n1')
    ['login', 'n1', 'n08', 'n09', 'n10', 'n12']
    """
    commas = re.sub(r'[\s,]+', ',', text).strip(',')
    try:
        return list(NodeSet(commas, resolver=RESOLVER_NOGROUP))
    except NodeSetException as err:
        raise ValueError(str(err)) from None


def fold_host_list(names: Iterable[str]) -> str:
    """A list of hosts in Slurm's short form.

    >>> fold_host_list(['n2', 'n1', 'r1n3', 'r1n4'])
    'n[1-2],r1n[3-4]'
    """
    nodes = NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP)
    # One bracket per name, which every version of Slurm can read.
    nodes.fold_axis = (-1,)
    return str(nodes)


def nodes_of_record(text: str) -> list[str]:
    """The nodes of a record; if the text is not a list of hosts, its words."""
    try:
        return expand_host_list(text)
    except ValueError:
        return text.split()


def record_of_nodes(names: Iterable[str]) -> str:
    """Nodes as a record has them, for `nodes_of_record`."""
    nodes = list(names)
    try:
        return fold_host_list(nodes)
    except NodeSetException:
        return ' '.join(nodes)


def load_switches(path: str | os.PathLike[str]) -> dict[str, Switch]:
    """The switches of a site by name, in the order of the file.

    :raises TopologyError: it cannot be read, or is not a tree.
    """
    path = Path(path)
    try:
        data = strict.load_yaml(path)
        for fault in schema.schema_faults(str(path), data, 'topology'):
            raise fault
        switches = {str(name): _read_switch(data, path, name)
                    for name in data['switches']}
        _refuse_non_tree(data, path, switches)
    except strict.Fault as err:
        raise TopologyError(err.file, err.line, err.reason) from None
    except OSError as err:
        raise TopologyError(path, 1, f'cannot be read: {err}') from None
    return switches


def _read_switch(data: Any, path: Path, name: str) -> Switch:
    (kind, text), = data['switches'][name].items()
    try:
        names = tuple(expand_host_list(text))
    except ValueError as err:
        raise schema.fault_at_path(str(path), data, ['switches', name, kind], (
            f'{text!r} is not a list of hosts, such as n[1-4,7]: {err}')
            ) from None
    return Switch(names if kind == 'nodes' else (),
                  names if kind == 'switches' else ())


def _refuse_non_tree(data: Any, path: Path, switches: dict[str, Switch]) -> None:
    """Check that each node and each switch is connected to one switch at most,
    and that the switches have no loop."""
    def switch_fault(name: str, reason: str) -> strict.Fault:
        return schema.fault_at_path(str(path), data, ['switches', name], reason)

    above: dict[tuple[str, str], str] = {}
    for name, switch in switches.items():
        for kind, one in [*(('node', n) for n in switch.nodes),
                          *(('switch', s) for s in switch.switches)]:
            if kind == 'switch' and one not in switches:
                raise switch_fault(name, f'the file has no switch {one!r}; '
                                   + schema.suggest_name(one, switches))
            if (kind, one) in above:
                raise switch_fault(name, f'{kind} {one} is also plugged into '
                                   f'{above[kind, one]}; remove one of them')
            above[kind, one] = name
    for name in switches:
        seen = [name]
        while ('switch', seen[-1]) in above:
            seen.append(above['switch', seen[-1]])
            if len(seen) > len(switches):
                raise switch_fault(name, 'this switch is above itself; remove '
                                   'this loop')


def switches_above_nodes(folder: Path) -> dict[str, list[str]]:
    """Node -> the switches above it, the nearest first; {}: the site names none.

    :param folder: of the site
    :raises TopologyError: its topology.yaml cannot be read, or is not a tree
    """
    path = folder / NAME
    switches = load_switches(path) if path.is_file() else {}
    over = {low: name for name, switch in switches.items()
            for low in switch.switches}
    nodes: dict[str, list[str]] = {}
    for name, switch in switches.items():
        chain = [name]
        while chain[-1] in over:
            chain.append(over[chain[-1]])
        nodes |= {node: chain for node in switch.nodes}
    return nodes


def switch_summary_text(switches: dict[str, Switch]) -> str:
    """The numbers of nodes and switches, as text."""
    def count_text(count: int, what: str) -> str:
        return f'{count} {what}{"" if count == 1 else "es"}'

    nodes = sum(len(switch.nodes) for switch in switches.values())
    leaves = sum(bool(switch.nodes) for switch in switches.values())
    return (f'{nodes} node{"" if nodes == 1 else "s"} on '
            f'{count_text(leaves, "leaf switch")}, '
            f'{count_text(len(switches), "switch")} in all')
