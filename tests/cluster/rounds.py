"""Kill rounds: kills a part of a job with servers, then looks what is left.

For bench/kill_rounds.py, test_cluster_service.py and test_cluster_ssh.py. The job is
what ReFrame makes of a check with services: server on the first node, clients
on the three others. It is a job of Slurm, or `bash` of the script on the first node,
whose launcher reaches the others by ssh.
"""
from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from cluster import LOGIN, ROOT, SWITCH, WORK, Cluster, ClusterError, Process
from reframe.core.exceptions import SanityError

from checks.core import guards
from checks.core.parsers import ParseError
from checks.machine import nodes
from checks.services.parser import split_service_record
from checks.services.plan import Clients, Plan, Program, Server, Step
from checks.services.script import Launching, job_script_lines
from checks.stores import aimodule
from checks.stores.servers import Needs, make_server_role
from config.sites.launch import step_launch_command

SRC = ROOT / 'checks' / 'core' / 'src'
STORE = 'valkey'

#: For a job to end after a kill: services.sh stops everything (17 s), and Slurm has a
#: timeout for a dead node. It is longer, because all nodes share one machine, and
#: shorter than the job's time limit. Unit: seconds.
END_TIMEOUT = 240.0

#: Time limit of a job that is to reach it, with Slurm and without. Unit: seconds.
TIME_LIMIT = {False: 60, True: 5}

#: For everything to be cleaned up after the job's end. Unit: seconds.
CLEANUP_TIMEOUT = 120.0


#: Name of a launcher here -> launcher and MPI, as a site has them; none: all processes
#: are on one node.
LAUNCHERS = {'srun': ('srun', ''), 'mpirun': ('mpirun', 'openmpi'),
             'openmpi': ('mpirun', 'openmpi'), 'hydra': ('mpirun', 'mpich'),
             'none': ('local', '')}

#: Those of a cluster without Slurm -> program of Debian that starts processes.
SSH = {'openmpi': 'mpirun.openmpi', 'hydra': 'mpiexec.hydra', 'none': ''}

#: Launcher -> the folder of the MPI whose programs it starts as ranks, and
#: what those need besides.
MPI = {'srun': ('mpich', ['env', 'SLURM_MPI_TYPE=pmi2',
                          'MPIR_CVAR_NOLOCAL=1',
                          'MPIR_CVAR_ENABLE_HEAVY_YIELD=1']),
       'mpirun': ('mpi', ['env', 'OMPI_MCA_mpi_yield_when_idle=1',
                          'OMPI_MCA_btl=self,tcp', 'OMPI_MCA_pml=ob1'])}

SCRIPT = '''#!/bin/bash
{environment}
export OMPI_ALLOW_RUN_AS_ROOT=1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd {folder}
{services}
. {measure} --repetitions 1 --accept 0 -- run_and_stop
'''


def load(seconds: float, folder: Path, launcher: str = '') -> Plan:
    """A store on a node of its own, and three clients that load it.

    :arg folder: has the embedded memtier_benchmark.
    """
    alone = launcher == 'none'
    call = (str(folder / 'memtier_benchmark'), '--service', '{service}', '--seed',
            '{index}', '--threads', '1', '--clients', '10',
            '--key-maximum', '2999')
    return Plan(
        make_server_role(STORE, str(WORK / 'stores'),
                         Needs(memory=64, connections=30), nodes=1),
        (Clients(nodes=1 if alone else 3, instances=3 if alone else 1,
                 apart=not alone),), (
            Step('fill', (Program(commands=((
                *call, '--ratio', '1:0', '--key-pattern', 'P:P', '--requests',
                'allkeys'),)),), limit=30),
            # A low rate: the nodes share one machine.
            Step('measure', (Program((
                *call, '--rate-limiting', '50', '--ratio', '0:1', '--on-miss',
                'fail', '--test-time', str(seconds))),),
                 limit=seconds + 30, gate=True)), interface='eth0')


