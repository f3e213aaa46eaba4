"""Options of Optcast's run script under their own names, and their checks.

Combinations on which the original hangs or panics are refused here, before
anything is started.
"""
from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import nccl_options

#: Options and defaults of test/run.py (osrg/optcast, April 2024).
DEFAULTS: dict[str, str | int] = {
    'size': '512M', 'chunksize': '512K', 'num_jobs': 2, 'num_threads': 2,
    'num_sends': 4, 'num_recvs': 4, 'nsplit': 1, 'nrank': 0, 'nservers': 0,
    'type': 'optcast', 'data_type': 'f32',
    'nccl_test_options': '-c 1 -n 1 -w 1', 'config': '', 'xlim': ''}
#: Options of the run script that this suite replaces -> replacement.
REPLACED = {
    'shared_dir': 'Plumbline uses the stage directory',
    'log_dir': 'Plumbline uses the stage directory',
    'python': 'Plumbline uses its own Python',
    'mpirun': "Plumbline uses the partition's launcher",
    'verbose': 'Plumbline keeps all logs',
    'analyze': 'use ./plumb parse optcast',
    'no_gpu': 'the environment selects the programs',
    'nccl_plugin_path': 'the environment selects the plugin'}
TYPES = ('optcast', 'nccl', 'sharp', 'ring')
#: Bytes of an element; only the server has bf16, not its run script.
DATA_TYPES = {'f32': 4, 'f16': 2, 'bf16': 2}
_UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}


@dataclass(frozen=True)
class Setup:
    """Checked settings of a run; sizes in B, count in elements."""
    type: str
    data_type: str
    clients: int
    servers: int
    sizes: tuple[int, ...]
    chunksize: int
    nsplit: int
    jobs: int
    threads: int
    sends: int
    recvs: int
    options: nccl_options.NcclTestOptions
    #: First port of the servers of a node; 0: any free port.
    port: int = 0

    @property
    def elements_per_message(self) -> int:
        """Elements of a message to a server."""
        return self.chunksize // DATA_TYPES[self.data_type] // self.nsplit

    def to_run_script_settings(self) -> dict[str, Any]:
        """Contents of setting.yaml of the run script."""
        return {'type': self.type, 'data_type': self.data_type,
                'nrank': self.clients, 'nservers': self.servers,
                'size': ','.join(map(str, self.sizes)),
                'chunksize': self.chunksize, 'nsplit': self.nsplit,
                'num_jobs': self.jobs, 'num_threads': self.threads,
                'num_sends': self.sends, 'num_recvs': self.recvs,
                'nccl_test_options': ' '.join((
                    f'-c {self.options.checks} -n {self.options.iterations} '
                    f'-w {self.options.warmup}', *self.options.words))}


def parse_size(text: str | int) -> int:
    """A size such as `512K` in B.

    :raises ValueError: the text is not a size
    """
    match = re.fullmatch(r'([1-9]\d{0,11})([KMG]?)', str(text))
    if not match:
        raise ValueError(f'{text!r} is not a size: write 512K, 64M or 1G')
    return int(match[1]) * _UNITS[match[2]]


def parse_settings(given: Mapping[str, str | int], clients: int, servers: int,
                   bf16: bool = True, x86_original: bool = False,
                   client_options: str = nccl_options.EMBEDDED) -> Setup:
    """Checked settings of a run.

    :param given: options of the run script; the others have their defaults
    :param clients: ranks, which `nrank` has already set
    :param servers: servers, which `nservers` has already set
    :param bf16: whether the programs support bf16
    :param x86_original: whether it is the original server on x86
    :param client_options: options of nccl-tests that the client has
    :raises ValueError: an option is invalid; the message has valid values
    """
    for name in given:
        if name in REPLACED:
            raise ValueError(f'settings: remove {name}: {REPLACED[name]}')
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, 1)
            raise ValueError(f'settings: unknown option {name!r}; ' + (
                f'did you mean {near[0]}?' if near else
                f'known options: {", ".join(DEFAULTS)}'))
    value = {**DEFAULTS, **given}
    number = {name: parse_number(name, value[name]) for name, default
              in DEFAULTS.items() if isinstance(default, int)}
    if clients < 2:
        raise ValueError('nrank 1: an all-reduce needs at least two ranks')
    kind, type_ = str(value['type']), str(value['data_type'])
    if kind not in TYPES:
        raise ValueError(f'type {kind!r} is unknown; known types: '
                         f'{", ".join(TYPES)}')
    if type_ not in DATA_TYPES or (type_ == 'bf16' and not bf16):
        raise ValueError(f'data_type {type_!r} is unknown; known types: f32, '
                         'f16' + ', bf16' * bf16)
    for name in ('num_sends', 'num_recvs'):
        if name not in given and clients % number[name]:
            number[name] = clients
        if number[name] < 1 or clients % number[name]:
            raise ValueError(f'{name} {number[name]} does not divide the '
                             f'{clients} clients: the server would hang')
    chunk, split = parse_size(value['chunksize']), number['nsplit']
    each = DATA_TYPES[type_]
    if split < 1 or chunk % (each * split):
        raise ValueError(f'nsplit {split} does not divide the '
                         f'{chunk // each} elements of a chunk')
    if kind == 'optcast' and split > servers:
        raise ValueError(f'nsplit {split} exceeds the number of servers, '
                         f'{servers}')
    if min(number['num_jobs'], number['num_threads']) < 1:
        raise ValueError('num_jobs and num_threads must be at least 1')
    if x86_original and type_ == 'f16' and number['num_recvs'] != clients:
        raise ValueError('data_type f16 on x86 needs num_recvs = nrank '
                         f'({clients})')
    options = nccl_options.parse_nccl_test_options(
        str(value['nccl_test_options']), client_options
        if 'nccl_test_options' in given else nccl_options.NCCL)
    sizes = tuple(map(parse_size, re.split('[,+]', str(value['size']))))
    if options.first or options.last:
        sizes = tuple(nccl_options.sizes_of_sweep(options, sizes[-1], parse_size))
    if any(size % each for size in sizes) or len(set(sizes)) != len(sizes):
        raise ValueError(f'size {value["size"]!r}: each size must occur once '
                         f'and be a multiple of {each} B, one element')
    return Setup(kind, type_, clients, servers, tuple(sorted(sizes)), chunk,
                 split, number['num_jobs'], number['num_threads'],
                 number['num_sends'], number['num_recvs'], options)


