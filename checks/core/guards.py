"""Sanity checks ("guards") that a test case passes before it has values.

ReFrame passes many broken programs (one that dies after its table, a metric
that cannot be extracted, a reference with another unit). Every benchmark runs
these guards. A guard that refuses reports what failed, where and what to do,
and the text of its error begins with its name.
"""
from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from reframe.core.exceptions import SanityError

from config.records import metrics

from . import limits, placement
from .parsers import ParseError, Record

#: What a parser returns.
Parsed = TypeVar('Parsed')

#: States of a job that ended with exit code 0.
GOOD_STATES = ('SUCCESS', 'COMPLETED')


def fail_test_case(guard: str, reason: str) -> NoReturn:
    """Fails the test case with the guard's name and one line.

    :raises SanityError: always.
    """
    raise SanityError(f'{guard}: {reason}')


@dataclass(frozen=True)
class Run:
    """One repetition of the program inside the job, recorded by measure.sh.

    Times are in s. `out` and `err` are the texts of both outputs.
    """
    repetition: int
    rc: int
    wall: float
    user: float
    system: float
    out: str
    err: str
    name: str


def job_state(job: Any) -> str:
    """The state of a job; of a heterogeneous job, the worst of its parts."""
    states = (job.state or 'unknown').split(',')
    return min(states, key=GOOD_STATES.__contains__)


def check_job_state(job: Any) -> None:
    """Check state and exit code of the job, under every scheduler."""
    where = f'job {job.jobid} on {",".join(job.nodelist or ["?"])}'
    state = job_state(job)
    if state == 'TIMEOUT' or has_reached_time_limit(job):
        fail_test_case('time_limit', f'{where} reached its time limit '
                       f'({job.time_limit} s); its output is ignored. Find out why it '
                       'hung, or set a longer limit with -S time_limit=...')
    # Only jobs of the local scheduler have a signal.
    signal = getattr(job, 'signal', None)
    if signal:
        fail_test_case('signal', f'{where} was killed by signal {signal}')
    # Some backends have no exit code; the records of measure.sh have it. That of a
    # job that lost a node is any number.
    lost_node = describe_lost_node(job)
    failed = job.exitcode not in (0, None)
    if failed and not lost_node:
        killed = (f' (a process killed by signal {job.exitcode - 128})'
                  if 128 < job.exitcode <= 128 + 64 else '')
        fail_test_case('exit_code', f'{where} ended with exit code {job.exitcode}'
                       f'{killed}; read its stderr in the stage directory')
    if state == 'CANCELLED' and not job.nodelist:
        fail_test_case('pending', f'job {job.jobid} was cancelled before it '
                       f'started (max_pending_time is {job.max_pending_time:g} s); '
                       'check whether the nodes that it requests are free')
    if failed or state not in GOOD_STATES:
        fail_test_case(
            'job_state',
            f'{where} ended in state {state}{lost_node}; the scheduler ended it: find '
            'the reason in its log or accounting',
        )


def describe_lost_node(job: Any) -> str:
    """The lost node of a job, in brackets; empty: no node was lost.

    srun names the node. The job may end because srun ends, before Slurm ends it with
    the state NODE_FAIL. Without a line of srun, a message of the node of the batch
    script means that another node was lost; without that message the node of the
    batch script itself was lost.
    """
    log = Path(job.stderr)
    output = '\n'.join(map(_read_text_or_empty,
                           [log, *sorted(log.parent.glob('run.*.err'))]))
    nodes = sorted(set(re.findall(r'Node failure on ([\w.-]+)', output)))
    batch_node_runs = 'DUE TO NODE FAILURE' in output
    if not nodes and (batch_node_runs or job_state(job) == 'NODE_FAIL'):
        host, *others = job.nodelist or ['a node']
        nodes = others if batch_node_runs and others else [host]
    return f' ({" or ".join(nodes)} was lost)' if nodes else ''


def has_reached_time_limit(job: Any) -> bool:
    """Whether Slurm reports the time limit on the job's stderr.

    A backend without accounting reports a job that vanished as completed.
    """
    return any(line.startswith('slurmstepd') and 'DUE TO TIME LIMIT' in line
               and f'*** JOB {job.jobid} ON ' in line
               for line in _read_text_or_empty(Path(job.stderr)).splitlines())


