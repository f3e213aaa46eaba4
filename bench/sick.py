#!/usr/bin/env python3
"""Do the references of this machine detect injected faults?

    P=.plumbline/venv/bin/python
    ./plumb references learn && ./plumb references accept
    $P bench/sick.py --dry-run          # what would be done, and what cannot
    $P bench/sick.py                    # five rounds; best on an idle machine

Each round runs a few cheap cases without a fault (healthy, the control) and
then with each of these faults, here called sicknesses:

  quota        the store's server may use half of a CPU (cgroup, root)
  neighbour    a busy program of another user is pinned to a rank's CPU
  tcp          Open MPI is told to use TCP, as a broken module would
  persistence  the store writes an append-only file, whatever its
               configuration says, as a wrapper before it would do

A sickness is found in a round if a case fails, or is inconclusive because of
another program; it is named if the message says what is wrong.
Prints a Markdown table. References are those of `./plumb references accept`
or of RFM_REFERENCE_PREFIX; nothing is added to the perflogs.

Exit status: 0 each was found and named in at least --least of its rounds and
no healthy round failed; 1 not so; 2 something needed is missing (references,
the right to make a cgroup): what was skipped is printed.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests' / 'cluster')]

from cli.setup import SetupError  # noqa: E402
from cli.table import quantity  # noqa: E402
from config import lock  # noqa: E402

WORK = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline').absolute()

#: Installed programs, shared with the user's runs.
INSTALLED = ('venv', 'mpi', 'mpich', 'stores', 'bin')

#: The control.
HEALTHY = 'healthy'

#: Name of the busy program, of 15 characters, the kernel's limit.
NEIGHBOUR = 'plumb-neighbour'

#: Script that enters a cgroup and then executes the server. A node of a
#: cluster in a box has a /sys of its own, without cgroups: it mounts them.
ENTER_CGROUP = '''its={its} top=
if [ ! -d $its ]; then
    top=$(mktemp -d) && mount {mount} none $top || exit 1
    its=$top/{name}
fi
echo $$ > $its/cgroup.procs || exit 1
[ -z "$top" ] || {{ umount $top && rmdir $top; }}
exec "$real" "$@"'''

#: CPU quota of a server in each period. Unit: us.
QUOTA, PERIOD = 50_000, 100_000


class Missing(Exception):
    """Why a fault cannot be injected here, or had no effect; one line."""


# Outcomes ------------------------------------------------------------------

class Case(NamedTuple):
    """How a case of a round ended."""
    name: str
    #: pass, fail or inconclusive.
    result: str
    #: Why it failed, or is inconclusive, or was not judged.
    line: str
    #: Whether figures of it were judged by a reference.
    judged: bool


class Round(NamedTuple):
    """One round of a sickness."""
    sickness: str
    cases: Sequence[Case]


def case_of(told: Mapping[str, Any]) -> Case:
    """A case from its entry in ReFrame's report."""
    def words(text: Any) -> str:
        return ' '.join(str(text or '').split())

    figures = {key.rpartition(':')[2]: value
               for key, value in told['perfvalues'].items()}
    judged = any(value is not None and (lower, upper) != (None, None)
                 for value, _, lower, upper, *_ in figures.values())
    result, line = told['result'], words(told.get('unjudged'))
    if result in ('fail', 'xpass', 'abort'):
        beyond = [f'{figure} is {quantity(value, unit)}, reference '
                  f'{quantity(centre, unit)}' for figure, (
                      value, centre, _, _, unit, verdict) in figures.items()
                  if verdict == 'fail' and value is not None]
        # A case whose references are missing has all its figures, too.
        line = words(told['fail_reason']) if told.get('guard') or not beyond \
            else '; '.join(beyond)
        result = 'fail'
    elif told.get('inconclusive'):
        # Without a culprit (the machine changed its speed) nothing is found.
        result = 'inconclusive' if told.get('disturbed') else 'pass'
        line = words(told.get('disturbed') or told['inconclusive'])
    return Case(f'{told["display_name"]} @{told["environ"]}', result, line,
                judged)


def alarms(cases: Iterable[Case]) -> list[Case]:
    """The cases of a round that report a problem."""
    return [case for case in cases if case.result in ('fail', 'inconclusive')]


