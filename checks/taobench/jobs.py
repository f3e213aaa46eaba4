"""The jobs of TaoBench, as benchpress/config/jobs.yml of DCPerf defines them.

A job is a script of DCPerf with some options. The embedded server and memcached follow
the rules of that script (sizing.py).
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..core.parsers import ParseError


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

#: Numbers that a script prints for all servers.
RESULT = ('spawned_instances', 'successful_instances', 'fast_qps', 'slow_qps',
          'total_qps', 'hit_ratio', 'num_data_points')


def read_script_result(text: str) -> dict[str, float]:
    """The numbers of the JSON that a script prints at its end.

    :raises ParseError: it has none
    """
    match = re.search(r'^\{\n(?:.*\n)*?\}$', text, re.MULTILINE)
    try:
        data = json.loads(match[0]) if match else {}
        return {name: float(data[name]) for name in RESULT}
    except (ValueError, KeyError) as err:
        missing = f' with {err}' if match else ''
        raise ParseError(len(text.splitlines()), text[-80:],
                         f'DCPerf printed no result{missing}') from None
