"""plumb locate: what it measures, where, and how it reads what came."""
from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data.perflogs_factory import record, write
from locate import Cluster

from cli import __main__
from cli.nightly import locate, pairs
from cli.nightly import nodes as slurm
from cli.session import commands
from cli.setup.venv import SetupError

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
    (TWO, None, 'name one with --partition: batch, other'),
    (TWO, 'gone', "alpha has no partition 'gone'; it has batch, other"),
    (SYSTEM, 'login', 'partition login has the scheduler local; .* needs '
     'the scheduler .*slurm or squeue, and at least two nodes'),
    ({**SYSTEM, 'partitions': SYSTEM['partitions'][:1]}, None,
     'the site alpha has the scheduler local')])
def test_where_nothing_can_be_located(system, name, words):
    with pytest.raises(SetupError, match=words):
        locate.select_partition(system, name, [])


def case(link='', nodes=2, **more):
    return {'check': 'C', 'params': '', 'where': 'batch+mpi', 'link': link,
            'nodes': nodes, 'test_case': f'{link or "other"}{nodes}', 'family': 'osu',
            'system': 'alpha', 'partition': 'batch', 'environ': 'mpi', 'settings': '',
            'name': 'C', **more}


CASES = [case(nodes=1), case(), case('latency'), case('bandwidth')]


@pytest.mark.parametrize('cases, words, match', [
    (CASES, (None, 'overlap'), "measures 'overlap' .* latency, bandwidth"),
    (CASES, ('other1', None), 'no test case of two nodes with the ID other1'),
    (CASES[:2], (None, None), 'name a test case with --test-case')])
def test_where_no_case_fits(cases, words, match):
    with pytest.raises(SetupError, match=match):
        locate.select_test_case(cases, 'batch', *words, [])


def options(**given: Any) -> argparse.Namespace:
    args = __main__.parse_command_line(['locate', '--site', 'alpha'])
    return argparse.Namespace(**{**vars(args), **given})


@pytest.mark.parametrize('given, where, metric, expected', [
    ({}, 'other', 'latency', 2.5),
    ({'metric': 'bandwidth'}, 'other', 'bandwidth', None),
    ({'partition': 'batch'}, 'batch', 'bandwidth', None)])
def test_without_options_it_looks_where_something_regressed(
        monkeypatch, given, where, metric, expected):
    """By the regressions of this system, as `plumb verdict` has them."""
    cases = [case(link, where=f'{part}+mpi') for part in ('batch', 'other')
             for link in ('bandwidth', 'latency')]
    monkeypatch.setattr(locate.sites, 'list_test_cases_with_reframe', lambda _: {
        'cases': cases, 'output': []})

    def line(system, partition, metric, test_case, before):
        return SimpleNamespace(
            metric=metric, before=before, members=[
                SimpleNamespace(system=system, partition=partition,
                                metric=metric, test_case=test_case)])
    monkeypatch.setattr(locate, '_current_verdict', lambda _: SimpleNamespace(
        regressions=[line('beta', 'batch', 'bandwidth', 'bandwidth2', 9.0),
                     line('alpha', 'other', 'latency', 'latency2', 2.5)]))
    work = commands.Work(TWO, {}, [], [], True, [], False)
    result = locate.select_partition_and_test_case(
        options(**given), Path(), work
    )
    assert (result.partition['name'], result.metric, result.expected) == (
        where, metric, expected)
    assert result.case['where'] == f'{where}+mpi'
    assert result.case['link'] == metric


@pytest.fixture
def sinfo(monkeypatch):
    monkeypatch.setattr(slurm, 'query_sinfo', lambda: slurm.parse_sinfo(SINFO))


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
    (['-pgone'], None, 'access of batch: Slurm has no partition gone; it has '
     'cpu, gpu'),
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
                    'guard': 'job_state', **more, 'nodes': ''}))
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
        result = locate._measure_pairs(search, run.work, locate.Target(
            SLURM, case('bandwidth'), 'bandwidth', 120.0), 4, locate.JobTime(2.0))
        return result, nodes

    def stand_in(cluster):
        nodes = Nodes(tmp_path, cluster)
        monkeypatch.setattr(commands, 'run_reframe_session', nodes.measured)
        return nodes
    run.stand_in = stand_in
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
    assert any('all pairs are slow' in note for note in result.notes)