def parse_number(name: str, value: str | int) -> int:
    """The value of an option as a number.

    :raises ValueError: it is not a whole number
    """
    if not re.fullmatch(r'\d{1,6}', str(value)):
        raise ValueError(f'{name}: {value!r} is not a whole number')
    return int(value)


# The original's config.yaml -------------------------------------------------

@dataclass(frozen=True)
class Config:
    """Contents of a config.yaml: nodes of servers and clients, instances per
    node, first port of a node, environments of the servers of a node."""
    server_nodes: int
    servers_each: int
    client_nodes: int
    clients_each: int
    port: int
    environments: tuple[dict[str, str], ...]


def read_config(path: Path, nrank: int = 0, nservers: int = 0) -> Config:
    """Read a config.yaml in the original's format.

    Names only show which programs share a node: the scheduler chooses the
    nodes, and addresses are those of the job's nodes.

    :param nrank: only the first clients of the file; 0: all
    :param nservers: only the first servers of the file; 0: all, but not more than
        clients
    :raises ValueError: the file is invalid or needs an impossible arrangement
    """
    try:
        data = yaml.safe_load(path.read_text())
        servers = [(str(entry['name']), int(entry['port']),
                    {str(k): str(v) for k, v in entry.get('env', {}).items()})
                   for entry in data['servers']]
        clients = [str(entry['name']) for entry in data['clients']]
    except OSError as err:
        raise ValueError(f'{path}: {err.strerror}') from None
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f'{path}: expected servers: [{{name, port, ...}}] '
                         'and clients: [{name}]') from None
    for name, count, entries in (('nrank', nrank, clients),
                                 ('nservers', nservers, servers)):
        if count > len(entries):
            raise ValueError(f'{name} {count}: {path} has only {len(entries)}')
    clients = clients[:nrank or None]
    servers = servers[:nservers or len(clients)]
    on = Counter(name for name, _, _ in servers)
    at = Counter(clients)
    if not on or not at or len(set(on.values())) > 1 \
            or len(set(at.values())) > 1:
        raise ValueError(f'{path}: each node must have the same number of '
                         'servers, and the same number of clients')
    first = servers[0][1]
    for name in on:
        ports = [port for node, port, _ in servers if node == name]
        if ports != list(range(first, first + len(ports))):
            raise ValueError(f'{path}: {name} has the ports {ports}; on each '
                             f'node they must be {first}, {first + 1}, ...')
    each = next(iter(on.values()))
    return Config(len(on), each, len(at), next(iter(at.values())), first,
                  tuple(env for _, _, env in servers[:each]))


def count_infiniband_nics(devices: Iterable[Any]) -> int:
    """Number of InfiniBand NICs of a node.

    :param devices: ReFrame's devices of a partition
    """
    return sum(device.num_devices or 1 for device in devices
               if (device.type, device.arch) == ('nic', 'infiniband'))


def count_server_nodes(servers: int, each: int,
                       partitions: Iterable[Iterable[Any]]) -> int:
    """Number of nodes for the servers.

    :param each: servers per node; 0: one per NIC
    :param partitions: devices of the partitions that may run the servers
    :raises ValueError: `each` is negative
    """
    if each < 0:
        raise ValueError(f'servers_each {each} must be at least 0')
    maximum = each or max([1, *map(count_infiniband_nics, partitions)])
    return servers // largest_divisor(servers, maximum)


def largest_divisor(number: int, maximum: int) -> int:
    """The largest divisor of a number that is at most `maximum`: processes per node,
    so that all nodes have the same number."""
    return max(count for count in range(1, maximum + 1) if number % count == 0)


def server_nic_environments(
    devices: Iterable[Any], each: int
) -> tuple[dict[str, str], ...]:
    """Environments of the servers of a node, with one NIC each (NCCL_IB_HCA).
    Empty without InfiniBand, or with fewer NICs than servers.

    NICs have the kernel's numbers, from mlx5_0. If some NICs are for storage,
    a config must name the others.

    :param devices: ReFrame's devices of a partition
    """
    return (
        tuple({'NCCL_IB_HCA': f'=mlx5_{number}:1'} for number in range(each))
        if count_infiniband_nics(devices) >= each
        else ()
    )


def format_config_yaml(servers: list[tuple[str, str, int]], clients: list[str],
                       environments: Sequence[Mapping[str, str]] = ()) -> str:
    """Text of a config.yaml with servers (name, address, port) and clients.

    :param environments: environments of the servers of a node, in order
    """
    return yaml.safe_dump({
        'servers': [{'name': name, 'ipaddr': address, 'port': port,
                     **({'env': dict(environments[
                         number % len(environments)])}
                        if environments else {})}
                    for number, (name, address, port) in enumerate(servers)],
        'clients': [{'name': name} for name in clients]}, sort_keys=False)
