"""A cluster in a box with faults that can be injected, for bench/faults.py.

A session has six short test cases. All links have the same limit, and the jobs run one
after the other: the links set the pace, not the CPUs of the machine.
"""
from __future__ import annotations

import contextlib
import os
import pprint
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT, Missing, run, variables_from_plumb_env

sys.path.insert(0, str(ROOT / 'tests' / 'cluster'))

import namespaces
from cluster import WORK, Cluster, ClusterError, compiled
from compiler import cached_compiler

#: The node that has the fault, and the nodes of each pair of ranks. It is that
#: of the store's server, too (the first of its job): what ails one of three
#: clients is in no median, what ails the server is in every answer.
NODE = 'n1'
PAIRS = ('n1,n3', 'n2,n4', 'n1,n4', 'n2,n3')
#: Of all links.
RATE, HALF, TENTH = '100mbit', '50mbit', '10mbit'

#: What a session runs: options of ReFrame. `bandwidth` is of one pair: that a
#: link has another rate shows there in one session, and hardly in latencies.
#: `threads` comes in its place, and only where it is the fault:
#: a store and clients with more threads than CPUs take half a minute.
CASES = {
    'pairs': ['-n', 'program=osu_latency%placement=inter_node'],
    'store': ['-n', 'scenario=valkeygetclient_nodes=3$'],
    'bandwidth': ['-n', '^OsuRma(?=.*window=allocate)(?=.*inter_node)'
                  '(?=.*osu_put_bw)(?=.*synchronisation=flush(%|$))'],
    'threads': ['-n', 'scenario=valkeygetthreads=2$'],
}
SHORT = ['-Sbringup=1', '-Stime_limit=2m', '-Smax_pending_time=10m',
         '-SOsuPt2pt.max_size=16384', '-SOsuPt2pt.iterations=200',
         '-SOsuPt2pt.warmup=20',
         # Smaller ones move so little that a busy machine prints 0.00 MB/s.
         '-SOsuRma.min_size=1024', '-SOsuRma.max_size=8192',
         '-SOsuRma.iterations=12', '-SOsuRma.warmup=2',
         '-SStoreServes.duration=1', '-SStoreServes.warmup=0.2',
         '-SStoreServes.rate=1500']
#: Seconds of a session, after which it is ended.
LIMIT = 900


# Programs and environment ----------------------------------------------------

#: Installed programs, shared with the user's sessions.
INSTALLED = ('venv', 'mpi', 'mpich', 'stores', 'bin')


