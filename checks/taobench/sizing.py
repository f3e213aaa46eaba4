"""Sizes of TaoBench on a machine: servers, threads, memory, keys, clients.

The rules are those of the original's code (DCPerf, packages/tao_bench,
2025-06); its guide is older.  comparison.md lists the differences.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.taobench import jobs
from checks.taobench.jobs import Job, Value

#: CPUs that one server can use well.
CPUS_PER_SERVER = 72
#: Bandwidth of the network in the guide: the minimum for so many CPUs, the
#: minimum for more, and the maximum. Unit: Mb/s.
MIN_LINK, MIN_LINK_MANY_CPUS, MAX_LINK = 10_000, 20_000, 50_000
#: Rule -> seconds of warm-up per GB of memory.
WARMUP_PER_GB = {'code': 5, 'guide': 10}
#: Share of the cache in the memory; the cache does not count the rest.
MEMORY_USE = 0.75
#: Mean size of an item. Unit: bytes.
ITEM = 434
#: Maximum number of connections of a client.
CONNECTIONS = 32768
#: CPUs that a client does not use.
SPARE_CPUS = 6
PORT = 11211
#: Additional time of a phase, and of the servers before they are killed. Unit: s.
PHASE_MARGIN, SERVER_MARGIN = 30, 60


@dataclass(frozen=True)
class Machine:
    """A server machine."""
    #: Number of its CPUs.
    cpus: int
    #: Unit: GB of 2^30 bytes.
    memory: float
    threads_per_core: int = 1


@dataclass(frozen=True)
class Instance:
    """One server."""
    index: int
    port: int
    #: Number of its CPUs.
    cpus: int
    #: Memory of the cache. Unit: MB of 2^20 bytes.
    memory: int
    fast_threads: int
    nic_channels: int
    #: Options of the server, letters and `-o` names of the original; None: no
    #: value.  Paths of files are not among them. Values may have fields of a plan of
    #: services, in braces.
    options: Mapping[str, Value | None]


@dataclass(frozen=True)
class Client:
    """One client process."""
    #: Index of its machine, and of its server.
    machine: int
    server: int
    port: int
    threads: int
    #: Connections of each thread.
    connections: int
    #: Largest key; the smallest is 1.
    keys: int
    #: The arguments of `run.py client`.
    arguments: Mapping[str, Value]


@dataclass(frozen=True)
class Plan:
    """All processes of a run. Times in s."""
    job: Job
    settings: Mapping[str, Value]
    instances: tuple[Instance, ...]
    clients: tuple[Client, ...]
    warmup_time: int
    test_time: int
    #: Time from the start of a server to its kill.
    kill_after: int

    def connections_to_server(self, server: int) -> int:
        """Connections of all clients to one instance."""
        return sum(client.threads * client.connections
                   for client in self.clients if client.server == server)

    def key_count_of_client(self, client: Client) -> int:
        """Number of keys of a client, its part of the keys of its server."""
        peers = sum(peer.server == client.server for peer in self.clients)
        return -(-client.keys // peers)


def server_count(cpus: int) -> int:
    """Number of servers for this number of CPUs."""
    return -(-cpus // CPUS_PER_SERVER)


def cpu_counts_of_servers(machine: Machine, parts: int) -> list[int]:
    """CPUs of each server: whole cores; the first servers have one more.

    The last core may have fewer threads than the others.
    """
    threads = machine.threads_per_core
    cores = -(-machine.cpus // threads)
    if not 0 < parts <= cores:
        raise ValueError(f'num_servers = {parts}: {parts} instances need a core each, '
                         f'but the node has {cores} cores')
    share, more = divmod(cores, parts)
    counts = [(share + (index < more)) * threads for index in range(parts)]
    counts[-1] -= cores * threads - machine.cpus
    return counts


def min_link_speed(cpus: int) -> int:
    """Minimum bandwidth of the servers' machine with so many CPUs. Unit: Mb/s."""
    return MIN_LINK if cpus <= CPUS_PER_SERVER else MIN_LINK_MANY_CPUS


def warmup_seconds(memsize: float, rule: str = 'code') -> int:
    """Length of the warm-up that fills this memory in GB. Unit: s.

    :param rule: code | guide, a key of WARMUP_PER_GB
    """
    return max(int(WARMUP_PER_GB[rule] * memsize), 1200)


def key_count(memsize: float, hit_ratio: float = 0.9,
              tuning: float = 0.807) -> int:
    """Number of keys for a machine with this memory in GB.

    :param hit_ratio: share of the keys that the cache holds
    :param tuning: factor for the number of keys, found by trial
    """
    held = int(cache_size_mb(memsize) * 2 ** 20 / ITEM)
    return int(int(held / hit_ratio) * tuning)


def cache_size_mb(memsize: float) -> int:
    """Size of the cache in MB for this memory in GB."""
    return int(memsize * 1024 * MEMORY_USE)


