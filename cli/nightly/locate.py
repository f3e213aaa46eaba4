"""plumb locate: which node, or link, is slow.

Runs one test case of two nodes on pairs of nodes, with ReFrame, and reports
which node, link or switch the slow pairs have in common.
postprocess/regressions/locating.py chooses the pairs and evaluates them.

These pairs are not a random choice: most of their nodes are suspected. Their
values would bias histories and references. So the records have their own
folder, $PLUMBLINE_WORK/locate/TIME, in
the suite's format (`./plumb report --perflogs FOLDER/perflogs` shows them),
and no other command reads it by default.
"""
from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from cli.nightly import nodes, pairs
from cli.session import commands, identities
from cli.setup.venv import WORK, SetupError, print_progress
from cli.site import check as sites
from config import families
from config.console import count_with_noun
from config.places import site_option
from config.sessions import judged, session_id
from config.sessions.progress import duration_text
from config.sessions.slurm_jobs import SLURM
from config.sites import topology
from postprocess import records
from postprocess.regressions import locating, verdict
from postprocess.regressions.locating import Located, Pair, Search

if TYPE_CHECKING:
    from postprocess.regressions.finding import Verdict

#: Searches whose records are kept; older ones are removed when one begins.
KEPT = 20
#: Guards of a test case that never began: no evidence about its nodes.
NOT_BEGUN = ('build', 'cancelled', 'dependency', 'missing', 'pending',
             'setup', 'skipped')

Case = Mapping[str, Any]


class Target(NamedTuple):
    """What to measure, and where."""
    #: Of the site's configuration.
    partition: Mapping[str, Any]
    #: Of cli/site/cases.py.
    case: Case
    #: Metric to compare; empty: the first one that has a tolerance.
    metric: str
    #: Value of a good pair, from the regression; None: unknown.
    expected: float | None


class SearchResult(NamedTuple):
    """The result of a search."""
    #: None: nothing was measured.
    located: Located | None
    #: Why it ended early; empty: it is complete.
    why: str
    code: int
    #: Folder of its records.
    place: Path


def locate(args: argparse.Namespace) -> int:
    """Run the command `plumb locate`; return the exit code."""
    return _print_and_write_result(args, *search_slow_nodes(args))


def search_slow_nodes(args: argparse.Namespace) -> SearchResult:
    """Measure pairs of nodes until the slow node or link is found.

    :raises SetupError: an option cannot be used, or the site has no pairs
    """
    if action := commands.find_non_run_action(args.reframe):
        raise SetupError(f'{action} measures nothing; use ./plumb run with '
                         'this option')
    if args.repetitions < 1 or args.parallel is not None and args.parallel < 1:
        raise SetupError('--repetitions and --parallel must be 1 or more')
    folder = commands.site_folder(args.site)
    known = argparse.Namespace(**{
        **vars(args), 'mode': 'full', 'bringup': True, 'wait': True})
    with commands.prepare_session(known) as work:
        target = select_partition_and_test_case(args, folder, work)
        there = usable_nodes(target.partition, args.nodes)
        try:
            search = Search(
                there, 'higher', above=_read_switches_above_nodes(folder),
                slowdown=args.slowdown / 100, every=args.all_pairs)
        except ValueError as err:
            raise SetupError(f'partition {target.partition["name"]}: {err}: '
                             'see --nodes') from None
        known_seconds = None if pairs.has_own_settings(args.reframe) else (
            earlier_job_seconds(work, target.case))
        place = _make_record_folder()
        work = work._replace(
            variables={**work.variables,
                       'PLUMBLINE_PERFLOGS': str(place / 'perflogs')},
            # Nightly sessions validate the data: here it would take most of
            # the time of many short jobs.
            options_of_any_mode=['-Sbringup=1', '-Svalidates=0',
                                 f'-Srepetitions={args.repetitions}', *args.reframe])
        print_progress(f'{target.case["check"]} {target.case["params"]} on '
                       f'{target.case["where"]}, {len(search.nodes)} nodes')
        max_jobs = int(target.partition.get('max_jobs') or 8)
        parallel = min(args.parallel or max_jobs, max_jobs)
        job_time = JobTime(known_seconds or 0.0)
        if not known_seconds or known_seconds > pairs.BOUNDED_ABOVE:
            work, target, job_time = bound_jobs_in_time(
                search, work, target, parallel, args)
        return SearchResult(
            *_measure_pairs(search, work, target, parallel, job_time), place)


