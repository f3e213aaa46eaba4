"""The jobs of TaoBench, and rules for their servers, threads, memory, keys and clients.

The jobs are those of benchpress/config/jobs.yml of DCPerf: a script with some options.
The rules are those of the code of these scripts (packages/tao_bench, 2025-06), whose
guide is older. They serve programs that the scripts do not start.
docs/reference/studies/taobench.md lists the differences.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: CPUs that one server can use well.
CPUS_PER_SERVER = 72
#: Warm-up per GB of memory, and its minimum. Unit: s.
WARMUP_PER_GB, MIN_WARMUP = 5, 1200
#: Share of the cache in the memory; the cache does not count the rest.
MEMORY_USE = 0.75
#: Mean size of an item. Unit: bytes.
ITEM = 434
#: Keys of a cache, per item that it holds: hit ratio and a factor found by trial.
HIT_RATIO, TUNING = 0.9, 0.807
#: Maximum number of connections of a client, and their number per thread.
CONNECTIONS, CONNECTIONS_PER_THREAD = 32768, 380
#: CPUs that a client does not use.
SPARE_CPUS = 6
#: Pause of the clients after the warm-up. Unit: s.
REST = 5


@dataclass(frozen=True)
class Job:
    """A job of DCPerf (2025-06)."""
    #: Script in packages/tao_bench.
    script: str
    #: Memory of the machine in GB, of which the cache has three quarters; 0: all of it.
    memory: float = 0
    #: Share of the memory that the servers may have: the rest is for the clients.
    memory_share: float = 1
    #: Default times in s; a warm-up of 0 depends on the memory.
    warmup_time: int = 0
    test_time: int = 720
    #: Fast threads per CPU.
    fast_threads: float = 0.75
    #: Whether slow threads wait on a semaphore instead of sleeping.
    semaphore: bool = False
    #: Connections of all clients per CPU of the server; 0: the clients' own default.
    connections_per_cpu: int = 0
    #: Replacement of a deprecated job.
    deprecated: str = ''

    @property
    def has_one_server(self) -> bool:
        """Whether it has one server whose clients have a command of their own."""
        return self.script == 'run.py'

    @property
    def is_standalone(self) -> bool:
        """Whether servers and clients share a machine."""
        return self.script == 'run_standalone.py'


#: Name without tao_bench_ -> job.
JOBS = {
    'autoscale': Job('run_autoscale.py'),
    'standalone': Job('run_standalone.py', memory_share=0.75),
    'autoscale_v2_beta': Job('run_autoscale.py', fast_threads=1.25, semaphore=True,
                             connections_per_cpu=85),
    'custom': Job('run.py', 64, warmup_time=1200, test_time=360),
    '64g': Job('run.py', 64, warmup_time=1200, test_time=360, deprecated='autoscale'),
}


@dataclass(frozen=True)
class Machine:
    """A server machine."""
    #: Number of its CPUs.
    cpus: int
    #: Unit: GB of 2^30 bytes.
    memory: float
    threads_per_core: int = 1


@dataclass(frozen=True)
class Sizes:
    """Sizes that a user may set; 0: the job's default."""
    #: Memory of the servers' machine. Unit: GB.
    memory: float = 0
    #: Number of servers.
    servers: int = 0
    #: Keys of each server.
    keys: int = 0
    #: Connections per thread of a client.
    connections: int = 0
    #: Times in s.
    warmup_time: int = 0
    test_time: int = 0
    #: Factor of the number of keys.
    tuning: float = TUNING


@dataclass(frozen=True)
class Instance:
    """One server."""
    #: Number of its CPUs.
    cpus: int
    #: Memory of the cache. Unit: MB of 2^20 bytes.
    memory: int
    fast_threads: int
    dispatchers: int
    slow_threads: int


@dataclass(frozen=True)
class Client:
    """One client process."""
    #: Index of its server.
    server: int
    threads: int
    #: Connections of each thread.
    connections: int
    #: Largest key; the smallest is 1.
    keys: int


