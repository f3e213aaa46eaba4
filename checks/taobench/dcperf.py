"""Check of TaoBench as DCPerf's own scripts run it.

The servers' node runs a script of packages/tao_bench; a client node runs the command
that this script prints for it. Both write their files into a folder of links to DCPerf
in the stage directory (dcperf.sh).
"""
from __future__ import annotations

import math
from pathlib import Path

import reframe as rfm
from reframe.core.builtins import parameter, run_after

from ..core import guards
from ..services.parser import Services
from ..services.plan import Clients, Plan, Program, Server, Step
from . import parser as tao
from . import validity
from .scenarios import PAUSE, scenarios_of_program
from .sizing import REST
from .taobench import HERE, TaoBenchmark

#: Options of each script that the check sets itself -> what to use instead.
REFUSED = {
    '--memsize': 'use the setting memory',
    '--warmup-time': 'use the setting warmup_time',
    '--test-time': 'use the setting test_time',
    '--stats-interval': 'use the setting interval',
    '--num-clients': 'select a scenario with this number of client nodes',
    '--server-memsize': 'use the setting memory'}


@rfm.simple_test
class TaoBenchOriginal(TaoBenchmark):
    """A job of DCPerf's TaoBench, by DCPerf's own scripts."""

    REFUSED = REFUSED_OF_CLIENTS = REFUSED

    # Time for servers to start and end, and for the script's own margins.
    MARGIN = 600

    #: Job, program, scale and place of the clients.
    scenario = parameter(scenarios_of_program('tao_bench_server'),
                         fmt=lambda scenario: str(scenario))

    @run_after('init')
    def keep_logs_of_dcperf(self) -> None:
        """Keep the logs that DCPerf's scripts write in each repetition."""
        self.keep_files = [*self.keep_files, 'run.*.dcperf/*.log']

    # Launch ----------------------------------------------------------------

    def script_options(self) -> list[str]:
        """Options of the script on the servers' node. A size of 0 is DCPerf's own
        default."""
        job, sizes = self.scenario.dcperf_job, self.sizes_on(self.server_machine)
        words = ['--real', '--memsize', f'{sizes.memory or job.memory:g}',
                 '--warmup-time', f'{sizes.warmup_time or job.warmup_time}',
                 '--test-time', f'{sizes.test_time or job.test_time}',
                 '--stats-interval', f'{self.statistics_interval * 1000:.0f}']
        if job.has_one_server:
            words.insert(0, 'server')
        else:
            words += ['--num-clients', f'{self.scenario.client_nodes or 2}',
                      '--clients-per-thread', f'{sizes.connections}']
        interface = self.current_partition.extras.get('service_interface')
        if interface and not job.is_standalone:
            words += ['--interface-name', interface]
        if job.semaphore:
            words += ['--fast-threads-ratio', f'{job.fast_threads:g}',
                      '--slow-threads-use-semaphore', '1',
                      '--conns-per-server-core', f'{job.connections_per_cpu}']
        return words

    def min_seconds(self) -> int:
        """Minimum time from start to end of the servers. The scripts compute the
        warm-up from the memory that the kernel reports. Unit: s."""
        return sum(self.phase_seconds(self.server_machine)) * 9 // 10

    def client_options_of_script(self) -> list[str]:
        """Options of `run.py client`, for jobs whose script prints no commands."""
        machine, job = self.server_machine, self.scenario.dcperf_job
        warmup, test = self.phase_seconds(machine)
        return ['--real', '--server-memsize',
                f'{self.sizes_on(machine).memory or job.memory:g}', '--warmup-time',
                f'{warmup}', '--test-time', f'{test}', '--wait-after-warmup',
                f'{PAUSE[self.scenario.scale]}']

    def service_plan(self) -> Plan:
        job, clients = self.scenario.dcperf_job, self.scenario.client_nodes
        server_options, client_options = self.option_words()
        if client_options and not job.has_one_server:
            raise ValueError('client_options: the script of this job starts the '
                             'clients: use options')
        words = str(HERE / 'dcperf.sh'), self.dcperf_folder(), '{output}.dcperf'
        programs = [Program(
            (*words, 'server', f'{self.min_seconds()}',
             job.script, *self.script_options(), *server_options),
            role='server')]
        if clients:
            programs.append(Program((
                *words, 'client', '{index}',
                *([*self.client_options_of_script(), *client_options]
                  if job.has_one_server else []))))
        return Plan(
            Server(self.program, (), instances=0),
            (Clients(name='server', unbound=True),
             *([Clients(nodes=clients, unbound=True, apart=True)] if clients else [])),
            (Step('run', tuple(programs),
                  sum(self.phase_seconds(self.server_machine)) + self.MARGIN),),
            sample=max(self.statistics_interval, 0.25))

    def dcperf_folder(self) -> str:
        """DCPerf's folder, of which `prefix` is benchmarks/tao_bench.

        :raises SanityError: it has no script of the job
        """
        folder = Path(self.programs.required_prefix(self.program)).parent.parent
        script = f'packages/tao_bench/{self.scenario.dcperf_job.script}'
        if not self.is_dry_run() and not (folder / script).exists():
            guards.fail_test_case('programs', f'{folder / script} does not exist: the '
                                  'prefix must be the folder benchmarks/tao_bench of '
                                  'a clone of DCPerf')
        return str(folder)

    # Results ---------------------------------------------------------------

    def unvalidated_data(self) -> str:
        return "validation: DCPerf's clients do not compare the values"

    def required_metrics(self) -> list[str]:
        return [*super().required_metrics(), 'score']

    def extract_service_values(self, services: Services, output: str,
                               run: guards.Run) -> dict[str, float]:
        warmup, seconds = self.phase_seconds(self.server_machine)
        begin, interval = services.steps['run'].at, self.statistics_interval
        folder = Path(self.stagedir, f'{run.name}.run.0.dcperf')
        self.version = self.version or (folder / 'version.txt').read_text().strip()
        # Each server has a log from its start; `run.py server` prints its only one.
        logs = [self.read_log(str(path)) for path in
                sorted(folder.glob('tao-bench-server-*.log'))
                or [Path(self.stagedir, f'{run.name}.run.0.out')]]
        # A log has no times: count its lines until the first request.
        late = interval * next((number for log in logs if log
                                for number, point in enumerate(log.intervals)
                                if point.is_under_load), 0)
        if self.scenario.dcperf_job.is_standalone:
            # The servers end when the times of warm-up and test have passed since
            # their start: the clients start later, and pause after the warm-up.
            seconds = max(math.floor(seconds - late - REST), 0)
        expected = validity.Expected(
            len(logs), warmup, seconds, interval, REST,
            self.scenario.job)
        load, end = begin + late, begin + services.steps['run'].seconds
        test = load + warmup + REST
        values = self.check_and_combine(
            run, expected, logs, [begin] * len(logs),
            {'warmup': (load, load + warmup),
             'test': (test, test + seconds) if seconds else (begin, end)},
            services.client_nodes[0])
        return {**values, 'score': values['total_qps'] / tao.BASELINE}