def naming(named: str, cases: Iterable[Case]) -> str:
    """The line that names the sickness; empty: none does."""
    return next((case.line for case in alarms(cases)
                 if re.search(named, case.line)), '')


def table(rounds: Sequence[Round], named: Mapping[str, str]) -> list[str]:
    """A row a sickness, with the line that named it most often.

    :arg named: sickness -> what a line must match that names it.
    """
    rows = ['| sickness | rounds | judged | found | named | how |',
            '|---|---|---|---|---|---|']
    for sickness in dict.fromkeys(one.sickness for one in rounds):
        its = [one for one in rounds if one.sickness == sickness]
        lines = [naming(named.get(sickness, '.'), one.cases) for one in its]
        cases = [case for one in its for case in one.cases]
        found = sum(bool(alarms(one.cases)) for one in its)
        # Alike but for their figures: the first of them is shown.
        kinds = Counter(re.sub(r'[\d.]+', '0', line) for line in lines if line)
        how = next((line for line in lines if kinds and re.sub(
            r'[\d.]+', '0', line) == kinds.most_common(1)[0][0]), '')
        if not how:
            how = next((case.line for case in alarms(cases)), 'nothing')
        count = '' if sickness == HEALTHY else sum(map(bool, lines))
        rows.append(
            f'| {sickness} | {len(its)} '
            f'| {sum(case.judged for case in cases)} of {len(cases)} '
            f'| {found} | {count} | {shortened(how)} |')
    return rows


def shortened(line: str, most: int = 160) -> str:
    """A line that fits into a table's cell."""
    line = line.replace('|', '/')
    return line if len(line) <= most else line[:most - 3].rstrip() + '...'


def complaints(rounds: Sequence[Round], named: Mapping[str, str],
               least: float) -> list[str]:
    """The expectations that do not hold, one line each.

    :arg least: the share of its rounds in which each must be named.
    """
    found = []
    for sickness in dict.fromkeys(one.sickness for one in rounds):
        its = [one for one in rounds if one.sickness == sickness]
        if sickness == HEALTHY:
            failed = [case for one in its for case in one.cases
                      if case.result == 'fail']
            found += [f'{HEALTHY}: {case.name} failed: {case.line}'
                      for case in failed]
            continue
        count = sum(bool(naming(named[sickness], one.cases)) for one in its)
        if count < least * len(its):
            silent = next((case for one in its for case in one.cases
                           if not case.judged and case.result == 'pass'),
                          None)
            why = (f'; {silent.name} was not judged: '
                   f'{silent.line or "it has no bounds"}') if silent else ''
            found.append(f'{sickness}: found and named in {count} of '
                         f'{len(its)} rounds{why}')
    return found


# Faults -------------------------------------------------------------------

