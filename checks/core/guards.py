"""The guards: what must hold before figures of a run are recorded.

ReFrame passes many broken runs (a program that dies after its table, a
metric that cannot be extracted, a reference with another unit). Every
benchmark of the suite goes through :class:`Guards`, and each guard that
refuses says what, where and what to do, and leaves its name in the perflog.
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

from . import limits, metrics, placement
from .parsers import ParseError, Record

#: What a parser returns.
Parsed = TypeVar('Parsed')

#: Job states that mean: ended, and with exit code 0.
GOOD_STATES = ('SUCCESS', 'COMPLETED')


class Refused(SanityError):
    """A guard refused the run."""

    def __init__(self, guard: str, reason: str) -> None:
        super().__init__(f'{guard}: {reason}')
        self.guard = guard


def refuse(guard: str, reason: str) -> NoReturn:
    """Ends a case with the guard's name and one line."""
    raise Refused(guard, reason)


@dataclass(frozen=True)
class Run:
    """One run of the program inside the job, as measure.sh recorded it.

    Times in s, speed probe in ns (nan without one); `out` and `err` are texts.
    """
    repetition: int
    rc: int
    wall: float
    user: float
    system: float
    before: float
    after: float
    out: str
    err: str
    name: str


def check_job(job: Any) -> None:
    """State and exit code of the job, under every scheduler."""
    where = f'job {job.jobid} on {",".join(job.nodelist or ["?"])}'
    state = job.state or 'unknown'
    if state == 'TIMEOUT' or reached_time_limit(job):
        refuse('time_limit', f'{where} ran into its time limit '
               f'({job.time_limit} s); its output does not count. See why it '
               'hung, or give it more with -S time_limit=...')
    # Only jobs of the local scheduler have a signal.
    signal = getattr(job, 'signal', None)
    if signal:
        refuse('signal', f'{where} died of signal {signal}')
    # Some backends cannot know an exit code; measure.sh's records do.
    if job.exitcode not in (0, None):
        killed = (f' (a process killed by signal {job.exitcode - 128})'
                  if job.exitcode > 128 else '')
        refuse('exit_code', f'{where} ended with exit code {job.exitcode}'
               f'{killed}; see its stderr in the stage directory')
    if state == 'CANCELLED' and not job.nodelist:
        refuse('job_state', f'job {job.jobid} was cancelled before it '
               f'started (max_pending_time is {job.max_pending_time} s); are '
               'the nodes free that it asks for?')
    if state not in GOOD_STATES:
        refuse(
            'job_state',
            f'{where} ended in state {state}{lost_nodes(job)}; the '
            'scheduler ended it: its log and its accounting say why',
        )


def lost_nodes(job: Any) -> str:
    """Which node of a job died, in brackets; empty: none is known to have.

    srun names it. Where the batch script runs, Slurm says that another one
    was it; who died there says nothing.
    """
    if job.state != 'NODE_FAIL' or not job.nodelist:
        return ''
    log = Path(job.stderr)
    output = '\n'.join(map(_text, [log, *log.parent.glob('run.*.err')]))
    host, *others = job.nodelist
    nodes = sorted(set(re.findall(r'Node failure on ([\w.-]+)', output))) or (
        others if 'DUE TO NODE FAILURE' in output else [host])
    return f' ({" or ".join(nodes)} was lost)'


def reached_time_limit(job: Any) -> bool:
    """Whether Slurm reports the time limit on the job's stderr.

    A backend without accounting calls a job that vanished completed.
    """
    return any(line.startswith('slurmstepd') and 'DUE TO TIME LIMIT' in line
               and f'*** JOB {job.jobid} ON ' in line
               for line in _text(Path(job.stderr)).splitlines())


def check_disk(stage: Path) -> None:
    """The disk of the stage directory is not full, and was not.

    Checked first: a full disk may cause any other fault.
    """
    output, now = stage / 'disk.full', os.statvfs(stage)
    # File systems without a number of files have none free, either.
    if (output.exists() or not now.f_bavail
            or (now.f_files and not now.f_favail)):
        refuse('disk', 'the disk of the stage directory was full: '
               f'{_text(output).strip() or stage}; free it, or name another '
               "(the site's stagedir, --prefix)")


def check_services(stage: Path, job: Any) -> None:
    """No conductor reported a failure of its servers or clients.

    Checked before the job's state: the conductor's message says more.
    """
    for path in sorted(stage.glob('run.*.err')):
        for line in _text(path).splitlines():
            if line.startswith('service: '):
                how = '' if job.state in GOOD_STATES else f' ({job.state})'
                refuse('service', f'job {job.jobid}{how}: {path.stem}: '
                       + line.removeprefix('service: '))


def read_runs(stage: Path, repetitions: int, accept: Iterable[int] = (0,)
              ) -> list[Run]:
    """The runs, one per repetition, each with an accepted exit code."""
    try:
        lines = (stage / 'runs.tsv').read_text().splitlines()
    except OSError:
        refuse('runs', f'{stage}/runs.tsv is missing: the program never ran')
    runs = []
    for line in lines:
        cells = line.split('\t')
        try:
            repetition, rc = map(int, cells[:2])
            wall, user, system = map(float, cells[2:5])
            before, after = (math.nan if c == '-' else float(c)
                             for c in cells[5:7])
        except ValueError:
            refuse('runs', f'{stage}/runs.tsv: cannot read {line!r}')
        name = f'run.{repetition}'
        runs.append(Run(repetition, rc, wall, user, system, before, after,
                        _text(stage / f'{name}.out'),
                        _text(stage / f'{name}.err'), name))
    for run in runs:
        if run.rc not in accept:
            died = (f'died of signal {run.rc - 128}' if run.rc > 128
                    else f'ended with exit code {run.rc}')
            words = [ln for ln in run.err.splitlines()
                     if ln.strip(' -') and 'plumbline-' not in ln]
            refuse('signal' if run.rc > 128 else 'exit_code',
                   f'{run.name}: the program {died}; first words on stderr: '
                   f'{words[0].strip() if words else "none"}')
    if [run.repetition for run in runs] != list(range(1, repetitions + 1)):
        refuse('runs', f'{repetitions} repetitions asked for, {len(runs)} '
               'finished: the job was ended before (cancelled, or a node '
               f'died?), or {stage}/runs.tsv is damaged')
    return runs