# ------------------------------------------------- what to measure, where

def select_partition_and_test_case(args: argparse.Namespace, folder: Path,
                                   work: commands.Work
         ) -> Target:
    """Partition and test case: from the options, else from the regressions,
    else the only ones that exist.

    :raises SetupError: there are several, or none that can be measured
    """
    current_verdict = _current_verdict(work)
    system = work.system['name']
    worse = [
        (line, member)
        for line in (current_verdict.regressions if current_verdict else ())
        for member in line.members
        if member.system == system
    ]
    partition = select_partition(
        work.system, args.partition, [one.partition for _, one in worse])
    name = partition['name']
    answer = sites.list_test_cases_with_reframe(folder)
    if 'error' in answer:
        raise SetupError('; '.join([*answer['output'], answer['error']]))
    here = [case for case in answer['cases']
            if case['where'].partition('+')[0] == name
            and args.environ in (None, case['where'].partition('+')[2])]
    case, metric = select_test_case(here, name, args.test_case, args.metric, [
        one.metric for _, one in worse if one.partition == name])
    if worse and not args.partition:
        print_progress(f'the test case is chosen by the regressions of {name} (./plumb '
                       f'verdict{site_option(system)})')
    before = [line.before for line, member in worse
              if member.test_case == case['test_case'] and line.metric == metric]
    return Target(partition, case, metric, before[0] if before else None)


def _current_verdict(work: commands.Work) -> Verdict | None:
    """The verdict of the perflogs; None: they cannot be read."""
    try:
        return verdict.verdict_of_perflogs(work.perflog_folder)[0]
    except (OSError, ValueError):
        return None


def select_partition(system: Mapping[str, Any], name: str | None,
                     worse_partitions: Iterable[str]) -> Mapping[str, Any]:
    """The partition of that name, or the one with most that is worse.

    :raises SetupError: none of that name, none named, or none of Slurm's
    """
    known = {part['name']: part for part in system['partitions']}
    able = [part for part in known.values()
            if part['scheduler'] in SLURM]
    if name is not None and name not in known:
        raise SetupError(f'{system["name"]} has no partition {name!r}; it has '
                         f'{", ".join(known)}')
    if name is None:
        regressed = [one for one in worse_partitions
                     if known.get(one) in able and one in known]
        if regressed:
            name = max(dict.fromkeys(regressed), key=regressed.count)
        elif len(able) == 1:
            name = able[0]['name']
        elif able:
            raise SetupError(
                'no regression selects a partition; name one with '
                '--partition: '
                + ', '.join(part['name'] for part in able))
    if name is None or known[name] not in able:
        which = (f'the site {system["name"]} has' if name is None
                 else f'partition {name} has')
        schedulers = ', '.join(dict.fromkeys(
            part['scheduler'] for part in known.values()
            if name in (None, part['name'])))
        raise SetupError(
            f'{which} the scheduler {schedulers}; plumb locate needs the '
            'scheduler slurm or squeue, and at least two nodes')
    return known[name]