def link(path: Path, target: Path) -> None:
    """Makes a link, or replaces one."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@dataclass
class Bench:
    """The environment of the rounds, with a work folder of its own."""
    folder: Path
    site: str
    #: Environment variables for plain reframe.
    env: dict[str, str]
    #: Environment of the store, its feature, and where its server is.
    store: str
    kind: str
    server: Path
    #: Starts a command: here, or on the login node of a cluster.
    start: Callable[..., subprocess.CompletedProcess[str]]
    partition: str = ''
    #: CPUs of the first rank, as the control saw them.
    cpu: int = field(default_factory=lambda: min(os.sched_getaffinity(0)))

    @property
    def work(self) -> Path:
        """PLUMBLINE_WORK of the rounds."""
        return self.folder / 'work'

    @contextlib.contextmanager
    def wrapped(self, script: str) -> Iterator[None]:
        """A script in place of the store's server, which it starts with
        `exec "$real" "$@"`."""
        prefix = self.work / 'wrapped'
        wrapper = prefix / 'bin' / self.server.name
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        wrapper.write_text(f'#!/bin/sh\nreal={shlex.quote(str(self.server))}\n'
                           f'{script}\n')
        wrapper.chmod(0o755)
        found, stores = self.work / 'local.json', self.work / 'stores'
        before = found.read_text() if self.site == 'local' else ''
        try:
            if before:
                machine = json.loads(before)
                for store in machine['stores']:
                    if f'{store["store"]}-{store["source"]}' == self.store:
                        store['prefix'] = str(prefix)
                found.write_text(json.dumps(machine))
            else:
                # A site's file names the stores that plumb installed.
                link(stores, prefix)
            yield
        finally:
            if before:
                found.write_text(before)
            else:
                link(stores, WORK / 'stores')

    def play(self, sickness: Sickness, name: str) -> Round:
        """One round.

        :raises Missing: the sickness cannot be made.
        """
        report = self.folder / f'{name}.json'
        report.unlink(missing_ok=True)
        for left in ('stage', 'output', 'perflogs'):
            shutil.rmtree(self.work / left, ignore_errors=True)
        with sickness.make(self) as more:
            done = self.start(
                self.command(sickness, '-r'),
                {**self.env, **more, 'RFM_REPORT_FILE': str(report)})
        try:
            cases = json.loads(report.read_text())['runs'][0]['testcases']
        except (OSError, ValueError):
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise Missing('ReFrame left no report; its last words: '
                          + ' / '.join(lines[-3:])) from None
        told = [case for case in cases if not case.get('fixture')
                or case['result'] == 'fail']
        if sickness.name == HEALTHY:
            self.cpu = next((int(first[1]) for first in (
                re.search(r':(\d+)', case.get('binding') or '')
                for case in told if case['display_name'].startswith('Osu'))
                if first), self.cpu)
        return Round(sickness.name, [case_of(case) for case in told])

    def command(self, sickness: Sickness, action: str) -> list[str]:
        """ReFrame's command line."""
        cases = [word for one in sickness.cases
                 for word in ('-n', one.format(store=self.kind))]
        system = ['--system', self.partition] if self.partition else []
        # Of two environments with this store one is enough.
        return ['reframe', *system, '-p', f'^({self.store}|.*mpi.*)$', *cases,
                action]


@dataclass(frozen=True)
class Sickness:
    """A fault of a machine that can be injected."""
    name: str
    #: Description for people.
    means: str
    #: Cases that it touches: patterns of `reframe -n`, which takes the
    #: blanks out of names.
    cases: tuple[str, ...]
    #: Pattern of messages that name it.
    named: str
    #: Context manager that injects it; yields further environment variables.
    make: Callable[[Bench], contextlib.AbstractContextManager[
        Mapping[str, str]]]
    #: Whether it works on a cluster whose nodes share one machine.
    on_cluster: bool = False


def controller() -> tuple[Path, str]:
    """The folder of groups that limit CPUs, and the file with the limit.

    :raises Missing: this machine has none that may be used.
    """
    # Both versions may be mounted, the controller belongs to one of them.
    for line in Path('/proc/mounts').read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        top = Path(where)
        if kind == 'cgroup' and 'cpu' in options.split(','):
            return top, 'cpu.cfs_quota_us'
        if kind == 'cgroup2' and 'cpu' in _words(top / 'cgroup.controllers'):
            return top, 'cpu.max'
    raise Missing('no cgroup controller `cpu` is mounted here')


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


@contextlib.contextmanager
def group(quota: int = QUOTA, period: int = PERIOD) -> Iterator[Path]:
    """A group of processes that share half of a CPU, or `quota` us of each
    `period`.

    :raises Missing: it cannot be made.
    """
    top, limit = controller()
    for old in top.glob('plumb-sick-*'):        # of a bench that was killed
        with contextlib.suppress(OSError):
            old.rmdir()
    its, switch = top / f'plumb-sick-{os.getpid()}', None
    try:
        if limit == 'cpu.max' and 'cpu' not in _words(
                top / 'cgroup.subtree_control'):
            switch = top / 'cgroup.subtree_control'
            switch.write_text('+cpu')
        its.mkdir()
        try:
            if limit == 'cpu.cfs_quota_us':
                (its / 'cpu.cfs_period_us').write_text(str(period))
            (its / limit).write_text(
                f'{quota} {period}' if limit == 'cpu.max' else str(quota))
            yield its
        finally:
            _remove(its, top)
    except OSError as err:
        raise Missing(f'cannot limit the CPU of a group in {top}: '
                      f'{err.strerror} ({err.filename}); root can') from None
    finally:
        if switch:
            with contextlib.suppress(OSError):
                switch.write_text('-cpu')


