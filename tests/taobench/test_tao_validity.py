"""Validity of runs of TaoBench, with the reasons."""
from __future__ import annotations

import random

import pytest

from checks.taobench import parser as tao
from checks.taobench import validity
from checks.taobench.validity import Cpu, Expected
from tests.conftest import ROOT

LOG = (ROOT / 'tests/taobench/golden/server_v1.log').read_text()
#: 30 s of warm-up, 2 of rest, 40 of test, a line a second.
RUN = Expected(1, warmup_time=30, test_time=40, interval=1, rest=2)
GOOD = Cpu(75, 28)


def line(rate, hit, connections=400, oom=0.0):
    return (f'fast_qps = {rate * hit:.1f}, hit_rate = {hit:.3f}, slow_qps = '
            f'{rate * (1 - hit):.1f}, wh_qps = 0.0, curr_it = 0.05M, '
            f'slow_qps_oom =  {oom:.1f}, crnt_conn = {connections}, slow_th '
            '= 3, slow_reqs = 1, slow_resp = 1, nanosleeps_per_sec = 9.00\n')


IDLE = line(0, 0, 2)


def log(warm=0.89, start=0.3, fill=20, test=40, end=4, rate=1000.0, seed=1,
        oom=0.0):
    """A run: the hit rate grows from `start` to `warm` in `fill` lines."""
    draw = random.Random(seed)

    def at(step):
        grown = min(step / fill, 1) if fill else 1
        return line(rate * draw.uniform(0.97, 1.03), start
                    + (warm - start) * grown + draw.uniform(-3e-3, 3e-3),
                    oom=oom)

    lines = [at(step) for step in range(30)] + [IDLE] * 2
    return ''.join(lines + [at(30 + step) for step in range(test)]
                   + [IDLE] * end)


def numbered(text):
    """No two lines of a server are the same."""
    first, *rest = text.split('nanosleeps_per_sec = 9')
    return first + ''.join(f'nanosleeps_per_sec = {number}{part}'
                           for number, part in enumerate(rest))


def summary(text, *more):
    log, = tao.parse_server_logs(text)
    return tao.summarise_log(log, *more)


def judged(*texts, expected=None, cpu=GOOD, **more):
    expected = expected or Expected(**{**vars(RUN), 'instances': len(texts)})
    return validity.find_invalidity_reasons(
        [
            text
            and summary(
                numbered(text),
                tao.counted_window_seconds(expected.test_time),
                expected.interval,
            )
            for text in texts
        ],
        expected,
        cpu,
        **more,
    )


def causes(*texts, **more):
    return [(reason.rule, reason.cause) for reason in judged(*texts, **more)]


# Validity ------------------------------------------------------------------

@pytest.mark.parametrize('seed', range(10))
def test_a_good_run_is_valid(seed):
    assert not judged(log(seed=seed), log(seed=seed + 100, rate=900))


def test_the_golden_run_is_valid():
    assert not validity.find_invalidity_reasons([summary(LOG)], Expected(1, 600, 360),
                                                GOOD)


@pytest.mark.parametrize('texts, expected', [
    ([log(warm=0.99)], [('hit_ratio', 'few_keys')]),
    ([log(warm=0.80)], [('points', 'many_keys')]),
    ([log(fill=60)], [('points', 'cold')]),
    ([log(fill=400)], [('points', 'cold')]),
    ([log(test=20, end=24)], [('points', 'starved')]),
    ([log(), None], [('instances', 'killed')]),
    ([log(), ''.join(log().splitlines(True)[:50])],
     [('ended', 'killed'), ('points', 'killed')]),
    ([log(), log(), log(rate=200)], [('balance', 'starved')]),
    ([log(warm=0.8, oom=3.0)], [('points', 'memory')]),
    ([log().replace(', nanosleeps_per_sec = 9.00', '')],
     [('points', 'build')]),
    ([''.join(IDLE for _ in range(76))], [('points', 'starved')]),
])
def test_invalid_for_the_right_reason(texts, expected):
    assert causes(*texts) == expected