def select_test_case(cases: Iterable[Case], where: str, test_case: str | None,
                     metric: str | None, worse: Iterable[str]) -> tuple[Case, str]:
    """The case to measure pairs with, and the metric that is looked at.

    :param cases: of the partition
    :param where: its name, for errors
    :param test_case: short ID; None: one of those that measure a link
    :param worse: metrics that regressed
    :raises SetupError: there is none
    """
    two = [case for case in cases if case['nodes'] == 2]
    if test_case is not None:
        matches = [case for case in two if case['test_case'] == test_case]
        if not matches:
            raise SetupError(f'{where} has no test case of two nodes with the ID '
                             f'{test_case}; the tables of ./plumb run show the IDs')
        return matches[0], metric or matches[0]['link']
    links = [case for case in two if case['link']]
    names = list(dict.fromkeys(case['link'] for case in links))
    if not links:
        raise SetupError(f'no test case of two nodes on {where} measures a '
                         'link; name a test case with --test-case')
    if metric is not None and metric not in names:
        raise SetupError(f'no test case on {where} measures {metric!r} of a '
                         f'link; choose {", ".join(names)}, or use --test-case')
    metric = metric or next((one for one in worse if one in names),
                            'bandwidth' if 'bandwidth' in names else names[0])
    return next(case for case in links if case['link'] == metric), metric


def usable_nodes(partition: Mapping[str, Any], host_list: str | None) -> list[str]:
    """The nodes to look at: those that were named, or all of the partition;
    of both, those that Slurm could give.

    :raises SetupError: Slurm cannot be asked, or it cannot be told which
    """
    name = partition['name']
    there, place = nodes.query_nodes_of_access_options(
        map(str, partition.get('access', ())), name)
    if host_list is None:
        if place.chooses:
            raise SetupError(
                f'the access of {name} has {place.chooses[0]}, which '
                'chooses unknown nodes; name the nodes with --nodes')
        names = list(there)
    else:
        names = list(dict.fromkeys(parse_nodes_option(host_list)))
        if lost := [one for one in names if one not in there]:
            raise SetupError(f'--nodes: jobs of partition {name} cannot use '
                             f'{", ".join(lost)}')
    unusable = [str(there[one]) for one in names if not there[one].is_usable]
    if unusable:
        print_progress(f'left out, because they take no jobs: {", ".join(unusable)}')
    return [one for one in names if there[one].is_usable]


def parse_nodes_option(text: str) -> list[str]:
    """The names of a list of hosts.

    :raises SetupError: it is none
    """
    try:
        return topology.expand_host_list(text)
    except ValueError:
        raise SetupError(f'--nodes {text!r} is not a list of hosts, such as '
                         'n[1-4,7]') from None


def _read_switches_above_nodes(folder: Path) -> dict[str, list[str]]:
    """Node -> the switches above it, where the site says."""
    path = folder / topology.NAME
    try:
        return (
            topology.switches_above_nodes(topology.load_switches(path))
            if path.is_file()
            else {}
        )
    except topology.TopologyError as err:
        raise SetupError(str(err)) from None


