"""config/sessions/judged.py: which metrics are judged, and by what."""
from __future__ import annotations

import math

import pytest

from config import families
from config.sessions import judged

METRICS = families.all_metrics()


def test_a_derived_metric_is_the_geometric_mean_over_its_range():
    curve = {f'latency@{2 ** n}B': 2.0 ** n for n in range(23)}
    result = judged.compute_derived_metrics('osu', curve)
    # 1 B to 1 KiB, inclusive: 2^0 to 2^10; each size weighs the same.
    assert result == {'latency_small': pytest.approx(2 ** 5)}
    large = judged.compute_derived_metrics('osu', {f'bandwidth@{2 ** n}B': float(n)
                                                   for n in range(23)})
    assert large == {'bandwidth_large': pytest.approx(
        (20 * 21 * 22) ** (1 / 3))}


@pytest.mark.parametrize('family, curve', [
    ('osu', {'latency@1B': 1.0, 'latency@2B': 1.0, 'latency@2048B': 1.0}),
    ('osu', {'latency@1B': 0.0, 'latency@2B': 1.0, 'latency@4B': 1.0}),
    ('osu', {'latency': 1.0, 'latency_max@1B': 1.0, 'latency_max@2B': 1.0,
             'latency_max@4B': 1.0}),
    # Its rows name none: latency is not what is judged of a store.
    ('keyvalue', {'latency@1B': 1.0, 'latency@2B': 1.0, 'latency@4B': 1.0}),
    ('no_such_family', {'latency@1B': 1.0}),
])
def test_a_curve_that_is_too_short_has_none(family, curve):
    assert judged.compute_derived_metrics(family, curve) == {}


def test_each_derived_metric_is_that_of_its_curve():
    for family, rules in judged.judged_rules_by_family().items():
        for rule in rules:
            name = rule.get('instead')
            assert judged.derived_replacement_metric(family,
                                                     rule['metric'] + '@8B') == name
            if name:
                what = families.all_derived_metrics()[name]
                assert what['of'] == rule['metric']
                subset, its = METRICS[name], METRICS[rule['metric']]
                assert (subset['unit'], subset['better'], subset['point']) == (
                    its['unit'], its['better'], '')
                assert judged.max_tolerance(
                    family, name
                ) == judged.max_tolerance(family, rule['metric'])


@pytest.mark.parametrize('better, value, lower, upper, message', [
    # 0.12 sqrt(2 / 1.55) = 0.136: one measurement must be that far away.
    ('lower', 0.87, None, 0.12, True), ('lower', 0.89, None, 0.12, False),
    ('lower', 0.01, None, None, False), ('lower', 0.25, None, 1.0, False),
    ('higher', 1.15, -0.12, None, True), ('higher', 1.13, -0.12, None, False),
    ('lower', 0.5, math.nan, math.nan, False),
    ('none', 0.5, -0.1, 0.1, False), ('none', 1.5, -0.1, 0.1, False),
])
def test_what_is_better_by_more_than_it_might_be_worse(better, value, lower,
                                                       upper, message):
    assert judged.is_improved(better, value, 1.0, lower, upper) is message
    assert judged.is_improved(better, value, 0.0, lower, upper) is False


@pytest.mark.parametrize('changed, text', [
    ({'latency@8B': (1.66, 1.0, 'us'), 'worst_ratio': (4.0, 1.0, '1')},
     'latency at 8 B +66 % against its reference: 1.66 µs, reference 1 µs; '
     '1 more metric'),
    ({'bandwidth': (0.5, 1.0, 'MB/s')},
     'bandwidth -50 % against its reference: 0.5 MB/s, reference 1 MB/s'),
    ({'latency@8B': (45.0, 1.0, 'us')},
     'latency at 8 B 45 x against its reference: 45 µs, reference 1 µs'),
    ({'bandwidth': (99.0, math.nan, 'MB/s')}, 'bandwidth beyond a limit: 99 MB/s')])
def test_what_is_out_of_tolerance_in_percent(changed, text):
    assert judged.farthest_out_of_tolerance(changed)[1] == text


@pytest.mark.parametrize('better, value, reference, ratio', [
    ('lower', 2.0, 1.0, 2.0), ('higher', 2.0, 1.0, 0.5),
    ('lower', 1.01, 1.0, 1.0),                      # one digit
    ('higher', 0.0, 5.0, judged.INFINITE), ('lower', 0.0, 5.0, 1 / judged.INFINITE),
    ('lower', 5.0, 0.0, judged.INFINITE), ('higher', 5.0, 0.0, 1 / judged.INFINITE),
    ('lower', 0.0, 0.0, 1.0), ('lower', math.nan, 1.0, math.nan),
    ('higher', 1.0, math.nan, math.nan)])
def test_the_ratio_of_two_values(better, value, reference, ratio):
    assert judged.worsening_ratio(better, value, reference, 0.01) == pytest.approx(
        ratio, nan_ok=True)
