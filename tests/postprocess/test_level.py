"""postprocess/references/level.py: all metrics of a session against references."""
from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree

import numpy as np
import perflogs_factory as make
import pytest

from cli.session import commands
from postprocess.printed import PrintedCommands
from postprocess.records import read as read_records
from postprocess.references import level
from postprocess.regressions import junit, verdict
from postprocess.report import build

METRICS = 20


def session(day: int, factor: float = 1.0, metrics: int = METRICS, **columns) -> list:
    """Metrics that are judged, with a noise of 2 % of their own."""
    rng = np.random.default_rng(day)
    return [make.record(
        'latency', 2.0 * factor * (1 + 0.02 * rng.standard_normal()), 8, day=day,
        params=f'program=osu_latency buffers=b{number}',
        reference=2.0, upper=0.2, result='pass', **columns)
        for number in range(metrics)]


def levels_of(tmp_path, records) -> list[level.Level]:
    make.write(tmp_path, records)
    frame = read_records(tmp_path)
    return level.session_levels(frame, {max(map(str, frame['session'].unique()))})


def history(days: int = 12, **columns) -> list:
    return [one for day in range(days) for one in session(day, **columns)]


def test_a_machine_that_is_slower_everywhere_fails(tmp_path):
    """No metric is out of its own tolerance of 20 %."""
    [sound] = levels_of(tmp_path / 'sound', history() + session(12))
    assert not sound.is_failed and (sound.metrics, sound.days) == (METRICS, 12)
    assert sound.tolerance == pytest.approx(0.02, abs=0.005)
    [slow] = levels_of(tmp_path / 'slow', history() + session(12, 1.05))
    assert slow.is_failed and slow.worse == pytest.approx(0.05, abs=0.015)
    assert slow.text.startswith('alpha: level +')
    assert '(2026-11-13, 20 metrics; + is worse)' in slow.text
    advice = slow.advice_lines(PrintedCommands())
    assert 'calibrate --site alpha --new' in advice[1]
    long = dataclasses.replace(slow, system='aws-parallelcluster', metrics=9999)
    assert max(len(f'    {line}') for line in (long.text, *advice)) <= 100


def test_the_level_is_told_wherever_a_session_is(tmp_path, capsys):
    make.write(tmp_path, history() + session(12, 1.06))
    assert verdict.main(['--perflogs', str(tmp_path),
                         '--junit', str(tmp_path / 'j.xml'),
                         '--json', str(tmp_path / 'v.json')]) == 1
    out = capsys.readouterr().out
    assert 'FAILED: a level out of tolerance' in out or 'REGRESSED: ' in out
    assert '  alpha: level +' in out
    [data] = [one for one in json.loads((tmp_path / 'v.json').read_text())['events']
              if one['kind'] == 'level']
    assert (data['system'], data['result']) == ('alpha', 'fail')
    assert 'level of all metrics together' in (tmp_path / 'j.xml').read_text()
    judged, _ = verdict.verdict_of_perflogs(str(tmp_path))
    assert judged.state == 'regressed'
    assert judged.failed_levels and not judged.regressions
    assert 'a level out of tolerance' in judged.headline
    assert commands._print_regressions(judged, judged.results, ' --site alpha')
    assert '(./plumb verdict --site alpha explains it):\n  alpha: level +' in (
        capsys.readouterr().out)
    assert commands.failed_levels_of_systems(judged, {'beta'}) == []
    written = build.write_page(str(tmp_path), tmp_path / 'page')
    assert written.code == 1
    assert 'a level out of tolerance' in capsys.readouterr().out
    page = (tmp_path / 'page/index.html').read_text()
    assert 'level +' in page and 'to do: check clocks' in page
    assert '<b>REGRESSED.</b>' in page and 'a level out of tolerance' in page.lower()


