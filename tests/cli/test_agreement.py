"""Page, report, verdict, JUnit, export, the table of `plumb run` and the
summary of a nightly session give each test case the same result.

Histories are drawn at random, each from a seed: sessions that overlap, are
killed, measure again or leave cases out, on one or two systems; cases of
several sources, speeds and hashes, that begin late, vanish, get worse and
recover; every outcome, metrics that are missing, and guards.
"""
from __future__ import annotations

import datetime
import html
import json
import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip('pandas')
pytest.importorskip('jinja2')
import perflogs_factory as make

from cli.nightly import summary as session_summary
from cli.session import account
from config.sessions import run_id
from postprocess import export, perflogs, results
from postprocess.perflogs import plans
from postprocess.regressions import telling, verdict
from postprocess.report import build as report
from postprocess.report import cards, page, plots, sections

#: How a case may end; beside results of records what leaves no figures.
ENDS = (*(name for name in results.ORDER if name not in ('not_run', 'flaky')),
        'retried', 'guard', 'guard and values', 'nothing')
METRICS = ('latency', 'bandwidth', 'wall_time')


class Case:
    """A case of a made-up site, and what becomes of it."""

    def __init__(self, rng: random.Random, number: int, sessions: int) -> None:
        self.columns = {
            'system': rng.choice(['alpha', 'alpha', 'beta']),
            'partition': rng.choice(['cpu', 'cpu', 'gpu']),
            'environ': rng.choice(['openmpi', 'mpich']),
            'source': rng.choice(['embedded', 'embedded', 'spack']),
            'check': rng.choice(['OsuPt2pt', 'OsuCollective']),
            'params': f'n={number // 2}',
            'program': rng.choice(['osu_latency', 'osu_bw']),
            'emulated': int(rng.random() < 0.1)}
        # ReFrame's hash knows the check and its parameters alone.
        self.hash = f"{self.columns['check'][3]}{number // 2:07}"
        self.rehashed = rng.choice([None, None, rng.randrange(sessions)])
        self.metrics = rng.sample(METRICS, rng.randint(1, 3))
        self.sizes = rng.choice([(None,), (8,), (8, 1024)])
        self.first = rng.choice([0, 0, 0, sessions - 2])
        self.last = rng.choice([sessions, sessions, sessions, sessions - 5])
        self.worse = rng.choice([None, None, sessions - 6, sessions - 12])
        self.better = rng.choice([sessions, sessions, sessions - 3])
        self.factor = rng.choice([1.1, 1.5])
        self.speed = rng.choice(['fast', 'fast', '-'])

    def records(self, rng: random.Random, run: str, session: int,
                when: datetime.datetime, end: str) -> list[dict]:
        """What it leaves of one session."""
        def at(hours: int) -> str:
            return f'{when + datetime.timedelta(hours=hours):%Y-%m-%dT%XZ}'

        hashed = (
            self.hash
            if self.rehashed is None or session < self.rehashed
            else self.hash + 'b'
        )
        same = self.columns | {
            'run': run, 'time': at(0), 'case': hashed, 'speed': rng.choice(
                [self.speed] * 20 + ['slow', 'slow', 'mixed'])}
        rows = []
        if end.startswith('guard'):
            rows.append(make.record('completed', 0.0, **same, repetition=0,
                                    result='fail', guard='ranks: 1 of 2'))
        if end == 'retried':
            rows += self._metrics(rng, session, 'retried', same)
            same |= {'time': at(1)}
            end = rng.choice(['pass', 'fail'])
        if end not in ('guard', 'nothing'):
            rows += self._metrics(
                rng, session, 'no_reference' if end.startswith('guard')
                else end, same)
        return rows

    def _metrics(self, rng: random.Random, session: int, result: str,
                 same: dict) -> list[dict]:
        """The metrics that are there; one of them ended as is said."""
        some = [m for m in self.metrics if rng.random() < 0.95
                ] or self.metrics[:1]
        worse = self.factor if self.worse is not None \
            and self.worse <= session < self.better else 1.0
        rows = []
        for metric in some:
            lower = make.METRICS[metric]['better'] == 'lower'
            points = self.sizes if make.METRICS[metric]['point'] else (None,)
            for size in points:
                subset = result if not rows else rng.choice(
                    [result, 'no_reference', 'pass' if result != 'inconclusive'
                     else 'inconclusive'])
                bound = {} if subset in ('no_reference', 'inconclusive') else {
                    'reference': '10.0', 'upper' if lower else 'lower':
                    '0.2' if lower else '-0.2'}
                for repetition in rng.choice([(1,), (0, 1, 2)]):
                    value = 10 * (worse if lower else 1 / worse) * (
                        1 + 0.01 * rng.gauss(0, 1))
                    rows.append(make.record(
                        metric, value, size, **same, **bound, result=subset,
                        repetition=repetition))
        return rows