def tao(seconds: float, folder: Path, launcher: str = '') -> Plan:
    """TaoBench: two caching servers on a node, three clients, two phases.

    :arg folder: has tao_server and the embedded memtier_benchmark.
    """
    client = (f'{folder}/memtier_benchmark', '--service', '{service}', '--protocol',
              'memcache_binary', '--ratio', '0:1', '--threads', '1', '--clients', '10',
              '--key-maximum', '6000', '--test-time', str(max(1, round(seconds / 2))))
    return Plan(
        Server('tao_server', (
            f'{folder}/tao_server', '-l', '{address}', '-p', '{port}', '-m', '3', '-t',
            '1', '-o', 'tao_stats_sleep_ms=500'), dialect='memcached',
            instances=2, password=False),
        (Clients(nodes=3, unbound=True, one_server=True, apart=True),), tuple(
            Step(name, (Program(commands=(client,) * 3),), 30, gate=True)
            for name in ('warmup', 'test')), interface='eth0', sample=0.5)


def of_ranks(seconds: float, folder: Path, launcher: str,
             programs: Mapping[str, tuple[str, ...]]) -> Plan:
    """A store with the AI module on a node of its own, and tensorload's
    ranks on the three others.

    :arg folder: has what build_ranks() makes.
    :arg programs: role -> mode and options of tensorload; the last of two
        roles has a node of its own.
    """
    common = ('--service', '{service}', '--limit', '20', '--folder',
              '{output}.ranks')
    nodes = [3] if len(programs) == 1 else [2, 1]
    return Plan(
        make_server_role(STORE, str(WORK / 'stores'),
                         Needs(memory=96, connections=30, modules=(
                   aimodule.module_load_line(str(folder / 'ai.so')),)),
               nodes=1),
        tuple(Clients(nodes=count, name=name, apart=True)
              for name, count in zip(programs, nodes, strict=True)),
        (Step('measure', tuple(
            Program((str(folder / launcher / 'tensorload'), mode, *common,
                     *options), role=name, mpi=True)
            for name, (mode, *options) in programs.items()), limit=60),),
        interface='eth0')


def throughput(seconds: float, folder: Path, launcher: str = 'srun') -> Plan:
    return of_ranks(seconds, folder, launcher, {'client': (
        'throughput', '--bytes', '65536', '--iterations',
        str(round(150 * seconds)))})


def inference(seconds: float, folder: Path, launcher: str = 'srun') -> Plan:
    return of_ranks(seconds, folder, launcher, {'client': (
        'inference', '--model', str(folder / 'model'), '--script',
        str(folder / 'script'), '--side', '16', '--classes', '10',
        '--iterations', str(round(60 * seconds)))})


def aggregation(seconds: float, folder: Path, launcher: str = 'srun'
                ) -> Plan:
    both = ('--tensors', '2', '--bytes', '8192', '--iterations',
            str(round(15 * seconds)))
    return of_ranks(seconds, folder, launcher, {
        'producer': ('producer', *both),
        'consumer': ('consumer', *both, '--producers', '2')})


#: What is played -> function that makes the plan of a job.
PLANS = {'keyvalue': load, 'taobench': tao, 'throughput': throughput,
         'inference': inference, 'aggregation': aggregation}

#: Those of MPI programs.
OF_RANKS = ('throughput', 'inference', 'aggregation')


def build(folder: Path) -> None:
    """The load generator, and TaoBench's server."""
    for script, out in ((ROOT / 'checks' / 'loadgen' / 'src', 'memtier_benchmark'),
                        (ROOT / 'checks/taobench/src', 'tao_server')):
        if not (folder / out).exists():
            subprocess.run([script / 'build.sh', folder / out],
                           check=True, stdout=subprocess.DEVNULL)