def _text(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''


def check_rank_count(run: Run, ranks: int, nodes: int) -> None:
    """As many ranks on as many hosts as the case asked for."""
    hosts = Counter(re.findall(r'plumbline-rank (\S+)', run.err))
    if sum(hosts.values()) != ranks or len(hosts) != nodes:
        seen = ', '.join(f'{h}: {n}' for h, n in sorted(hosts.items()))
        refuse('ranks', f'{run.name}: {ranks} ranks on {nodes} node(s) asked '
               f'for, started: {seen or "none"}; does the launcher belong to '
               'the MPI that the program was built with?')


def check_rank_binding(run: Run, threads: int, cores: int) -> None:
    """Each rank has a core for each of its threads, and for itself alone.

    :arg threads: of a rank.
    :arg cores: of a node.
    """
    def refused(host: str, words: str) -> NoReturn:
        refuse('binding', f'{run.name}: {host}: {words}')

    for host, group in placement.ranks(run.err).items():
        for rank in group:
            has, where = len(rank.cores), placement.format_cpus(rank.cpus)
            if not has:
                refused(host, 'a rank could not tell its CPUs; is /proc '
                        'mounted where the ranks run?')
            if has < threads:
                refused(host, f'a rank of {threads} threads was bound to '
                        f'CPUs {where}, {has} core(s): launcher_pin must '
                        'bind to {cpus} cores (Slurm with two threads a '
                        'core: --hint=nomultithread in access)')
            if has > threads and has >= cores:
                refused(host, f'ranks should be bound and may run on all '
                        f'CPUs ({where}): launcher_pin had no effect (Slurm: '
                        'TaskPlugin has neither task/affinity nor '
                        'task/cgroup?)')
        taken: set[int] = set()
        for rank in group:
            if taken & rank.cores:
                refused(
                    host,
                    'ranks share cores, with the CPUs '
                    f'{placement.format_cpu_sets([r.cpus for r in group])}: '
                    'launcher_pin must give each its own',
                )
            taken |= rank.cores


def check_transport(run: Run, request: Mapping[str, Any] | None, output: str
                 ) -> None:
    """The transport that is asked for was used, by what the library said."""
    if request and not re.search(request['evidence'], output):
        refuse(
            'transport',
            f'{run.name}: {request["name"]} was asked for, but '
            f'nothing in {run.name}.err matches {request["evidence"]!r}; '
            'another transport was taken',
        )


def check_wall_time(run: Run, claimed: float) -> None:
    """The program ran at least as long as its figures imply.

    Of 27 runs on a busy machine of two cores none claimed more than 0.97 of
    its wall time, which has the launcher in it. 1 % is for the clocks, 10 ms
    for the digits that the program rounds.
    """
    if claimed > run.wall * 1.01 + 0.01:
        refuse('wall_time', f'{run.name}: iterations times figures make '
               f'{claimed:.3g} s, the program ran for {run.wall:.3g} s: its '
               'clock or its iteration counts are wrong (options?)')


def parse_output(parse: Callable[[str], Parsed], text: str, where: str
               ) -> Parsed:
    """What a parser returns for an output.

    :arg where: the file, for the message.
    :raises Refused: the output cannot be parsed
    """
    try:
        return parse(text)
    except ParseError as err:
        refuse('table', f'{where}:{err}')


def values_by_metric(
    records: Iterable[Record], where: str
) -> dict[str, float]:
    """Figure -> value of an output; each once, and in its metric's unit."""
    values: dict[str, float] = {}
    for record in records:
        metric = metrics.key(record.metric, record.size)
        if metrics.metric(record.metric).unit != record.unit:
            refuse('unit', f'{where}:{record.line}: {record.metric} in '
                   f'{record.unit}')
        if metric in values:
            refuse('table', f'{where}:{record.line}: {metric} stands twice')
        values[metric] = record.value
    return values


def check_finite(values: Mapping[str, float]) -> None:
    """Every figure is a number, and neither infinite nor NaN."""
    for metric, value in values.items():
        if (isinstance(value, bool) or not isinstance(value, (int, float))
                or not math.isfinite(value)):
            refuse('not_finite', f'{metric} = {value!r} is no finite number')


def check_values(family: str, values: Mapping[str, float],
                      expected: Iterable[str], params: str,
                      site: Mapping[str, Any]) -> None:
    """Every declared metric has a value, and each value is possible."""
    missing = sorted(set(expected) - set(values))
    if missing:
        refuse('missing_metric', f'no figure for {", ".join(missing)}')
    for metric in values:
        metrics.metric(metrics.split(metric)[0])
    bad = limits.exceeded_limits(family, values, params, site)
    if bad:
        refuse('limits', 'too good to be true: ' + '; '.join(bad[:3]))
