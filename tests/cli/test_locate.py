"""plumb locate: what it measures, where, and how it reads what came."""
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from data.perflogs_factory import record, write
from locate import Cluster

from cli import __main__
from cli.nightly import locate
from cli.session import commands
from cli.setup.venv import SetupError
from cli.site import schedulers
from cli.site.nodes import parse_sinfo

SLURM = {'name': 'batch', 'scheduler': 'slurm', 'access': ['-pgpu'],
         'max_jobs': 4}
SYSTEM = {'name': 'alpha', 'partitions': [
    {'name': 'login', 'scheduler': 'local'}, SLURM]}
TWO = {**SYSTEM, 'partitions': [SLURM, {**SLURM, 'name': 'other'}]}
SINFO = '\n'.join(f'{part}|{node}|{state}|2|1|2|1|(null)|1-infinite'
                  for part, node, state in (
                      ('cpu*', 'c1', 'idle'), ('cpu*', 'c2', 'mixed'),
                      ('gpu', 'g1', 'idle'), ('gpu', 'g2', 'allocated'),
                      ('gpu', 'g3', 'down*'), ('gpu', 'g10', 'idle')))


# ------------------------------------------------- what to measure, where


@pytest.mark.parametrize('system, name, words', [
    (TWO, None, r'has the partitions batch \(slurm\), other \(slurm\): .* name it '
     'with --partition'),
    (TWO, 'gone', 'has the partitions batch'),
    (SYSTEM, 'login', r'login \(local\), batch .* needs one with the scheduler slurm '
     'or squeue, and at least two nodes'),
    ({**SYSTEM, 'partitions': [{**SLURM, 'scheduler': 'pbs'}]}, None,
     r'^alpha has the partitions batch \(pbs\): .* needs one with the scheduler slurm '
     'or squeue.*$')])
def test_where_nothing_can_be_located(system, name, words):
    with pytest.raises(SetupError, match=words):
        locate.select_partition(system, name)


def case(link='', nodes=2, **more):
    return {'check': 'C', 'params': '', 'where': 'batch+mpi', 'link': link,
            'nodes': nodes, 'test_case': f'{link or "other"}{nodes}', 'family': 'osu',
            'system': 'alpha', 'partition': 'batch', 'environ': 'mpi', 'settings': '',
            'name': 'C', **more}


CASES = [case(nodes=1), case(), case('latency'), case('bandwidth')]


def options(**given: Any) -> argparse.Namespace:
    args = __main__.parse_command_line(['locate', '--site', 'alpha'])
    return argparse.Namespace(**{**vars(args), **given})


@pytest.mark.parametrize('cases, given, match', [
    (CASES, {'metric': 'overlap'}, 'measures overlap; choose bandwidth, latency or a'),
    (CASES, {'test_case': 'other1'}, 'no test case of two nodes with the ID other1'),
    (CASES, {'test_case': 'other2'}, 'nodes; name a metric with --metric'),
    (CASES[:2], {}, 'measures a link; choose a test case with --test-case')])
def test_where_no_case_fits(cases, given, match):
    with pytest.raises(SetupError, match=match):
        locate.select_test_case({'cases': cases}, 'batch', options(**given))


@pytest.mark.parametrize('given, test_case, metric', [
    ({}, 'bandwidth2', 'bandwidth'), ({'metric': 'latency'}, 'latency2', 'latency'),
    ({'test_case': 'other2', 'metric': 'rate'}, 'other2', 'rate')])
def test_the_test_case_that_is_measured(given, test_case, metric):
    chosen, name = locate.select_test_case({'cases': CASES}, 'batch', options(**given))
    assert (chosen['test_case'], name) == (test_case, metric)


@pytest.fixture
def sinfo(monkeypatch):
    monkeypatch.setattr(schedulers, '_query_slurm', lambda: parse_sinfo(SINFO))


