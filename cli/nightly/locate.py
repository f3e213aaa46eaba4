"""plumb locate: which node or switch is slow.

Runs one test case of two nodes on pairs of nodes, with ReFrame.
cli/nightly/locating.py chooses the pairs and evaluates them.

Most of these nodes are suspected: their values would bias histories and references.
So the records have their own folder, $PLUMBLINE_WORK/locate/TIME, which no other
command reads by default (`./plumb report --perflogs FOLDER/perflogs` does).
"""
from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cli.nightly import locating
from cli.nightly.locating import Located, Pair, Search
from cli.session import commands, identities
from cli.session.reframe_options import find_non_run_action
from cli.setup.venv import WORK, SetupError, print_progress
from cli.site import check as sites
from cli.site.schedulers import query_pool
from config.console import count_with_noun
from config.sessions import judged, session_id
from config.sessions.progress import duration_text
from config.sessions.slurm_jobs import SLURM
from config.sites import topology
from postprocess import records

#: Guards of a test case that never began: no evidence about its nodes.
NOT_BEGUN = {'build', 'cancelled', 'dependency', 'missing', 'pending', 'setup',
             'skipped'}
#: OMB ends after a number of messages: fewer and smaller ones are enough. osu_bw then
#: takes 4 s at 1 Gbit/s, instead of 94 s, and osu_latency 10 s at 1 ms.
SHORT_JOBS = {'bandwidth': {'max_size': 262144, 'iterations': 12, 'warmup': 2},
              'latency': {'max_size': 1024, 'iterations': 400, 'warmup': 40}}

Case = Mapping[str, Any]


def locate(args: argparse.Namespace) -> int:
    """Run the command `plumb locate`: measure pairs of nodes until the slow node or
    switch is found; return the exit code.

    :raises SetupError: an option cannot be used, or the site has no pairs
    """
    if action := find_non_run_action(args.reframe):
        raise SetupError(f'{action} measures nothing; use ./plumb run with '
                         'this option')
    if args.repetitions < 1 or args.parallel is not None and args.parallel < 1:
        raise SetupError('--repetitions and --parallel must be 1 or more')
    folder = commands.site_folder(args.site)
    with commands.prepare_session(argparse.Namespace(**{
            **vars(args), 'mode': 'full', 'bringup': True, 'wait': True})) as work:
        partition = select_partition(work.system, args.partition)
        case, metric = select_test_case(
            sites.list_test_cases_with_reframe(folder), partition['name'], args)
        try:
            search = Search(
                usable_nodes(partition, args.nodes), 'higher',
                above=topology.switches_above_nodes(folder),
                slowdown=args.slowdown / 100)
        except (ValueError, topology.TopologyError) as err:
            raise SetupError(f'partition {partition["name"]}: {err}: see --nodes'
                             ) from None
        short = options_of_short_jobs(case, metric, args.reframe)
        place = WORK / 'locate' / session_id.new_session_id()
        place.mkdir(parents=True)
        work = work._replace(
            variables={**work.variables, 'PLUMBLINE_PERFLOGS': str(place / 'perflogs')},
            # Nightly sessions validate the data: here it would take most of
            # the time of many short jobs.
            options_of_any_mode=['-Sbringup=1', '-Svalidates=0', *short,
                                 f'-Srepetitions={args.repetitions}', *args.reframe])
        print_progress(' '.join([
            f'{case["check"]} {case["params"]} on {case["where"]},',
            count_with_noun(len(search.nodes), 'node'), *short]))
        max_jobs = int(partition.get('max_jobs') or 8)
        located, why, code = measure_pairs(
            search, work, case, metric, min(args.parallel or max_jobs, max_jobs),
            lambda: lost_nodes(partition, search.nodes))
    if located is None:
        return code
    return max(code, print_and_write_result(located, why, place, args.json))


# ------------------------------------------------- what to measure, where