def test_jobs_on_slow_links_are_bounded_in_time(site, tmp_path, capsys):
    """A first pair decides: 100 MB/s, of which the full test case would take 118 s."""
    nodes = site.stand_in(Cluster(4, 0))
    search = locate.Search(['n1', 'n2', 'n3', 'n4'], 'higher')
    target = locate.Target(SLURM, case('bandwidth'), 'bandwidth', 120.0)
    given = options()
    work, bounded, known = locate.bound_jobs_in_time(
        search, site.work, target, 4, given)
    assert nodes.asked == [['n1+n2', 'n3+n4']]
    assert '-SC.max_size=65536' in nodes.options
    assert work.options_of_any_mode == ['-Sbringup=1', '-SC.max_size=524288',
                                        '-SC.iterations=12', '-SC.warmup=2']
    assert bounded.expected is None and 5 < known.job < 10
    assert 'a short job on n1-n2, n3-n4 measures how long' in capsys.readouterr().err
    given.reframe = ['-SC.max_size=64']
    assert locate.bound_jobs_in_time(search, site.work, target, 4, given) == (
        site.work, target, locate.JobTime(0.0))


@pytest.mark.parametrize('metric, value, options, seconds', [
    ('bandwidth', 12_000, [], 1), ('bandwidth', 125, ['524288', '12', '2'], 7.5),
    ('latency', 1000, ['1024', '416', '41'], 10)])
def test_a_bounded_job_takes_about_ten_seconds(metric, value, options, seconds):
    result, time = pairs.bounded_job_options('Osu', metric, value)
    assert [word.partition('=')[2] for word in result] == options
    assert time == pytest.approx(seconds, rel=0.1)


def test_the_time_of_a_search_is_told_beforehand():
    search = locate.Search([f'n{n}' for n in range(4)], 'higher')
    rounds = search.next_rounds()
    text = locate.progress_text(search, rounds, 2, locate.JobTime(12.0, 5.0), 0.0)
    assert text.startswith('12 jobs in 6 rounds: n0-n')
    # Six rounds of jobs side by side, then at most thirty sessions of one.
    assert text.endswith('; about 1 min 17 s, and at most 30 more rounds '
                         '(9 min 47 s with them)')
    assert 'about' not in locate.progress_text(
        search, rounds, 2, locate.JobTime(0.0), 0.0)


def test_a_node_that_fails_every_job(site, capsys):
    (result, _, _), _ = site(Cluster(8, 1, dead=['n2']))
    assert [(one.name, one.verdict) for one in result.named] == [
        ('n2', 'fails')]
    assert 'n1-n2 failed: job_state' in capsys.readouterr().err


def test_a_job_on_other_nodes_is_refused(site):
    with pytest.raises(SetupError, match='ran on n7, n8: Slurm ignored'):
        site(Cluster(4, 0), columns={'nodes': 'n[7-8]'})


def test_what_was_never_built_says_nothing_of_nodes(site):
    (result, why, code), nodes = site(Cluster(4, 0, dead=[
        'n1', 'n2', 'n3', 'n4']), columns={'guard': 'setup'})
    assert code == 1 and len(nodes.asked) == 1 and not result.named
    assert why == ('no pair was measured (setup): the lines above say why')


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
    args = options(json=str(tmp_path / 'x.json'))
    assert locate._print_and_write_result(args, result, why, ended, tmp_path) == code
    message = capsys.readouterr().out
    assert ('SLOW    node n1: ' in message) == bool(code)
    for name in ('x.json', 'located.json'):
        data = json.loads((tmp_path / name).read_text())
        assert len(data['named']) == code and data['jobs'] >= 12


# ------------------------------------------------- the rest


def test_old_searches_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, 'WORK', tmp_path)
    for number in range(locate.KEPT + 5):
        (tmp_path / 'locate' / f'2026{number:04}').mkdir(parents=True)
    made = locate._make_record_folder()
    left = sorted(path.name for path in made.parent.iterdir())
    assert len(left) == locate.KEPT and made.name in left
    assert '20260000' not in left and f'2026{locate.KEPT + 4:04}' in left


def test_on_this_machine_it_says_what_it_needs(suite):
    done = suite.plumb('locate')
    assert done.returncode == 2 and done.stdout == ''
    assert done.stderr.splitlines()[-1].startswith(
        'plumb: the site local has the scheduler local; plumb locate needs')