def replace_symlink(path: Path, target: Path) -> None:
    """Makes a link, or replaces one."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def campaign_environment_variables(site: str, work: Path) -> dict[str, str]:
    """What `plumb env` exports, with a work folder of our own."""
    work.mkdir(parents=True, exist_ok=True)
    # Installs missing programs to the shared folder.
    variables_from_plumb_env('--site', site)
    for name in INSTALLED:
        if (WORK / name).exists():
            replace_symlink(work / name, WORK / name)
    return variables_from_plumb_env('--site', site, PLUMBLINE_WORK=str(work),
                                    PLUMBLINE_PERFLOGS=str(work / 'perflogs'))


def make_session_id(date: str) -> str:
    """The identifier of a session on a date."""
    return f'{date.replace("-", "")}T030000Z-{secrets.token_hex(3)}'


# The box ---------------------------------------------------------------------

def site_configuration_without_fault(box: Box) -> dict[str, Any]:
    """The site of a session without a fault; a fault changes it."""
    folder = box.folder

    def make_partition(name: str, nodes: str, environs: Sequence[str],
                       cores: int = 2) -> dict[str, Any]:
        return {
            'name': name, 'scheduler': 'slurm', 'launcher': 'srun',
            'time_limit': '2m', 'max_jobs': 4, 'environs': [*environs],
            'access': ['--exclusive', '--licenses=alone',
                       f'--nodelist={nodes}'],
            'env_vars': [],
            'processor': {'num_cpus': cores, 'num_cpus_per_core': 1,
                          'num_sockets': 1, 'num_cpus_per_socket': cores},
            'extras': {'max_nodes': len(nodes.split(',')),
                       'launcher_free': ['--overcommit', '--cpu-bind=none'],
                       'launcher_oversubscribe': ['--overcommit',
                                                  '--cpu-bind=none'],
                       'service_interface': 'eth0',
                       # To each node the others are other programs.
                       'others_cpu_limit': 1e6}}

    return {
        'systems': [{
            'name': 'box', 'descr': 'a cluster in a box', 'hostnames': ['.*'],
            'stagedir': str(box.work_folder / 'stage'),
            'outputdir': str(box.work_folder / 'output'),
            'partitions': [
                *(make_partition(f'pair{nodes.replace("n", "").replace(",", "")}',
                                 nodes, ['mpich', 'put_bw'] if nodes == PAIRS[2]
                                 else ['mpich']) for nodes in PAIRS),
                make_partition('all', 'n1,n2,n3,n4', ['valkey']),
                # More cores than the machine may have: the suite says so.
                make_partition('one', 'n1', ['valkey'], 4)]}],
        'environments': [
            *({'name': name, 'cc': f'{box.work_folder}/mpich/bin/mpicc', 'cxx': '',
               'ftn': '', 'features': ['mpi', 'osu', program],
               'env_vars': [['SLURM_MPI_TYPE', 'pmi2'],
                            ['MPIR_CVAR_NOLOCAL', '1'],
                            ['MPIR_CVAR_ENABLE_HEAVY_YIELD', '1']],
               'extras': {'mpi_library': 'mpich 5.0', 'wheel': 'mpich',
                          'programs': {'osu': {
                              'source': 'system', 'version': 'embedded',
                              'spec': 'osu-micro-benchmarks@7.5/1111111',
                              'prefix': str(folder / 'osu')}}}}
              for name, program in (('mpich', 'osu_latency'),
                                    ('put_bw', 'osu_put_bw'))),
            {'name': 'valkey', 'cc': 'cc', 'cxx': '', 'ftn': '',
             'features': ['valkey'],
             'extras': {'wheel': 'stores', 'programs': {'keyvalue': {
                 'source': 'wheel', 'prefix': f'{box.work_folder}/stores'}}}}]}


@dataclass
class Box:
    """The cluster, its site, and the folders of the campaign."""
    folder: Path
    cluster: Cluster
    env: dict[str, str] = field(default_factory=dict)
    site: dict[str, Any] = field(default_factory=dict)

    @property
    def work_folder(self) -> Path:
        return self.folder / 'work'

    @property
    def perflog_folder(self) -> Path:
        return self.work_folder / 'perflogs'

    @property
    def real_osu_latency(self) -> Path:
        """The program behind osu/osu_latency."""
        return self.folder / 'built' / 'osu_latency'

    def write_site(self) -> None:
        path = self.folder / 'site' / 'system.py'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            '# Written by bench/faults.py for each session.\n'
            f'import sys\nsys.path.append({str(ROOT)!r})\n'
            'from config.common import SETTINGS\n'
            f'site_configuration = {{**SETTINGS, **{pprint.pformat(self.site)}}}\n')

    def partition_configs_with_prefix(self, *names: str) -> list[dict[str, Any]]:
        """Those that begin with one of these names."""
        return [one for one in self.site['systems'][0]['partitions']
                if one['name'].startswith(names)]

    def prepare_campaign(self) -> None:
        """Programs, site and environment.

        :raises Missing: what is needed is not here.
        """
        for name in ('reports', 'osu', 'built', 'bin'):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.site = site_configuration_without_fault(self)
        self.write_site()
        env = campaign_environment_variables(str(self.folder / 'site'),
                                             self.work_folder)
        more = cached_compiler(self.folder / 'compiled')
        self.env = {**env, **more, 'PATH': os.pathsep.join((
            str(self.folder / 'compiled' / 'bin'), env['PATH']))}
        if not self.real_osu_latency.exists():
            sources = sorted((ROOT / 'checks' / 'osu' / 'src').glob('*.c'))
            run([self.work_folder / 'mpich' / 'bin' / 'mpicc', '-O2', '-std=gnu11',
                 '-pthread', '-o', self.real_osu_latency, *sources, '-lm'],
                'building osu_latency')
        other = self.real_osu_latency.with_name('osu_put_bw')
        if not other.exists():
            other.symlink_to(self.real_osu_latency)
        self.write_osu_latency_wrapper()

    def write_osu_latency_wrapper(self, script: str = '') -> None:
        """What the site has as osu_latency: the program, or a script that
        calls "$real"."""
        plain = 'exec "$real" "$@"'
        for name, text in (('osu_latency', script or plain),
                           ('osu_put_bw', plain)):
            path = self.folder / 'osu' / name
            path.unlink(missing_ok=True)
            path.write_text(
                '#!/bin/bash\n'
                f'real={shlex.quote(str(self.real_osu_latency.parent))}/${{0##*/}}\n'
                f'read -r host </proc/sys/kernel/hostname\n{text}\n')
            path.chmod(0o755)

    def start_cluster(self) -> None:
        self.cluster.down()
        self.cluster.up(cpus=4, share=[self.folder, ROOT, WORK])
        for node in self.cluster.nodes:
            self.cluster.rate(node, RATE)

    def run_session(self, date: str, perflogs: Path, fault: Fault | None
                    ) -> tuple[str, int, str]:
        """One session: its identifier, exit code, and last lines.

        :raises Missing: the fault cannot be had here.
        :raises ClusterError: it can, and the cluster broke down.
        """
        for old in ('stage', 'output'):
            shutil.rmtree(self.work_folder / old, ignore_errors=True)
        self.site = site_configuration_without_fault(self)
        expected_kinds = session_test_case_names(fault.more if fault else ())
        parts = self.site['systems'][0]['partitions']
        parts[:] = [one for one in parts
                    if one['name'].startswith('pair')
                    or one['name'] == 'all' and 'store' in expected_kinds
                    or one['name'] == 'one' and 'threads' in expected_kinds]
        words = [word for kind in expected_kinds for word in CASES[kind]]
        session = make_session_id(date)
        with contextlib.ExitStack() as stack:
            variables = dict(stack.enter_context(fault.make(self))
                             if fault else {})
            self.write_site()
            code, output = self.run_reframe(
                ['reframe', *words, *SHORT, *(fault.options if fault else ()), '-r'],
                {**self.env, 'PLUMBLINE_PERFLOGS': str(perflogs),
                 'PLUMBLINE_SESSION_ID': session, **variables})
        return session, code, ' / '.join(output[-3:])

    def run_reframe(self, command: Sequence[str], env: Mapping[str, str],
                    limit: float = LIMIT) -> tuple[int, list[str]]:
        """Exit code and last words.

        :arg limit: seconds after which the session is ended
        """
        log = self.folder / 'reports' / 'session.log'
        late = False
        with open(log, 'w') as out:
            process = self.cluster.box(
                'exec', '--', *command, env=dict(env), cwd=ROOT, stdout=out,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                # ReFrame cancels its jobs at SIGTERM.
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()
                process.wait()
        text = re.sub(r'\x1b\[[\d;]*m', '', log.read_text(errors='replace'))
        words = [line.strip() for line in text.splitlines()
                 if line.strip(' -=') and not line.startswith(
                     ('Log file(s) saved', 'Current session stored'))]
        if late:
            words.append(f'ended by bench/faults.py after {limit:.0f} s')
        return process.returncode, words


def session_test_case_names(fault_test_cases: Sequence[str]) -> list[str]:
    """Names in CASES of what a session runs: six test cases."""
    # What a fault needs takes the place of the last.
    return ['pairs', 'store', *(fault_test_cases or ['bandwidth'])]


# Faults ---------------------------------------------------------------------

#: Injects a fault; yields further environment variables for ReFrame.
Injection = contextlib.AbstractContextManager[Mapping[str, str]]


@dataclass(frozen=True)
class Fault:
    """A fault of a cluster: what it is, and how it begins and ends."""
    means: str
    make: Callable[[Box], Injection]
    #: The node that has it; empty: it is of none alone.
    node: str = ''
    #: Further test cases, by their name in CASES.
    more: tuple[str, ...] = ()
    #: Further options of ReFrame.
    options: tuple[str, ...] = ()


@contextlib.contextmanager
def change_network_link(box: Box, what: str, value: str) -> Iterator[Mapping[str, str]]:
    """Another delay, rate or loss of the node's link."""
    change = getattr(box.cluster, what)
    change(NODE, value)
    try:
        yield {}
    finally:
        change(NODE, RATE if what == 'rate' else '0')