def select_partition(system: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """The partition of that name, or the only one that can pin jobs to nodes.

    :raises SetupError: there is none, or there are several
    """
    able = [part for part in system['partitions']
            if part['scheduler'] in SLURM and name in (None, part['name'])]
    if len(able) == 1:
        return able[0]
    known = ', '.join(f'{part["name"]} ({part["scheduler"]})'
                      for part in system['partitions'])
    raise SetupError(
        f'{system["name"]} has the partitions {known}: plumb locate needs one with the '
        'scheduler slurm or squeue, and at least two nodes; name it with --partition')


def select_test_case(answer: Mapping[str, Any], partition: str,
                     args: argparse.Namespace) -> tuple[Case, str]:
    """The test case of two nodes to measure pairs with, and its metric: bandwidth of
    a link, unless the options name another.

    :param answer: of list_test_cases_with_reframe
    :raises SetupError: there is none
    """
    if 'error' in answer:
        raise SetupError('; '.join([*answer['output'], answer['error']]))
    cases = [case for case in answer['cases']
             if case['nodes'] == 2 and case['where'].partition('+')[0] == partition
             and args.environ in (None, case['where'].partition('+')[2])]
    if args.test_case is not None:
        for case in cases:
            if case['test_case'] == args.test_case:
                if not (args.metric or case['link']):
                    raise SetupError(
                        f'{args.test_case} has no metric of the link between two '
                        'nodes; name a metric with --metric')
                return case, args.metric or case['link']
        raise SetupError(f'{partition} has no test case of two nodes with the ID '
                         f'{args.test_case}; the tables of ./plumb run show the IDs')
    by_link = {case['link']: case for case in reversed(cases) if case['link']}
    metric = args.metric or ('bandwidth' if 'bandwidth' in by_link
                             else next(iter(by_link), ''))
    if metric not in by_link:
        raise SetupError(f'no test case of two nodes on {partition} measures '
                         f'{metric or "a link"}; choose {", ".join(sorted(by_link))}'
                         f'{" or " * bool(by_link)}a test case with --test-case')
    return by_link[metric], metric


def usable_nodes(partition: Mapping[str, Any], host_list: str | None) -> list[str]:
    """The nodes that were named, or all of the partition, that take jobs of Slurm.

    :raises SetupError: Slurm cannot be asked, or it cannot be told which
    """
    name, pool = partition['name'], query_pool(partition)
    there = pool.nodes
    if host_list is None and pool.chooses:
        raise SetupError(f'partition {name}: access in system.py has '
                         f'{pool.chooses[0]}, so the nodes that jobs may use are not '
                         'known; name them with --nodes')
    try:
        names = list(dict.fromkeys(
            there if host_list is None else topology.expand_host_list(host_list)))
    except ValueError:
        raise SetupError(f'--nodes {host_list!r} is not a list of hosts, such as '
                         'n[1-4,7]') from None
    if lost := [one for one in names if one not in there]:
        raise SetupError(f'--nodes: jobs of partition {name} cannot use '
                         f'{", ".join(lost)}')
    unusable = [str(there[one]) for one in names if not there[one].is_usable]
    if unusable:
        print_progress(f'left out, because they take no jobs: {", ".join(unusable)}')
    return [one for one in names if there[one].is_usable]


def lost_nodes(partition: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Those of some nodes of a partition that take no jobs of Slurm now.

    :raises SetupError: Slurm cannot be asked
    """
    return {*names} - query_pool(partition).usable_nodes


def options_of_short_jobs(case: Case, metric: str, words: Sequence[str]) -> list[str]:
    """Options of ReFrame with which a job is short; none if a person set sizes or
    options of the program, or for other metrics.

    :param words: options of ReFrame that a person gave
    """
    if metric not in SHORT_JOBS or case['link'] != metric or re.search(
            r'\b(max_size|iterations|warmup|options)=', ' '.join(words)):
        return []
    return [f'-S{case["check"]}.{name}={value}'
            for name, value in SHORT_JOBS[metric].items()]


# ------------------------------------------------- measuring

def measure_pairs(search: Search, work: commands.Work, case: Case, metric: str,
                  parallel: int, find_lost: Callable[[], set[str]]
                  ) -> tuple[Located | None, str, int]:
    """Measure pairs until no other pair could add evidence.

    :param find_lost: the nodes of the search that take no jobs now
    :returns: the result, why it ended early ('': it did not), and the exit code
    """
    [selection] = identities.selections([identities.identity_of_listing(case)])
    unit = why = ''
    began, sessions = time.monotonic(), 0
    while not why and (rounds := search.next_rounds()):
        # Each session of ReFrame has pairs of one round, `parallel` at most.
        groups = [pairs[at:at + parallel] for pairs in rounds
                  for at in range(0, len(pairs), parallel)]
        elapsed = time.monotonic() - began
        print_progress(
            f'{count_with_noun(sum(map(len, rounds)), "job")} in '
            f'{count_with_noun(len(rounds), "round")}'
            + (f'; about {duration_text(elapsed / sessions * len(groups))}, '
               f'{duration_text(elapsed)} elapsed' if sessions else ''))
        for pairs in groups:
            names = ','.join('+'.join(pair) for pair in pairs)
            ended = commands.run_reframe_session(
                work, *selection, '-P', f'{identities.PINNED}={names}', any_mode=True)
            if not ended.has_begun:
                return None, '', commands.print_zero_test_cases_reason(work, ended)
            rows = read_session(ended.session, work.perflog_folder)
            values = dict(_values_of_pairs(rows, pairs, str(case['family']), metric))
            waited = [pair for pair in pairs if pair not in values]
            if waited and (lost := find_lost()):
                # The jobs wait for them: they failed.
                values.update({pair: None for pair in waited
                               if lost.intersection(pair)})
            for pair, row in values.items():
                if row is not None:
                    search.better, unit = str(row['better']), str(row['unit'])
                search.add_measurement(pair, None if row is None else row['value'])
            sessions += 1
            why = (f'ended by {ended.ended_by}' if ended.ended_by else
                   'no pair was measured: the lines above say why'
                   if not values and (rows['guard'] != '').all() else
                   f'no pair has a value of {metric}' * (not unit))
            if why:
                break
    return search.current_result(unit), why, int(bool(why))


def read_session(session: str, folder: str) -> pd.DataFrame:
    """The records of a session."""
    frame, faults = records.read(folder, on_error='collect')
    for fault in faults:
        print_progress(str(fault))
    return frame[frame['session'] == session]


def _values_of_pairs(frame: pd.DataFrame, pairs: Iterable[Pair], family: str,
                     metric: str) -> Iterator[tuple[Pair, pd.Series | None]]:
    """The pairs that ran, and the record of the metric of each; None: the job failed.

    :param frame: the records of a session
    :raises SetupError: a job did not run on the nodes that it was given
    """
    for pair in pairs:
        name = '-'.join(pair)
        rows = frame[frame['copy'] == f'{identities.PINNED}={"+".join(pair)}']
        ran = {node for text in rows['nodes'].unique()
               for node in topology.nodes_of_record(str(text))}
        if ran and ran != set(pair):
            raise SetupError(
                f'the job of {name} ran on {", ".join(sorted(ran))}: Slurm ignored '
                '--nodelist; check the job-submit plugins of the site')
        guards = sorted(set(map(str, rows['guard'].unique())) - {''})
        row = row_of_judged_metric(rows, family, metric)
        if row is not None:
            yield pair, row
        elif rows.empty or guards:
            print_progress(f'the job of {name} failed: '
                           f'{", ".join(guards) or "no record was written"}')
            if not rows.empty and not NOT_BEGUN.intersection(guards):
                yield pair, None


def row_of_judged_metric(rows: pd.DataFrame, family: str, metric: str
                         ) -> pd.Series | None:
    """The record of a metric at its judged point, of the first repetition: 0 is the
    median of all. None: there is none."""
    rows = rows[rows['repetition'] == rows['repetition'].min()]
    points = [(metric, judged.point_in_bytes(point))
              for point in rows[rows['metric'] == metric]['point']]
    keys = judged.judged_metric_keys(family, points)
    is_judged = [judged.metric_key(*one) in keys for one in zip(
        rows['metric'], rows['point'], strict=True)]
    return next((row for _, row in rows[is_judged].iterrows()), None)


# ------------------------------------------------- report

def print_and_write_result(located: Located, why: str, place: Path, file: str | None
                           ) -> int:
    """Print and write the result of a search; return the exit code.

    :param why: why it ended early; empty: it is complete
    :param place: folder of its records
    :param file: file of the JSON; -: print it
    """
    (place / 'located.json').write_text(located.json())
    if file == '-':
        print(located.json(), end='')
    else:
        if file:
            Path(file).write_text(located.json(), 'utf-8')
        print(*locating.result_lines(located), f'Records: {place}', sep='\n')
    if why:
        print(f'plumb locate: {why}; the result is of the pairs measured so '
              'far', file=sys.stderr)
    return located.exit_code
