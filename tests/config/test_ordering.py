"""Order and budget: what runs first, what is left to other sessions."""
from __future__ import annotations

import json
import random
import types
from pathlib import Path

import pytest
from conftest import OSU
from data import perflogs_factory as factory

from checks.core import base
from cli.session import ordering
from cli.site import doctor
from cli.site import partitions as guard
from config.sessions import ordering as rules
from config.sessions import runner
from postprocess import outcomes, perflogs
from postprocess.perflogs import plans
from postprocess.report import build as report
from tests.checks.test_faults import another_site


def case(name: str, hours: float, nodes: int = 1) -> rules.Case:
    return rules.Case(('cpu', 'gnu', name), nodes, hours * 3600 / nodes)


def names(cases) -> str:
    return ''.join(one.key[2] for one in cases)


# ---------------------------------------------------- test cases of a session

def test_who_has_not_run_for_longest_comes_first_and_the_rest_fills_up():
    cases = [case('a', 3), case('b', 5), case('c', 1), case('d', 4, nodes=2)]
    last = {one.key: run for one, run in zip(
        cases, ('3', '1', '2', '2'), strict=True)}
    now, left = rules.select_within_budget(cases, 10, last)
    # Of c and d, who ran in the same night, the one that costs more.
    assert (names(now), names(left)) == ('bdc', 'a')
    now, left = rules.select_within_budget(cases, 6, last)
    assert (names(now), names(left)) == ('bc', 'da')
    # Who never ran is first of all; all that fits is no rotation.
    now, left = rules.select_within_budget([*cases, case('e', 1)], 14, last)
    assert (names(now), names(left)) == ('ebdca', '')


def test_a_case_beyond_the_whole_budget_starves_nobody():
    cases = [case('a', 11), case('b', 5), case('c', 5)]
    now, left = rules.select_within_budget(cases, 10, {})
    assert (names(now), names(left)) == ('bc', 'a')
    assert rules.sessions_until_all_ran(cases, 10) == 1
    assert rules.sessions_until_all_ran([case('a', 11)], 10) == 1


@pytest.mark.parametrize('hours, budget, bound', [
    ([1, 1, 1], 3, 1), ([0.1] * 10, 1.0, 1), ([1, 1, 1], 2, 3),
    ([1] * 8, 2, 8), ([1] * 30, 10, 6), ([6, 6, 6], 10, 3)])
def test_the_number_of_nightly_sessions_can_be_computed(hours, budget, bound):
    cases = [case(str(n), one) for n, one in enumerate(hours)]
    assert rules.sessions_until_all_ran(cases, budget) == bound


def longest_wait(cases, budget, draw, select=rules.select_within_budget) -> int:
    """Nights until the last case that fits has had its turn."""
    last = {one.key: f'{draw.randint(0, 4)}' for one in cases
            if draw.random() < 0.8}
    waiting = {one.key for one in cases if one.node_hours <= budget}
    for nightly_session in range(1, 200):
        now, left = select(cases, budget, last)
        assert sum(one.node_hours for one in now) <= budget + 1e-6
        assert sorted([*now, *left]) == sorted(cases)
        waiting -= {one.key for one in now}
        if not waiting:
            return nightly_session
        last |= {one.key: f'5{nightly_session:04}' for one in now}
    return 200


def some(draw) -> tuple[list[rules.Case], float]:
    cases = [case(str(n), draw.choice([0.1, 1, 3, 7]) * draw.random())
             for n in range(draw.randint(1, 25))]
    return cases, draw.uniform(0.5, 8)


def test_each_case_has_its_turn_within_that_number():
    draw = random.Random(18)
    for _ in range(300):
        cases, budget = some(draw)
        assert longest_wait(cases, budget, draw) <= rules.sessions_until_all_ran(
            cases, budget)