def check_disk_not_full(stage: Path) -> None:
    """Check that the disk of the stage directory is not full, and was not.

    This guard is the first, because a full disk may cause any other fault.
    """
    output, now = stage / 'disk.full', os.statvfs(stage)
    # A file system without a limit of files reports 0 free files.
    if (output.exists() or not now.f_bavail
            or (now.f_files and not now.f_favail)):
        fail_test_case(
            'disk',
            'the disk of the stage directory was full: '
            f'{_read_text_or_empty(output).strip() or stage}; free space, '
            "or set another directory (the site's stagedir, or --prefix)",
        )


def check_started_once(stage: Path, job: Any) -> None:
    """Check that the scheduler did not start the job a second time.

    measure.sh makes a folder `again.XXXXXX` if the stage directory has the files of
    an earlier execution. The earlier one may have been cut short at any place.
    """
    if again := sorted(stage.glob('again.*')):
        fail_test_case('runs', f'job {job.jobid} was started {len(again) + 1} times in '
                       f'{stage}, so none of its values counts: the scheduler must '
                       'not run a job again (Slurm: --no-requeue, PBS: -r n)')


def check_service_failures(stage: Path, job: Any) -> None:
    """Check that the job script reported no failure of its servers or clients.

    This guard comes before the job's state, because the message of the script
    is more precise.
    """
    for path in sorted(stage.glob('run.*.err')):
        for line in _read_text_or_empty(path).splitlines():
            if line.startswith('service: '):
                how = '' if job_state(job) in GOOD_STATES else f' ({job_state(job)})'
                fail_test_case('service', f'job {job.jobid}{how}: {path.stem}: '
                               + line.removeprefix('service: '))


def read_repetitions(stage: Path, repetitions: int,
                     accepted_exit_codes: Iterable[int] = (0,)
              ) -> list[Run]:
    """The repetitions of a job, each with an accepted exit code.

    :raises SanityError: one is missing, or ended with another exit code.
    """
    try:
        lines = (stage / 'runs.tsv').read_text().splitlines()
    except OSError:
        fail_test_case('runs', f'{stage}/runs.tsv is missing: the program was never '
                       'started; read the stderr of the job in that directory')
    runs = []
    for line in lines:
        cells = line.split('\t')
        try:
            repetition, rc = map(int, cells[:2])
            wall, user, system = map(float, cells[2:])
        except ValueError:
            fail_test_case('runs', f'{stage}/runs.tsv is damaged: cannot read the '
                           f'line {line!r}')
        name = f'run.{repetition}'
        runs.append(Run(repetition, rc, wall, user, system,
                        _read_text_or_empty(stage / f'{name}.out'),
                        _read_text_or_empty(stage / f'{name}.err'), name))
    for run in runs:
        if run.rc not in accepted_exit_codes:
            how = (f'was killed by signal {run.rc - 128}' if run.rc > 128
                   else f'ended with exit code {run.rc}')
            lines = [ln for ln in run.err.splitlines()
                     if ln.strip(' -') and 'plumbline-' not in ln]
            fail_test_case('signal' if run.rc > 128 else 'exit_code',
                           f'{run.name}: the program {how}; first line on stderr: '
                           f'{lines[0].strip() if lines else "none"}')
    if [run.repetition for run in runs] != list(range(1, repetitions + 1)):
        fail_test_case('runs', f'{len(runs)} of {repetitions} repetitions finished: '
                       'the job ended early (cancelled, or a node was lost), or '
                       f'{stage}/runs.tsv is damaged')
    return runs


def _read_text_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''


def check_rank_count(run: Run, ranks: int, nodes: int) -> None:
    """Check that as many ranks ran on as many hosts as were requested."""
    hosts = Counter(re.findall(r'plumbline-rank (\S+)', run.err))
    if sum(hosts.values()) != ranks or len(hosts) != nodes:
        started = ', '.join(f'{h}: {n}' for h, n in sorted(hosts.items()))
        fail_test_case('ranks', f'{run.name}: {ranks} ranks on {nodes} node(s) were '
                       f'requested, but {started or "none"} started; check that the '
                       'launcher belongs to the MPI that the program was built with')


