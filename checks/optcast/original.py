"""Checks of Optcast's own run script, test/run.py: it starts servers and clients.

The job runs the script on its first node; the script starts the processes with
`mpirun`.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.core.runtime as rt
import yaml
from reframe.core.builtins import parameter, run_after, run_before

from config.records import metrics

from ..core import guards, placement
from ..core.options import option_value
from ..core.parsers import ParseError
from ..services.plan import Clients, Plan, Program, Server, Step
from . import parser, programs, scenarios
from .optcast import OptcastAllReduce, metrics_of_spans
from .scenarios import ON_NCCL, ORIGINAL

#: The script that runs run.py in a folder of its own.
RUN = Path(__file__).with_name('original.sh')

#: First port of the servers of a node.
PORT = 18080

#: Relative difference between the printed bandwidth and that of the trace: the
#: former has two decimals, and its clock starts before the trace.
TOLERANCE = 0.1

#: run.py ends the clients after 40 s, then the servers. Unit: s.
LIMIT = 120


@rfm.simple_test
class OptcastOriginal(OptcastAllReduce):
    """Optcast's own run.py, with the servers and the clients of their own program.

    Clients send a chunk to each server and receive the sums, which they do not
    check.
    """

    program = programs.SERVER
    valid_prog_environs = ['+optcast_server']
    scenario = parameter(list(ORIGINAL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ORIGINAL

    REFUSED = {
        **{f'--{option.replace("_", "-")}': f'use the setting {name}'
           for name, option in scenarios.RUN_SCRIPT.items()},
        '--nccl-test-options': 'use the setting client_options',
        '--type --data-type --no-gpu': 'select another test case',
        '--config --log-dir --shared-dir --server --client --reduction-servers':
            'the check sets it to those of the job',
        '--analyze -a': 'use ./plumb parse optcast',
        # The server's own client sends one chunk to each server.
        '--nsplit': 'use the check OptcastNccl'}
    REFUSED_OF_CLIENTS = {
        '-n --iters': 'use the setting iterations',
        '-w --warmup_iters': 'use the setting warmup',
        '-b -e -i -f --minbytes --maxbytes --stepbytes --stepfactor':
            'use the setting sizes',
        '-d --datatype': 'select another test case',
        '-t -g --nthreads --ngpus': 'use the setting clients',
        '-c --check': 'every result is checked',
        '-o --op': 'the servers only add',
        '-C --report_cputime -h --help': 'with it the table has no bandwidths'}

    #: Steps: name -> options of run.py.
    STEPS: ClassVar[dict[str, tuple[str, ...]]] = {
        'optcast': ('--type', 'optcast', '--no-gpu')}

    #: Threads of a client that poll without sleep.
    SPINNING_OF_CLIENT: ClassVar[int] = 1

    # Launch -----------------------------------------------------------------

    def service_plan(self) -> Plan:
        """One program on the first of the nodes: it starts the others by itself.

        :raises ValueError: run.py cannot do what the settings require
        """
        of = self.run_setup
        if len(of.sizes) > 1:
            raise ValueError('sizes: run.py measures one size; give one')
        more, more_of_clients = self.option_words()
        settings = of.to_run_script_settings()
        settings['nccl_test_options'] = ' '.join([settings['nccl_test_options'],
                                                  *more_of_clients])
        del settings['type']
        options = (*(word for name, value in settings.items() for word in (
            f'--{name.replace("_", "-")}', str(value))), '--verbose', *more)
        files = self.installed_files()
        return Plan(
            Server(programs.SERVER, (), instances=0),
            (Clients(nodes=self.client_nodes + self.server_nodes, unbound=True,
                     spinning=self.spinning_threads(of)),),
            tuple(Step(name, (Program(commands=((
                str(RUN), '{output}.log', sys.executable, *files, *kind, *options),)),),
                LIMIT) for name, kind in self.STEPS.items()))

    def spinning_threads(self, of: scenarios.Setup) -> int:
        """Threads of all servers and clients of a node that poll without sleep."""
        words = self.option_words()[0]
        servers = self.servers_of_node * sum(
            int(option_value(words, name, name, str(usual))) for name, usual in (
                ('--num-threads', scenarios.REDUCE_THREADS),
                ('--num-sends', of.copy_threads), ('--num-recvs', of.copy_threads)))
        clients = of.clients // self.client_nodes * self.SPINNING_OF_CLIENT
        return max(servers, clients) if self.server_nodes else servers + clients

    def installed_files(self) -> list[str]:
        """Paths of run.py, server, plugin and all_reduce_perf; '': not used."""
        return [*self.find_files(self.program, programs.RUN_SCRIPT, programs.SERVER,
                                 programs.LIBRARY), '']

    def find_files(self, program: str, *names: str) -> list[str]:
        """Paths of files of a program's installation.

        :raises SanityError: the environment has no prefix, or a file is missing
        """
        prefix = self.programs.required_prefix(program)
        paths = [programs.find_installed_file(prefix, name) for name in names]
        for name, path in zip(names, paths, strict=True):
            if not path and not self.is_dry_run():
                guards.fail_test_case('programs', f'{name} does not exist below '
                                      f'{prefix}')
        return paths

    @property
    def usual_transport(self) -> dict[str, str]:
        """Variables of the plugin for nodes without InfiniBand NICs."""
        return ({} if scenarios.count_infiniband_nics(self.current_partition.devices)
                else {'NCCL_PLUGIN_P2P': 'socket'})

    def config_yaml(self) -> str:
        """The config of run.py, with @0@ for the name of the first node, and so on."""
        of, each = self.run_setup, self.servers_of_node
        # run.py gives the servers no other variables than these.
        transport = (self.required_transport() or {}).get('env') or self.usual_transport
        nics = scenarios.server_nic_environments(self.current_partition.devices, each)
        servers = [{'name': f'@{number // each}@', 'port': PORT + number % each,
                    'env': {**transport, **(nics[number % each] if nics else {})}}
                   for number in range(of.servers)]
        nodes = [self.server_nodes + rank * self.client_nodes // of.clients
                 for rank in range(of.clients)]
        clients = [{'name': f'@{node}@'} for node in nodes]
        return yaml.safe_dump({'servers': servers, 'clients': clients}, sort_keys=False)

    @run_before('run')
    def write_config(self) -> None:
        """Write config.yaml, in which the job replaces numbers by names of nodes."""
        Path(self.stagedir, 'config.yaml').write_text(self.config_yaml())
        self.prerun_cmds = [
            *self.prerun_cmds, 'for number in "${!nodes[@]}"; do '
            'sed -i "s/@$number@/${nodes[number]}/" config.yaml; done']
        # A panic without a backtrace has its message on the last line.
        for name, value in {**self.usual_transport, 'RUST_BACKTRACE': '0'}.items():
            self.env_vars.setdefault(name, value)

    # Results ----------------------------------------------------------------

    def required_metrics(self) -> list[str]:
        return list(self.expected_metrics())

    def expected_metrics(self) -> Iterator[str]:
        size = self.request_size
        yield from ('client_bandwidth', metrics.metric_key('algbw', size),
                    metrics.metric_key('busbw', size))
        yield from metrics_of_spans('client', 'send', 'recv')
        yield from metrics_of_spans('server', 'recv', 'reduce', 'send')

    def min_repetition_seconds(self, values: dict[str, float]) -> float:
        # run.py has the number of requests fixed.
        return 0

    @property
    def request_size(self) -> int:
        """Size of a request, a chunk to each server. Unit: B."""
        return self.run_setup.chunksize * self.run_setup.servers

    def log_files(self, run: str) -> dict[str, list[str]]:
        folder = f'{run}.optcast.0.log'
        return {path.name: [f'{folder}/{path.name}']
                for path in Path(self.stagedir, folder).iterdir()}

    def derived_values(self, result: parser.Analysis) -> dict[str, float]:
        """algbw and busbw of the client that traced, from its time stamps,
        because it prints only two decimals."""
        of, size, spans = self.run_setup, self.request_size, result.client.spans
        if len(result.client.bandwidths) != of.clients:
            raise ParseError(1, '', f'{len(result.client.bandwidths)} of {of.clients} '
                             'clients have finished', 'client.log')
        # A request has a span of each kind per server.
        count = sum(span.kind == 'send' for span in spans) / of.servers
        took = max(span.end for span in spans) - min(span.start for span in spans)
        algbw = size * count / took / 1e6
        # Gb/s of 2^30 bit.
        printed = result.client.bandwidths[0] * 2 ** 30 / 8e9
        if abs(algbw - printed) > TOLERANCE * printed + 0.001:
            raise ParseError(1, '', f'the trace gives {algbw:.4g} GB/s ({count:g} '
                             f'requests of {size} B in {took:.1f} ms), but the client '
                             f'printed {printed:.4g} GB/s', 'client.log')
        return {metrics.metric_key('algbw', size): algbw,
                metrics.metric_key('busbw', size):
                algbw * 2 * (of.clients - 1) / of.clients}

    def required_transport(self) -> Mapping[str, Any] | None:
        """The transport of the plugin that the site requires."""
        return self.current_environ.extras.get('transport')

    def unvalidated_data(self) -> str:
        return "validation: Optcast's own clients do not compare the sums"

    def read_transport_log(self, run: guards.Run) -> str:
        """The log of the servers, in which the plugin names its transport."""
        return Path(self.stagedir, f'{run.name}.optcast.0.log', 'server.log').read_text(
            errors='replace')


@rfm.simple_test
class OptcastNccl(OptcastOriginal):
    """Optcast's own run.py with NCCL: all_reduce_perf on the GPUs of the client
    nodes, which checks every result.

    It first runs NCCL alone over the same NICs. So `ring_ratio` compares both in the
    same minute.
    """

    valid_prog_environs = ['+optcast_server +optcast_nccl']
    partition_features = ('+gpu_nvidia',)
    scenario = parameter(list(ON_NCCL), fmt=lambda scenario: str(scenario))
    SCENARIOS = ON_NCCL

    REFUSED = {name: instead for name, instead in OptcastOriginal.REFUSED.items()
               if name != '--nsplit'}
    STEPS = {'ring': ('--type', 'nccl'), 'optcast': ('--type', 'optcast')}
    # The proxy of NCCL, and the thread that waits for the GPU.
    SPINNING_OF_CLIENT = 2

    unvalidated_data = OptcastAllReduce.unvalidated_data
    expected_metrics = OptcastAllReduce.expected_metrics
    min_repetition_seconds = OptcastAllReduce.min_repetition_seconds
    derived_values = OptcastAllReduce.derived_values

    @run_after('init')
    def require_gpus(self) -> None:
        """Leave partitions out whose nodes have fewer GPUs than ranks."""
        enough = {part.fullname for part in rt.runtime().system.partitions
                  if placement.gpus_per_node(part) * self.client_nodes
                  >= self.effective_scenario.clients}
        self.valid_systems = [words for words in self.valid_systems
                              if words.split()[0] in enough]

    def installed_files(self) -> list[str]:
        # Another package of a stack may have all_reduce_perf.
        return [*super().installed_files()[:-1],
                *self.find_files(programs.ALL_REDUCE, programs.ALL_REDUCE)]

    def log_files(self, run: str) -> dict[str, list[str]]:
        return {**super().log_files(run), 'ring.txt': [f'{run}.ring.0.log/client.log']}