def test_that_test_sees_a_rule_that_starves_somebody():
    def cheapest_first(cases, budget, last):
        return rules.select_within_budget(cases, budget, {
            one.key: f'{one.node_hours:09.4f}' for one in cases})
    draw = random.Random(18)
    assert any(longest_wait(cases, budget, draw, cheapest_first)
               > rules.sessions_until_all_ran(cases, budget)
               for cases, budget in (some(draw) for _ in range(50)))


# ----------------------------------------------------------------- first

NEEDS = {'x': ['A'], 'y': ['B'], 'z': ['B'], 'B': ['C']}


@pytest.mark.parametrize('seconds, order', [
    ({}, 'AxCByzw'),                            # as they came
    ({'w': 9, 'x': 3, 'z': 5}, 'wCBzAxy'),
    ({'z': 5, 'x': 4, 'A': 2}, 'ACBzxyw'),      # what is built takes time too
])
def test_the_longest_way_to_go_is_first_behind_what_it_needs(seconds, order):
    result = rules.sort_longest_first(
        list('AxCByzw'), lambda one: seconds.get(one, 0),
        lambda one: NEEDS.get(one, ['of a session before']))
    assert ''.join(result) == order


def test_what_is_known_goes_to_a_session_in_a_file(tmp_path, monkeypatch):
    known = rules.Known({('cpu', 'gnu', 'a'): 2.5},
                        {('cpu', 'gnu', 'a'): 'r1', ('cpu', 'gnu', 'b'): 'r2'},
                        True)
    known.write_json(tmp_path / 'known.json')
    monkeypatch.delenv(rules.KNOWN, raising=False)
    assert rules.Known.read_from_environment() == rules.Known()
    monkeypatch.setenv(rules.KNOWN, str(tmp_path / 'known.json'))
    assert rules.Known.read_from_environment() == known
    assert known.expected_seconds(('cpu', 'gnu', 'a'), 5, 600) == (12.5, True)
    assert known.expected_seconds(('cpu', 'gnu', 'b'), 5, 600) == (600, False)


@pytest.mark.parametrize('text', [None, '', '{}', '{"budgets": 1, "cases": '
                                  '[[1]]}', '[]'])
def test_a_file_that_tells_nothing_is_refused(tmp_path, monkeypatch, text):
    if text is not None:
        (tmp_path / 'known').write_text(text)
    monkeypatch.setenv(rules.KNOWN, str(tmp_path / 'known'))
    with pytest.raises(ValueError, match=(
            'is not a file with the times of test cases .*unset')):
        rules.Known.read_from_environment()


# ------------------------------------------------- in a session of ReFrame

def planned(name: str, partition, needs=(), nodes=1, limit=600.0, **more):
    """A case as ReFrame has it."""
    check = types.SimpleNamespace(
        hashcode=name, node_count_before_setup=nodes, time_limit=limit, repetitions=1,
        params='', program='p', emulated=False, family='osu',
        display_name=f'Check {name}', origin_in=lambda environ: {},
        _current_partition=None, _current_environ=None,
        is_fixture=lambda: False, **more)
    return types.SimpleNamespace(
        check=check, partition=partition, deps=list(needs),
        environ=types.SimpleNamespace(name='gnu'))


class Row(types.SimpleNamespace):
    __hash__ = object.__hash__


def part(name: str, **extras):
    return types.SimpleNamespace(name=name, extras=extras)


@pytest.fixture
def cases(monkeypatch):
    """Three cases under a budget and one without, hashable as ReFrame's."""
    monkeypatch.setattr(runner, 'plan_row', lambda case: {
        'name': case.check.display_name, 'partition': case.partition.name})
    small, free = part('small', nightly_budget=1.0), part('free')
    return [Row(**vars(one)) for one in (
        planned('a', small, nodes=4), planned('b', small, nodes=4),
        planned('c', small, nodes=60), planned('d', free, nodes=60))]