def build_ranks(folder: Path) -> None:
    """The SmartRedis driver with the MPI of each launcher, the module that
    the store loads, and a model."""
    for launcher, (mpi, _) in MPI.items():
        (folder / launcher).mkdir(exist_ok=True)
        subprocess.run(
            [ROOT / 'checks/smartredis/src/build.sh',
             folder / launcher / 'tensorload'], check=True, env={
                 **os.environ, 'CC': str(WORK / mpi / 'bin' / 'mpicc')})
    subprocess.run(aimodule.module_build_command(str(folder / 'ai.so')), shell=True,
                   check=True)
    (folder / 'model').write_bytes(aimodule.model_blob('tiny'))
    (folder / 'script').write_text(aimodule.SCRIPT)


def programs() -> Path:
    """The folder of the nodes' observer, built as a check's build does it."""
    path, sources = WORK / 'observe', [*SRC.glob('*.c')]
    (WORK / 'facts').mkdir(exist_ok=True)
    if not path.exists() or path.stat().st_mtime < max(
            source.stat().st_mtime for source in sources):
        subprocess.run(['cc', '-O2', '-std=gnu11', *sources, '-o', path], check=True)
    return WORK


@dataclass
class Job:
    """A Slurm job that runs a plan."""
    cluster: Cluster
    launcher: str
    folder: Path
    number: str = ''
    began: float = 0.0
    #: 0: none, or 5 minutes with Slurm. Unit: seconds.
    time_limit: int = 0

    def submit(self, plan: Plan) -> Job:
        """Start the job."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        nodes = plan.node_count
        step, ranks = (step_launch_command(*LAUNCHERS[self.launcher], nodes, mpi)
                       for mpi in (False, True))
        variables = MPI[self.launcher][1] if self.launcher in MPI else []
        lines = job_script_lines(plan, Launching(
            step if nodes > 1 else [], [*variables, *ranks], self.launcher != 'srun',
            programs=str(programs()), rank=f'{SRC / "rank.sh"} {programs()} "" mpirun'))
        self.began = time.monotonic()
        self.start(SCRIPT.format(
            environment=self.environment(nodes), folder=self.folder,
            measure=SRC / 'measure.sh', services='\n'.join(lines)))
        return self

    def environment(self, nodes: int) -> str:
        """Lines of the script that give it launcher and nodes."""
        return f'export PATH={WORK}/mpi/bin:$PATH'

    def start(self, script: str) -> None:
        self.number = self.cluster.submit(
            script, '-n4', '--ntasks-per-node=1', '--cpus-per-task=2',
            f'--time={self.time_limit // 60 or 5}', '--no-requeue',
            '--output=job.out', '--error=job.err', cwd=self.folder)

    def is_script(self, process: Process) -> bool:
        """Whether a process is the job script."""
        return process.name == 'slurm_script'

    def is_running(self) -> bool:
        return self.cluster.job(self.number)['JobState'] in (
            'PENDING', 'CONFIGURING', 'RUNNING')

    def wait_for_nodes(self) -> None:
        # For a pending job Slurm would just wait for another node.
        while self.cluster.job(self.number)['JobState'] in ('PENDING',
                                                            'CONFIGURING'):
            time.sleep(0.02)

    def cancel(self) -> bool:
        """Cancel it; False: it had ended."""
        return not self.cluster.exec('scancel', self.number).returncode

    def wait(self) -> str:
        """Its state at its end.

        :raises ClusterError: it does not end; it is killed.
        """
        try:
            return self.cluster.wait(self.number, END_TIMEOUT)['JobState']
        except ClusterError:
            self.cluster.exec('scancel', '-s', 'KILL', self.number)
            raise

    def end(self) -> dict[str, str]:
        """Nodes, state and exit code of the ended job, as Slurm has them."""
        return self.cluster.job(self.number)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def lines(self) -> list[str]:
        """The messages of services.sh, from the files that ReFrame reads."""
        return [line for path in self.folder.glob('run.*.err')
                for line in path.read_text(errors='replace').splitlines()
                if line.startswith('service: ')]

    def verdict(self) -> str:
        """The guard's message on the ended job; empty: it passes."""
        end = self.end()
        job = SimpleNamespace(
            jobid=self.number, nodelist=end['NodeList'].split(),
            state=end['JobState'], time_limit='300', max_pending_time='300',
            stderr=str(self.folder / 'job.err'),
            exitcode=int(end['ExitCode'].partition(':')[0]))
        try:
            guards.check_service_failures(self.folder, job)
            guards.check_job_state(job)
            (run,) = guards.read_repetitions(self.folder, 1)
            nodes.check_leftover_processes(self.folder, [run])
            nodes.read_node_reports(run)
            split_service_record(run.out)
        except SanityError as err:
            return str(err)
        except ParseError as err:
            return f'table: {err}'
        return ''


