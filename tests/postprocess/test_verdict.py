"""plumb verdict: what it says of sessions that were made up, and how."""
import datetime
import json
import random
import re
import shutil
import xml.etree.ElementTree as ET

import pandas as pd
import perflogs_factory as factory
import pytest

from postprocess import options as record_options
from postprocess.records import read as read_records
from postprocess.regressions import decisions, verdict
from postprocess.report import build
from tests.conftest import printed_verdict_lines

SESSIONS, CASES = 40, 10


def sessions(worse=lambda case, session: 1.0, cases=CASES, count=SESSIONS,
             metric='latency', noise=0.01, skip=lambda case, session: False,
             seed=1, **more):
    """Records of some test cases; values of `more` may depend on (case,
    session)."""
    rng = random.Random(seed)
    lower = factory.METRICS[metric]['better'] == 'lower'
    result = []
    for session in range(count):
        for case in range(cases):
            value = 10 * (case + 1) * worse(case, session) ** (
                1 if lower else -1) * (1 + noise * rng.gauss(0, 1))
            if not skip(case, session):
                result.append(factory.record(
                    metric, value, 8, day=session,
                    params=f'program=osu_latency n={case}',
                    **{'nodes': f'n{case % 3}'} | {
                        key: one(case, session) if callable(one) else one
                        for key, one in more.items()}))
    return result


def short_id(case, **more):
    """The short id of a test case of `sessions`."""
    return factory.short_id(factory.record(
        params=f'program=osu_latency n={case}', **more))


def day(session):
    return f'{factory.START + datetime.timedelta(days=session):%Y-%m-%d}'


@pytest.fixture
def judge(tmp_path):
    """Writes records, unless it has written them last, and judges a session."""
    last = [], None

    def of(records, **options):
        nonlocal last
        if last[0] is not records:
            factory.write(tmp_path, records)
            last = records, read_records(tmp_path)
        return verdict.judge_session(last[1], **options)
    return of


def step(case, since, size=1.06):
    return lambda c, n: size if c == case and n >= since else 1.0


@pytest.mark.parametrize('metric', ['latency', 'bandwidth'])
def test_a_step_of_one_metric_is_one_line(judge, metric):
    verdict_ = judge(sessions(step(3, 35), metric=metric))
    assert verdict_.state == 'regressed'
    line, = verdict_.regressions
    [member] = line.members
    assert (line.cases, member.metric, member.point) == ([short_id(3)], metric, '8 B')
    assert abs(int(line.since[-2:]) - int(day(35)[-2:])) <= 1
    true = 1.06 if metric == 'latency' else 1 / 1.06
    assert line.low <= true <= line.high


@pytest.mark.parametrize('size', [1.03, 4.0])
def test_one_busy_session_is_an_incident(judge, size):
    """All test cases are slower once: one line, and no regression."""
    verdict_ = judge(sessions(
        lambda case, session: size if session == SESSIONS - 1 else 1.0, cases=40,
        noise=0.01 if size > 2 else 0.002))
    assert (verdict_.state, verdict_.regressions) == ('good', [])
    text = [line for line in printed_verdict_lines(verdict_) if 'Incident' in line]
    assert len(text) == 1
    assert 'of 40 were worse than noise in this session only' in text[0]
    assert len(verdict_.events_of('rerun')) > 30
    [incident] = verdict_.events_of('incident')
    assert incident.ratio == pytest.approx(size, rel=0.05)


def test_a_bad_node_is_one_line_with_its_cases(judge):
    verdict_ = judge(sessions(
        lambda c, n: 1.2 if c % 3 == 1 and c != 10 and n > 34 else 1, cases=15))
    line, *_ = verdict_.regressions
    assert (line.scope, line.group) == ('node', 'node n1 of alpha')
    assert sorted(line.cases) == sorted(map(short_id, (1, 4, 7, 13)))
    # How many of its test cases are slow, and no node is drained on that alone.
    text = ' '.join(line.lines)
    assert 'node n1 of alpha (4 of 5 test cases)' in text
    assert ('before you drain the node, measure it against others: ./plumb locate '
            '--site alpha; if the problem is known: ./plumb verdict mute '
            f'{line.id} --site alpha --until DATE --reason TEXT; if the change was '
            f'intended: ./plumb verdict accept {line.id} --site alpha --reason TEXT'
            ) in text
    assert '% sure' not in text