@contextlib.contextmanager
def pause_ranks_on_node(box: Box) -> Iterator[Mapping[str, str]]:
    """The ranks on the node may run for half of the time.

    A limit on their CPU time would have no effect: a rank that waits for its
    link uses a tenth of a CPU.
    """
    ranks: list[int] = []

    def pause_ranks_repeatedly() -> bool:
        pids = [one.pid for one in box.cluster.members(NODE)
                if one.command.startswith(str(box.real_osu_latency.parent))]
        ranks.extend(pids)
        # A size of osu_latency is measured for some 25 ms.
        signals = (signal.SIGSTOP, signal.SIGCONT) * 50 if pids else ()
        for number in signals:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.005)
        return False

    with repeat_in_background(pause_ranks_repeatedly):
        yield {}
    if not ranks:
        raise Missing(f'no rank ran on {NODE}, so none was stopped')


@contextlib.contextmanager
def wrap_store_server(box: Box, script: str) -> Iterator[Mapping[str, str]]:
    """A script in place of the store's server, which it starts with
    `exec "$real" "$@"`."""
    real = WORK / 'stores' / 'bin' / 'valkey-server'
    # The site's file names the link.
    prefix, stores = box.work_folder / 'wrapped', box.work_folder / 'stores'
    wrapper = prefix / 'bin' / real.name
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nreal={shlex.quote(str(real))}\n'
                       f'{script}\n')
    wrapper.chmod(0o755)
    try:
        replace_symlink(stores, prefix)
        yield {}
    finally:
        replace_symlink(stores, WORK / 'stores')