def test_a_session_leaves_what_the_budget_of_a_partition_lacks(cases):
    known = rules.Known({('small', 'gnu', 'c'): 3600.0},
                        {('small', 'gnu', 'a'): '20261101T0300Z-aa'}, True)
    now, left = runner.split_by_budget(cases, known)
    # In their order; four nodes for ten minutes are 0.67 of an hour.
    assert [one.check.hashcode for one in now] == ['b', 'd']
    a, = (row for row in left if row['name'] == 'Check a')
    assert tuple(a[name] for name in (
            'hours', 'budget', 'nightly_sessions', 'by', 'last')) == (
        pytest.approx(4 / 6), 1.0, 2, 'limit', '20261101T0300Z-aa')
    c, = (row for row in left if row['name'] == 'Check c')
    assert (c['hours'], c['nightly_sessions'], c['by'], c['last']) == (
        60.0, 0, 'time', '')
    # Without the word of plumb no budget holds.
    assert runner.split_by_budget(cases, rules.Known()) == (cases, [])
    assert cases[0].check._current_partition is None


def test_reframe_gets_them_longest_first_unless_told_otherwise(
        cases, monkeypatch):
    machine = types.SimpleNamespace(known=rules.Known(
        {(one.partition.name, 'gnu', one.check.hashcode): took
         for one, took in zip(cases, (3, 1, 4, 2), strict=True)}))

    def order(*words: str) -> str:
        monkeypatch.setattr('sys.argv', ['reframe', '-r', *words])
        return ''.join(one.check.hashcode for one in
                       runner.AccountedRunner.sort_for_execution(machine, cases))

    assert order() == 'cadb'
    assert order('--exec-order=name') == order('--exec-o', 'uid') == 'abcd'


def test_the_limit_of_a_case_is_that_of_its_partition(cases):
    check = cases[0].check
    check.required_job_seconds = lambda: (
        900.0 if check._current_partition is cases[0].partition else 0.0)
    assert runner.time_limit_of_test_case(cases[0]) == 900.0
    assert check._current_partition is check._current_environ is None


def test_two_nightly_sessions_under_a_budget(suite, tmp_path):
    """Each takes what the other left, and the end of the run says so."""
    another_site(suite, tmp_path, '''
site_configuration['systems'][0]['partitions'][0]['extras'][
    'nightly_budget'] = 0.2       # ten minutes are a sixth
''')
    site = str(tmp_path / 'site')

    def nightly_session(*more: str) -> str:
        done = suite.plumb('nightly', '--site', site, '--bringup', '--',
                           *OSU, '-n', 'OsuStartup', '-Srepetitions=1', *more)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ('nothing is worse than before; 1 test case to run'
                in done.stdout)
        return done.stdout

    first = nightly_session()
    assert ('Left to later sessions: 1 test case of thishost with 0.167 '
            'node-hours (budget per session: 0.2); all run within 2 sessions'
            ) in first
    assert ': never ran, needs 0.167 node-hours' in first
    assert 'postponed: 1' in first
    page = (suite.tmp / 'report' / 'index.html').read_text()
    assert 'Postponed' in page and 'never ran' in page
    # Now the first one's own time is known, and both fit.
    done = suite.plumb('nightly', '--site', site, '--bringup', '--',
                       *OSU, '-n', 'OsuStartup', '-Srepetitions=1')
    assert '; 2 test cases to run' in done.stdout, done.stdout + done.stderr
    assert 'Left to' not in done.stdout
    assert len({r['case'] for r in suite.records}) == 2


# ------------------------------------------------------ what perflogs know

