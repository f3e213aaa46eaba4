"""Options of SmartSim-Scaling under their own names.

-S SmartRedisThroughput.settings=client_nodes:4,tensor_bytes:1024+65536

Each option has one value. `plumb run` makes a test case of each combination of
lists such as db_nodes:4|8 (cli/session/crossing.py). Sizes of tensors joined by
+ are the points of one curve.
"""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class SettingError(ValueError):
    """An option is unknown, has an invalid value, or is replaced."""


@dataclass(frozen=True)
class Options:
    """Options of a test case; defaults are the original's."""

    #: Unit: bytes; empty: the sizes of the scenario.
    tensor_bytes: tuple[int, ...] = ()
    #: First port of the servers; 0: any free port.
    db_port: int = 0
    #: Interface on which servers listen; empty: the site's.
    net_ifname: str = ''
    #: Transport to a colocated database: uds or tcp.
    net_type: str = 'uds'
    #: HH:MM:SS of the job; empty: the default.
    wall_time: str = ''
    #: Threads that share the work of each thread of a device.
    intra_op_threads: int = 1
    #: Fields of the scenario that are changed.
    scenario: Mapping[str, Any] = field(default_factory=dict)


#: Options that are fields of a scenario, and their minimum value.
NUMBERS = {'db_nodes': 1, 'db_cpus': 1, 'client_nodes': 0,
           'clients_per_node': 1, 'iterations': 1, 'io_threads': 1}
OF_KIND = {'throughput': {},
           'aggregation': {'tensors_per_dataset': 1, 'client_threads': 1},
           'inference': {'db_tpq': 1, 'batch_size': 1, 'num_devices': 1}}

#: Options of the original that Plumbline replaces -> replacement.
REPLACED = {
    'exp_name': 'records contain the names of test case and session',
    'launcher': 'set the launcher in the system.py of the site',
    'run_db_as_batch': 'the database is part of the job, and its servers end '
    'with the clients (docs/reference/families/smartredis.md)',
    'batch_args': "put the scheduler's options into access of the partition",
    'node_feature': 'put constraints into access of the partition',
    'db_node_feature': 'put constraints into access of the partition',
    'prod_node_feature': 'put constraints into access of the partition',
    'cons_node_feature': 'put constraints into access of the partition',
    'db_hosts': 'the database runs on the first nodes of the job, by name; '
    'select nodes with -J nodelist=',
    'rebuild_model': 'each run has its own database and stores the model',
    'nodes': 'use client_nodes',
    'pin_app_cpus': 'ranks always have separate CPUs',
    'pin_db_cpus': 'servers always have separate CPUs',
    'cpu_hyperthreads': 'Plumbline assigns whole cores if there are enough',
    'custom_pinning': 'ranks and servers always have separate CPUs',
    'languages': "SmartRedis' other languages call the same library as C++",
    'inter_op_threads': 'the layers of the networks run one after the other',
    'threads_per_queue': 'use db_tpq, as in SmartSim-Scaling',
    'plot': 'use ./plumb report, which draws all plots',
    'plot_type': 'use ./plumb report, which draws all plots',
    'scaling_dir': 'use ./plumb report, which reads the records',
    'scaling_results_dir': 'use ./plumb report, which reads the records',
    'overwrite': 'use ./plumb report, which reads new records',
}


def read_options(kind: str, given: Mapping[str, str]) -> Options:
    """Read the options of a check of this kind.

    :raises SettingError: an option is invalid; the message has valid values.
    """
    numbers = NUMBERS | OF_KIND[kind]
    own: dict[str, Any] = {}
    scenario: dict[str, Any] = {}
    for name, text in given.items():
        if name in numbers:
            scenario[name] = _parse_number(name, text, numbers[name])
        elif name == 'tensor_bytes':
            own[name] = tuple(_parse_number(name, size, 4)
                              for size in text.split('+'))
            if len(set(own[name])) < len(own[name]):
                raise SettingError(f'{name}: a size occurs twice')
        elif name == 'io_threads_do_reads':
            scenario[name] = _parse_word(name, text, 'yes', 'no')
        elif name == 'device' and kind == 'inference':
            if text != 'CPU':
                raise SettingError('device must be CPU, because the module '
                                   'does not support GPUs')
        elif name == 'intra_op_threads' and kind == 'inference':
            own[name] = _parse_number(name, text, 1)
        elif name == 'db_port':
            own[name] = _parse_number(name, text, 0)
        elif name == 'net_ifname':
            own[name] = text
        elif name == 'net_type':
            own[name] = _parse_word(name, text, 'uds', 'tcp')
        elif name == 'wall_time':
            own[name] = _to_reframe_duration(text)
        elif name in REPLACED:
            raise SettingError(f'remove {name}: {REPLACED[name]}')
        else:
            known = [*numbers, 'io_threads_do_reads', 'tensor_bytes',
                     'db_port', 'net_ifname', 'net_type', 'wall_time', *(
                         ['device', 'intra_op_threads']
                         if kind == 'inference' else [])]
            near = difflib.get_close_matches(name, known, 1)
            raise SettingError(f'unknown option {name!r}; ' + (
                f'did you mean {near[0]}?' if near else
                f'known options: {", ".join(known)}'))
    return Options(scenario=scenario, **own)


def _parse_number(name: str, text: str, minimum: int) -> int:
    if not text.isdigit() or int(text) < minimum:
        hint = ('; only ./plumb run crosses lists, and plain ReFrame needs -P '
                '(docs/reference/families/smartredis.md)' if '|' in text else '')
        raise SettingError(f'{name}: expected a whole number of at least '
                           f'{minimum}, got {text!r}{hint}')
    return int(text)


def _parse_word(name: str, text: str, *words: str) -> str:
    if text not in words:
        raise SettingError(f'{name} must be {" or ".join(words)}, not {text!r}')
    return text


def _to_reframe_duration(text: str) -> str:
    """A duration such as 05/00/00 in ReFrame's format."""
    parts = text.split('/')
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise SettingError('wall_time: expected HH/MM/SS, for example '
                           '05/00/00 (a colon would end the option), got '
                           f'{text!r}')
    hours, minutes, seconds = map(int, parts)
    return f'{hours}h{minutes}m{seconds}s'
