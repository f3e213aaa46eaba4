"""The jobs of TaoBench: parameters with the original's names and defaults.

They are from DCPerf (benchpress/config/jobs.yml and the arguments of
packages/tao_bench/run*.py, 2025-06).  A job exposes some arguments of its
script; here the others can be set, too, and `find_unexposed_arguments` lists them.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from config.commandline import suggest_nearest_word

Value = int | float | str

#: Arguments of `run.py server`.
SERVER: dict[str, Value] = {
    # Memory of the machine in GB; the cache has three quarters of it.
    'memsize': 0.0,
    'nic_channel_ratio': 0.5, 'fast_threads_ratio': 0.75,
    'dispatcher_to_fast_ratio': 0.25, 'slow_to_fast_ratio': 3.0,
    'slow_threads_use_semaphore': 0, 'pin_threads': 0,
    'interface_name': 'eth0', 'hard_binding': 0,
    # Unit: ms; all other times: s.
    'stats_interval': 5000,
    'timeout_buffer': 120, 'warmup_time': 1200, 'test_time': 360,
    'disable_tls': 0, 'smart_nanosleep': 0}

#: Arguments of `run.py client`; 0 connections per thread mean 380.
CLIENT: dict[str, Value] = {
    'server_hostname': '', 'server_memsize': 64.0, 'num_threads': 0,
    'target_hit_ratio': 0.9, 'tunning_factor': 0.807,
    'data_size_min': 8191, 'data_size_max': 8193,
    'clients_per_thread': 380, 'server_port_number': 11211, 'sanity': 0,
    'wait_after_warmup': 5, 'warmup_time': 1200, 'test_time': 360,
    'disable_tls': 0}

#: Further arguments of `run_autoscale.py`; 0: from the machine.
AUTOSCALE: dict[str, Value] = {
    'num_servers': 0, 'port_number_start': 11211, 'server_hostname': '',
    'num_clients': 2, 'clients_per_thread': 0, 'client_cores': 0,
    'conns_per_server_core': 0, 'client_wait_after_warmup': -1,
    'bind_cpu': 1, 'bind_mem': 1, 'sanity': 0,
    'warmup_time': 0, 'test_time': 720}

_RATIOS = ('nic_channel_ratio', 'fast_threads_ratio',
           'dispatcher_to_fast_ratio', 'slow_to_fast_ratio')
_SHARED = ('num_servers', 'memsize', 'fast_threads_ratio',
           'slow_to_fast_ratio', 'warmup_time', 'test_time', 'num_clients',
           'clients_per_thread', 'stats_interval', 'disable_tls')
_AUTOSCALE = (*_SHARED, 'interface_name', 'server_hostname')


@dataclass(frozen=True)
class Role:
    """Arguments with their defaults, and those that the job exposes."""
    arguments: Mapping[str, Value]
    opened: frozenset[str]


@dataclass(frozen=True)
class Job:
    """A job of the original; a job without roles has the role ''."""
    name: str
    description: str
    roles: Mapping[str, Role]
    #: Share of the machine's memory if no memsize is given.
    memory_share: float = 1.0
    #: Replacement of a deprecated job.
    deprecated: str = ''
    #: Hooks in its report, in the original's format.
    hooks: tuple[str, ...] = ()


def _copymove_hook_text(*files: str) -> str:
    return f"copymove: {{'is_move': True, 'after': {list(files)}}}"


_LOGS = ('benchmarks/tao_bench/server*.csv', 'tao-bench-server-*.log')
_SPAWNS = ('Spawns multiple Tao benchmark servers depending on the CPU core '
           'count. ')
_TAIL = ('After executing this job, please see the tail of benchpress.log '
         'for instructions on starting clients. ')
_START = 'MAKE SURE to start clients within 1 minute.'

JOBS: dict[str, Job] = {job.name: job for job in (
    Job('tao_bench_64g', f'Tao benchmark using 64GB memory. {_START}', {
        'server': Role({**SERVER, 'port_number': 11211, 'memsize': 64.0},
                       frozenset({'interface_name'})),
        'client': Role(CLIENT, frozenset({'server_hostname'}))},
        deprecated='tao_bench_autoscale',
        hooks=(_copymove_hook_text('benchmarks/tao_bench/server.csv', 'perf.data'),)),
    Job('tao_bench_custom', 'Tao benchmark using custom amount of memory and '
        f'ports. {_START}', {
            'server': Role(
                {**SERVER, 'port_number': 11211, 'memsize': 64.0},
                frozenset({'interface_name', 'memsize', 'port_number',
                           'warmup_time', 'test_time', 'stats_interval',
                           'timeout_buffer', 'disable_tls',
                           'smart_nanosleep'})),
            'client': Role(CLIENT, frozenset(CLIENT) - {
                'num_threads', 'target_hit_ratio', 'tunning_factor'})},
        hooks=(_copymove_hook_text('benchmarks/tao_bench/server.csv', 'perf.data'),)),
    Job('tao_bench_autoscale', f'{_SPAWNS}{_TAIL}{_START}', {
        '': Role({**SERVER, **AUTOSCALE, 'client_wait_after_warmup': 5},
                 frozenset({*_AUTOSCALE, 'port_number_start', 'bind_cpu',
                            'bind_mem', 'sanity', 'timeout_buffer',
                            'client_wait_after_warmup',
                            'smart_nanosleep'}))},
        hooks=('tao_instruction: None', _copymove_hook_text(*_LOGS, 'perf.data'))),
    Job('tao_bench_standalone', f'{_SPAWNS}{_TAIL}'
        f'Clients start on the same instance. {_START}', {
            '': Role({**SERVER, **AUTOSCALE, 'interface_name': 'lo',
                      'server_hostname': 'localhost', 'timeout_buffer': 0},
                     frozenset({*_SHARED, 'bind_cpu', 'bind_mem',
                                'port_number_start'}))},
        # The rest is for the clients.
        memory_share=0.75,
        hooks=(_copymove_hook_text(*_LOGS, 'client_*.log', 'perf.data'),)),
    Job('tao_bench_autoscale_v2_beta', f'{_SPAWNS}This is an experimental '
        'version that aims to improve scalability on CPUs with large core '
        'counts and reduce IRQ overhead.', {
            '': Role({**SERVER, **AUTOSCALE, 'fast_threads_ratio': 1.25,
                      'slow_threads_use_semaphore': 1,
                      'conns_per_server_core': 85},
                     frozenset({*_AUTOSCALE, 'slow_threads_use_semaphore',
                                'pin_threads', 'client_cores',
                                'conns_per_server_core'}))},
        hooks=('tao_instruction: None', _copymove_hook_text(*_LOGS, 'perf.data'))),
)}

#: Smallest and largest value; arguments not listed must be 0 or more.
_RANGES: dict[str, tuple[float, float]] = {
    'num_clients': (1, math.inf), 'client_wait_after_warmup': (-1, math.inf),
    'test_time': (1, math.inf), 'stats_interval': (1, math.inf),
    'server_memsize': (1e-3, math.inf),
    'target_hit_ratio': (1e-3, 1), 'tunning_factor': (1e-3, math.inf),
    **{name: (0, 65535) for name in ('port_number', 'port_number_start',
                                     'server_port_number')},
    **{name: (1e-3, math.inf) for name in _RATIOS}}


def find_job(name: str) -> Job:
    """The job of that name; `autoscale` is tao_bench_autoscale."""
    known = [name, f'tao_bench_{name}']
    for expected in known:
        if expected in JOBS:
            return JOBS[expected]
    raise ValueError(_unknown_name_message('job', known[1], JOBS, 'TaoBench'))


def find_role(of: Job, name: str) -> Role:
    """The job's role of that name."""
    if name not in of.roles:
        raise ValueError(f'{of.name} has no role {name!r}; known roles: '
                         f'{", ".join(map(repr, of.roles))}')
    return of.roles[name]