@pytest.mark.parametrize('access, expected, result', [
    (['-pgpu'], None, 'g1 g2 g10'), (['--partition=gpu'], 'g[1-2]', 'g1 g2'),
    (['-p', 'gpu', '-x', 'g[2-3]'], None, 'g1 g10')])
def test_nodes_are_those_that_slurm_gives_to_jobs(sinfo, access, expected,
                                                  result, capsys):
    assert locate.usable_nodes({**SLURM, 'access': access},
                               expected) == result.split()
    left = ('g3' in (expected or 'g3') and 'gpu' in str(access)
            and '-x' not in access)
    assert ('left out, because they take no jobs: g3 (down*)'
            in capsys.readouterr().err) == left


@pytest.mark.parametrize('access, expected, words', [
    (['-pgone'], None, 'Slurm has no partition gone, which partition batch uses'),
    (['-pgpu'], 'g1,g7', 'jobs of partition batch cannot use g7'),
    (['-pgpu'], 'g[1-x]', 'is not a list of hosts'),
    (['-pgpu', '-Ca100'], None, 'has --constraint=a100, .* with --nodes')])
def test_nodes_that_cannot_be_told(sinfo, access, expected, words):
    with pytest.raises(SetupError, match=words):
        locate.usable_nodes({**SLURM, 'access': access}, expected)


# ------------------------------------------------- a session

class Nodes:
    """Stands in for ReFrame on a cluster."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        #: Jobs of each session.
        self.asked: list[list[str]] = []
        #: More columns of each record.
        self.columns: dict[str, Any] = {}
        self.ended_by = ''
        #: Why a job of a dead node failed; nodes that Slurm lists as down.
        self.guard, self.lost = 'job_state', set()

    def measured(self, work: Any, *options: str, any_mode: bool) -> commands.Ended:
        self.options = [*work.options_of_any_mode, *options]
        jobs = options[-1].removeprefix('pinned_nodes=').split(',')
        self.asked.append(jobs)
        rows = []
        for nodes in jobs:
            metric = self.cluster.simulated_pair_metric(*nodes.split('+'))
            more = {'day': len(self.asked), 'check': 'C', 'nodes': nodes.replace(
                '+', ','), 'name': f'C %.pinned_nodes={nodes}', **self.columns}
            if metric is None:
                rows.append(record('completed', 0.0, **{
                    'guard': self.guard, **more, 'nodes': ''}))
            else:
                # A smaller message says less, and is not looked at.
                rows += [record(**{'metric': 'bandwidth', 'value': value, 'size': size,
                                   **more})
                         for value, size in ((metric, 4194304), (1.0, 1024))]
        write(self.folder, rows)
        return commands.Ended(rows[0]['session'], 0, self.ended_by, True, Path())


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A search on made-up nodes: (exit code, what was written, ReFrame)."""
    def run(cluster, **more):
        nodes = Nodes(tmp_path, cluster)
        vars(nodes).update(more)
        monkeypatch.setattr(commands, 'run_reframe_session', nodes.measured)
        search = locate.Search(cluster.nodes, 'higher',
                               above=cluster.above)
        result = locate.measure_pairs(
            search, run.work, case('bandwidth'), 'bandwidth', 4, lambda: nodes.lost)
        return result, nodes
    run.work = commands.Work(SYSTEM, {'PLUMBLINE_PERFLOGS': str(tmp_path)},
                             [], ['-Sbringup=1'], True, [], False)
    return run


def test_a_slow_node_by_records_alone(site):
    (result, why, code), nodes = site(Cluster(16, 1, slow={'n5': 0.8}))
    assert [(one.name, one.verdict) for one in result.named] == [
        ('n5', 'slow')]
    assert (why, code, result.unit) == ('', 0, 'MB/s')
    # One session per round of disjoint pairs, of at most four jobs.
    for jobs in nodes.asked:
        measured = [name for job in jobs for name in job.split('+')]
        assert len(measured) == len(set(measured)) <= 8
    assert nodes.options[1:6] == [
        '--system=alpha:batch', '-p', '^mpi$', '-n', '^C$']