class ShellJob(Job):
    """`bash` of the job script on the first node, without a scheduler."""

    process: subprocess.Popen[str]

    def environment(self, nodes: int) -> str:
        folder = self.folder / 'bin'
        folder.mkdir()
        if program := SSH[self.launcher]:
            # Debian's programs have names of their own.
            path = folder / program.partition('.')[0]
            path.write_text(f'#!/bin/sh\nexec /usr/bin/{program} "$@"\n')
            path.chmod(0o755)
        names = ' '.join(self.cluster.nodes[:nodes])
        return (f'export PATH={folder}:{self.cluster.ssh_folder}/bin:$PATH\n'
                f'export PLUMBLINE_NODES="{names}"')

    def start(self, script: str) -> None:
        (self.folder / 'rfm_job.sh').write_text(script)
        limit = ['timeout', str(self.time_limit)] if self.time_limit else []
        with (open(self.folder / 'job.out', 'wb') as out,
              open(self.folder / 'job.err', 'wb') as err):
            # A session of its own, as below a scheduler.
            self.process = self.cluster.box(
                'exec', 'n1', '--', 'setsid', *limit, 'bash', 'rfm_job.sh',
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def is_script(self, process: Process) -> bool:
        return process.command == 'bash rfm_job.sh'

    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_for_nodes(self) -> None:
        pass

    def cancel(self) -> bool:
        """SIGTERM to all processes of the session, as PBS does it."""
        processes = self.cluster.processes('n1')
        sessions = [os.getsid(p.pid) for p in processes if self.is_script(p)]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) in sessions:
                    os.kill(process.pid, signal.SIGTERM)
        return bool(sessions)

    def wait(self) -> str:
        try:
            return f'exit code {self.process.wait(END_TIMEOUT)}'
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise ClusterError(f'it runs after {END_TIMEOUT:g} s') from None

    def end(self) -> dict[str, str]:
        return {'NodeList': 'n1', 'JobState': 'COMPLETED',
                'ExitCode': str(self.process.returncode)}


def new_job(cluster: Cluster, launcher: str, folder: Path, time_limit: int = 0
            ) -> Job:
    """A job with this launcher."""
    return (ShellJob if launcher in SSH else Job)(
        cluster, launcher, folder, time_limit=time_limit)


# Victims -----------------------------------------------------------------

@dataclass(frozen=True)
class Victim:
    """What is killed, and texts of which the message must contain one."""
    #: Whether a process of a node is the victim; None: not a process.
    is_it: Callable[[Process], bool] | None
    #: One of these must be in the message.
    causes: tuple[str, ...]


def _node(action: str) -> Callable[[Process], bool]:
    return lambda p: (p.name.startswith('python')
                      and f'services/node.py {action} ' in p.command)


LAUNCHER_NAMES = ('srun', 'mpirun', 'prterun', 'mpirun.openmpi', 'orterun',
                  'mpiexec.hydra')

#: Daemons of launchers on the nodes.
DAEMONS = ('slurmstepd', 'prted', 'orted', 'hydra_pmi_proxy')

#: Messages on a job whose script was killed.
FAILED = ('ended with exit code', 'ended in state')

