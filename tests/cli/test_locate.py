"""plumb locate: what it measures, where, and how it reads what came."""
from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data.perflogs_factory import record, write
from locate import Cluster

from cli.nightly import locate, pairs
from cli.nightly import nodes as slurm
from cli.session import commands
from cli.setup.venv import SetupError
from config.sessions import pinned
from config.sites import topology
from postprocess.perflogs import plans

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

def test_the_partition_is_named_or_the_one_that_regressed():
    assert locate.select_partition(SYSTEM, 'batch', []) is SLURM
    assert locate.select_partition(SYSTEM, None, []) is SLURM
    assert locate.select_partition(
        TWO, None, ['batch', 'other', 'other'])['name'] == 'other'
    # What is no partition here, or has no nodes to choose, says nothing.
    assert locate.select_partition(
        SYSTEM, None, ['gone', 'login'])['name'] == 'batch'


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
            'nodes': nodes, 'hash': f'{link or "other"}{nodes}', **more}


CASES = [case(nodes=1), case(), case('latency'), case('bandwidth')]


def test_the_case_says_what_regressed_or_bandwidth():
    def chosen(*words):
        return locate.select_test_case(CASES, 'batch', *words)[0]['link']
    assert chosen(None, None, []) == 'bandwidth'
    assert chosen(None, None, ['init_time', 'latency']) == 'latency'
    assert chosen(None, 'latency', ['bandwidth']) == 'latency'
    result, metric = locate.select_test_case(CASES, 'batch', '/other2', 'x', [])
    assert result['hash'] == 'other2' and metric == 'x'


@pytest.mark.parametrize('cases, words, match', [
    (CASES, (None, 'overlap'), "measures 'overlap' .* latency, bandwidth"),
    (CASES, ('other1', None), "no test case of two nodes .* 'other1'"),
    (CASES[:2], (None, None), 'name a test case with --hash')])
def test_where_no_case_fits(cases, words, match):
    with pytest.raises(SetupError, match=match):
        locate.select_test_case(cases, 'batch', *words, [])


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

    def line(system, partition, metric, digest, before):
        return SimpleNamespace(
            case=digest, metric=metric, before=before, members=[
                SimpleNamespace(system=system, partition=partition,
                                metric=metric)])
    monkeypatch.setattr(locate, '_current_verdict', lambda _: SimpleNamespace(
        regressions=[line('beta', 'batch', 'bandwidth', 'bandwidth2', 9.0),
                     line('alpha', 'other', 'latency', 'latency2', 2.5)]))
    work = commands.Work(TWO, {}, [], True, [])
    result = locate.select_partition_and_test_case(
        locate.make_locate_command_args('alpha', **given), Path(), work
    )
    assert (result.partition['name'], result.metric, result.expected) == (
        where, metric, expected)
    assert result.case['where'] == f'{where}+mpi'
    assert result.case['link'] == metric


@pytest.fixture
def sinfo(monkeypatch):
    monkeypatch.setattr(slurm, 'query_sinfo', lambda: slurm.parse_sinfo(SINFO))