def test_a_bad_switch_of_a_site_that_is_given_by_a_path_is_one_line(
        judge, tmp_path_factory):
    site = tmp_path_factory.mktemp('site') / 'alpha'
    site.mkdir()
    (site / 'system.py').touch()
    (site / 'topology.yaml').write_text(
        'switches: {leaf1: {nodes: "n[0-1]"}, leaf2: {nodes: n2}, '
        'top: {switches: "leaf[1-2]"}}')
    worse = sessions(lambda c, n: 1.06 if c % 3 < 2 and n > 34 else 1)
    line, = judge(worse, site=str(site)).regressions
    assert (line.scope, line.group) == ('switch', 'switch leaf1 of alpha')
    assert len(line.cases) == 7


def half(case, session):
    """A name that the first five test cases share, and another for the others."""
    return 'aa' if case < 5 else 'b'


@pytest.mark.parametrize('kind, group, columns', [
    ('program', 'program aa on alpha', {'program': half}),
    ('stack', 'environment aa on alpha:cpu', {'environ': half}),
    ('family', 'family aa on alpha',
     {'family': half, 'program': lambda c, n: f'{c % 2}'}),
    ('metric', '', {})])
def test_the_smallest_group_that_has_all_worse_test_cases_is_named(
        judge, kind, group, columns):
    columns = {'nodes': lambda c, n: f'n{c}', **columns}
    lines = judge(sessions(lambda c, n: 1.1 if c < 5 and n > 34 else 1, **columns)
                  ).regressions
    assert {(line.scope, line.group) for line in lines} == {(kind, group)}
    assert sum(len(line.cases) for line in lines) == 5


def test_a_small_loss_of_all_is_seen_before_a_large_one_of_one(judge):
    verdict_ = judge(sessions(lambda c, n: 1.012 if n > 36 else 1, cases=25))
    line, = verdict_.regressions
    assert line.scope == 'stack' and len(line.cases) > 20
    assert 1.005 < line.ratio < 1.02


def two_states(case, session):
    """Test case 3 is 8 % worse in spells of six sessions, and at the end."""
    return 1.08 if case == 3 and (session >= 60 or 20 <= session < 26
                                  or 44 <= session < 50) else 1.0


@pytest.mark.parametrize('worse, spells', [
    (two_states, [(day(20), day(25), 6), (day(44), day(49), 6)]),
    (lambda case, session: two_states(3, session),
     [(day(20), day(25), 6), (day(44), day(49), 6)]),
    (step(3, 60, 1.08), [])])
def test_earlier_spells_at_the_new_level_are_told(judge, worse, spells):
    line, = judge(sessions(worse, count=70)).regressions
    assert line.earlier == spells
    text = ' '.join(line.lines)
    assert ('at this level before: 2 spells, the last from '
            f'{day(44)} to {day(49)} (6 sessions)' in text) == bool(spells)


def test_what_changed_that_session_is_named(judge):
    verdict_ = judge(sessions(
        lambda c, n: 1.1 if n >= 33 else 1,
        spec=lambda c, n: 'abc' if n < 33 else 'def',
        stack=lambda c, n: f'openmpi 5.0.{6 + (n >= 33)}'))
    line, = verdict_.regressions
    assert 'spec hash abc -> def' in line.cause
    assert 'openmpi 5.0.6 -> openmpi 5.0.7' in line.cause


def test_facts_of_nodes_are_compared_by_name(judge, tmp_path):
    for name, kernel in (('aaa', '6.1'), ('bbb', '6.2')):
        path = tmp_path / 'alpha' / 'machines' / f'{name}.json'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({'kernel': kernel, 'cpu': 'same'}))
    verdict_ = judge(sessions(step(2, 33, 1.1), machine=lambda c, n:
                              'aaa' if n < 33 else 'bbb'))
    assert verdict_.regressions[0].cause == 'kernel 6.1 -> 6.2'


def test_one_good_session_ends_a_regression(judge):
    verdict_ = judge(
        sessions(lambda c, n: 1.2 if c == 3 and 20 < n < SESSIONS - 1 else 1)
    )
    assert verdict_.state == 'good'


def test_new_and_inconclusive_cases(judge):
    verdict_ = judge(sessions(
        skip=lambda c, n: c == 1 and n < 37,
        inconclusive=lambda c, n: 'the client was the limit' * (c == 3 and n > 36),
        worse=step(3, 37, 3.0)))
    assert [c.cases[0] for c in verdict_.events_of('few sessions')] == [short_id(1)]
    assert verdict_.state == 'good'