VICTIMS = {
    'server': Victim(lambda p: p.name.startswith((f'{STORE}-server',
                                                  'tao_server')),
                     ('was killed by signal 9',)),
    # The kernel keeps 15 characters of a name.
    'client': Victim(lambda p: p.name in ('memtier_benchma', 'tensorload'),
                     ('client', 'was killed by signal 9', 'the MPI program of')),
    'starter': Victim(_node('serve'), ('launcher of server',)),
    'observer': Victim(lambda p: p.command.split()[1:2] == ['--wait'],
                       ('observer', 'exit code 137')),
    'batch': Victim(None, FAILED),
    'launcher': Victim(lambda p: p.name in LAUNCHER_NAMES and ' serve ' in p.command,
                       ('launcher of server',)),
    'daemon': Victim(lambda p: p.name in DAEMONS,
                     ('launcher of server', 'launcher ended', 'observer', 'client',
                      'was killed by signal', *FAILED)),
    'ranks': Victim(lambda p: p.name in LAUNCHER_NAMES and ' client ' in p.command,
                    ('the MPI program of',)),
    'scancel': Victim(None, ('ended by SIGTERM', 'CANCELLED', 'cancelled',
                             'exit code 143')),
    'timeout': Victim(None, ('ended by SIGTERM', 'time limit', 'exit code 124')),
    'node': Victim(None, ('was lost', 'launcher', 'NODE_FAIL', 'did not end in',
                          'client', *FAILED)),
}

#: Victims that jobs of a launcher do not have.
WITHOUT = {'none': ('launcher', 'daemon', 'ranks', 'node')}


def kill_victim(job: Job, name: str, chance: random.Random) -> str:
    """Kills the victim; what was killed, empty: it had ended already."""
    cluster = job.cluster
    if name == 'scancel':
        return 'job' * job.cancel()
    if name == 'timeout':
        job.wait()
        return 'job'
    if name == 'node':
        job.wait_for_nodes()
        node = chance.choice(cluster.nodes)
        # Other nodes get no last packet of it.
        cluster.ask('ip', 'link', 'set', node, 'down', node=SWITCH)
        cluster.kill(node)
        return node
    is_it = VICTIMS[name].is_it or job.is_script
    while job.is_running():
        results = [(node, p) for node in cluster.nodes
                   for p in cluster.processes(node) if is_it(p)]
        if name in ('launcher', 'ranks'):
            # mpirun has an srun of its own, and srun is two processes.
            results = sorted(results, key=lambda one: (
                one[1].name == 'srun', one[1].pid))[:1]
        if results:
            node, victim = chance.choice(results)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                return f'{victim.name} on {node}'
        time.sleep(0.02)
    return ''


def listeners(cluster: Cluster, node: str) -> dict[tuple[str, int], str]:
    """Address and port of all listening sockets of a node -> program."""
    result = dict.fromkeys(cluster.ports(node), '')
    for line in cluster.ask('ss', '-ltnpH', node=node).splitlines():
        address, _, port = line.split()[3].rpartition(':')
        key = (address.strip('[]').replace('*', '::'), int(port))
        if key in result:
            result[key] = line.partition('(("')[2].partition('"')[0]
    return result


# What is left ------------------------------------------------------------

def seen(cluster: Cluster) -> dict[str, Counter[str]]:
    """Processes, ports, mounts and files of each node."""
    result = {}
    for node in (LOGIN, *cluster.nodes):
        if cluster.pid(node) is None:
            continue
        with contextlib.suppress(ClusterError, OSError):
            result[node] = Counter([
                *(f'process {p.pid} {p.command}'
                  for p in cluster.processes(node)),
                *(f'port {address}:{port}'
                  for address, port in cluster.ports(node)),
                *(f'mount {path}' for path in cluster.mounts(node)),
                *(f'file {path}' for path in cluster.files(node))])
    return result


