"""Tolerances from few sessions: wide enough for other days, and how many it takes."""
from __future__ import annotations

import math

import numpy as np
import pytest
import references

from postprocess.references import level, spread

CALM = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99]


def days(*counts: int) -> list[spread.Day]:
    """So many sessions on each day."""
    return [(f'2026-11-{day + 1:02}', 'n1') for day, count in enumerate(counts)
            for _ in range(count)]


@pytest.mark.parametrize('df, quantile', [
    (4, 8.610), (6, 5.959), (9, 4.781), (14, 4.140), (100, 3.390)])
def test_the_quantiles_of_student_are_those_of_the_tables(df, quantile):
    assert quantile <= spread.student_quantile(df, spread.Z) < 1.04 * quantile


def test_one_day_shows_nothing_of_other_days():
    """The prior: half of the variance is common to a day."""
    values = [0.97, 1.0, 1.0, 1.0, 1.03]
    variance = np.var(values, ddof=1)
    one = spread.estimate_variances(values, days(5))
    assert one == spread.estimate_variances(values)
    assert (one.between, one.within, one.days) == (
        pytest.approx(variance), pytest.approx(variance), 1)
    assert spread.prediction_limit(one) == pytest.approx(
        spread.student_quantile(4, spread.Z) * math.sqrt(variance * (2 + 0.13 + 0.2)))
    # On five days the same variance is that of days, too.
    five = spread.estimate_variances(values, days(1, 1, 1, 1, 1))
    assert (five.between, five.within, five.days) == (
        pytest.approx(variance / 2), pytest.approx(variance / 2), 5)
    assert spread.compute_tolerance(values, days=days(1, 1, 1, 1, 1)) < \
        spread.compute_tolerance(values)


def test_several_sessions_on_several_days_tell_the_variances_apart():
    def variances(between: float, within: float) -> spread.Variances:
        rng = np.random.default_rng(1)
        values = 1 + between * np.repeat(rng.standard_normal(50), 4) \
            + within * rng.standard_normal(200)
        return spread.estimate_variances(values.tolist(), days(*[4] * 50))
    common, own = variances(0.02, 0.005), variances(0.005, 0.02)
    assert common.between > 3 * common.within and own.within > 3 * own.between


def test_nodes_of_one_day_are_not_days():
    """Sessions on other nodes of the same day differ by their nodes at most."""
    there = [('2026-11-01', f'n{number}') for number in range(5)]
    assert spread.estimate_variances(CALM[:5], there) == \
        spread.estimate_variances(CALM[:5], days(5))


def test_tolerance_is_the_largest_of_three():
    calm = [1.0] * 5
    assert spread.compute_tolerance(calm) == 0.05
    assert spread.compute_tolerance(calm, 0.1) == 0.1
    assert spread.compute_tolerance([0.09] * 5, resolution=0.01) == 0.23
    noisy = [0.99, 1.0, 1.0, 1.0, 1.01]
    assert spread.compute_tolerance(noisy) == math.ceil(
        100 * spread.prediction_limit(spread.estimate_variances(noisy))) / 100 > 0.05


def test_too_few_sessions_or_no_centre_give_no_tolerance():
    assert spread.compute_tolerance([1.0] * 4) == math.inf
    assert (
        spread.compute_tolerance([])
        == spread.compute_tolerance([0.0] * 9)
        == math.inf
    )
    assert spread.sessions_needed([1.0] * 4, 0.3) == (1, 1)
    assert spread.sessions_needed([], 0.3) == (5, 5)
    assert spread.sessions_needed([0.0] * 9, 0.3) == (None, None)


def test_one_outlier_in_ten_does_not_count():
    assert spread.compute_tolerance([*CALM, 1.5]) < 0.15
    # With fewer it looks like a wide spread, but may vanish.
    assert spread.compute_tolerance([*CALM[:5], 1.5]) > 0.3
    assert spread.sessions_needed([*CALM[:5], 2.5], 0.3) == (4, 4)


def test_sessions_needed_is_the_inverse_of_the_tolerance():
    for width in (0.01, 0.02, 0.03):
        values = [1 - width, 1.0, 1 + width] * 4
        now = spread.estimate_variances(values)
        more, _ = spread.sessions_needed(values, 0.2)
        for further, is_enough in ((more, True), (more - 1, more == 0)):
            later = now._replace(sessions=12 + further)
            assert (spread.tolerance_of_variances(later, 0.05) <= 0.2) is is_enough
    assert spread.sessions_needed([0.5, 1.0, 1.5] * 4, 0.3) == (None, None)
    assert spread.sessions_needed([0.05] * 5, 0.3, resolution=0.01).sessions is None


def test_further_days_help_where_further_sessions_do_not():
    values = [0.93, 1.0, 1.07] * 4
    now = spread.estimate_variances(values)
    assert spread.tolerance_of_variances(now._replace(sessions=500), 0.05) > 0.3
    more, today = spread.sessions_needed(values, 0.3)
    assert spread.tolerance_of_variances(
        now._replace(sessions=12 + more, days=1 + more), 0.05) <= 0.3
    # Until there are twenty: the values may vary less than it seems.
    assert today == 8
    assert spread.sessions_needed([0.93, 1.0, 1.07] * 7, 0.3).same_days is None


def test_a_curve_has_the_spread_of_its_noisiest_third():
    calm, wild = (spread.Variances(v, v, 8, 1.0) for v in (1e-4, 1e-3))
    assert spread.curve_variances([[calm] * 6 + [wild] * 3, [calm] * 9]) == \
        spread.Variances(wild.between, wild.within, 8, 1.0, 18)
    few, many = (spread.curve_variances([[calm] * n]) for n in (3, 30))
    assert spread.prediction_limit(few) < spread.prediction_limit(many)
    assert spread.tolerance_of_variances(calm._replace(sessions=4), 0.2) == math.inf


@pytest.mark.parametrize('width', [0.03, 0.05])
def test_healthy_sessions_of_other_days_pass(width):
    """Half of the variance is common to a day, calibrated on one: with tolerances of
    the variance within this day, 26 and 38 % of the sessions failed somewhere."""
    rows = references.simulate_sessions(np.random.default_rng(1), width, 0.5, 10,
                                        days=(1, 20))
    for policy in ('accepted', 'narrowed'):
        assert all(failed <= 0.02 for failed, _, _ in rows[policy].values())
    # Tolerances become narrower with the days.
    one, twenty = rows['accepted'].values()
    assert twenty[2] > one[2] + 0.1


def test_a_slow_size_is_found():
    """With a smallest tolerance of 0.3 it was found in one of four sessions."""
    false, power = references.simulate_curves(
        np.random.default_rng(1), 0.03, 0.0, False, 5)
    assert power > 0.8 and false <= 0.002


@pytest.mark.parametrize('width', [0.01, 0.05])
def test_a_machine_that_is_slower_everywhere_is_found(width):
    judged, false, power, lasting = references.simulate_levels(
        np.random.default_rng(1), width, 0.0, 20, 20)
    assert judged > 0.9 and false <= 0.02 and power >= 0.95 and min(lasting) >= 0.9
    assert level.MAX_TOLERANCE <= 0.05


def test_noise_beyond_the_max_tolerance_is_hardly_ever_judged():
    rows = references.simulate_sessions(np.random.default_rng(1), 0.4, 0.0, 5,
                                        days=(1,))
    assert rows['accepted'][1][1] < 0.02