def test_systems_are_judged_apart(judge):
    verdict_ = judge([*sessions(), *sessions(step(4, 35), system='beta')])
    line, = verdict_.regressions
    assert (line.system, line.cases) == ('beta', [short_id(4, system='beta')])


def test_sessions_of_a_date_are_a_session(judge):
    records = sessions(step(4, 37))
    again = [{**r, 'session': r['session'].replace('T03', 'T09'),
              'time': r['time'].replace('T03', 'T09')} for r in records]
    random.Random(2).shuffle(again)
    verdict_ = judge([*again, *records])
    assert verdict_.session == day(SESSIONS - 1)
    assert verdict_.regressions[0].sessions <= 4


def test_a_session_in_the_past_knows_nothing_of_what_came_later(judge):
    records = sessions(step(3, 20, 1.2))
    assert judge(records, session=day(15)).state == 'good'
    verdict_ = judge(records, session=day(25))
    assert verdict_.regressions[0].since == day(20)


def test_a_session_in_the_past_is_judged_as_it_was_then(judge):
    """What is still true of a test case that did not run in it, and nothing of other
    systems."""
    records = [*sessions(step(3, 20, 1.2), skip=lambda c, n: c == 3 and n == 27),
               *sessions(step(4, 20, 1.2), system='beta', session=lambda c, n:
                         factory.record(day=n)['session'].replace('a', 'b'))]
    name = factory.record(day=27)['session']
    verdict_ = judge(records, session=name)
    [line] = verdict_.regressions
    assert (verdict_.session, line.cases) == (name, [short_id(3)])
    assert (verdict_.cases, len(verdict_.results)) == (CASES - 1, CASES)


def test_a_session_that_is_not_there_is_an_error(judge):
    with pytest.raises(ValueError, match='no session or date begins'):
        judge(sessions(count=9), session='1999')


def test_emulated_runs_are_never_judged(judge):
    assert judge(sessions(step(1, 30, 2.0), emulated=True)).judged == 0


def test_zeros_and_constants(judge):
    verdict_ = judge([
        *sessions(noise=0, cases=3, worse=step(1, 37, 1.2)),
        *[{**r, 'value': 0.0, 'check': 'Other'} for r in sessions(cases=2)]])
    line, = verdict_.regressions
    assert line.cases[0] == short_id(1)
    json.loads(verdict_.json())


def test_a_bandwidth_that_fell_to_0_has_no_ratio(tmp_path, capsys):
    """The stand-in of a 0 in a series of logs is no value."""
    records = sessions(metric='bandwidth')
    zeros = [{**r, 'value': 0.0} if r['params'].endswith('n=3') else r
             for r in records[-4 * CASES:]]
    words = '--perflogs', tmp_path / 'logs'
    factory.write(tmp_path / 'logs', [*records[:-4 * CASES], *zeros[:CASES]])
    code, output = run(capsys, *words)
    assert code == 0
    assert 'in this session only, down to 0 (osu_' in ' '.join(output.out.split())
    factory.write(tmp_path / 'logs', zeros[CASES:])
    code, output = run(capsys, *words)
    text = ' '.join(output.out.split())
    assert code == 1
    assert re.search(r' at 8 B 4[\d.]* MB/s -> 0 MB/s \[\w+\], since ', text), text
    [one] = regressions(run(capsys, *words, '--json', '-')[1])
    assert (one['now'], one['ratio'], one['low']) == (0, 0, None)
    assert one['members'][0]['ratio'] == 0
    build.write_page(str(tmp_path / 'logs'), tmp_path / 'page')
    text = (tmp_path / 'page' / 'index.html').read_text('utf-8')
    assert 'MB/s → 0 MB/s' in text


def run(capsys, *words):
    code = verdict.main([*map(str, words)])
    return code, capsys.readouterr()


def regressions(output):
    return [one for one in json.loads(output.out)['events']
            if one['kind'] == 'regression']


def test_the_command_writes_text_json_and_junit(tmp_path, capsys, regressed):
    words, _ = regressed
    code, output = run(capsys, *words, '--json', tmp_path / 'v.json')
    assert code == 1
    assert 'REGRESSED' in output.out and 'n=3' in output.out
    assert 'to do:' in output.out
    code, output = run(capsys, *words, '--json', '-')
    data = json.loads(output.out)
    assert data == json.loads((tmp_path / 'v.json').read_text())
    assert set(data) >= {'session', 'state', 'events'}
    [event] = regressions(output)
    assert set(event) >= {'title', 'cases', 'since', 'sessions', 'ratio', 'low', 'high',
                          'cause', 'evidence', 'todo', 'members'}
    code, output = run(capsys, *words, '--junit', '-')
    bad = [test.get('name') for test in ET.fromstring(output.out).iter(
        'testcase') if test.find('failure') is not None]
    assert len(bad) == 1 and 'n=3' in bad[0]