def _make_record_folder() -> Path:
    """A folder for the records of this search; old ones are removed."""
    home = WORK / 'locate'
    for old in sorted(home.glob('[0-9]*'))[:1 - KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    place = home / session_id.new_session_id()
    place.mkdir(parents=True)
    return place


# ------------------------------------------------- measuring

class JobTime(NamedTuple):
    """What is known of the time of a job. Unit: s."""
    #: 0: nothing.
    job: float
    #: Of a session besides its jobs: the start of ReFrame, the build, the queue.
    overhead: float = 10.0


def earlier_job_seconds(work: commands.Work, case: Case) -> float | None:
    """Median seconds of the test case in earlier sessions; None: it never ran."""
    frame, _ = records.read(work.perflog_folder, on_error='collect')
    seconds = frame[(frame['test_case'] == case['test_case'])
                    & (frame['metric'] == 'wall_time')]['value']
    return float(seconds.median()) if len(seconds) else None


def bound_jobs_in_time(search: Search, work: commands.Work, target: Target,
                       parallel: int, args: argparse.Namespace
                       ) -> tuple[commands.Work, Target, JobTime]:
    """Measure first pairs with short jobs, and bound the jobs of the search.

    :returns: with options that bound a job; without, if a person set some or the
        test case is not one of a link
    """
    if pairs.has_own_settings(args.reframe) or target.metric not in (
            'bandwidth', 'latency') or target.case['link'] != target.metric:
        return work, target, JobTime(0.0)
    first = [(a, b) for a, b in zip(search.nodes[::2], search.nodes[1::2], strict=False)
             ][:parallel]
    print_progress('a short job on ' + ', '.join('-'.join(pair) for pair in first)
                   + ' measures how long a job takes')
    began = time.monotonic()
    check = target.case['check']
    short = pairs.first_job_options(check, target.metric)
    ended = _run_pairs(_with_options(work, short), target, first)
    if not ended.has_begun:
        return work, target, JobTime(0.0)
    values = [value for _, value in results_of_pairs(
        ended.session, first, work.perflog_folder, target).metrics if value]
    if not values:
        return work, target, JobTime(0.0)
    options, seconds = pairs.bounded_job_options(
        check, target.metric, statistics.median(values))
    if options:
        # The value before the regression is of other sizes.
        target = target._replace(expected=None)
        print_progress(f'the jobs are bounded: {" ".join(options)}')
    return (_with_options(work, options), target,
            JobTime(seconds, time.monotonic() - began))


def _with_options(work: commands.Work, options: Sequence[str]) -> commands.Work:
    return work._replace(options_of_any_mode=[*work.options_of_any_mode, *options])


def _run_pairs(work: commands.Work, target: Target, pairs_of_nodes: Sequence[Pair]
               ) -> commands.Ended:
    """Run the test case on pairs of nodes, in one session of ReFrame."""
    [selection] = identities.selections([identities.identity_of_listing(target.case)])
    nodes_of_jobs = ','.join('+'.join(pair) for pair in pairs_of_nodes)
    return commands.run_reframe_session(
        work, *selection, '-P', f'{identities.PINNED}={nodes_of_jobs}', any_mode=True)


def jobs_of_sessions(rounds: Iterable[Sequence[Pair]], parallel: int
                     ) -> Iterator[Sequence[Pair]]:
    """The pairs of each session of ReFrame: of one round, and at most `parallel`."""
    for pairs_of_round in rounds:
        for at in range(0, len(pairs_of_round), parallel):
            yield pairs_of_round[at:at + parallel]


def progress_text(search: Search, rounds: list[list[Pair]], parallel: int,
                  known: JobTime, elapsed: float) -> str:
    """The next rounds, how long they take, and how long the search may take.

    :param elapsed: seconds since the search began
    """
    jobs = sum(map(len, rounds))
    now = pairs.rounds_seconds(rounds, parallel, known.job, known.overhead)
    left = search.rounds_left()
    widest = max(rounds, key=len)
    # Each later round is a session of its own at worst.
    most = now + left * pairs.rounds_seconds([widest], parallel, *known)
    return (f'{count_with_noun(jobs, "job")} in '
            f'{count_with_noun(len(rounds), "round")}: '
            + ', '.join('-'.join(pair) for jobs_of_round in rounds
                        for pair in jobs_of_round[:4])
            + ' ...' * (jobs > 4 * len(rounds))
            + (f'; about {duration_text(now)}, and at most '
               f'{count_with_noun(left, "more round")} '
               f'({duration_text(most)} with them)'
               if known.job else '')
            + (f'; {duration_text(elapsed)} elapsed' if search.look > 1 else ''))


def _measure_pairs(search: Search, work: commands.Work, target: Target,
                   parallel: int, known: JobTime) -> tuple[Located | None, str, int]:
    """Measure pairs until no other pair could add evidence."""
    unit = why = ''
    began = time.monotonic()
    while not why and (rounds := search.next_rounds()):
        print_progress(progress_text(search, rounds, parallel, known,
                                     time.monotonic() - began))
        before = time.monotonic()
        for some in jobs_of_sessions(rounds, parallel):
            ended = _run_pairs(work, target, some)
            if not ended.has_begun:
                return None, '', commands.print_zero_test_cases_reason(work, ended)
            results = results_of_pairs(ended.session, some, work.perflog_folder, target)
            if results.better:
                search.better, unit = results.better, results.unit
            for pair, metric in results.metrics:
                search.add_measurement(pair, metric)
            why = (f'ended by {ended.ended_by}' if ended.ended_by else results.idle
                   or f'no pair has a value of {target.metric or "this case"}'
                   * (not unit))
            if why:
                break
        took = time.monotonic() - before
        in_turn = pairs.rounds_seconds(rounds, parallel, 1.0, 0.0)
        # What was measured is better than what was expected.
        known = (JobTime(known.job, max(took - in_turn * known.job, 1.0)) if known.job
                 else JobTime(took / in_turn, 0.0))
    return search.current_result(unit, target.expected), why, int(bool(why))


class Results(NamedTuple):
    """The values of the pairs of a session."""
    #: None: the job failed.
    metrics: list[tuple[Pair, float | None]]
    #: Better side and unit of the metric; '': there are no values.
    better: str
    unit: str
    #: Why no pair was measured; '': some were.
    idle: str


def results_of_pairs(session: str, measured: Iterable[Pair], folder: str,
                     target: Target) -> Results:
    """The values of the pairs of a session, from its records.

    :raises SetupError: a job did not run on the nodes that it was given
    """
    frame, faults = records.read(folder, on_error='collect')
    for fault in faults:
        print_progress(str(fault))
    pair_values: list[tuple[Pair, float | None]] = []
    better = unit = ''
    idle: list[str] = []
    for pair in measured:
        rows = frame[(frame['session'] == session)
                     & (frame['copy'] == f'{identities.PINNED}={"+".join(pair)}')]
        ran = {node for text in rows['nodes'].unique()
               for node in topology.nodes_of_record(str(text))}
        if ran and ran != set(pair):
            raise SetupError(
                f'the job of {"-".join(pair)} ran on '
                f'{", ".join(sorted(ran))}: Slurm ignored '
                '--nodelist; check the job-submit plugins of the site')
        guards = sorted(set(map(str, rows['guard'].unique())) - {''})
        if pair_value := judged_metric_value(rows, target.case['family'],
                                             target.metric):
            value, better, unit = pair_value
            pair_values.append((pair, value))
        elif rows.empty or set(guards) & set(NOT_BEGUN):
            idle += guards or ['without a record']
        elif guards:
            print_progress(f'{"-".join(pair)} failed: {", ".join(guards)}')
            pair_values.append((pair, None))
    return Results(
        pair_values,
        better,
        unit,
        ''
        if pair_values or not idle
        else (
            f'no pair was measured ({", ".join(dict.fromkeys(idle))}): the '
            'lines above say why'
        ),
    )


def judged_metric_value(rows: pd.DataFrame, family: str, metric: str
              ) -> tuple[float, str, str] | None:
    """The metric of a test case that has a tolerance: value, better side,
    unit.

    Repetition 0, if it exists, is the median over all repetitions.
    """
    rows = rows[rows['metric'] != 'completed']
    if rows.empty:
        return None
    rows = rows[rows['repetition'] == rows['repetition'].min()]
    values = [(str(metric), judged.point_in_bytes(point)) for metric, point
              in zip(rows['metric'], rows['point'], strict=True)]
    names = [judged.metric_key(*one) for one in values]
    metric_name = judged.judged_metric_keys(family, values)
    order = [rule['metric'] for rule in families.families()[family].judged]
    for name in sorted(metric_name, key=lambda one: order.index(
            judged.split_metric_key(one)[0])):
        if metric in ('', judged.split_metric_key(name)[0]):
            row = rows.iloc[names.index(name)]
            return float(row['value']), str(row['better']), str(row['unit'])
    return None


# ------------------------------------------------- report

def _print_and_write_result(args: argparse.Namespace, located: Located | None, why: str,
                            code: int, place: Path) -> int:
    """Prints and writes the verdict; the exit code."""
    if located is None:
        return code
    (place / 'located.json').write_text(located.json())
    if args.json:
        if args.json == '-':
            print(located.json(), end='')
        else:
            Path(args.json).write_text(located.json(), 'utf-8')
    if args.json != '-':
        print()
        print(*locating.result_lines(located), sep='\n')
        print(f'Records: {place}')
    if why:
        print(f'plumb locate: {why}; the result is of the pairs measured so '
              f'far',
              file=sys.stderr)
    return max(code, located.exit_code)