@pytest.mark.parametrize('words, short', [([], True), (['-SC.max_size=64'], False)])
def test_jobs_that_may_be_long_get_fewer_and_smaller_messages(words, short):
    """osu_bw sends 12 GB: more than a quarter of an hour at 100 Mbit/s."""
    assert locate.options_of_short_jobs(case('bandwidth'), 'bandwidth', words) == [
        '-SC.max_size=262144', '-SC.iterations=12', '-SC.warmup=2'] * short


def test_the_rest_of_a_step_is_told_beforehand(site, capsys):
    site(Cluster(16, 1, slow={'n5': 0.8}))
    first, second, *_ = [line for line in capsys.readouterr().err.splitlines()
                         if ' in ' in line and 'job' in line]
    assert first.endswith('24 jobs in 3 rounds') or 'jobs in' in first
    assert '; about ' in second and ' elapsed' in second


def test_a_node_that_fails_every_job(site, capsys):
    (result, _, _), _ = site(Cluster(8, 1, dead=['n2']))
    assert [(one.name, one.verdict) for one in result.named] == [
        ('n2', 'fails')]
    assert 'n2-n8 failed: job_state' in capsys.readouterr().err


def test_jobs_that_wait_are_evidence_only_if_a_node_is_down(site):
    dead = {'cluster': Cluster(8, 1, dead=['n2']), 'guard': 'pending'}
    (result, _, _), _ = site(**dead, lost={'n2'})
    assert [(one.name, one.verdict) for one in result.named] == [('n2', 'fails')]
    (result, _, _), _ = site(**dead)
    assert not result.named and 'n2' in result.unclear


def test_a_job_on_other_nodes_is_refused(site):
    with pytest.raises(SetupError, match='ran on n7, n8: Slurm ignored'):
        site(Cluster(4, 0), columns={'nodes': 'n[7-8]'})


def test_what_was_never_built_says_nothing_of_nodes(site):
    (result, why, code), nodes = site(Cluster(4, 0, dead=[
        'n1', 'n2', 'n3', 'n4']), columns={'guard': 'setup'})
    assert code == 1 and len(nodes.asked) == 1 and not result.named
    assert why == 'no pair was measured: the lines above say why'


def test_an_end_in_the_middle_tells_what_is_known(site):
    (result, why, code), nodes = site(Cluster(8, 0), ended_by='SIGTERM')
    assert (why, code) == ('ended by SIGTERM', 1)
    assert result.jobs == 4 and len(nodes.asked) == 1


def test_a_metric_that_the_case_has_not(site):
    (_, why, code), _ = site(Cluster(4, 0), columns={
        'metric': 'message_rate', 'unit': '1/s'})
    assert code == 1 and why == 'no pair has a value of bandwidth'


@pytest.mark.parametrize('located, code', [(0.8, 1), (1.0, 0)])
def test_the_verdict_is_written_and_makes_the_exit_code(
        site, tmp_path, capsys, located, code):
    (result, why, ended), _ = site(Cluster(8, 4, slow={'n1': located}))
    assert locate.print_and_write_result(
        result, why, tmp_path, str(tmp_path / 'x.json')) == code and not ended
    message = capsys.readouterr().out
    assert ('SLOW    node n1: ' in message) == bool(code)
    for name in ('x.json', 'located.json'):
        data = json.loads((tmp_path / name).read_text())
        assert len(data['named']) == code and data['jobs'] >= 12


# ------------------------------------------------- the rest


def test_on_this_machine_it_says_what_it_needs(suite):
    done = suite.plumb('locate')
    assert done.returncode == 2 and done.stdout == ''
    assert done.stderr.splitlines()[-1].startswith(
        'plumb: local has the partitions ')