@pytest.mark.parametrize('count, skipped', [(3, CASES), (40, 0)])
def test_what_nothing_has_judged_is_no_pass_in_junit(tmp_path, capsys, count,
                                                     skipped):
    """Neither a reference nor, after few sessions, its history."""
    factory.write(tmp_path, sessions(count=count))
    code, output = run(capsys, '--perflogs', tmp_path, '--junit', '-')
    root = ET.fromstring(output.out)
    assert code == 0 and len(list(root.iter('testcase'))) == CASES
    assert len(list(root.iter('skipped'))) == skipped
    suite, = root.iter('testsuite')
    assert suite.get('skipped') == str(skipped)


def test_exit_codes(tmp_path, capsys):
    assert run(capsys, '--perflogs', tmp_path)[0] == 2
    assert run(capsys, '--perflogs', tmp_path / 'none')[0] == 2
    *_, path = factory.write(tmp_path, sessions(count=12))
    assert run(capsys, '--perflogs', tmp_path)[0] == 0
    path.write_text(path.read_text()[:-100])
    code, output = run(capsys, '--perflogs', tmp_path)
    assert code == 1
    assert f'{path}:1: this report of ReFrame cannot be read' in output.err


@pytest.fixture(scope='module')
def regressed_perflogs(tmp_path_factory):
    """Perflogs with a regression, and its ID."""
    folder = tmp_path_factory.mktemp('regressed')
    factory.write(folder, sessions(step(3, 30)))
    [event] = verdict.verdict_of_perflogs(str(folder))[0].regressions
    return folder, event.id


@pytest.fixture
def regressed(tmp_path, regressed_perflogs):
    """Options that name the perflogs of a regression, and its ID."""
    folder, ident = regressed_perflogs
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return ('--perflogs', tmp_path), ident


#: A day after all sessions here, and not over in any year.
SOON = str(max(datetime.date.today(), datetime.date(2026, 12, 31))
           + datetime.timedelta(days=30))


def test_a_muted_regression_comes_back_after_its_date(tmp_path, capsys,
                                                      regressed):
    words, ident = regressed
    code, output = run(capsys, 'mute', ident, *words, '--until', SOON,
                       '--reason', 'bad cable, #42')
    assert code == 0 and f'{ident} is muted until {SOON}' in output.out
    code, output = run(capsys, *words)
    assert code == 0 and '0 regressions' not in output.out
    assert re.search(rf'Muted:\n  .* \[{ident}\]', output.out)
    assert f'muted until {SOON}: bad cable, #42' in output.out
    code, output = run(capsys, *words, '--json', '-')
    assert code == 0 and not regressions(output)
    path = tmp_path / 'decisions.yaml'
    path.write_text(path.read_text().replace(SOON, day(SESSIONS - 2)))
    code, output = run(capsys, *words)
    assert code == 1 and re.search(rf'Regressed:\n  .* \[{ident}\]', output.out)


@pytest.mark.parametrize('worse, scope', [
    (step(1, 30), 'metric'),
    (lambda c, n: 1.2 if c % 3 == 1 and n > 34 else 1, 'node')])
def test_a_mute_applies_to_the_nodes_of_its_regression(
        tmp_path, capsys, worse, scope):
    """It counts again if the test cases are still worse on another node."""
    words = '--perflogs', tmp_path
    factory.write(tmp_path, sessions(worse))
    [one] = regressions(run(capsys, *words, '--json', '-')[1])
    assert one['scope'] == scope
    assert run(capsys, 'mute', one['id'], *words, '--until', SOON, '--reason',
               'x')[0] == 0
    [decision] = decisions.load_decisions(tmp_path)
    assert decision.failures == {'regression': ('n1',)}
    assert run(capsys, *words)[0] == 0
    factory.write(tmp_path, sessions(
        worse, nodes=lambda c, n: f'n{c % 3 if n < SESSIONS - 1 else 7}'))
    code, output = run(capsys, *words, '--json', '-')
    assert code == 1 and regressions(output)