def test_a_case_that_never_began_has_not_run(tmp_path):
    factory.write(tmp_path, [
        factory.record('wall_time', 2.0, day=1, case='c1'),
        factory.record('completed', 0.0, day=2, case='c1', repetition=0,
                       result='fail', guard='cancelled'),
        factory.record('completed', 0.0, day=1, case='c2', repetition=0,
                       result='fail', guard='build'),
        factory.record('wall_time', 4.0, day=3, case='c3')])
    frame = ordering.read_records(tmp_path, 'alpha')
    of_day = [factory.record(day=day)['run'] for day in range(4)]
    assert ordering.last_session_by_test_case(frame) == {
        ('cpu', 'openmpi', 'c1'): of_day[1],
        ('cpu', 'openmpi', 'c2'): of_day[1],
        ('cpu', 'openmpi', 'c3'): of_day[3]}
    assert ordering.wall_time_by_test_case(frame) == {('cpu', 'openmpi', 'c1'): 2.0,
                                                      ('cpu', 'openmpi', 'c3'): 4.0}


@pytest.mark.parametrize('mode, budgets', [('nightly', True),
                                           ('quick', False)])
def test_budgets_hold_in_mode_nightly(tmp_path, monkeypatch, mode, budgets):
    known = ordering.ordering_data_from_records(None, mode)
    with ordering.hold_ordering_data_file(known) as variables:
        monkeypatch.setenv(*variables.popitem())
        assert rules.Known.read_from_environment() == rules.Known(budgets=budgets)


def test_many_records_are_asked_for_times_alone(tmp_path, monkeypatch):
    """The same from the cache, of which there is one beside the perflogs and
    none in the folder of the system."""
    factory.write(tmp_path, [
        factory.record('wall_time', float(day * number), day=day,
                       case=f'c{number}', params=f'n={number}')
        for day in (1, 2, 4) for number in (1, 2)])
    factory.write(tmp_path, [factory.record('wall_time', 9.0, system='beta')])
    plain = ordering.read_wall_times(tmp_path, 'alpha')
    assert plain == {('cpu', 'openmpi', 'c1'): 2.0,
                     ('cpu', 'openmpi', 'c2'): 4.0}
    monkeypatch.setattr(ordering, 'read_records', None)
    assert ordering.read_wall_times(tmp_path, 'alpha') == plain
    monkeypatch.undo()
    assert set(ordering.read_records(tmp_path, 'alpha')['system']) == {'alpha'}
    assert (tmp_path / '.store').is_dir()
    assert not (tmp_path / 'alpha' / '.store').exists()


# ----------------------------------------------------- what people are told

def left(name: str, hours: float, sessions: int, last: str = '', by='time'
         ) -> plans.Left:
    return plans.Left({'name': name, 'partition': 'cpu', 'environ': 'gnu',
                       'case': 'c0ffee00'}, hours, 10.0, sessions, by, last)


def test_the_end_of_a_run_tells_what_is_left():
    plan = plans.Plan(Path(), {'system': 'alpha'}, [], [
        left('A', 4, 3, '20261101T030000Z-aa'), left('B', 2.5, 3)])
    lines, never = ordering.describe_postponed_test_cases(plan)
    assert not never and lines == [
        'Left to later sessions: 2 test cases of cpu with 6.5 node-hours '
        '(budget per session: 10); all run within 3 sessions',
        '  B @cpu+gnu: never ran, needs 2.5 node-hours',
        '  A @cpu+gnu: last ran 2026-11-01 03:00, needs 4 node-hours']
    many = plan._replace(left=[left(f'C{n}', 1, 3) for n in range(9)])
    assert ordering.describe_postponed_test_cases(many)[0][-1] == '  and 4 more'
    assert ordering.describe_postponed_test_cases(plan._replace(left=[])) == ([], False)


@pytest.mark.parametrize('by, words', [
    ('time', '; raise nightly_budget in system.py, or exclude the test case'),
    ('limit', '; this is its time limit, because it has not run yet; run it '
     'once (./plumb run --site alpha -n /c0ffee00)')])
def test_a_case_that_can_never_run_is_an_error(by, words):
    (line,), never = ordering.describe_postponed_test_cases(plans.Plan(
        Path(), {'system': 'alpha'}, [], [left('A', 21.3, 0, by=by)]))
    assert (
        never
        and line.startswith(
            'error: A @cpu+gnu needs 21.3 node-hours, but cpu has 10 '
            'per session: it never runs in mode nightly; '
        )
        and words in line
    )