@pytest.mark.parametrize('access, expected, result', [
    (['-pgpu'], None, 'g1 g2 g10'), (['-p gpu'], None, 'g1 g2 g10'),
    (['--partition=gpu'], 'g[1-2]', 'g1 g2'), ([], None, 'c1 c2'),
    (['--exclusive', '-p', 'gpu'], 'g10,g3', 'g10'),
    (['-p', 'gpu', '-x', 'g[2-3]'], None, 'g1 g10'),
    (['--partition=cpu,gpu', '-C', 'fast'], 'c1,g1', 'c1 g1')])
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
    (['-pgpu', '-x', 'g1'], 'g1,g2', 'cannot use g1'),
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
        self.asked: list[dict[str, Any]] = []
        self.only: list[Any] = []
        #: More columns of each record.
        self.columns: dict[str, Any] = {}
        self.ended_by = ''

    def measured(self, work: Any, *options: str, only: list,
                 variables: dict[str, str]) -> commands.Ended:
        self.options, self.only = [*work.options, *options], only
        request = json.loads(Path(variables[pinned.VARIABLE]).read_text())
        self.asked.append(request)
        rows, cases = [], []
        for number, jobs in enumerate(request['rounds'], 1):
            for nodes in jobs:
                metric = self.cluster.simulated_pair_metric(*nodes)
                row = record(
                    'bandwidth', metric or 0.0, 4194304,
                    day=len(self.asked), check='C',
                    case=f'{len(rows):08x}', nodes=' '.join(nodes))
                if metric is None:
                    row |= {'metric': 'completed', 'point': '', 'unit': '1',
                            'repetition': 0, 'better': 'higher',
                            'reference': '1.0', 'lower': '0.0',
                            'result': 'fail', 'guard': 'job_state',
                            'nodes': ''}
                row |= self.columns
                # A smaller message says less, and is not looked at.
                rows += [row, {**row, 'point': '1024 B', 'value': '1.0'}
                         ] if metric else [row]
                cases.append({
                    name: str(row[name]) for name in plans.COLUMNS} | {
                    'name': 'C %nodes=' + '+'.join(nodes)
                    + f' %round={number}'})
        write(self.folder, rows)
        return commands.Ended(0, self.ended_by, plans.Plan(
            Path('plan'), {'run': rows[0]['run'], 'system': 'alpha'}, cases),
            [])


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A search on made-up nodes: (exit code, what was written, ReFrame)."""
    def run(cluster, **more):
        nodes = Nodes(tmp_path, cluster)
        vars(nodes).update(more)
        monkeypatch.setattr(commands, 'run_reframe_session', nodes.measured)
        work = commands.Work(SYSTEM, {'PLUMBLINE_PERFLOGS': str(tmp_path)},
                             ['-Sbringup=1'], True, [])
        search = locate.Search(cluster.nodes, 'higher',
                               above=cluster.above)
        result = locate._measure_pairs(search, work, locate.Target(
            SLURM, case('bandwidth'), 'bandwidth', 120.0), 4, locate.JobTime(2.0))
        return result, nodes

    def stand_in(cluster):
        nodes = Nodes(tmp_path, cluster)
        monkeypatch.setattr(commands, 'run_reframe_session', nodes.measured)
        return nodes
    run.stand_in = stand_in
    run.work = commands.Work(SYSTEM, {'PLUMBLINE_PERFLOGS': str(tmp_path)},
                             ['-Sbringup=1'], True, [])
    return run


def test_a_slow_node_by_records_alone(site):
    (result, why, code), nodes = site(Cluster(16, 1, slow={'n5': 0.8}))
    assert [(one.name, one.verdict) for one in result.named] == [
        ('n5', 'slow')]
    assert (why, code, result.unit) == ('', 0, 'MB/s')
    assert nodes.only == [('batch', 'mpi', 'bandwidth2')]
    assert {request['parallel'] for request in nodes.asked} == {4}
    assert '--system=alpha:batch' in nodes.options
    assert any('all pairs are slow' in note for note in result.notes)


def test_jobs_on_slow_links_are_bounded_in_time(site, tmp_path, capsys):
    """A first pair decides: 100 MB/s, of which the full test case would take 118 s."""
    nodes = site.stand_in(Cluster(4, 0))
    search = locate.Search(['n1', 'n2', 'n3', 'n4'], 'higher')
    target = locate.Target(SLURM, case('bandwidth'), 'bandwidth', 120.0)
    given = locate.make_locate_command_args('alpha')
    work, bounded, known = locate.bound_jobs_in_time(
        search, site.work, target, 4, given)
    assert nodes.asked == [{'rounds': [[['n1', 'n2'], ['n3', 'n4']]], 'parallel': 4}]
    assert '-SC.max_size=65536' in nodes.options
    assert work.options == ['-Sbringup=1', '-SC.max_size=524288',
                            '-SC.options=-i 12 -x 2']
    assert bounded.expected is None and 5 < known.job < 10
    assert 'a short job on n1-n2, n3-n4 measures how long' in capsys.readouterr().err
    given.reframe = ['-SC.max_size=64']
    assert locate.bound_jobs_in_time(search, site.work, target, 4, given) == (
        site.work, target, locate.JobTime(0.0))


@pytest.mark.parametrize('metric, value, options, seconds', [
    ('bandwidth', 12_000, [], 1), ('bandwidth', 125, ['524288', '-i 12 -x 2'], 7.5),
    ('bandwidth', 12.5, ['65536', '-i 12 -x 2'], 9.4),
    ('bandwidth', 0.1, ['4096', '-i 12 -x 2'], 73),
    ('latency', 1.5, ['1024', '-i 10000 -x 1000'], 0.4),
    ('latency', 1000, ['1024', '-i 416 -x 41'], 10)])
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
        site(Cluster(4, 0), columns={'nodes': 'n7 n8'})


def test_what_was_never_built_says_nothing_of_nodes(site):
    (result, why, code), nodes = site(Cluster(4, 0, dead=[
        'n1', 'n2', 'n3', 'n4']), columns={'guard': 'build'})
    assert code == 1 and len(nodes.asked) == 1 and not result.named
    assert why == ('no pair was measured (build): the lines above say why')


def test_an_end_in_the_middle_tells_what_is_known(site):
    (result, why, code), nodes = site(Cluster(8, 0), ended_by='SIGTERM')
    assert (why, code) == ('ended by SIGTERM', 1)
    assert result.jobs == 12 and len(nodes.asked) == 1


def test_a_metric_that_the_case_has_not(site):
    (_, why, code), _ = site(Cluster(4, 0), columns={
        'metric': 'message_rate', 'unit': '1/s'})
    assert code == 1 and why == 'no pair has a value of bandwidth'


@pytest.mark.parametrize('located, code', [(0.8, 1), (1.0, 0)])
def test_the_verdict_is_written_and_makes_the_exit_code(
        site, tmp_path, capsys, located, code):
    (result, why, ended), _ = site(Cluster(8, 4, slow={'n1': located}))
    args = locate.make_locate_command_args('alpha', json=str(tmp_path / 'x.json'))
    assert locate._print_and_write_result(args, result, why, ended, tmp_path) == code
    message = capsys.readouterr().out
    assert ('SLOW    node n1: ' in message) == bool(code)
    for name in ('x.json', 'located.json'):
        data = json.loads((tmp_path / name).read_text())
        assert len(data['named']) == code and data['jobs'] >= 12


# ------------------------------------------------- jobs on given nodes

class Case:
    """What a test case of ReFrame has, of what is used."""

    def __init__(self, check, partition, environ):
        self.check, self.partition, self.environ = check, partition, environ
        self.deps, self.in_degree = [], 0


def cases_of_a_session():
    part = SimpleNamespace(_max_jobs=8)
    build = Case(SimpleNamespace(unique_name='b'), part, 'mpi')
    check = SimpleNamespace(
        unique_name='C_1', display_name='C %size=1', params='size=1',
        _rfm_hashcode='old', _rfm_name='old', job=SimpleNamespace())
    run = Case(check, part, 'mpi')
    run.deps.append(build)
    build.in_degree = 1
    return build, run


def measures(check):
    return hasattr(check, 'params')


def test_without_the_variable_a_session_is_as_it_was(monkeypatch):
    monkeypatch.delenv(pinned.VARIABLE, raising=False)
    cases = [*cases_of_a_session()]
    assert pinned.pin_test_cases(cases, measures) == cases
    assert list(pinned.group_by_round(cases)) == [cases]
    pinned.pin_job_to_nodes(cases[1].check)
    assert not hasattr(cases[1].check.job, 'pin_nodes')


def test_a_case_for_each_pair_in_rounds(monkeypatch, tmp_path):
    path = tmp_path / 'rounds'
    path.write_text(json.dumps({'parallel': 2, 'rounds': [
        [['n1', 'n2'], ['n3', 'n4']], [['n1', 'n3']]]}))
    monkeypatch.setenv(pinned.VARIABLE, str(path))
    build, run = cases_of_a_session()
    first, second = pinned.group_by_round(pinned.pin_test_cases([build, run], measures))
    assert first[0] is build and build.in_degree == 3
    assert [pinned.pinned_nodes_of_test_case(one.check._rfm_display_name)
            for one in first[1:] + second] == [
        ('n1', 'n2'), ('n3', 'n4'), ('n1', 'n3')]
    for one in first[1:] + second:
        assert one.deps == [build] and one.partition._max_jobs == 2
        # ReFrame makes it anew, from the name.
        assert not hasattr(one.check, '_rfm_hashcode')
        pinned.pin_job_to_nodes(one.check)
    assert second[0].check.job.pin_nodes == ['n1', 'n3']
    assert len({one.check._rfm_unique_name for one in first[1:] + second}
               ) == 3
    assert run.check._rfm_hashcode == 'old'


# ------------------------------------------------- the rest

def test_switches_above_each_node():
    result = {'leaf1': topology.Switch(('n1', 'n2'), ()),
              'leaf2': topology.Switch(('n3',), ()),
              'top': topology.Switch((), ('leaf1', 'leaf2'))}
    assert topology.switches_above_nodes(result) == {
        'n1': ['leaf1', 'top'], 'n2': ['leaf1', 'top'],
        'n3': ['leaf2', 'top']}


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


def test_its_help_teaches(suite):
    done = suite.plumb('locate', '--help')
    assert done.returncode == 0
    for words in ('--all-pairs', 'Example:', 'Exit codes: 0 nothing is'):
        assert words in done.stdout
    assert '--slowdown PERCENT' in done.stdout
