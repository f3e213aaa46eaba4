"""Options of Optcast's run script under their own names, and what must hold.

What the original does not look at, and hangs or panics on, is refused here
before anything is started.
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

#: Options and defaults of test/run.py (osrg/optcast, April 2024).
DEFAULTS: dict[str, str | int] = {
    'size': '512M', 'chunksize': '512K', 'num_jobs': 2, 'num_threads': 2,
    'num_sends': 4, 'num_recvs': 4, 'nsplit': 1, 'nrank': 0, 'nservers': 0,
    'type': 'optcast', 'data_type': 'f32',
    'nccl_test_options': '-c 1 -n 1 -w 1', 'config': '', 'xlim': ''}
#: What the services do in the place of the run script.
OURS = {'shared_dir': 'the stage directory', 'log_dir': 'the stage directory',
        'python': "the suite's", 'mpirun': "the partition's launcher",
        'verbose': 'all logs are kept', 'analyze': './plumb parse optcast',
        'no_gpu': 'the programs that an environment offers',
        'nccl_plugin_path': 'the environment'}
TYPES = ('optcast', 'nccl', 'sharp', 'ring')
#: B of an element; bf16 is the server's alone, its run script has no word.
DATA_TYPES = {'f32': 4, 'f16': 2, 'bf16': 2}
_UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}


@dataclass(frozen=True)
class Setup:
    """A run whose settings fit together; sizes in B, count in elements."""
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
    iterations: int
    warmup: int
    #: First port of the servers of a node; 0: any.
    port: int = 0

    @property
    def count(self) -> int:
        """Elements of a message to a server."""
        return self.chunksize // DATA_TYPES[self.data_type] // self.nsplit

    def as_settings(self) -> dict[str, Any]:
        """What setting.yaml of the run script would have."""
        return {'type': self.type, 'data_type': self.data_type,
                'nrank': self.clients, 'nservers': self.servers,
                'size': ','.join(map(str, self.sizes)),
                'chunksize': self.chunksize, 'nsplit': self.nsplit,
                'num_jobs': self.jobs, 'num_threads': self.threads,
                'num_sends': self.sends, 'num_recvs': self.recvs,
                'nccl_test_options':
                    f'-c 1 -n {self.iterations} -w {self.warmup}'}


def size(text: str | int) -> int:
    """`512K` in B.

    :raises ValueError: it is no size
    """
    match = re.fullmatch(r'([1-9]\d{0,11})([KMG]?)', str(text))
    if not match:
        raise ValueError(f'{text!r} is no size: write 512K, 64M or 1G')
    return int(match[1]) * _UNITS[match[2]]


def setup(given: Mapping[str, str | int], clients: int, servers: int,
          bf16: bool = True, x86_original: bool = False) -> Setup:
    """Checked settings of a run.

    :param given: options of the run script; the rest has its defaults
    :param clients: ranks that the case has; `nrank` may take fewer
    :param servers: likewise, `nservers`
    :param bf16: the programs have it
    :param x86_original: the real server on x86
    :raises ValueError: which options do not fit together, and what would
    """
    for name in given:
        if name in OURS:
            raise ValueError(f'settings: {name}: not of the run script here, '
                             f'but {OURS[name]}: leave it out')
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, 1)
            raise ValueError(f'settings: no option {name!r}; ' + (
                f'did you mean {near[0]}?' if near else
                f'there are {", ".join(DEFAULTS)}'))
    value = {**DEFAULTS, **given}
    number = {name: _number(name, value[name]) for name, default
              in DEFAULTS.items() if isinstance(default, int)}
    clients, servers = (_taken(name, number[name], there) for name, there
                        in (('nrank', clients), ('nservers', servers)))
    kind, type_ = str(value['type']), str(value['data_type'])
    if kind not in TYPES:
        raise ValueError(f'type {kind!r}: there are {", ".join(TYPES)}')
    if type_ not in DATA_TYPES or (type_ == 'bf16' and not bf16):
        raise ValueError(f'data_type {type_!r}: there are f32, f16'
                         + ', bf16' * bf16)
    for name in ('num_sends', 'num_recvs'):
        if name not in given and clients % number[name]:
            number[name] = clients
        if number[name] < 1 or clients % number[name]:
            raise ValueError(f'{name} {number[name]} does not divide the '
                             f'{clients} clients: the server would wait for '
                             'ever')
    chunk, split = size(value['chunksize']), number['nsplit']
    each = DATA_TYPES[type_]
    if split < 1 or chunk % (each * split):
        raise ValueError(f'nsplit {split} does not divide the '
                         f'{chunk // each} elements of a chunk')
    if kind == 'optcast' and split > servers:
        raise ValueError(f'nsplit {split} is more than the {servers} servers')
    if min(number['num_jobs'], number['num_threads']) < 1:
        raise ValueError('num_jobs and num_threads are 1 or more')
    if x86_original and type_ == 'f16' and number['num_recvs'] != clients:
        raise ValueError(f'f16 on x86 needs num_recvs = nrank ({clients})')
    options = _test_options(str(value['nccl_test_options']))
    sizes = tuple(map(size, re.split('[,+]', str(value['size']))))
    if options.get('b') or options.get('e'):
        sizes = tuple(_sweep(options, sizes[-1]))
    if min(sizes) < each or len(set(sizes)) != len(sizes):
        raise ValueError(f'size {value["size"]!r}: each size once, and no '
                         'smaller than an element')
    return Setup(kind, type_, clients, servers, tuple(sorted(sizes)), chunk,
                 split, number['num_jobs'], number['num_threads'],
                 number['num_sends'], number['num_recvs'],
                 int(options.get('n', '20')), int(options.get('w', '1')))


def _number(name: str, value: str | int) -> int:
    if not re.fullmatch(r'\d{1,6}', str(value)):
        raise ValueError(f'{name}: {value!r} is no whole number')
    return int(value)


def _taken(name: str, request: int, there: int) -> int:
    """So many of those that there are; 0: all."""
    if request > there:
        raise ValueError(f'{name} {request}: this case has {there}')
    return request or there


def _test_options(text: str) -> dict[str, str]:
    """Options of all_reduce_perf that mean something to both programs."""
    words = text.split()
    result: dict[str, str] = {}
    for name, value in zip(words[::2], words[1::2], strict=False):
        if not re.fullmatch('-[cnwbef]', name):
            raise ValueError(f'nccl_test_options: {name}: expected -n, -w, '
                             '-b, -e, -f or -c 1')
        result[name[1]] = value
    if len(words) % 2:
        raise ValueError(f'nccl_test_options: {words[-1]} has no value')
    if result.get('c', '1') != '1':
        raise ValueError('nccl_test_options: -c 1: results are always '
                         'checked')
    for name in 'nwf':
        if name in result and not re.fullmatch(r'[1-9]\d{0,5}|0',
                                              result[name]):
            raise ValueError(f'nccl_test_options: -{name} {result[name]} is '
                             'no number')
    if result.get('n') == '0' or result.get('f') in ('0', '1'):
        raise ValueError('nccl_test_options: -n from 1 on, -f from 2 on')
    return result


def _sweep(options: Mapping[str, str], largest: int) -> list[int]:
    """Sizes from -b to -e, each -f times the one before."""
    first = size(options.get('b', str(largest)))
    last, factor = size(options.get('e', str(largest))), int(
        options.get('f', '2'))
    if first > last:
        raise ValueError('nccl_test_options: -b is above -e')
    results = [first]
    while results[-1] * factor <= last:
        results.append(results[-1] * factor)
    return results


# The original's config.yaml -------------------------------------------------

@dataclass(frozen=True)
class Config:
    """A config.yaml: nodes of servers and clients, instances on each, the
    first port of a node, environment of the servers of a node, in order."""
    server_nodes: int
    servers_each: int
    client_nodes: int
    clients_each: int
    port: int
    environments: tuple[dict[str, str], ...]


def read_config(path: Path) -> Config:
    """A file in the original's format.

    Names only tell what shares a node: where the job runs is the scheduler's
    choice, and addresses are those of the job's nodes.

    :raises ValueError: what of it cannot be had, a line
    """
    try:
        data = yaml.safe_load(path.read_text())
        servers = [(str(one['name']), int(one['port']),
                    {str(k): str(v) for k, v in one.get('env', {}).items()})
                   for one in data['servers']]
        clients = [str(one['name']) for one in data['clients']]
    except OSError as err:
        raise ValueError(f'{path}: {err.strerror}') from None
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f'{path}: expected servers: [{{name, port, ...}}] '
                         'and clients: [{name}]') from None
    on = Counter(name for name, _, _ in servers)
    at = Counter(clients)
    if not on or not at or len(set(on.values())) > 1 \
            or len(set(at.values())) > 1:
        raise ValueError(f'{path}: as many servers on each node, and as many '
                         'clients, are what a job can be given')
    first = servers[0][1]
    for name in on:
        ports = [port for node, port, _ in servers if node == name]
        if ports != list(range(first, first + len(ports))):
            raise ValueError(f'{path}: ports of {name} are {ports}: they '
                             f'begin at {first} on each node and follow each '
                             'other')
    each = next(iter(on.values()))
    return Config(len(on), each, len(at), next(iter(at.values())), first,
                  tuple(env for _, _, env in servers[:each]))


def nics(devices: Iterable[Any]) -> int:
    """InfiniBand NICs of a node.

    :param devices: a partition's, as ReFrame has them
    """
    return sum(device.num_devices or 1 for device in devices
               if (device.type, device.arch) == ('nic', 'infiniband'))


def server_nodes(servers: int, each: int,
                 partitions: Iterable[Iterable[Any]]) -> int:
    """Nodes for so many servers.

    :param each: servers of a node; 0: one a NIC, or the most below that
        number that divide them equally
    :param partitions: devices of the partitions where they may run
    :raises ValueError: nodes would have different numbers of them
    """
    if not each:
        maximum = max([1, *(count for devices in partitions
                         if (count := nics(devices)))])
        each = max(count for count in range(1, min(maximum, servers) + 1)
                   if servers % count == 0)
    if each < 0 or servers % each:
        raise ValueError(f'servers_each {each} does not divide the '
                         f'{servers} servers')
    return servers // each


def nic_each(devices: Iterable[Any], each: int) -> tuple[dict[str, str], ...]:
    """Environments of the servers of a node, a NIC each: NCCL_IB_HCA. Empty
    without InfiniBand, or with fewer NICs than servers.

    NICs are counted as the driver of the kernel does, from mlx5_0; where some
    are for storage, a config says which.

    :param devices: a partition's, as ReFrame has them
    """
    return tuple({'NCCL_IB_HCA': f'=mlx5_{number}:1'}
                 for number in range(each)) if nics(devices) >= each else ()


def config_text(servers: list[tuple[str, str, int]], clients: list[str],
                environments: Sequence[Mapping[str, str]] = ()) -> str:
    """A config.yaml of servers (name, address, port) and clients.

    :param environments: of the servers of a node, in order
    """
    return yaml.safe_dump({
        'servers': [{'name': name, 'ipaddr': address, 'port': port,
                     **({'env': dict(environments[
                         number % len(environments)])}
                        if environments else {})}
                    for number, (name, address, port) in enumerate(servers)],
        'clients': [{'name': name} for name in clients]}, sort_keys=False)
