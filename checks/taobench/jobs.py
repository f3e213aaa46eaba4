"""The jobs of TaoBench, as benchpress/config/jobs.yml of DCPerf defines them.

A job is a script of DCPerf with some options. The embedded server and memcached follow
the rules of that script (sizing.py).
"""
from __future__ import annotations

from dataclasses import dataclass


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