def drawn(seed: int, folder: Path) -> set[str]:
    """Writes a made-up site; returns how its newest sessions ended."""
    rng = random.Random(seed)
    columns = rng.randint(3, 34)
    # Of two with one number, and so one hash, each runs somewhere else.
    cases = {tuple(case.columns[c] for c in perflogs.CASE if c != 'family'):
             case for case in (Case(rng, number, columns)
                               for number in range(rng.randint(2, 9)))}
    seen: set[str] = set()
    records, some = [], list(cases.values())
    for session in range(columns):
        last = session == columns - 1
        start = make.START + datetime.timedelta(
            days=session, minutes=rng.choice([0, 0, 17, 1250]))
        tag = f'{rng.randrange(16 ** 6):06x}'
        sessions = [(start, tag, some)]
        if rng.random() < 0.2:              # by hand, while the other runs
            sessions.append((start + datetime.timedelta(minutes=rng.choice(
                [5, 300])), f'{rng.randrange(16 ** 6):06x}',
                rng.sample(some, 1 + len(some) // 3)))
        if rng.random() < 0.2:              # what failed, once more
            sessions.append((start + datetime.timedelta(hours=rng.choice(
                [2, 9])), f'{tag}01', rng.sample(some, 1 + len(some) // 3)))
        for began, name, group in sessions:
            run = f'{began:%Y%m%dT%H%M%SZ}-{name}'
            planned: dict[str, list[Case]] = {}
            for number, case in enumerate(group):
                if not case.first <= session < case.last:
                    continue
                end = rng.choice(ENDS) if rng.random() < (
                    0.4 if last else 0.04) else 'pass'
                planned.setdefault(case.columns['system'], []).append(case)
                got = case.records(
                    rng, run, session, began + datetime.timedelta(
                        minutes=20 * number), end)
                records += got
                seen |= {end} & {'retried', 'guard', 'guard and values'} | {
                    row['result'] for row in got if last}
            if last and rng.random() < 0.5:
                for system, planned_ in planned.items():
                    plan(folder, run, began, system, planned_, session)
                    seen.add('plan')
    make.write(folder, records)
    return seen


def plan(folder: Path, run: str, began: datetime.datetime, system: str,
         cases: list[Case], session: int) -> None:
    """The plan of a session, which was killed if a case has no record."""
    path = folder / system / 'sessions' / f'{run}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({
        'plan': 1, 'run': run, 'time': f'{began:%Y-%m-%dT%H:%M:%SZ}',
        'system': system, 'suite': '0.1.0', 'commit': '0123456789ab',
        'reframe': '4.10.4', 'cases': [
            {name: one.columns[name] for name in (
                'partition', 'environ', 'check', 'params', 'program',
                'source')} | {
                'emulated': str(one.columns['emulated']), 'family': 'osu',
                'case': one.hash if one.rehashed is None
                or session < one.rehashed else one.hash + 'b',
                'version': '7.5', 'stack': 'openmpi 5.0.6',
                'name': f"{one.columns['check']} {one.columns['params']}"}
            for one in cases]}))


def agrees(seed: int, folder: Path, capsys) -> set[str]:
    """Checks one history; returns what was in it."""
    logs, out = folder / 'logs', folder / 'page'
    seen = drawn(seed, logs)
    frame = perflogs.read(logs)
    keys = set(map(tuple, frame[perflogs.CASE].astype(str).to_numpy()))
    result = verdict.verdict_of_records(frame, [str(logs)])

    # Verdict: each case once, and each failed or regressed one told.
    states = {one.test_case_key: one for one in result.results}
    assert len(states) == len(result.results) and set(states) == keys
    assert sorted(one.test_case_key for one in result.failures) == sorted(
        key for key, one in states.items() if one.is_failed)
    reported: dict[tuple, set[str]] = {}
    for line in result.regressions:
        for member in line.members:
            reported.setdefault(member.test_case_key, set()).add(line.id)
    assert reported == {key: set(one.regressions)
                        for key, one in states.items() if one.regressions}
    ids = [line.id for line in [*result.regressions, *result.improved]]
    assert len(set(ids)) == len(ids)
    bad = {key for key, one in states.items() if not one.is_good}
    levels = result.failed_levels
    assert result.exit_code == bool(bad or levels)
    as_json = json.loads(result.json())
    assert as_json['verdict'] == (
        'regressed' if reported else
        'failed' if levels or len(bad) > len(result.cut_short) else
        'not_run' if bad else 'good')

    # The page: each case once, with the same letter.
    made = page.Page(frame, frozenset(), verdict=result)
    of_page = {tuple(str(getattr(one.row, c)) for c in perflogs.CASE): one
               for one in made.cases}
    assert len(of_page) == len(made.cases) and set(of_page) == keys
    for key, one in states.items():
        letter = page.LETTERS[results.ORDER.index(one.result)]
        assert of_page[key].newest_result_letter == (
            page.WORSE if one.regressions and letter not in page.FAILED
            else letter), (key, one)
    rows = made.value_table_rows()
    assert {
        n
        for group in cards.failure_groups(made, rows)
        if not group['why'].startswith('no record')
        for line in [*group['lines'], *group['more']]
        for n in [line['number']]
    } == {one.number for one in made.cases if one.newest_result_letter in page.FAILED
          and not one.is_cut_short}
    assert {key for key, one in of_page.items() if one.is_cut_short} == {
        one.test_case_key for one in result.cut_short}
    # Test cases, not records.
    ends = Counter(one.result for one in result.results)
    assert all(made.result_counts[name] == ends[name] for name in results.ORDER)
    assert made.result_counts['regressed'] == len(result.regressions)

    # The table of `plumb run` and the summary of a nightly session, which
    # know a test case by what its plan has of it.
    first = run_id.first_session_id_by_session(frame['run'].astype(str))
    many = Counter(first.values())
    same = Counter(one.plan_key for one in result.results)
    for one in result.results:
        if same[one.plan_key] > 1:
            continue
        session = results.results_of_nightly_session(frame, first[one.run])[
            one.plan_key
        ]
        assert session.result == one.result, one
        summary = session_summary.Summary('x', 0.0, results=[session])
        assert (summary.overall_status in ('failed', 'flaky')) == one.is_failed
        [plan_of] = [plans.read_plan(path, pytest.fail) for path in
                     logs.glob(f'{one.system}/sessions/{one.run}.json')
                     ] or [None]
        if plan_of and many[first[one.run]] == 1:
            row = account.rows_by_test_case(plan_of, frame, []).get(one.plan_key)
            assert row is None or row.result == one.result, one
            seen.add('row') if row else None

    # JUnit, by the verdict and by export.
    [suite] = ET.fromstring(telling.junit_xml(result))
    tests = [(one.get('classname'), one.get('name')) for one in suite]
    assert len(set(tests)) == len(tests) == len(keys) + len(result.levels)
    few = {one.test_case_key for one in result.not_enough}
    for one, test in zip(result.results, suite, strict=False):
        kinds = {child.tag for child in test}
        assert ('failure' in kinds) == (one.test_case_key in bad)
        assert ('skipped' in kinds) == (one.is_good and (
            one.result == 'inconclusive'
            or one.result == 'no_reference' and one.test_case_key in few))
        failure = test.find('failure')
        if failure is not None:
            assert failure.get('type') == (
                one.result if one.result in results.FAILED
                else 'regressed')
            assert all(ident in failure.text for ident in one.regressions)
    assert suite.get('failures') == str(len(bad) + len(levels))
    file = folder / 'junit.xml'
    assert export.main(['--perflogs', str(logs), '--junit', str(file)]) == 0
    assert file.read_text('utf-8') == telling.junit_xml(result)

    # The commands, and the page as it is written.
    capsys.readouterr()
    assert verdict.main(['--perflogs', str(logs)]) == result.exit_code
    assert telling.verdict_headline(result) in capsys.readouterr().out
    assert report.main(['--perflogs', str(logs), '--output', str(out)]
                       ) == result.exit_code
    text = (out / 'index.html').read_text('utf-8')
    # A session that was cut short leaves the health as it was.
    assert ('class="health bad"' in text) == (bool(reported or levels) or any(
        one.last_completed_result in results.FAILED for one in made.cases))
    assert telling.comparison_text(result) in text
    assert telling.cut_short_text(result.results) in html.unescape(
        re.sub('<[^>]*>', '', re.sub('<button.*?</button>', '', text)))
    loud = dict(re.findall(
        r'data-case="(\d+)"[^>]*><span class="who( fail)?"', text))
    assert {int(number) for number, fail in loud.items() if fail} == {
        one.number for one in made.cases
        if one.newest_result_letter in page.FAILED + 'w' or one.cells.endswith('-')}
    data = json.loads(re.search(
        r'id="data" type="application/json">(.*?)</script>', text, re.S)[1])
    assert [one['c'] for one in data['cases']] == [
        one.cells for one in made.cases]
    return seen | {one.result for one in result.results} | (
        {'regressed'} if reported else set()) | (
        {'stale'} if result.stale else set())


def test_all_say_the_same_of_every_case(tmp_path, capsys, monkeypatch):
    # What is drawn is not looked at here.
    monkeypatch.setattr(plots, 'drawings_of_family', lambda *_: ([], []))
    monkeypatch.setattr(sections.ratio, 'drawings_from_records', lambda *_, **__: [])
    seen: set[str] = set()
    # Few that have between them all that can happen.
    for seed in (2, 4, 5, 10, 11, 12, 47):
        try:
            seen |= agrees(seed, tmp_path / str(seed), capsys)
        except Exception as err:
            raise AssertionError(f'seed {seed}: {err}') from err
    assert {*results.ORDER, 'retried', 'guard', 'guard and values', 'plan',
            'regressed', 'row', 'stale'} <= seen