def test_a_muted_node_hides_no_other_node(tmp_path, capsys):
    """Each test case runs on each node in turn, and alone none is worse."""
    words = '--perflogs', tmp_path

    def write(*slow):
        factory.write(tmp_path, sessions(
            lambda c, n: 1.05 if n > 25 and (c + n) % 3 in slow else 1,
            nodes=lambda c, n: f'n{(c + n) % 3}'))

    def groups(kind):
        events = json.loads(run(capsys, *words, '--json', '-')[1].out)['events']
        return [one['group'] for one in events if one['kind'] == kind]

    write(1)
    [one] = regressions(run(capsys, *words, '--json', '-')[1])
    assert one['scope'] == 'node' and run(
        capsys, 'mute', one['id'], *words, '--until', SOON, '--reason', 'x')[0] == 0
    assert run(capsys, *words)[0] == 0 and groups('muted') == [one['group']]
    write(1, 2)
    assert groups('muted') == [one['group']] and groups('regression') == [
        one['group'].replace('n1', 'n2')]


def test_an_accepted_regression_starts_a_new_baseline(tmp_path, capsys,
                                                      regressed):
    words, ident = regressed
    code, output = run(capsys, 'accept', ident, *words, '--reason', 'x')
    assert code == 0, output.err
    assert f'{ident} is accepted: the baseline begins on {day(30)}' in (
        output.out)
    code, output = run(capsys, *words)
    assert (
        code == 0 and 'Worse' not in output.out and 'Muted' not in output.out
    )
    # It does not end. Later values are compared with the new level.
    later = sessions(lambda case, session: 1.0 if case != 3 or session < 30
                     else 1.06 if session < 60 else 1.12, count=70)
    factory.write(tmp_path, later)
    code, output = run(capsys, *words, '--json', '-')
    one, = regressions(output)
    assert code == 1 and one['since'] == day(60)
    assert one['before'] == pytest.approx(40 * 1.06, rel=0.01)


def test_a_muted_regression_can_be_accepted(capsys, regressed):
    words, ident = regressed
    run(capsys, 'mute', ident, *words, '--until', SOON, '--reason', 'x')
    assert run(capsys, 'accept', ident, *words, '--reason', 'x')[0] == 0
    code, output = run(capsys, *words)
    assert code == 0 and 'Muted' not in output.out


def test_a_decision_is_kept_with_the_perflogs_and_undone(tmp_path, capsys, regressed):
    words, ident = regressed
    code, output = run(capsys, 'accept', ident, *words, '--reason', 'kernel 6.2')
    path = tmp_path / 'decisions.yaml'
    assert code == 0 and output.out.startswith(f'{path}: {ident} is accepted')
    assert 'reason: kernel 6.2' in path.read_text()
    code, output = run(capsys, 'undo', 'nope', *words)
    assert code == 2 and f'{path} has {ident} accepted: kernel 6.2' in output.err
    code, output = run(capsys, 'undo', ident, *words)
    assert (code, output.out) == (0, f'{path}: {ident} is no longer accepted\n')
    assert run(capsys, *words)[0] == 1


#: Action, its options, and parts of the message that refuses it.
NOT_DECIDED = [
    ('accept', ['nope', '--reason', 'x'],
     ["no regression has the ID 'nope'", 'latency at 8 B',
      'the verdict has osu_latency']),
    ('mute', ['nope', '--until', SOON, '--reason', 'x'],
     ["no regression has the ID 'nope'", 'the verdict has osu_latency']),
    ('mute', ['ID', '--until', '2020-01-31', '--reason', 'x'],
     ['--until 2020-01-31 is in the past: today is ']),
    ('retire', ['*', '--reason', 'x'],
     ["'*' matches no missing test case and no open failure; the verdict has neither"])]


def test_what_cannot_be_decided(tmp_path, capsys, regressed):
    where, ident = regressed
    for action, options, words in NOT_DECIDED:
        options = [ident if word == 'ID' else word for word in options]
        code, output = run(capsys, action, *options, *where)
        assert code == 2 and not output.out, (action, options)
        for text in words:
            assert text in output.err
        assert not (tmp_path / 'decisions.yaml').exists(), (action, options)


@pytest.mark.parametrize(
    'options, words',
    [
        (
            ['--until', '2027-02-30', '--reason', 'x'],
            "argument --until: '2027-02-30' is not a date like 2027-05-01",
        ),
        (
            ['--until', SOON, '--reason', ' '],
            'argument --reason: the text is empty',
        ),
        (['--reason', 'x'], 'required: --until'),
    ],
)
def test_a_mute_needs_a_date_and_a_reason(capsys, options, words):
    with pytest.raises(SystemExit) as end:
        verdict.main(['mute', '3f2a91c0', *options])
    assert end.value.code == 2 and words in capsys.readouterr().err