def role_arguments_with_defaults(
    of: Job, name: str = '', given: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """All arguments of a role: the given ones, and defaults of the others.

    :raises ValueError: an argument is unknown, or its value is invalid
    """
    known = find_role(of, name).arguments
    result = dict(known)
    for key, value in (given or {}).items():
        if key not in known:
            raise ValueError(_unknown_name_message('parameter', key, known, of.name))
        result[key] = _convert_value(of.name, key, value, known[key])
    if float(result.get('data_size_min', 0)) > float(
            result.get('data_size_max', 0)):
        raise ValueError(f'{of.name}: data_size_min exceeds data_size_max')
    return result


def find_unexposed_arguments(of: Job, name: str = '',
                             given: Mapping[str, Value] | None = None) -> list[str]:
    """Given arguments that the original's job does not expose."""
    return sorted(set(given or {}) - find_role(of, name).opened)


def _unknown_name_message(what: str, name: str, known: Mapping[str, object], where: str
             ) -> str:
    hint = (suggest_nearest_word(name, known).rstrip()
            or f'known: {", ".join(sorted(known))}')
    return f'{where}: unknown {what} {name!r}; {hint}'


def _convert_value(where: str, key: str, value: Value, default: Value) -> Value:
    """The value in the type of its default, within its limits."""
    if isinstance(default, str):
        return str(value)
    whole = isinstance(default, int)
    try:
        number = float(value)
        if whole and number % 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f'{where}: {key} = {value!r} is not a '
                         f'{"whole " if whole else ""}number') from None
    low, high = _RANGES.get(key, (0, math.inf))
    if not low <= number <= high or math.isinf(number):
        expected = (f'at least {low:g}' if high == math.inf
                    else f'from {low:g} to {high:g}')
        raise ValueError(f'{where}: {key} = {value!r} must be {expected}')
    return int(number) if whole else number