def replace_store_server_version(box: Box) -> Injection:
    other = shutil.which('redis-server')
    if not other:
        raise Missing('no redis-server on PATH, which serves as another '
                      'version')
    return wrap_store_server(box, f'exec {shlex.quote(other)} "$@"')


@contextlib.contextmanager
def wrap_osu_latency(box: Box, script: str) -> Iterator[Mapping[str, str]]:
    """A script in front of osu_latency."""
    box.write_osu_latency_wrapper(script)
    try:
        yield {}
    finally:
        box.write_osu_latency_wrapper()


@contextlib.contextmanager
def prefix_rank_command(box: Box, *words: str) -> Iterator[Mapping[str, str]]:
    """Words between the launcher and each rank of the pairs."""
    for one in box.partition_configs_with_prefix('pair'):
        one['extras']['launcher_free'] += [*words]
    yield {}


def shift_node_clock(box: Box) -> Injection:
    shim = compiled('clock.so', box.folder)
    return prefix_rank_command(box, 'env', f'LD_PRELOAD={shim}',
                               f'BOX_CLOCK={NODE}:120')


@contextlib.contextmanager
def hide_exit_code(box: Box) -> Iterator[Mapping[str, str]]:
    """The program fails on one node, and a wrapper of srun hides it."""
    wrapper = box.folder / 'bin' / 'srun'
    wrapper.write_text(f'#!/bin/sh\n{shutil.which("srun")} "$@"\nexit 0\n')
    wrapper.chmod(0o755)
    for one in box.partition_configs_with_prefix('pair'):
        one['env_vars'].append(['PATH', f'{wrapper.parent}:$PATH'])
    with wrap_osu_latency(box, f'"$real" "$@"; [ $host != {NODE} ] || exit 3'):
        yield {}