def with_left(root: Path, day: int, cases: list[str] | None) -> None:
    """The plan of a session that left these cases (None: had no budget)."""
    one = factory.record(day=day)
    path = root / 'alpha' / 'sessions' / f'{one["run"]}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {'plan': 1, **{name: one[name] for name in (
        'run', 'time', 'system', 'suite', 'commit', 'reframe')}, 'partial': True}
    if cases is not None:
        head['left'] = [{**{name: str(one[name]) for name in plans.COLUMNS},
                         'case': name, 'name': f'Check {name}',
                         'params': f'n={name}', 'hours': 2.0,
                         'budget': 10.0,
                         'nightly_sessions': int(name != 'never') * 4,
                         'by': 'time', 'last': ''} for name in cases]
    path.write_text(json.dumps(head)[:-1] + ', "cases": [\n]}\n')


def shown(root: Path, capsys) -> tuple[int, str, str]:
    """The exit code of the report, its line, and the page."""
    code = report.main(['--perflogs', str(root), '--output',
                        str(root.parent / 'page')])
    text = (root.parent / 'page' / 'index.html').read_text()
    return code, capsys.readouterr().out, text


def test_the_page_shows_what_is_left_until_it_runs(tmp_path, capsys):
    root = tmp_path / 'logs'
    factory.write(root, [factory.record(day=1, value=1.0, case='c1')])
    with_left(root, 1, ['c2', 'c3'])
    with_left(root, 2, None)            # picked by hand: had no budget
    frame = perflogs.read(root)
    assert [one.case['case'] for one in outcomes.postponed_test_cases(
        frame, plans.newest_budget_plans([root]))] == ['c2', 'c3']
    assert plans.newest_budget_plans([root]) == plans.newest_budget_plans(
        [root / 'alpha']
    )
    code, line, text = shown(root, capsys)
    assert code == 0 and 'postponed: 2' in line
    assert (
        'within 4 nightly sessions' in text and 'Check c2 @cpu+openmpi' in text
    )
    factory.write(root, [factory.record(day=3, value=1.0, case='c2')])
    assert 'postponed: 1' in shown(root, capsys)[1]
    with_left(root, 4, [])              # nothing was left of that night
    assert 'postponed' not in shown(root, capsys)[1]


def test_the_page_fails_for_a_case_that_can_never_run(tmp_path, capsys):
    root = tmp_path / 'logs'
    factory.write(root, [factory.record(day=1, case='c1')])
    with_left(root, 1, ['never'])
    code, line, text = shown(root, capsys)
    assert code == 1 and 'beyond every budget: 1' in line
    assert (
        'Never run.' in text and 'the budget is 10 per nightly session' in text
    )


def test_a_session_under_a_budget_makes_nobody_stale(tmp_path):
    with_left(tmp_path, 1, ['c2'])
    assert set(plans.partial_sessions([tmp_path])) == {factory.record(day=1)['run']}


def ran(root: Path, day: int, cases: str) -> None:
    factory.write(root, [factory.record(day=day, case=name,
                                        params=f'n={name}')
                         for name in cases])


def stale(root: Path) -> list[str]:
    return sorted(
        outcomes.stale_test_cases(
            perflogs.read(root), plans.partial_sessions([root])
        )['case']
    )


def test_a_case_that_no_partial_session_meant_is_stale(tmp_path):
    """b waits for its turn; c was taken out of the site, or is left out by
    -x: nobody meant to run it, and no night says so by itself."""
    ran(tmp_path, 0, 'abc')
    for day in (1, 2):
        ran(tmp_path, day, 'a')
        with_left(tmp_path, day, ['b'])
    assert stale(tmp_path) == []
    ran(tmp_path, 3, 'a')
    with_left(tmp_path, 3, ['b'])
    assert stale(tmp_path) == ['c']
    ran(tmp_path, 4, 'c')
    with_left(tmp_path, 4, ['b'])
    assert stale(tmp_path) == []


