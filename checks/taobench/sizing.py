"""The jobs of TaoBench, and sizes of the servers and clients that the suite starts.

The jobs are those of benchpress/config/jobs.yml of DCPerf: a script with some options.
DCPerf's scripts choose the sizes of its own programs. The rules below are theirs
(packages/tao_bench, 2025-06), for programs that the scripts do not start.
docs/reference/studies/taobench.md lists the differences.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: CPUs that one server can use well.
CPUS_PER_SERVER = 72
#: Warm-up per GB of memory, and its minimum. Unit: s.
WARMUP_PER_GB, MIN_WARMUP = 5, 1200
#: Share of the cache in the memory; the cache does not count the rest.
MEMORY_USE = 0.75
#: Mean size of an item. Unit: bytes.
ITEM = 434
#: Keys of a cache, per item that it holds: hit ratio and a factor found by trial.
HIT_RATIO = 0.9
#: Fast threads of a server per CPU.
FAST_THREADS = 0.75
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
    fast_threads: float = FAST_THREADS
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


class Machine(NamedTuple):
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
    tuning: float = 1


@dataclass(frozen=True)
class Plan:
    """All processes of a run. Client n loads server n modulo their number."""
    servers: int
    #: Of each server: number of its CPUs, memory of the cache in MB of 2^20 bytes.
    cpus: int
    memory: int
    clients: int
    #: Threads of a client, and connections of each thread.
    client_threads: int
    connections: int
    #: Keys of each server.
    keys: int
    #: Unit: s.
    warmup_time: int
    test_time: int

    @property
    def fast_threads(self) -> int:
        """Threads of a server that answer from the cache."""
        return max(int(self.cpus * FAST_THREADS), 1)

    @property
    def dispatchers(self) -> int:
        """Dispatchers of the slow path of a server."""
        return max(self.fast_threads // 4, 1)

    @property
    def slow_threads(self) -> int:
        """Threads of the slow path of a server."""
        return 3 * self.fast_threads

    def clients_of_server(self, server: int) -> range:
        """Numbers of the clients of a server."""
        return range(server, self.clients, self.servers)

    def connections_to_server(self, server: int) -> int:
        """Connections of all clients to one server."""
        return (len(self.clients_of_server(server)) * self.client_threads
                * self.connections)

    def key_count_of_client(self, client: int) -> int:
        """Number of keys of a client, its part of the keys of its server."""
        return -(-self.keys // len(self.clients_of_server(client % self.servers)))


def plan_job(machine: Machine, sizes: Sizes, client_machines: int) -> Plan:
    """All processes of a run.

    :param client_machines: those that share the servers' machine count as machines
    :raises ValueError: a size is too large or too small; the message names it
    """
    count = sizes.servers or server_count(machine.cpus)
    cpus, memory = cpus_per_server(machine, count), sizes.memory / count
    cache = cache_size_mb(memory)
    if cache < 1:
        raise ValueError(f'memory: {memory:g} GB per server are too few: the '
                         'cache would have less than 1 MB')
    return Plan(
        # More servers than client machines: each server has one client; otherwise each
        # machine has one.
        count, cpus, cache, max(count, client_machines),
        client_thread_count(machine.cpus),
        sizes.connections, sizes.keys or key_count(memory, sizes.tuning),
        sizes.warmup_time, sizes.test_time)


def memory_of_servers(job: Job, machine: Machine, sizes: Sizes) -> float:
    """Memory of all servers together. Unit: GB."""
    return sizes.memory or job.memory or machine.memory * job.memory_share


def phase_seconds(job: Job, machine: Machine, sizes: Sizes) -> tuple[int, int]:
    """Lengths of warm-up and test. Unit: s."""
    warmup = max(int(WARMUP_PER_GB * memory_of_servers(job, machine, sizes)),
                 MIN_WARMUP)
    return (sizes.warmup_time or job.warmup_time or warmup,
            sizes.test_time or job.test_time)


def server_count(cpus: int) -> int:
    """Number of servers for this number of CPUs."""
    return -(-cpus // CPUS_PER_SERVER)


def cpus_per_server(machine: Machine, servers: int) -> int:
    """CPUs of each server, as many whole cores as all of them can have.

    :raises ValueError: there are fewer cores than servers
    """
    cores = max(machine.cpus // machine.threads_per_core, 1)
    if not 0 < servers <= cores:
        raise ValueError(f'servers = {servers}: each needs a core, but the node has '
                         f'{cores} cores')
    return min(cores // servers * machine.threads_per_core, machine.cpus)


def key_count(memory: float, tuning: float) -> int:
    """Number of keys of a server with this memory in GB."""
    held = int(cache_size_mb(memory) * 2 ** 20 / ITEM)
    return max(int(int(held / HIT_RATIO) * tuning), 1)


def cache_size_mb(memory: float) -> int:
    """Size of the cache in MB for this memory in GB."""
    return int(memory * 1024 * MEMORY_USE)


def client_thread_count(cpus: int) -> int:
    """Number of threads of a client on this number of CPUs."""
    return cpus - SPARE_CPUS if cpus > SPARE_CPUS else max(int(cpus * 0.8), 1)