def _remove(its: Path, top: Path) -> None:
    """Removes a group; moves its processes to the root group."""
    for _ in range(50):
        for pid in _words(its / 'cgroup.procs'):
            with contextlib.suppress(OSError):
                (top / 'cgroup.procs').write_text(pid)
        with contextlib.suppress(OSError):
            its.rmdir()
            return
        time.sleep(0.1)
    print(f'sick: {its} could not be removed: rmdir it', file=sys.stderr)


@contextlib.contextmanager
def quota(bench: Bench) -> Iterator[Mapping[str, str]]:
    with group() as its, bench.wrapped(ENTER_CGROUP.format(
            its=its, name=its.name, mount='-t cgroup -o cpu' if (
                its / 'cpu.cfs_quota_us').exists() else '-t cgroup2')):
        yield {}
        was_throttled(its, 'the server', 'ReFrame\'s report in '
                      f'{bench.folder} says why')


def was_throttled(its: Path, what: str, see: str) -> None:
    """:raises Missing: nothing in the group had to wait for its quota."""
    stat = dict(line.split() for line in
                (its / 'cpu.stat').read_text().splitlines())
    if stat.get('nr_periods', '0') == '0':
        raise Missing(f'{what} did not come into the group: {see}')
    if stat['nr_throttled'] == '0':
        raise Missing(f'{what} never had to wait for the quota: it was not '
                      'sick')


@contextlib.contextmanager
def neighbour(bench: Bench) -> Iterator[Mapping[str, str]]:
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            nobody = pwd.getpwnam('nobody')
            who = {'user': nobody.pw_uid, 'group': nobody.pw_gid,
                   'extra_groups': []}
    # It ends with the bench, however that does.
    script = (f'printf {NEIGHBOUR} > /proc/$$/comm\n'
              f'while [ -d /proc/{os.getpid()} ]; do i=0\n'
              'while [ $i -lt 100000 ]; do i=$((i+1)); done; done')
    busy = subprocess.Popen(['/bin/sh', '-c', script], cwd='/',
                            stdin=subprocess.DEVNULL, **who)
    try:
        os.sched_setaffinity(busy.pid, {bench.cpu})
        yield {}
        if busy.poll() is not None:
            raise Missing(f'{NEIGHBOUR} ended by itself ({busy.returncode})')
    finally:
        busy.kill()
        busy.wait()


@contextlib.contextmanager
def tcp(bench: Bench) -> Iterator[Mapping[str, str]]:
    machine = json.loads((bench.work / 'local.json').read_text())
    flavour = machine['mpi']['flavour']
    if flavour != 'openmpi':
        raise Missing(f'the MPI here is {flavour}, not Open MPI')
    # The one-sided component of the same transport, or windows fail.
    yield {'OMPI_MCA_pml': 'ob1', 'OMPI_MCA_btl': 'tcp,self'}


@contextlib.contextmanager
def persistence(bench: Bench) -> Iterator[Mapping[str, str]]:
    if bench.kind not in ('redis', 'valkey', 'keydb'):
        raise Missing(f'{bench.kind} keeps no append-only file: see --store')
    with bench.wrapped(
            'case $1 in -*[!-]*) exec "$real" "$@";; esac\n'
            'exec "$real" "$@" --appendonly yes --appendfsync always'):
        yield {}


@contextlib.contextmanager
def nothing(bench: Bench) -> Iterator[Mapping[str, str]]:
    yield {}


_STORE = ('load={store}(get|set)$',)
_OSU = ('program=osu_latency%placement=intra_node',
        'program=osu_allreduce%layout=1xfull')
#: Judged figures, as the line of a case that failed begins with them.
_STORE_FIGURE = '^(operations|latency)'
_OSU_FIGURE = '^(latency|overall_time|worst_ratio)'

SICKNESSES = {one.name: one for one in (
    Sickness(HEALTHY, 'nothing: the control', (), '.', nothing,
             on_cluster=True),
    Sickness('quota', "the store's server may use half of a CPU", _STORE,
             _STORE_FIGURE, quota, on_cluster=True),
    Sickness('neighbour', 'a busy program of another user is pinned to the '
             "first rank's CPU", _OSU, NEIGHBOUR, neighbour),
    Sickness('tcp', 'OMPI_MCA_btl=tcp,self and OMPI_MCA_pml=ob1', _OSU,
             f'{_OSU_FIGURE}|transport:', tcp),
    Sickness('persistence', 'a wrapper before the store adds --appendonly yes '
             '--appendfsync always', _STORE,
             f'keeps an append-only file|{_STORE_FIGURE}', persistence,
             on_cluster=True),
)}