def client_thread_count(cpus: int, expected: int = 0) -> int:
    """Number of threads of a client on this number of CPUs."""
    if expected > 0:
        return expected
    return cpus - SPARE_CPUS if cpus > SPARE_CPUS else max(int(cpus * 0.8), 1)


def connections_per_thread(cpus: int, expected: int = 0) -> int:
    """Number of connections per thread of a client, limited by the CPUs; 0
    requests 380."""
    return min(expected or 380, max(CONNECTIONS // cpus, 1))


def plan_job_processes(of: Job, machine: Machine,
                       given: Mapping[str, Value] | None = None,
                       client_given: Mapping[str, Value] | None = None,
                       client_cpus: Sequence[int] = (),
                       hostname: str = '', rule: str = 'code') -> Plan:
    """Plan of all processes that one run of a job starts.

    :param given: parameters of the job, or of its role `server`
    :param client_given: parameters of its role `client`, or further parameters
        of the clients that a job without roles starts
    :param client_cpus: CPUs of each client machine; empty: from the job's
        parameters
    :param hostname: name of the server, if the parameters have none
    :param rule: rule for the length of the warm-up, as in `warmup_seconds`
    :raises ValueError: a parameter is invalid; the message names it
    """
    if not machine.cpus:
        raise ValueError('the server machine has no CPUs')
    if '' in of.roles:
        return _plan_autoscaled_servers(of, machine, given, client_given, client_cpus,
                                        hostname, rule)
    return _plan_single_server(of, machine, given, client_given, client_cpus, hostname)


def _plan_single_server(of: Job, machine: Machine, given: Mapping[str, Value] | None,
                        client_given: Mapping[str, Value] | None,
                        client_cpus: Sequence[int], hostname: str) -> Plan:
    """Plan with one server on the whole machine, for jobs with roles."""
    values = jobs.role_arguments_with_defaults(of, 'server', given)
    memsize = _numeric_value(values, 'memsize')
    port = int(_numeric_value(values, 'port_number')) or PORT
    # Both sides must agree: arguments not given to a client are the server's.
    options = {'server_hostname': hostname, 'server_memsize': memsize,
               'warmup_time': values['warmup_time'],
               'test_time': values['test_time'], 'server_port_number': port,
               'disable_tls': values['disable_tls'], **(client_given or {})}
    client_values = jobs.role_arguments_with_defaults(of, 'client', options)
    server = _make_instance(0, machine.cpus, values, memsize, port)
    clients = tuple(_make_client(index, 0, own, client_values)
                    for index, own in enumerate(client_cpus or [machine.cpus] * 2))
    return _make_plan(of, values, (server,), clients,
                      int(_numeric_value(values, 'warmup_time')), 0)


def _plan_autoscaled_servers(
    of: Job,
    machine: Machine,
    given: Mapping[str, Value] | None,
    client_given: Mapping[str, Value] | None,
    client_cpus: Sequence[int],
    hostname: str,
    rule: str,
) -> Plan:
    """Plan with as many servers as suit the machine, for jobs without roles.
    """
    values = jobs.role_arguments_with_defaults(of, '', given)

    def integer_value(name: str) -> int:
        return int(_numeric_value(values, name))

    memsize = _numeric_value(values, 'memsize') or machine.memory * of.memory_share
    count = integer_value('num_servers') or server_count(machine.cpus)
    values |= {'memsize': memsize, 'num_servers': count,
               'warmup_time': (integer_value('warmup_time')
                               or warmup_seconds(memsize, rule)),
               'port_number_start': integer_value('port_number_start') or PORT,
               'server_hostname': values['server_hostname'] or hostname}
    if client_cpus and 'num_clients' not in (given or {}):
        values['num_clients'] = len(client_cpus)
    first = integer_value('port_number_start')
    if first + count - 1 > 65535:
        raise ValueError(f'port_number_start = {first}: {count} servers need '
                         'ports above 65535')
    instances = [_make_instance(index, cpus, values, memsize / count, first + index)
                 for index, cpus in enumerate(cpu_counts_of_servers(machine, count))]
    machines = integer_value('num_clients')
    own = list(client_cpus) or [integer_value('client_cores')
                                or machine.cpus] * machines
    if len(own) != machines:
        raise ValueError(f'num_clients = {machines} does not match the number '
                         f'of client machines, {len(own)}')
    connections = _connections_per_thread_option(values, machine.cpus)
    client_job = jobs.JOBS['tao_bench_custom']
    clients = []
    # More servers than machines: each server has one client; otherwise
    # each machine has one.
    for index in range(max(count, machines)):
        server, place = index % count, index % machines
        options = {'server_hostname': values['server_hostname'],
                   'server_memsize': memsize / count,
                   'warmup_time': values['warmup_time'],
                   'test_time': values['test_time'],
                   'server_port_number': first + server, **connections}
        if integer_value('client_wait_after_warmup') >= 0:
            options['wait_after_warmup'] = values['client_wait_after_warmup']
        if integer_value('disable_tls'):
            options['disable_tls'] = 1
        options |= client_given or {}
        clients.append(_make_client(
            place, server, own[place],
            jobs.role_arguments_with_defaults(client_job, 'client', options)))
    return _make_plan(of, values, tuple(instances), tuple(clients),
                      integer_value('warmup_time'), SERVER_MARGIN)


def _connections_per_thread_option(values: Mapping[str, Value], cpus: int
                        ) -> dict[str, Value]:
    """The clients' option for connections per thread; empty: the default."""
    expected = int(_numeric_value(values, 'clients_per_thread'))
    per_cpu = int(_numeric_value(values, 'conns_per_server_core'))
    if not expected and per_cpu:
        cores = int(_numeric_value(values, 'client_cores')) or cpus
        parts = max(int(_numeric_value(values, 'num_servers')),
                    int(_numeric_value(values, 'num_clients')))
        expected = max(per_cpu * cpus // (client_thread_count(cores) * parts), 1)
    return {'clients_per_thread': expected} if expected else {}


def _make_instance(index: int, cpus: int, values: Mapping[str, Value],
                   memsize: float, port: int) -> Instance:
    def count_by_ratio(of: float, name: str) -> int:
        return int(of * _numeric_value(values, name))

    memory = cache_size_mb(memsize)
    if memory < 1:
        raise ValueError(
            f'memsize: {memsize:g} GB per server are too few: the '
            'cache would have less than 1 MB'
        )
    fast = max(count_by_ratio(cpus, 'fast_threads_ratio'), 1)
    dispatchers = max(count_by_ratio(fast, 'dispatcher_to_fast_ratio'), 1)
    slow = max(count_by_ratio(fast, 'slow_to_fast_ratio'), 1)
    options: dict[str, Value | None] = {
        'c': 180000, 'u': '{user}', 'm': memory, 't': fast, 'B': 'binary',
        'p': '{port}', 'I': '16m'}
    if not values['disable_tls']:
        options['Z'] = None
    options |= {
        'lru_crawler': None, 'tao_max_item_size': 65536,
        'tao_gen_payload': 0, 'tao_slow_dispatchers': dispatchers,
        'tao_num_slow_threads': slow, 'tao_max_slow_reqs': 1024,
        'tao_worker_sleep_ns': 100, 'tao_dispatcher_sleep_ns': 100,
        'tao_slow_sleep_ns': 100, 'tao_slow_path_sleep_us': 0,
        'tao_compress_items': 1,
        'tao_stats_sleep_ms': values['stats_interval'],
        'tao_slow_use_semaphore': values['slow_threads_use_semaphore'],
        'tao_pin_threads': values['pin_threads'],
        'tao_smart_nanosleep': values['smart_nanosleep']}
    return Instance(index, port, cpus, memory, fast,
                    count_by_ratio(cpus, 'nic_channel_ratio'), options)


def _make_client(machine: int, server: int, cpus: int,
                 values: Mapping[str, Value]) -> Client:
    if cpus < 1:
        raise ValueError(f'client machine {machine + 1} has no CPUs')
    return Client(
        machine, server,
        int(_numeric_value(values, 'server_port_number')) or PORT,
        client_thread_count(cpus, int(_numeric_value(values, 'num_threads'))),
        connections_per_thread(
            cpus, int(_numeric_value(values, 'clients_per_thread'))),
        max(key_count(_numeric_value(values, 'server_memsize'),
                      _numeric_value(values, 'target_hit_ratio'),
                      _numeric_value(values, 'tunning_factor')), 1),
        values)


def _make_plan(of: Job, values: Mapping[str, Value],
               instances: tuple[Instance, ...], clients: tuple[Client, ...],
               warmup_time: int, margin: int) -> Plan:
    test_time = int(_numeric_value(values, 'test_time'))
    kill_after = (warmup_time + test_time + margin
                  + int(_numeric_value(values, 'timeout_buffer')))
    return Plan(of, values, instances, clients, warmup_time, test_time, kill_after)


def _numeric_value(values: Mapping[str, Value], name: str) -> float:
    value = values[name]
    assert not isinstance(value, str)
    return value


# Commands of the original ----------------------------------------------------

def nic_setup_commands(server: Instance, values: Mapping[str, Value],
                       prefix: str) -> list[list[str]]:
    """Commands (for root) that set the NIC's channels and their CPUs."""
    if values['interface_name'] == 'lo':
        return []
    channels = str(server.nic_channels)
    where = (['--cpu', ' '.join(map(str, range(server.nic_channels)))]
             if values['hard_binding'] else
             ['-A', 'all-nodes', '--max-cpus', channels])
    return [['ethtool', '-L', str(values['interface_name']), 'combined',
             channels],
            [f'{prefix}/affinitize/affinitize_nic.py', '-f', '-a', '--xps',
             *where]]