@contextlib.contextmanager
def change_osu_spec(box: Box) -> Iterator[Mapping[str, str]]:
    for one in box.site['environments']:
        origin = one['extras']['programs'].get('osu', {})
        if 'spec' in origin:
            origin['spec'] = 'osu-micro-benchmarks@7.5/2222222'
    yield {}


@contextlib.contextmanager
def repeat_in_background(once: Callable[[], bool]) -> Iterator[list[bool]]:
    """Calls a function again and again, until it returns True; yields a list
    that has something in it then."""
    over = threading.Event()
    done: list[bool] = []

    def repeat_until_true() -> None:
        while not done and not over.wait(0.05):
            with contextlib.suppress(ClusterError, OSError, IndexError):
                if once():
                    done.append(True)

    thread = threading.Thread(target=repeat_until_true)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def fill_disk(folder: Path) -> None:
    """Writes until the disk of a folder is full."""
    with open(folder / 'filler', 'wb', buffering=0) as out, \
            contextlib.suppress(OSError):
        while out.write(bytes(4096)) == 4096:
            pass


@contextlib.contextmanager
def limit_disk_space(box: Box, what: str) -> Iterator[Mapping[str, str]]:
    """A small disk that is full: that of the stage folders when the first
    program runs, or that of the perflogs from the beginning."""
    small = box.folder / 'small'
    if not os.path.ismount(small):
        raise Missing('only root can mount a small file system')

    def fill_disk_when_running() -> bool:
        if not any(small.glob('stage/**/runs.tsv')):
            return False
        fill_disk(small)
        return True

    try:
        if what == 'perflogs':
            fill_disk(small)
            yield {'PLUMBLINE_PERFLOGS': str(small / 'perflogs')}
            return
        box.site['systems'][0]['stagedir'] = str(small / 'stage')
        with repeat_in_background(fill_disk_when_running) as done:
            yield {}
        if not done:
            raise Missing('no program ran, so the disk was never full')
    finally:
        for path in small.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def cut_power_of_node(box: Box) -> Iterator[Mapping[str, str]]:
    """A power cut of the node while a rank runs there; it boots when Slurm
    has seen it."""
    def cut_power_when_running() -> bool:
        if not any(str(box.real_osu_latency) in one.command.split()
                   for one in box.cluster.processes(NODE)):
            return False
        number = box.cluster.ask('squeue', '-h', '-t', 'R', '-w', NODE,
                                 '-o', '%i').split()[0]
        box.cluster.kill(NODE)
        cut.append(number)
        box.cluster.wait(number, 60)
        boot_node()
        return True

    def boot_node() -> None:
        if box.cluster.pid(NODE) is None:
            box.cluster.boot(NODE)
            box.cluster.rate(NODE, RATE)

    cut: list[str] = []
    with repeat_in_background(cut_power_when_running):
        yield {}
    boot_node()
    if not cut:
        raise Missing(f'no rank ran on {NODE}, so no power was cut')


def link_fault(means: str, what: str, value: str) -> Fault:
    return Fault(means, partial(change_network_link, what=what, value=value), NODE)