# Runs ----------------------------------------------------------------------

def environment(site: str, work: Path) -> dict[str, str]:
    """What `plumb env` exports, with a work folder of our own."""
    work.mkdir(parents=True, exist_ok=True)
    # Installs missing programs to the shared folder.
    subprocess.run([ROOT / 'plumb', 'env', '--site', site], check=False,
                   stdout=subprocess.DEVNULL)
    for name in INSTALLED:
        if (WORK / name).exists():
            link(work / name, WORK / name)
    mine = {**os.environ, 'PLUMBLINE_WORK': str(work),
            'PLUMBLINE_PERFLOGS': str(work / 'perflogs')}
    if site == 'local' and not os.environ.get('RFM_REFERENCE_PREFIX'):
        mine['RFM_REFERENCE_PREFIX'] = str(WORK / 'references')
    done = subprocess.run([ROOT / 'plumb', 'env', '--site', site], text=True,
                          env=mine, stdout=subprocess.PIPE)
    if done.returncode:
        raise Missing('plumb env failed: see above')
    shell = subprocess.run(['bash', '-c', f'{done.stdout}\nenv -0'],
                           env=mine, text=True, check=True,
                           stdout=subprocess.PIPE)
    return dict(x.split('=', 1) for x in shell.stdout.split('\0') if x)


