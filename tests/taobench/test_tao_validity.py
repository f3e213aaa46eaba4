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
    window = tao.counted_window_seconds(expected.test_time)
    return list(validity.find_invalidity_reasons(
        [text and summary(numbered(text), window, expected.interval) for text in texts],
        expected, cpu, **more))


# Validity ------------------------------------------------------------------

@pytest.mark.parametrize('seed', range(10))
def test_a_good_run_is_valid(seed):
    assert not judged(log(seed=seed), log(seed=seed + 100, rate=900))


def test_the_golden_run_is_valid():
    assert not list(validity.find_invalidity_reasons(
        [summary(LOG)], Expected(1, 600, 360), GOOD))


@pytest.mark.parametrize('texts, expected', [
    ([log(warm=0.99)], ['; valid: 0.88 to 0.9: there are too '
                        'few keys']),
    ([log(warm=0.80)], ['0 of 35 data points in the test: hit_rate is below 0.88: the '
                        'warm-up was too short, there are too many keys']),
    ([log(fill=60)], ['data points in the test: hit_rate is below']),
    ([log(test=20, end=24)], ['20 of 35 data points in the test: no load: fast_qps is '
                              'not above 1: a client has too few CPUs']),
    ([log(), None], ['only 1 of 2 servers have statistics: a server was killed']),
    ([log(), ''.join(log().splitlines(True)[:50])],
     ['server 2 has 50 of 72 lines of statistics: a server was killed']),
    ([log(), log(), log(rate=200)], [' requests/s, the others ']),
    ([log().replace(', nanosleeps_per_sec = 9.00', '')],
     ['nanosleeps_per_sec missing: an older build wrote it']),
    ([''.join(IDLE for _ in range(76))], ['0 of 35 data points in the test: no load']),
])
def test_invalid_for_the_right_reason(texts, expected):
    [reason], [words] = judged(*texts), expected
    assert words in reason


@pytest.mark.parametrize('test, words', [
    ([IDLE] * 12, 'no load'),                   # no requests
    ([line(1000, 0.5)] * 12, 'hit_rate is below'),
    ([line(1000, 0.89)] * 4 + [IDLE] * 8, 'no load'),
    ([line(1000, 0.89)] * 12, '')])
def test_a_warm_up_is_no_test(test, words):
    """Points of it, which the original takes where the test has too few."""
    run = Expected(2, warmup_time=30, test_time=12, interval=1)
    good = ''.join([line(1000, 0.89)] * 42)
    bad = ''.join([line(1000, 0.89)] * 30 + test)
    assert summary(numbered(bad), 12, 1).num_data_points == run.points_per_server
    reasons = judged(good, bad, expected=run, cpu=None)
    assert len(reasons) == bool(words) and all(words in one for one in reasons)


@pytest.mark.parametrize('cpu, job, words', [
    (Cpu(70, 15), 'autoscale', ''), (Cpu(80, 30), 'autoscale', ''),
    (None, 'autoscale', ''),
    *((Cpu(*cpu), 'autoscale', words) for cpu, words in (
        ((40, 20), 'total CPU use is 40 %; valid: 70 to 80 %: a client has'),
        ((97, 20), 'total CPU use is 97 %; valid: 70 to 80 %: other processes'),
        ((75, 9), 'user CPU use is 9 %; valid: 15 to 30 %: the kernel takes'),
        ((75, 60), 'user CPU use is 60 %; valid: 15 to 30 %: other processes'))),
    *((Cpu(*cpu), 'autoscale_v2_beta', words) for cpu, words in (
        ((75, 20), 'user CPU use is 20 %; valid: 25 to 30 %: the kernel takes'),
        ((72, 26), 'total CPU use is 72 %; valid: 75 to 80 %: a client has')))])
def test_cpu(cpu, job, words):
    reasons = judged(log(), expected=Expected(**{**vars(RUN), 'job': job}), cpu=cpu)
    assert len(reasons) == bool(words) and all(words in one for one in reasons)


def test_clients_that_are_missing_or_slow():
    [reason] = judged(log(), expected=Expected(**{**vars(RUN), 'connections': [800]}))
    assert '400 of 800 connections' in reason
    assert not judged(log(), expected=Expected(**{**vars(RUN), 'connections': [400]}))
    [reason] = judged(log(), limited=['client 2'])
    assert reason.startswith('client 2 could not send requests faster: a client')