@dataclass(frozen=True)
class Plan:
    """All processes of a run. Times in s."""
    instances: tuple[Instance, ...]
    clients: tuple[Client, ...]
    warmup_time: int
    test_time: int

    def connections_to_server(self, server: int) -> int:
        """Connections of all clients to one server."""
        return sum(client.threads * client.connections
                   for client in self.clients if client.server == server)

    def key_count_of_client(self, client: Client) -> int:
        """Number of keys of a client, its part of the keys of its server."""
        peers = sum(peer.server == client.server for peer in self.clients)
        return -(-client.keys // peers)


def plan_job(job: Job, machine: Machine, sizes: Sizes, client_cpus: Sequence[int]
             ) -> Plan:
    """All processes of a run.

    :param client_cpus: CPUs of each client machine; those that share the servers'
        machine count as machines
    :raises ValueError: a size is too large or too small; the message names it
    """
    memory = sizes.memory or job.memory or machine.memory * job.memory_share
    count = 1 if job.has_one_server else sizes.servers or server_count(machine.cpus)
    instances = tuple(make_instance(job, cpus, memory / count)
                      for cpus in cpu_counts_of_servers(machine, count))
    keys = sizes.keys or key_count(memory / count, sizes.tuning)
    # More servers than client machines: each server has one client; otherwise each
    # machine has one.
    machines = len(client_cpus)
    clients = []
    for index in range(machines if job.has_one_server else max(count, machines)):
        cpus = client_cpus[index % machines]
        threads = client_thread_count(cpus)
        wanted = sizes.connections
        if not wanted and job.connections_per_cpu:
            wanted = max(job.connections_per_cpu * machine.cpus // (
                client_thread_count(client_cpus[0]) * max(count, machines)), 1)
        clients.append(Client(index % count, threads,
                              connections_per_thread(cpus, wanted), keys))
    warmup = sizes.warmup_time or job.warmup_time or warmup_seconds(memory)
    return Plan(instances, tuple(clients), warmup, sizes.test_time or job.test_time)


def make_instance(job: Job, cpus: int, memory: float) -> Instance:
    """A server with its part of the CPUs and of the memory in GB."""
    cache = cache_size_mb(memory)
    if cache < 1:
        raise ValueError(f'memory: {memory:g} GB per server are too few: the cache '
                         'would have less than 1 MB')
    fast = max(int(cpus * job.fast_threads), 1)
    return Instance(cpus, cache, fast, max(fast // 4, 1), 3 * fast)


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
        raise ValueError(f'servers = {parts}: {parts} servers need a core each, but '
                         f'the node has {cores} cores')
    share, more = divmod(cores, parts)
    counts = [(share + (index < more)) * threads for index in range(parts)]
    counts[-1] -= cores * threads - machine.cpus
    return counts


def warmup_seconds(memory: float) -> int:
    """Length of the warm-up that fills this memory in GB. Unit: s."""
    return max(int(WARMUP_PER_GB * memory), MIN_WARMUP)


def key_count(memory: float, tuning: float = TUNING) -> int:
    """Number of keys for a machine with this memory in GB."""
    held = int(cache_size_mb(memory) * 2 ** 20 / ITEM)
    return max(int(int(held / HIT_RATIO) * tuning), 1)


def cache_size_mb(memory: float) -> int:
    """Size of the cache in MB for this memory in GB."""
    return int(memory * 1024 * MEMORY_USE)


def client_thread_count(cpus: int) -> int:
    """Number of threads of a client on this number of CPUs."""
    return cpus - SPARE_CPUS if cpus > SPARE_CPUS else max(int(cpus * 0.8), 1)


def connections_per_thread(cpus: int, wanted: int = 0) -> int:
    """Number of connections per thread of a client, limited by its CPUs."""
    return min(wanted or CONNECTIONS_PER_THREAD, max(CONNECTIONS // cpus, 1))