def here(command: list[str], env: Mapping[str, str]
         ) -> subprocess.CompletedProcess[str]:
    """A command on this machine; on SIGTERM ReFrame ends its jobs.

    It inherits the machine's lock, for which it would wait otherwise.
    """
    held = [int(env[lock.HELD])] if lock.HELD in env else []
    with subprocess.Popen(command, env=dict(env), text=True, cwd=ROOT,
                          pass_fds=held,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def local(args: argparse.Namespace) -> Bench:
    """Rounds on this machine.

    :raises Missing: no such store.
    """
    env = environment('local', args.dir / 'work')
    machine = json.loads((args.dir / 'work' / 'local.json').read_text())
    stores = {f'{one["store"]}-{one["source"]}': one
              for one in machine['stores']}
    name = args.store or next(iter(stores), '')
    if name not in stores:
        raise Missing(f'no store {name!r} here: there are '
                      f'{", ".join(stores) or "none"}; see ./plumb doctor')
    one = stores[name]
    binary = 'memcached' if one['store'] == 'memcached' else (
        'dragonfly' if one['store'] == 'dragonfly'
        else f'{one["store"]}-server')
    return Bench(args.dir, 'local', env, name, one['store'],
                 Path(one['prefix'], 'bin', binary), here)


@contextlib.contextmanager
def on_cluster(args: argparse.Namespace) -> Iterator[Bench]:
    """Rounds under srun on a cluster in a box.

    :raises Missing: it cannot run here.
    """
    from cluster import Cluster, ClusterError
    env = environment('devcluster', args.dir / 'work')
    cluster = Cluster(args.dir / 'box')

    def start(command: list[str], env: Mapping[str, str]
              ) -> subprocess.CompletedProcess[str]:
        return cluster.exec(*command, env=dict(env), cwd=ROOT)

    try:
        cluster.up(share=[args.dir])
        yield Bench(args.dir, 'devcluster', env, 'valkey', 'valkey',
                    WORK / 'stores' / 'bin' / 'valkey-server', start,
                    'devcluster:slurm-srun')
    except ClusterError as err:
        raise Missing(str(err)) from None
    finally:
        cluster.down()


def dry_run(bench: Bench, sicknesses: Iterable[Sickness]) -> None:
    """Prints what would be done; injects and removes each fault once."""
    print(f'references: {bench.env["RFM_REFERENCE_PREFIX"]}\n'
          f'store: {bench.store} ({bench.server})')
    for one in sicknesses:
        print(f'\n{one.name}: {one.means}\n  named by: {one.named}\n  '
              + shlex.join(bench.command(one, '-r')))
        if one.name == 'quota':
            try:
                with group() as its:
                    print(f'  group: {its}')
            except Missing as err:
                print(f'  skipped: {err}')
        done = bench.start(bench.command(one, '-l'), bench.env)
        cases = [line for line in done.stdout.splitlines()
                 if line.startswith('- ')]
        print(*(f'  {line}' for line in cases or ['no such case here']),
              sep='\n')


def rounds_of(bench: Bench, sicknesses: Sequence[Sickness], number: int
              ) -> tuple[list[Round], dict[str, str]]:
    """Every sickness in turns, so that a change of the machine meets all.

    :returns: the rounds, and why others were skipped: sickness -> why.
    """
    rounds: list[Round] = []
    skipped: dict[str, str] = {}
    for count in range(1, number + 1):
        for one in sicknesses:
            began = time.monotonic()
            try:
                rounds.append(bench.play(one, f'{one.name}.{count}'))
            except Missing as err:
                skipped[one.name] = str(err)
                print(f'{one.name}: skipped: {err}', flush=True)
                continue
            print(f'{one.name} {count}: {time.monotonic() - began:.0f} s',
                  *(f'    {case.result} {case.name} {case.line}'
                    for case in rounds[-1].cases), sep='\n', flush=True)
    return rounds, skipped


def main() -> int:
    about, _, more = (__doc__ or '').partition('\n\n')
    parser = argparse.ArgumentParser(
        description=about, epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5, metavar='N',
                        help='rounds of each sickness (default: 5)')
    parser.add_argument('--least', type=float, default=0.8, metavar='SHARE',
                        help='in so many of its rounds each must be named '
                        '(default: 0.8)')
    parser.add_argument('--only', action='append', metavar='SICKNESS',
                        choices=[n for n in SICKNESSES if n != HEALTHY],
                        help='this sickness, and the control; may be given '
                        'again: ' + ', '.join(SICKNESSES))
    parser.add_argument('--store', default='', metavar='ENVIRONMENT',
                        help='the store to make sick, e.g. redis-system '
                        '(default: the first that was found)')
    parser.add_argument('--cluster', action='store_true',
                        help='on a cluster in a box (tests/cluster) with '
                        'srun: those that its nodes, which share this '
                        "machine's CPUs, can have")
    parser.add_argument('--dry-run', action='store_true',
                        help='say what would be done and which cases would '
                        'run; measure nothing')
    parser.add_argument('--dir', type=Path, default=WORK / 'sick',
                        help="folder of the rounds: ReFrame's reports, what "
                        'was staged (default: %(default)s)')
    args = parser.parse_args()
    args.dir = args.dir.absolute()
    chosen = [one for name, one in SICKNESSES.items()
              if name == HEALTHY or not args.only or name in args.only]
    if args.cluster:
        for one in chosen:
            if not one.on_cluster:
                print(f'{one.name}: not on a cluster in a box')
        chosen = [one for one in chosen if one.on_cluster]
    # SIGTERM is handled like Ctrl-C: groups and programs are removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The control runs what the others run, and nothing else.
    chosen[0] = replace(chosen[0], cases=tuple(dict.fromkeys(
        case for one in chosen[1:] for case in one.cases)))
    try:
        with contextlib.ExitStack() as stack:
            bench = (stack.enter_context(on_cluster(args)) if args.cluster
                     else local(args))
            references = Path(bench.env['RFM_REFERENCE_PREFIX'])
            if args.dry_run:
                dry_run(bench, chosen)
                return 0
            if not any(references.glob('*.yaml')):
                raise Missing(f'no references in {references}: ./plumb '
                              f'references learn --site {bench.site} makes '
                              'them')
            bench.env[lock.HELD] = str(stack.enter_context(
                lock.held(lock.place())))
            rounds, skipped = rounds_of(bench, chosen, args.rounds)
    except (Missing, SetupError) as err:
        print(f'sick: {err}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('sick: ended before its rounds were over: no verdict',
              file=sys.stderr)
        return 1
    named = {one.name: one.named for one in chosen}
    bad = complaints(rounds, named, args.least)
    print('', *table(rounds, named),
          *(f'| {name} | 0 | | | | skipped: {shortened(why)} |'
            for name, why in skipped.items()
            if name not in {one.sickness for one in rounds}),
          '', *bad, sep='\n')
    return 1 if bad else 2 if skipped else 0


if __name__ == '__main__':
    sys.exit(main())
