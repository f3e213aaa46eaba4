"""Options of SmartSim-Scaling under their own names.

-S SmartRedisThroughput.settings=client_nodes:4,tensor_bytes:1024+65536

One value each: what the original crosses are cases here (points.py), but for
the sizes of tensors, which are the points of one curve.
"""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class SettingError(ValueError):
    """An option that is unknown, has no such value, or is not for here."""


@dataclass(frozen=True)
class Asked:
    """What was asked for; defaults are the original's."""

    #: Unit: bytes; empty: those of the case.
    tensor_bytes: tuple[int, ...] = ()
    #: First port of the servers; 0: any that is free.
    db_port: int = 0
    #: Interface that servers listen on; empty: the site's.
    net_ifname: str = ''
    #: Of a colocated database: uds or tcp.
    net_type: str = 'uds'
    #: HH:MM:SS of the job; empty: the case's.
    wall_time: str = ''
    #: Threads that share the work of each of a device's threads.
    intra_op_threads: int = 1
    #: Fields of a point that are not those of the case.
    point: Mapping[str, Any] = field(default_factory=dict)


#: Options that are fields of a point, and their least value.
NUMBERS = {'db_nodes': 1, 'db_cpus': 1, 'client_nodes': 0,
           'clients_per_node': 1, 'iterations': 1}
OF_KIND = {'throughput': {},
           'aggregation': {'tensors_per_dataset': 1, 'client_threads': 1},
           'inference': {'db_tpq': 1, 'batch_size': 1, 'num_devices': 1}}

#: Options that are said elsewhere, and where.
ELSEWHERE = {
    'exp_name': 'records name the case and the run',
    'launcher': "it is the site's (system.py)",
    'run_db_as_batch': 'the database is part of the job: its servers end '
    'with the clients (README.md)',
    'batch_args': "put the scheduler's options into the partition's access",
    'node_feature': "put constraints into the partition's access",
    'db_node_feature': "put constraints into the partition's access",
    'prod_node_feature': "put constraints into the partition's access",
    'cons_node_feature': "put constraints into the partition's access",
    'db_hosts': 'the first nodes of the job, by name, are the database\'s; '
    'name nodes in -J nodelist=',
    'rebuild_model': 'a model that is missing is stored, each run has a '
    'database of its own',
    'nodes': 'it is client_nodes here, of a colocated case',
    'pin_app_cpus': 'ranks always have CPUs of their own',
    'pin_db_cpus': 'servers always have CPUs of their own',
    'cpu_hyperthreads': 'the suite assigns whole cores where there are '
    'enough',
    'custom_pinning': 'ranks and servers always have CPUs of their own',
    'languages': 'the driver is in C; SmartRedis\' own languages call the '
    'same library',
    'inter_op_threads': 'layers of the built-in networks follow each other',
    'threads_per_queue': 'it is db_tpq here, as in SmartSim-Scaling',
    'plot': './plumb report draws every figure',
    'plot_type': './plumb report draws every figure',
    'scaling_dir': './plumb report reads the records',
    'scaling_results_dir': './plumb report reads the records',
    'overwrite': './plumb report reads what is new',
}


def read(kind: str, given: Mapping[str, str]) -> Asked:
    """What options ask of a test of this kind.

    :raises SettingError: with the name, and what there is.
    """
    numbers = NUMBERS | OF_KIND[kind]
    own: dict[str, Any] = {}
    point: dict[str, Any] = {}
    for name, text in given.items():
        if name in numbers:
            point[name] = _number(name, text, numbers[name])
        elif name == 'tensor_bytes':
            own[name] = tuple(_number(name, size, 4)
                              for size in text.split('+'))
            if len(set(own[name])) < len(own[name]):
                raise SettingError(f'{name}: a size stands twice')
        elif name == 'device' and kind == 'inference':
            if text != 'CPU':
                raise SettingError('device: CPU alone: the module that is '
                                   'built here has no GPUs')
        elif name == 'intra_op_threads' and kind == 'inference':
            own[name] = _number(name, text, 1)
        elif name == 'db_port':
            own[name] = _number(name, text, 0)
        elif name == 'net_ifname':
            own[name] = text
        elif name == 'net_type':
            if text not in ('uds', 'tcp'):
                raise SettingError(f'{name}: uds or tcp, not {text!r}')
            own[name] = text
        elif name == 'wall_time':
            own[name] = _duration(text)
        elif name in ELSEWHERE:
            raise SettingError(f'{name}: {ELSEWHERE[name]}')
        else:
            known = [*numbers, 'tensor_bytes', 'db_port', 'net_ifname',
                     'net_type', 'wall_time', *(
                         ['device', 'intra_op_threads']
                         if kind == 'inference' else [])]
            near = difflib.get_close_matches(name, known, 1)
            raise SettingError(f'{name}: unknown; ' + (
                f'did you mean {near[0]}?' if near else
                f'there are {", ".join(known)}'))
    return Asked(point=point, **own)


def _number(name: str, text: str, minimum: int) -> int:
    if not text.isdigit() or int(text) < minimum:
        raise SettingError(f'{name}: expected a whole number from {minimum} '
                           f'on, got {text!r}')
    return int(text)


def _duration(text: str) -> str:
    """05:00:00 as ReFrame writes it."""
    parts = text.split('/')
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise SettingError(f'wall_time: write 05/00/00 (hours, minutes, '
                           f'seconds; a colon ends an option), got {text!r}')
    hours, minutes, seconds = map(int, parts)
    return f'{hours}h{minutes}m{seconds}s'