def test_a_case_that_is_left_beyond_its_turn_is_stale(tmp_path):
    """Its turn was to be within four sessions."""
    ran(tmp_path, 0, 'ab')
    for day in range(1, 5):
        with_left(tmp_path, day, ['b', 'never'])
    assert stale(tmp_path) == []
    with_left(tmp_path, 5, ['b', 'never'])
    assert stale(tmp_path) == ['b']
    ran(tmp_path, 6, 'b')
    with_left(tmp_path, 7, ['b'])
    assert stale(tmp_path) == []


def test_doctor_says_in_how_many_nightly_sessions_each_case_has_its_turn():
    site = {'systems': [{'partitions': [
        {'name': 'cpu', 'extras': {'nightly_budget': 2.0}}, {'name': 'gpu'}]}]}
    cases = [{'where': 'cpu+gnu', 'hash': name, 'nodes': nodes,
              'repetitions_and_limit': {'nightly': (1, 1800.0)}} for name, nodes in (
                  ('a', 2), ('b', 2), ('c', 2), ('d', 8))]
    seen = {('cpu', 'gnu', 'a'): 3600.0}
    assert list(doctor.nightly_budget_lines(site, cases, seen)) == [
        'nightly_budget of cpu, 2 node-hours: each test case of mode nightly '
        'is measured within 3 sessions, except 1 that need more than the '
        'budget'
    ]
    assert 'measured every session' in next(doctor.nightly_budget_lines(
        site, cases[:1], {}))


# ------------------------------------------------ never two on one node

def faults(*parts: dict) -> list[str]:
    return list(guard.partition_faults('system.py', {'name': 's', 'partitions': parts}))


@pytest.mark.parametrize('change, words', [
    ({'scheduler': 'local', 'max_jobs': 1}, ''),
    ({'scheduler': 'local'}, "s:p: max_jobs is 8, ReFrame's default, so "
     'test cases would disturb each other on this machine'),
    ({'scheduler': 'local', 'max_jobs': 2}, 'max_jobs is 2, so '),
    ({'access': ['--exclusive']}, ''),
    ({'scheduler': 'squeue', 'access': ['-p x']}, 's:p: access has no '
     "--exclusive, so two test cases could disturb each other on one node; "
     "add '--exclusive'"),
    ({'access': ['--exclusive=user']}, 'access has no --exclusive'),
    ({'access': ['--exclude=n1']}, 'access has no --exclusive'),
    ({'extras': {'others_cpu_limit': 1e6}}, ''),
    ({'scheduler': 'pbs'}, ''),
])
def test_a_site_may_not_time_two_cases_on_one_node(change, words):
    result = faults({'name': 'p', 'scheduler': 'slurm', **change})
    assert (words in result[0]) if words else not result
    assert len(result) <= 1


def test_two_partitions_are_not_one_machine():
    one = {'scheduler': 'local', 'max_jobs': 1}
    result, = faults({**one, 'name': 'a'}, {**one, 'name': 'b'})
    assert (
        'partitions a and b have the scheduler local. They are the same '
        'machine' in result
    )


@pytest.mark.parametrize('here', [True, False])
def test_no_stack_is_built_beside_a_timed_case(monkeypatch, here):
    """ReFrame limits jobs that are forced to be local apart from those of
    a partition."""
    space = types.SimpleNamespace
    system = space(partitions=[space(
        scheduler=space(is_local=here),
        environs=[space(name='stores', extras={'stack': 'keyvalue'})])])
    monkeypatch.setattr(base.rt, 'runtime', lambda: space(system=system))
    check = space(valid_prog_environs=['stores'], build_locally=None)
    base.Programs.set_build_locally_for_stacks(check)
    assert check.build_locally is not here