#: A row of decisions.yaml, and a part of the message that refuses it.
DAMAGED = [
    ('{id: 1}', 'kind is missing; it needs id, '),
    ('{id: a, kind: muted, since: 2026-01-01, until: 2026-02-01, reason: "", '
     'decided: 2026-01-01, metrics: [a], failures: {}}',
     "reason: expected a text, got ''"),
    ('{id: a, kind: muted, since: 2026-01-01, until: null, reason: x, '
     'decided: 2026-01-01, metrics: [a], failures: {}}',
     'until: expected a date like 2026-11-20, got None'),
    ('{id: a, kind: accepted, since: "2026-02-30", until: null, reason: x, '
     'decided: 2026-01-01, metrics: [a], failures: {}}',
     "since: expected a date like 2026-11-20, got '2026-02-30'"),
    ('{id: a, kind: accepted, since: 2026-01-01, until: null, reason: x, '
     'decided: 2026-01-01, metrics: [a], failures: {exit_code: n1}}',
     "failures: exit_code: expected a list of nodes, got 'n1'")]


def test_damaged_decisions_are_an_error(tmp_path, capsys, regressed):
    for row, words in DAMAGED:
        (tmp_path / 'decisions.yaml').write_text(f'- {row}\n')
        code, output = run(capsys, *regressed[0])
        assert code == 2 and f'decisions.yaml:1: {words}' in output.err
    # The table of `plumb run` has the records all the same.
    made = build.write_page(str(tmp_path), tmp_path / 'page')
    assert made.code == 2 and len(made.records)


def test_reruns_are_asked_for_and_taken(tmp_path, capsys):
    records = sessions(step(3, SESSIONS - 1, 1.06))
    factory.write(tmp_path, records)
    assert verdict.verdict_of_perflogs(tmp_path)[0].suspects == [short_id(3)]
    last = [r for r in records[-CASES:] if factory.short_id(r) == short_id(3)]
    for n in range(4, 9):
        factory.write(tmp_path, [
            {**r, 'session': r['session'].replace('T03', f'T0{n}'),
             'time': r['time'].replace('T03', f'T0{n}'),
             'value': 40 * 1.06 * (1 + 0.002 * (n - 6))}
            for r in last])
    verdict_ = verdict.judge_session(read_records(tmp_path))
    assert [line.cases[0] for line in verdict_.regressions] == [short_id(3)]


# What failed, why and where; what changed ----------------------------------

def test_a_bad_node_of_jobs_on_several_nodes_is_one_line(judge):
    """Their nodes stand in a record with blanks between them."""
    pairs = ['n1 n3', 'n2 n4', 'n1 n4', 'n2 n3', 'n1 n2', 'n3 n4']
    verdict_ = judge(sessions(
        lambda c, n: 1.1 if 'n2' in pairs[c] and n > 34 else 1, cases=6,
        nodes=lambda c, n: pairs[c]))
    line, = verdict_.regressions
    assert (line.scope, line.group) == ('node', 'node n2 of alpha')


def test_the_size_of_a_bad_node_is_that_of_its_own_sessions(judge):
    """Test cases run on it in some sessions only, and on good nodes otherwise."""
    def node(case, session):
        return f'n{(case + 3 * session) % 5}'

    line, *_ = judge(sessions(
        lambda c, n: 1.1 if node(c, n) == 'n2' and n > 24 else 1, nodes=node)
        ).regressions
    assert line.group == 'node n2 of alpha'
    assert 1.08 < line.ratio < 1.12
    assert all(1.08 < one.ratio < 1.12 for one in line.members)


@pytest.mark.parametrize(
    'where, words',
    [
        (lambda c, n: f'n{c} n{c + 1}', ' sessions) [ran on n3 n4]'),
        (
            lambda c, n: f'n{c} n{c + n % 2}',
            ' sessions)',
        ),  # not always the same
    ],
)
def test_a_metric_is_told_with_its_nodes(judge, where, words):
    """Nobody knows which of the two it was: it is one of them."""
    verdict_ = judge(sessions(step(3, 35), nodes=where))
    line, = verdict_.regressions
    assert line.lines[0].endswith(words)