def check_rank_binding(run: Run, threads: int, cores: int,
                       extra: str = 'launcher_pin') -> None:
    """Check that each rank has one core per thread, and shares none.

    :arg threads: threads of a rank.
    :arg cores: cores of a node.
    :arg extra: the extra of the partition that binds the ranks.
    """
    def refuse_binding(host: str, reason: str) -> NoReturn:
        fail_test_case('binding', f'{run.name}: {host}: {reason}')

    for host, group in placement.parse_rank_lines(run.err).items():
        for rank in group:
            has, where = len(rank.cores), placement.format_cpus(rank.cpus)
            if not has:
                refuse_binding(
                    host, 'a rank could not read which CPUs it may use; '
                    'check that /proc is mounted on the node')
            if has < threads:
                refuse_binding(
                    host, f'a rank of {threads} threads was bound to CPUs '
                    f'{where}, {has} core(s): the extra {extra} of the partition must '
                    'bind each rank to one core per thread (write {cpus} in it; '
                    'Slurm with two threads per core: --hint=nomultithread in '
                    'access)')
            if has > threads and has >= cores:
                refuse_binding(
                    host, 'ranks are not bound: they may run on all CPUs '
                    f'({where}), so {extra} had no effect (Slurm: '
                    'TaskPlugin needs task/affinity or task/cgroup)')
        taken: set[int] = set()
        for rank in group:
            if taken & rank.cores:
                sets = placement.format_cpu_sets([r.cpus for r in group])
                refuse_binding(
                    host, f'ranks share cores, with the CPUs {sets}: '
                    f'{extra} must give each rank its own cores')
            taken |= rank.cores


def check_transport(run: Run, request: Mapping[str, Any] | None, output: str
                    ) -> None:
    """Check that the library's output proves the requested transport."""
    if request and not re.search(request['evidence'], output):
        fail_test_case('transport', f"{run.name}: {request['name']} was requested, "
                       f'but no line of {run.name}.out and {run.name}.err matches '
                       f"{request['evidence']!r}; another transport was used")


def check_minimum_wall_time(run: Run, claimed: float) -> None:
    """Check that the program ran at least as long as its values imply.

    On a busy machine of two cores, none of 27 repetitions claimed more than
    0.97 of its wall time, which includes the launcher. 1 % is allowed for the
    clocks, 10 ms for the digits that the program rounds.
    """
    if claimed > run.wall * 1.01 + 0.01:
        fail_test_case('wall_time', f'{run.name}: the iterations multiplied by the '
                       f'printed times give {claimed:.3g} s, but the program ran for '
                       f'only {run.wall:.3g} s: '
                       'its clock or its iteration counts are wrong; check its '
                       'options')


def parse_output(parse: Callable[[str], Parsed], text: str, where: str
               ) -> Parsed:
    """Parse an output; return what the parser returns.

    :arg where: name of the file, for the message.
    :raises SanityError: the output cannot be parsed.
    """
    try:
        return parse(text)
    except ParseError as err:
        fail_test_case('table', f'{where}:{err}')


def values_by_metric(records: Iterable[Record], where: str
                     ) -> dict[str, float]:
    """The value of each metric in an output.

    :raises SanityError: a metric comes twice, or with another unit than its own.
    """
    values: dict[str, float] = {}
    for record in records:
        metric = metrics.metric_key(record.metric, record.size)
        if metrics.metric(record.metric).unit != record.unit:
            fail_test_case('unit', f'{where}:{record.line}: {record.metric} is in '
                           f'{record.unit}, not in '
                           f'{metrics.metric(record.metric).unit}')
        if metric in values:
            fail_test_case('table', f'{where}:{record.line}: {metric} is in the '
                           'output twice')
        values[metric] = record.value
    return values


def check_values_finite(values: Mapping[str, float]) -> None:
    """Check that every value is a number, neither infinite nor NaN."""
    for metric, value in values.items():
        if (isinstance(value, bool) or not isinstance(value, (int, float))
                or not math.isfinite(value)):
            fail_test_case('not_finite', f'{metric} = {value!r} is not a finite '
                           'number')


def check_metrics_and_limits(family: str, values: Mapping[str, float],
                             expected: Iterable[str], params: str,
                             site: Mapping[str, Any]) -> None:
    """Check that every planned metric has a possible value."""
    missing = sorted(set(expected) - set(values))
    if missing:
        # A curve without sizes would pass with a part of its points.
        curves = [name for name in missing if '@' not in name
                  and metrics.metric(name).point]
        fail_test_case('missing_metric', (
            f'{curves[0]} has a value per size: required_metrics of the check must '
            f'list metrics.metric_key({curves[0]!r}, BYTES) for each size'
            if curves else f'the output has no value of {", ".join(missing)}'))
    for metric in values:
        metrics.metric(metrics.split_metric_key(metric)[0])
    bad = limits.exceeded_limits(family, values, params, site)
    if bad:
        fail_test_case('limits', 'too good to be true: ' + '; '.join(bad[:3]))