@pytest.mark.parametrize('reads, rates, cause', [
    ([7000] * 4, [0.420, 0.430, 0.432, 0.443], 'many_keys'),
    ([1e6] * 4, [0.410, 0.420, 0.432, 0.443], 'cold'),
    ([450, 6200, 6600, 6500], [0.076, 0.081, 0.102, 0.131], 'cold')])
def test_growth_differs_from_the_chance_of_few_reads(reads, rates, cause):
    """Points of half a second, as seen in runs of 2 s."""
    text = ''.join(map(line, [7000] * 9 + reads, [rates[0]] * 9 + rates))
    of = Expected(1, warmup_time=4.5, test_time=2, interval=0.5)
    assert causes(text, expected=of) == [('points', cause)]


def test_a_dip_is_not_ignored():
    """The original takes points from before it instead."""
    lines = log().splitlines(True)
    lines[50:54] = [line(1000, 0.5)] * 4
    reason, = judged(''.join(lines), expected=Expected(
        **{**vars(RUN), 'test_time': 30, 'warmup_time': 40}))
    assert (
        reason.rule == 'points'
        and '4 invalid points in the window' in reason.text
    )
    lines[51:54] = lines[55:58]
    assert not judged(''.join(lines), expected=Expected(
        **{**vars(RUN), 'test_time': 30, 'warmup_time': 40}))


@pytest.mark.parametrize('test, cause', [
    ([IDLE] * 12, 'starved'),                   # nobody asked
    ([line(1000, 0.5)] * 12, 'many_keys'),
    ([line(1000, 0.89)] * 4 + [IDLE] * 8, 'starved'),
    ([line(1000, 0.89)] * 12, '')])
def test_a_warm_up_is_no_test(test, cause):
    """Points of it, which the original takes where the test has too few."""
    run = Expected(2, warmup_time=30, test_time=12, interval=1)
    good = ''.join([line(1000, 0.89)] * 42)
    bad = ''.join([line(1000, 0.89)] * 30 + test)
    assert (
        summary(numbered(bad), 12, 1).num_data_points
        == run.points_per_server
    )
    result = causes(good, bad, expected=run, cpu=None)
    assert result == ([('points', cause)] if cause else [])


@pytest.mark.parametrize('cpu, v2, expected_causes', [
    (Cpu(70, 15), False, []), (Cpu(80, 30), False, []), (None, False, []),
    (Cpu(40, 20), False, [('cpu_total', 'starved')]),
    (Cpu(97, 20), False, [('cpu_total', 'busy')]),
    (Cpu(75, 9), False, [('cpu_user', 'kernel')]),
    (Cpu(75, 60), False, [('cpu_user', 'busy')]),
    (Cpu(75, 20), True, [('cpu_user', 'kernel')]),
    (Cpu(72, 26), True, [('cpu_total', 'starved')]),
])
def test_cpu(cpu, v2, expected_causes):
    expected = Expected(**{**vars(RUN), 'v2': v2})
    assert causes(log(), expected=expected, cpu=cpu) == expected_causes


def test_clients_that_are_missing_or_slow():
    expected = Expected(**{**vars(RUN), 'connections': [800]})
    reason, = judged(log(), expected=expected)
    assert (reason.rule, reason.cause) == ('connections', 'starved')
    assert '400 of 800 connections' in str(reason)
    assert not judged(log(), expected=Expected(
        **{**vars(RUN), 'connections': [400]}))
    reason, = judged(log(), limited=['client 2'])
    assert str(reason).startswith(
        'client 2 could not send requests faster: a client'
    )


def test_every_cause_is_explained():
    with open(validity.__file__) as stream:
        source = stream.read()
    for cause in validity.CAUSES:
        assert source.count(f"'{cause}'") > 1, cause