def test_a_changed_environment_is_told_once(judge):
    """Though no metric changed with it; other nodes are no change."""
    records = sessions(nodes=lambda c, n: f'n{(c + n) % 5}',
                       spec=lambda c, n: 'abc' if n < SESSIONS - 1 else 'def')
    words = 'spec hash abc -> def'
    verdict_ = judge(records)
    change, = verdict_.events_of('environment')
    assert (change.cause, change.system, len(change.cases)) == (
        words, 'alpha', CASES)
    assert verdict_.state == 'good'
    text = '\n'.join(printed_verdict_lines(verdict_))
    assert '1 change of the environment' in text
    assert (f'Changed environment:\n  {words}: 10 test cases on alpha '
            '(cpu openmpi)') in text
    assert not judge(records, session=day(SESSIONS - 2)).events_of(
        'environment')


def test_a_version_that_begins_a_history_of_its_own_is_told(judge):
    verdict_ = judge(sessions(
        family='keyvalue', check='StoreServes', metric='latency_p50',
        program='valkey', version=lambda c, n: f'8.{n >= SESSIONS - 1:d}'))
    change, = verdict_.events_of('environment')
    assert change.cause == 'program version 8.0 -> 8.1'


def failed(case, on, reason='', guard='rows'):
    return factory.record(
        'completed', 0.0, day=SESSIONS - 1, repetition=0, params=f'x={case}',
        guard=guard, reason=reason, nodes=on)


def test_failures_say_why_and_what_they_have_shared_nodes(judge):
    records = [failed(1, 'n[1-2]', 'run.1.out:12: the table ends'),
               failed(2, 'n[2-3]'), failed(3, 'n4', 'what it said', 'x')]
    text = '\n'.join(printed_verdict_lines(judge([*sessions(), *records])))
    one, two, three = map(factory.short_id, records)
    assert (f'{one} on alpha:cpu openmpi: rows: run.1.out:12: the table ends '
            '[ran on n[1-2]]') in text
    assert f'{two} on alpha:cpu openmpi: rows [ran on n[2-3]]' in text
    assert f'{three} on alpha:cpu openmpi: x: what it said [ran on n4]' in text
    assert (
        'n2 of alpha: 2 osu test cases failed, guard rows'
    ) in text


@pytest.mark.parametrize('on', ['n[1-2]', 'n[3-4]'])
def test_failures_on_the_same_or_on_other_nodes_share_nothing(judge, on):
    [event] = judge([*sessions(), failed(1, 'n[1-2]'), failed(2, on)]).failures
    assert event.title == 'alpha: 2 osu test cases failed, guard rows'


def test_a_group_keeps_its_history_when_a_regression_is_over(judge):
    """A node that was bad, was fixed, and is a little bad again."""
    def worse(c, n):
        return 1.0 if c % 3 != 1 else 1.1 if 20 <= n < 33 else (
            1.02 if n > 36 else 1.0)

    line, = judge(sessions(worse, cases=15)).regressions
    assert (line.scope, line.group) == ('node', 'node n1 of alpha')
    assert abs(int(line.since[-2:]) - int(day(37)[-2:])) <= 1
    assert 1.01 < line.ratio < 1.03


def test_histories_of_two_sources_are_apart(judge):
    """The test case is the same; a value is never compared with another source's."""
    def later(records):
        return [{**r, 'session': r['session'].replace('T03', 'T04'),
                 'time': r['time'].replace('T03', 'T04')} for r in records]

    verdict_ = judge([*sessions(source='embedded'),
                      *later(sessions(lambda c, n: 3.0, source='spack', seed=2))])
    assert verdict_.regressions == [] and verdict_.judged == 2 * CASES
    assert {one.source for one in verdict_.results} == {'spack'}


@pytest.mark.parametrize('words', [['accept'], ['mute', '--until', SOON]])
def test_a_decision_is_only_about_its_own_settings(tmp_path, capsys, words):
    """Two test cases that differ in nothing but a setting (-S)."""
    factory.write(tmp_path, [
        *sessions(step(1, 30, 1.2), cases=2, settings='max_size=1000'),
        *sessions(step(1, 31, 5.0), cases=2, seed=2)])
    options = '--perflogs', tmp_path
    before = regressions(run(capsys, *options, '--json', '-')[1])
    chosen, = (one for one in before if one['members'][0]['settings'])
    assert len(before) == 2
    assert run(capsys, words[0], chosen['id'], *words[1:], '--reason', 'x',
               *options)[0] == 0
    left, = regressions(run(capsys, *options, '--json', '-')[1])
    assert left['cases'] == [short_id(1)]
    assert f'./plumb run --site alpha {short_id(1)};' in left['todo']


