"""A site's topology.yaml: which switch has which nodes.

As Slurm tells it (`scontrol show topology`), names in Slurm's own short form
of lists of hosts::

    switches:
      leaf1: {nodes: 'n[1-2]'}
      leaf2: {nodes: 'n[3-4]'}
      top: {switches: 'leaf[1-2]'}

A switch has nodes or other switches.
"""
from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from typing import Any

import yaml

from config import regular, strict

#: In the site's folder.
NAME = 'topology.yaml'


class TopologyError(ValueError):
    """A file that describes no tree of switches; names file and switch."""


@dataclass(frozen=True)
class Switch:
    """A switch with the nodes, or the switches, that are plugged into it."""
    nodes: tuple[str, ...]
    switches: tuple[str, ...]


def expand(text: str) -> list[str]:
    """Names of a list of hosts, with commas or blanks between them.

    >>> expand('n[08-10,12],login n1')
    ['n08', 'n09', 'n10', 'n12', 'login', 'n1']
    """
    return [name for word in re.findall(r'(?:[^,\s\[\]]|\[[^\]]*\])+', text)
            for name in _names(word)]


def of_record(text: str) -> list[str]:
    """Nodes that a record names; words that are no list of hosts stand for
    themselves."""
    try:
        return expand(text)
    except ValueError:
        return text.split()


def _names(word: str) -> list[str]:
    pieces = re.split(r'\[([^\]]*)\]', word)
    choices = [[piece] if i % 2 == 0 else _numbers(piece)
               for i, piece in enumerate(pieces)]
    return [''.join(one) for one in itertools.product(*choices)]


def _numbers(text: str) -> list[str]:
    found = []
    for part in text.split(','):
        first, _, last = part.partition('-')
        found += [f'{n:0{len(first)}}'
                  for n in range(int(first), int(last or first) + 1)]
    return found


def load(path: str | os.PathLike[str]) -> dict[str, Switch]:
    """The switches of a site by name, in the order of the file.

    :raises TopologyError: it cannot be read, or is no tree.
    """
    try:
        data = strict.safe_load(regular.text(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise TopologyError(f'{path}: cannot be read: '
                            f'{" ".join(str(err).split())}') from None
    rows = data.get('switches') if isinstance(data, dict) else None
    if not isinstance(rows, dict) or set(data) != {'switches'}:
        raise TopologyError(f'{path}: expected `switches:`, and below it a '
                            'line for each switch')
    found = {str(name): _switch(f'{path}: switch {name}', row)
             for name, row in rows.items()}
    _is_tree(f'{path}', found)
    return found


def _switch(where: str, row: Any) -> Switch:
    if (not isinstance(row, dict) or len(row) != 1
            or not set(row) <= {'nodes', 'switches'}):
        raise TopologyError(f'{where}: expected {{nodes: LIST}} or '
                            '{switches: LIST}')
    (kind, text), = row.items()
    try:
        names = tuple(expand(str(text)))
    except ValueError:
        raise TopologyError(f'{where}: {text!r} is no list of hosts, such as '
                            'n[1-4,7]') from None
    return Switch(names if kind == 'nodes' else (),
                  names if kind == 'switches' else ())


def _is_tree(where: str, found: dict[str, Switch]) -> None:
    """Each node and each switch is plugged into one switch at most, and
    every walk upwards ends."""
    above: dict[tuple[str, str], str] = {}
    for name, switch in found.items():
        for kind, one in [*(('node', n) for n in switch.nodes),
                          *(('switch', s) for s in switch.switches)]:
            if kind == 'switch' and one not in found:
                raise TopologyError(f'{where}: switch {name} has a switch '
                                    f'{one!r}, of which nothing is said')
            if (kind, one) in above:
                raise TopologyError(f'{where}: {kind} {one} is plugged into '
                                    f'{above[kind, one]} and {name}')
            above[kind, one] = name
    for name in found:
        seen = [name]
        while ('switch', seen[-1]) in above:
            seen.append(above['switch', seen[-1]])
            if len(seen) > len(found):
                raise TopologyError(f'{where}: switch {name} is above '
                                    'itself')


def above(found: dict[str, Switch]) -> dict[str, list[str]]:
    """Node -> the switches above it, the nearest first.

    >>> above({'leaf': Switch(('n1',), ()), 'top': Switch((), ('leaf',))})
    {'n1': ['leaf', 'top']}
    """
    over = {low: name for name, switch in found.items()
            for low in switch.switches}
    nodes: dict[str, list[str]] = {}
    for name, switch in found.items():
        chain = [name]
        while chain[-1] in over:
            chain.append(over[chain[-1]])
        nodes |= {node: chain for node in switch.nodes}
    return nodes


def summary(found: dict[str, Switch]) -> str:
    """How much there is, in a few words."""
    def number(count: int, what: str) -> str:
        return f'{count} {what}{"" if count == 1 else "es"}'

    nodes = sum(len(switch.nodes) for switch in found.values())
    leaves = sum(bool(switch.nodes) for switch in found.values())
    return (f'{nodes} node{"" if nodes == 1 else "s"} on '
            f'{number(leaves, "leaf switch")}, '
            f'{number(len(found), "switch")} in all')
