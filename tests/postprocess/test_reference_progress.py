"""How far a test case is from a reference: runs, needs and tolerances."""
from __future__ import annotations

import math

import pytest

pd = pytest.importorskip('pandas')
import perflogs_factory as make  # noqa: E402
from perflogs_factory import CALM, WILD, latencies  # noqa: E402

from config.sessions import judged  # noqa: E402
from postprocess import perflogs  # noqa: E402
from postprocess.references.progress import (  # noqa: E402
    Judgement,
    progress_of_test_cases,
    tolerances_and_sessions_needed,
)


def ask(tmp_path, records):
    make.write(tmp_path / 'p', records)
    return progress_of_test_cases(perflogs.read(tmp_path / 'p'))


def test_a_case_that_is_there(tmp_path):
    [case] = ask(tmp_path, latencies(CALM))
    assert (case.family, case.check, case.system, case.partition,
            case.environ, case.source, case.edition, case.speed,
            case.params) == (
        'osu', 'OsuPt2pt', 'alpha', 'cpu', 'openmpi', 'embedded', '', 'fast',
        'program=osu_latency placement=intra_node')
    assert (case.runs, case.needs) == (5, 0)
    assert case.judgements[0] == Judgement('latency@8B', 1.0, 0.05, 0.3, 0, 0)
    assert set(case.needs_of) == {'latency@8B', 'worst_ratio'}


def test_too_few_runs_need_the_rest(tmp_path):
    [case] = ask(tmp_path, latencies(CALM[:3]))
    assert (case.runs, case.needs) == (3, 2)
    assert case.judgements[0].tolerance == math.inf


def test_a_wide_spread_is_told_metric_by_metric(tmp_path):
    [case] = ask(tmp_path, latencies(WILD))
    assert case.needs is None
    assert case.needs_of['latency@8B'] is None


def test_speeds_sources_and_versions_are_apart(tmp_path):
    store = {'family': 'keyvalue', 'check': 'StoreServes',
             'program': 'valkey', 'params': 'store=valkey'}
    cases = ask(tmp_path, [
        *latencies(CALM), *latencies(CALM[:2], speed='slow'),
        *latencies(CALM[:1], speed='mixed'), *latencies(CALM[:1], emulated=1),
        *[make.record('operations', 9.0, 64, day=day, version=version, **store)
          for version in ('8.1', '9.1') for day in range(5)]])
    assert [(c.family, c.speed, c.edition, c.runs, c.needs)
            for c in cases] == [
        ('keyvalue', 'fast', '8.1', 5, 0), ('keyvalue', 'fast', '9.1', 5, 0),
        ('osu', 'fast', '', 5, 0), ('osu', 'slow', '', 2, 3)]


def test_a_case_that_always_fails_is_there_with_no_run(tmp_path):
    [case] = ask(tmp_path, latencies(CALM, result='fail'))
    assert (case.runs, case.needs, case.judgements) == (0, 5, [])


def test_a_derived_metric_stands_in(monkeypatch):
    rules = {'osu': [{'metric': 'latency', 'at': [8],
                      'instead': 'latency_p50'}]}
    monkeypatch.setattr(judged, 'judged_rules_by_family', lambda: rules)

    def runs(values):
        return dict(zip('abcdefghij', values, strict=False))

    def result(small):
        [one] = tolerances_and_sessions_needed('osu', {('latency', 8): runs(WILD),
                                                       ('latency_p50',
                                                        None): runs(small)})
        return one.metric, one.needs

    assert result(CALM * 2) == ('latency_p50', 0)
    assert result(CALM[:4]) == ('latency@8B', None)   # too few to count
    assert result(WILD) == ('latency@8B', None)
    assert result([1.0, 1.17, 0.83, 1.16, 0.84, 1.0]) == ('latency@8B', 4)
    [one] = tolerances_and_sessions_needed('osu', {('latency', 8): runs(CALM),
                                                   ('latency_p50', None): runs(CALM)})
    assert one.metric == 'latency@8B'