def test_what_may_pass_is_measured_again_and_told_when_it_lasts(judge):
    def worse(case, session):
        bump = 40 + 2 * case <= session < 45 + 2 * case
        return 1.06 if bump or case == 7 and session >= 125 else 1.0

    records = sessions(worse, cases=40, count=140)
    few = judge(records, session=day(128))
    assert few.regressions == []
    case, = [case for case in few.events_of('rerun')
             if 'disappeared within 10 sessions' in case.title]
    assert case.cases == [short_id(7)] and f'worse since {day(125)}' in case.title
    line, = judge(records).regressions
    assert line.cases[0] == short_id(7)


def bumps(case, session):
    """Each of five test cases is once worse by 5 % for four sessions."""
    return 1.05 if case < 5 and 30 + 8 * case <= session < 34 + 8 * case else 1.0


def test_measurements_of_one_day_decide_where_changes_often_pass(judge):
    records = sessions(bumps, cases=30, count=80)
    for hour in range(5):
        records += [factory.record(
            'latency', 10 * (case + 1) * (1.65 if case == 20 else 1.0) *
            (1 + 0.003 * hour), 8, day=80 + hour / 24,
            params=f'program=osu_latency n={case}', nodes=f'n{case % 3}')
            for case in range(30)]
    verdict_ = judge(records)
    line, = verdict_.regressions
    assert line.cases[0] == short_id(20)
    assert line.ratio == pytest.approx(1.65, rel=0.05)


def test_a_curve_that_may_pass_is_no_regression_of_its_test_case(judge):
    """All sizes of a test case change, as those of others did before."""
    rng = random.Random(3)

    def value(case, session):
        factor = 1.04 if case == 25 and session >= 76 else bumps(case, session)
        return 10 * factor * (1 + 0.01 * rng.gauss(0, 1))

    verdict_ = judge([factory.record(
        'latency', size * value(case, session), size,
        day=session, params=f'program=osu_latency n={case}',
        nodes=f'n{case % 3}') for session in range(80) for case in range(30)
        for size in (8, 1024, 4096)])
    assert verdict_.regressions == []
    assert short_id(25) in [case.cases[0] for case in verdict_.events_of('rerun')]


def test_the_power_of_each_test_case_is_told(tmp_path, capsys):
    records = sessions(cases=4, count=60) + sessions(
        cases=4, count=60, metric='bandwidth', seed=2)
    factory.write(tmp_path, records)
    assert verdict.main(['--perflogs', str(tmp_path), '--power']) == 0
    text = capsys.readouterr().out
    assert '3 sessions' in text and 'n=3' in text
    assert re.search(r'six sessions show a lasting change of [234]\.\d % '
                     r'in half of the test cases', text)
    build.write_page(str(tmp_path), tmp_path / 'page')
    page = (tmp_path / 'page/index.html').read_text()
    assert re.search(r'% in 6 \((latency|bandwidth) 8 B\)', page)
    capsys.readouterr()
    verdict.main(['--perflogs', str(tmp_path), '--json', '-'])
    power = json.loads(capsys.readouterr().out)['power']
    sizes = [one['in_6_sessions'] for one in power]
    assert len(sizes) == 4 and sizes == sorted(sizes, reverse=True)
    one = power[0]
    assert 0.02 < one['in_6_sessions'] < one['in_3_sessions'] < 0.08
    assert one['metric'] in ('latency', 'bandwidth')


def test_the_power_of_a_short_history_is_not_known(tmp_path, capsys):
    factory.write(tmp_path, sessions(count=4))
    assert verdict.main(['--perflogs', str(tmp_path), '--power']) == 0
    assert 'No test case has enough sessions' in capsys.readouterr().out


def test_records_of_a_site_that_is_given_by_a_path(tmp_path):
    frame = pd.DataFrame({'system': ['alpha', 'other']})
    assert len(record_options.records_of_site(frame, str(tmp_path / 'alpha'))) == 1


@pytest.mark.parametrize('action', ['accept', 'retire'])
def test_each_decision_needs_a_reason(capsys, action):
    with pytest.raises(SystemExit) as end:
        verdict.main([action, '3f2a91c0'])
    assert end.value.code == 2 and 'required: --reason' in capsys.readouterr().err