def cancelled(day: int) -> list:
    """A session that was cancelled before a test case ended."""
    return [make.record(
        'completed', 0.0, day=day, params=one['params'], repetition=0,
        guard='cancelled') for one in session(day)]


@pytest.mark.parametrize('later', [
    cancelled(12)[:5], session(13, metrics=level.FEWEST_METRICS - 1)])
def test_a_failed_level_stays_until_a_session_has_another(tmp_path, later):
    """A session that was cut short, or has few test cases, has no level."""
    slow = session(12, 1.05)
    if later[0]['time'] == slow[0]['time']:     # the rest of the session was cancelled
        slow = slow[5:]
    make.write(tmp_path, history() + slow + later)
    judged, faults = verdict.verdict_of_perflogs(str(tmp_path))
    assert not faults
    [failed] = judged.failed_levels
    assert '(2026-11-13,' in failed.title and judged.state == 'regressed'
    make.write(tmp_path / 'good', history() + slow + later + session(14))
    judged, _ = verdict.verdict_of_perflogs(str(tmp_path / 'good'))
    assert not judged.failed_levels


def test_a_level_of_long_ago_is_not_told(tmp_path):
    make.write(tmp_path, history() + session(12, 1.05) + [
        one for day in range(13, 24) for one in session(day, metrics=9)])
    assert verdict.verdict_of_perflogs(str(tmp_path))[0].events_of('level') == []


def test_a_level_that_is_not_judged_is_skipped_in_junit(tmp_path):
    make.write(tmp_path, history(4) + session(4, 1.2))
    suite = ElementTree.fromstring(junit.junit_xml(
        verdict.verdict_of_perflogs(str(tmp_path))[0]))[0]
    [test] = [one for one in suite if one.get('name').startswith('level of all')]
    assert 'not judged: needs sessions on 6 more days' in test[0].get('message')
    skipped = [one for one in suite if one.find('skipped') is not None]
    assert test in skipped and suite.get('skipped') == str(len(skipped))


def test_a_change_that_lasts_fails_for_forty_days(tmp_path):
    """Sessions that failed are not what later ones are compared with."""
    make.write(tmp_path, history() + [
        one for day in range(12, 52) for one in session(day, 1.035)])
    frame = read_records(tmp_path)
    runs = sorted(map(str, frame['session'].unique()))
    failed = []
    for number in range(12, 52):
        [now] = level.session_levels(frame[frame['session'].isin(runs[:number + 1])],
                                     {runs[number]})
        failed.append(now.is_failed)
    assert all(failed)


def test_levels_that_vary_too_much_are_not_judged(tmp_path):
    rng = np.random.default_rng(1)
    records = [one for day in range(15)
               for one in session(day, 1 + 0.03 * rng.standard_normal())]
    [wild] = levels_of(tmp_path, records + session(15))
    assert wild.tolerance is None and 'vary too much' in wild.text


def test_records_of_a_reframe_of_the_site_are_judged(tmp_path):
    """Its perflogs have value, reference and thresholds, and no metric of ours."""
    header = ('job_completion_time|display_name|system|partition|perf_var|perf_value|'
              'perf_unit|perf_ref|perf_lower_thres|perf_upper_thres')
    rng = np.random.default_rng(3)
    folder = tmp_path / 'alpha' / 'cpu'
    folder.mkdir(parents=True)
    for number in range(METRICS):
        values = 100 * (1 + 0.01 * rng.standard_normal(13))
        values[12] *= 0.95
        (folder / f'Stream{number}.log').write_text('\n'.join([header, *(
            f'2026-11-{day + 1:02}T03:00:00Z|Stream{number}|alpha|cpu|triad|{value}|'
            'GB/s|100.0|-0.2|None' for day, value in enumerate(values)), '']))
    frame = read_records(tmp_path)
    newest = frame['session'][frame['time'] == frame['time'].max()]
    [slow] = level.session_levels(frame, {*map(str, newest)})
    assert slow.is_failed and slow.metrics == METRICS