#: Leaves a server alone that is only asked for its version.
UNLESS_VERSION = 'case $1 in -*[!-]*) exec "$real" "$@";; esac\n'
#: Name -> fault: what the issue asks for, in its order.
FAULTS = {
    'delay-200us': link_fault('each frame 200 us late, each way', 'delay', '200us'),
    'delay-2ms': link_fault('each frame 2 ms late, each way', 'delay', '2ms'),
    'rate-half': link_fault(f'a link of {HALF} among those of {RATE}', 'rate', HALF),
    'rate-tenth': link_fault(
        f'a link of {TENTH} among those of {RATE}', 'rate', TENTH),
    'loss-1': link_fault('1 % of the frames lost, each way', 'loss', '1%'),
    'loss-5': link_fault('5 % of the frames lost, each way', 'loss', '5%'),
    'half-cpu': Fault('the ranks on the node run for 5 of 10 ms', pause_ranks_on_node,
                      NODE),
    'fewer-threads': Fault(
        'the store is started with one thread of two', partial(
            wrap_store_server,
            script=f'{UNLESS_VERSION}exec "$real" "$@" --io-threads 1'),
        more=('threads',)),
    'persistence': Fault('the store writes an append-only file', partial(
        wrap_store_server, script=UNLESS_VERSION
        + 'exec "$real" "$@" --appendonly yes --appendfsync always')),
    'no-pinning': Fault('the store may run on all CPUs', partial(
        wrap_store_server, script=UNLESS_VERSION
        + 'exec taskset -c 0-$(($(nproc --all) - 1)) "$real" "$@"')),
    'version': Fault('another version of the store', replace_store_server_version),
    'transport': Fault(
        'a library that takes another transport',
        lambda box: contextlib.nullcontext({
            'FI_PROVIDER': 'sockets', 'MPIR_CVAR_OFI_USE_PROVIDER': 'sockets',
            'UCX_TLS': 'tcp', 'UCX_TCP_TX_SEG_SIZE': '256',
            'UCX_TCP_RX_SEG_SIZE': '256'})),
    'binding': Fault('all ranks on the first CPU', lambda box: prefix_rank_command(
        box, 'taskset', '-c', '0')),
    'node-lost': Fault('a power cut while a rank runs', cut_power_of_node, NODE),
    'hang': Fault('a rank that never ends', partial(
        wrap_osu_latency, script=f'case $host$SLURM_JOB_NODELIST in '
        f'"{NODE}n[1,4]") exec sleep 1000;; esac; exec "$real" "$@"'),
        NODE, options=('-Stime_limit=1m',)),
    'disk-stage': Fault('the disk of the stage folders is full',
                        partial(limit_disk_space, what='stage')),
    'disk-perflogs': Fault('the disk of the perflogs is full',
                           partial(limit_disk_space, what='perflogs')),
    'exit-code': Fault('the program fails, and a wrapper of srun hides it',
                       hide_exit_code, NODE),
    'cut': Fault('the output ends after twelve lines', partial(
        wrap_osu_latency, script=f'[ $host != {NODE} ] && exec "$real" "$@"; '
        '"$real" "$@" | sed -n 1,12p'), NODE),
    'clock': Fault('a clock two minutes ahead, for the ranks (see '
                   'tests/cluster/clock.c)', shift_node_clock, NODE),
    'spec': Fault('a new spec of the program, as good as the old one', change_osu_spec),
}


@contextlib.contextmanager
def running_box(folder: Path) -> Iterator[Box]:
    """A cluster with the folder of a campaign.

    :raises Missing, ClusterError: it cannot be had
    """
    small = folder / 'small'
    small.mkdir(parents=True, exist_ok=True)
    box = Box(folder, Cluster(folder / 'box'))
    try:
        if os.geteuid() == 0:
            # A small disk that only this process sees; it ends with the process.
            namespaces.unshare(namespaces.NEWNS, 'CLONE_NEWNS')
            namespaces.own_mounts()
            namespaces.mount('box', str(small), 'tmpfs',
                             options='size=16m')
        box.prepare_campaign()
        box.start_cluster()
        yield box
    finally:
        box.cluster.down()