#: Data folders of killed servers are allowed: the next server removes them.
#: Ignored: folders of Open MPI's daemons, segments of MPICH's killed ranks,
#: and the log that ReFrame writes before it has read its configuration.
DATA, FOREIGN = '/plumbline-data-', ('/tmp/prte', '/tmp/ompi', '/tmp/rfm-',
                                      '/dev/shm/mpich_shm_', '/dev/shm/ucx_')


def left(cluster: Cluster, before: dict[str, Counter[str]], folder: Path
         ) -> list[str]:
    """What a job left, after CLEANUP_TIMEOUT at most; also its secrets."""
    deadline = time.monotonic() + CLEANUP_TIMEOUT
    while True:
        results = [
            f'{node}: {one}'
            for node, all_of_it in seen(cluster).items()
            for one in all_of_it - before.get(node, Counter())
            if not any(path in one for path in FOREIGN)
        ]
        results += [f'{folder.name}: file {path}'
                    for path in folder.glob('**/secrets.private.*')]
        if all(DATA in one for one in results) or time.monotonic() > deadline:
            return sorted(results)
        time.sleep(0.1)


def end_processes(cluster: Cluster, rest: list[str]) -> None:
    """End processes that left() has listed."""
    for line in rest:
        node, _, one = line.partition(': process ')
        for process in cluster.processes(node) if one else ():
            if one == f'{process.pid} {process.command}':
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


# A round -----------------------------------------------------------------

@dataclass
class Round:
    """The outcome of a job in which something was killed."""
    launcher: str
    victim: str
    #: What was killed; empty: the kill came too late.
    killed: str
    #: When, after the job was submitted. Unit: seconds.
    at: float
    #: Seconds from the kill to the job's end, and until all was cleaned up.
    ended: float
    clean: float
    state: str
    verdict: str
    lines: list[str]
    #: Data folders of killed servers, which the next servers remove, and secrets.
    data: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """What is wrong with the outcome, in words."""
        results = [f'left: {one}' for one in self.left]
        if self.ended > END_TIMEOUT:
            results.append(f'ended after {self.ended:.1f} s')
        if len(self.lines) > 1:
            results.append(f'{len(self.lines)} lines: '
                           f'{" / ".join(self.lines)}')
        if self.verdict and not any(
                cause in self.verdict
                for cause in VICTIMS[self.victim].causes):
            results.append(f'another cause: {self.verdict}')
        return results


def play(cluster: Cluster, launcher: str, victim: str, plan: Plan,
         folder: Path, at: float, chance: random.Random) -> Round:
    """One round: kills the victim `at` seconds after the job was submitted,
    or as soon as the victim exists after that.
    """
    before = seen(cluster)
    job = new_job(cluster, launcher, folder,
                  TIME_LIMIT[launcher in SSH] if victim == 'timeout' else 0)
    job.submit(plan)
    time.sleep(at)
    killed = kill_victim(job, victim, chance)
    struck = time.monotonic()
    at = struck - job.began
    try:
        state = job.wait()
    except ClusterError as err:
        state = str(err)
    ended = time.monotonic() - struck
    rest = left(cluster, before, folder)
    clean = time.monotonic() - struck
    verdict = job.verdict() if ended < END_TIMEOUT else 'it did not end'
    end_processes(cluster, rest)
    if victim == 'node':
        cluster.boot(killed)
    cluster.wait_idle(cluster.nodes)
    # Secrets that die with the node of the script are removed by the next session.
    data = [one for one in rest
            if DATA in one or killed == cluster.nodes[0] and 'secrets.private.' in one]
    return Round(launcher, victim, killed, at, ended, clean, state, verdict,
                 job.lines(), data, [one for one in rest if one not in data])


def undisturbed(cluster: Cluster, launcher: str, plan: Plan, folder: Path
             ) -> tuple[float, str]:
    """A job without a kill: its duration (s) and its verdict."""
    job = new_job(cluster, launcher, folder).submit(plan)
    job.wait()
    cluster.wait_idle(cluster.nodes)
    return job.seconds(), job.verdict()
