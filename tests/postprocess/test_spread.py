"""Bounds from few runs: wide enough to hold, and how many runs it takes."""
from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import references

from config.sessions import judged
from postprocess.references import spread


def test_reach_is_the_tolerance_factor():
    # All tries of a run are beyond it once in a thousand.
    z = NormalDist().inv_cdf(1 - 0.001 ** (1 / judged.MEASUREMENTS))
    assert pytest.approx(z, rel=1e-4) == judged.Z
    # z sqrt(1.2) sqrt(4 / chi2(0.01, 4)), by the tables.
    assert spread.tolerance_factor(5) == pytest.approx(judged.Z * math.sqrt(
        1.2 * 4 / 0.29711))
    # Nine degrees of freedom by approximation would be near the table's.
    assert spread.tolerance_factor(13) == pytest.approx(judged.Z * math.sqrt(
        14 / 13 * 10 / 2.55821), rel=0.02)
    assert judged.Z < spread.tolerance_factor(100000) < 1.02 * judged.Z
    falling = [
        spread.tolerance_factor(n) for n in (5, 6, 7, 8, 9, 12, 20, 40, 100)
    ]
    assert falling == sorted(falling, reverse=True)


def test_tolerance_is_the_largest_of_three():
    calm = [1.0] * 5
    assert spread.compute_tolerance(calm) == 0.05
    assert spread.compute_tolerance(calm, 0.1) == 0.1
    assert spread.compute_tolerance([0.09] * 5, resolution=0.01) == 0.23
    noisy = [0.97, 1.0, 1.0, 1.0, 1.03]
    assert spread.compute_tolerance(noisy) == pytest.approx(math.ceil(
        100 * spread.tolerance_factor(5) * np.std(noisy, ddof=1)) / 100)


def test_too_few_runs_or_no_centre_give_no_tolerance():
    assert spread.compute_tolerance([1.0] * 4) == math.inf
    assert (
        spread.compute_tolerance([])
        == spread.compute_tolerance([0.0] * 9)
        == math.inf
    )
    assert spread.sessions_needed([1.0] * 4, 0.3) == 1
    assert spread.sessions_needed([], 0.3) == 5
    assert spread.sessions_needed([0.0] * 9, 0.3) is None


def test_one_disturbed_run_in_ten_does_not_count():
    calm = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99]
    assert spread.compute_tolerance([*calm, 1.5]) < 0.15
    # With fewer it looks like a wide spread, but nobody says never.
    assert spread.compute_tolerance([*calm[:5], 1.5]) > 0.3
    assert spread.sessions_needed([*calm[:5], 2.5], 0.3) == 4


def test_runs_needed_is_the_inverse_of_the_tolerance():
    for width in (0.01, 0.03, 0.05, 0.08):
        values = [1 - width, 1.0, 1 + width] * 4
        more = spread.sessions_needed(values, 0.3)
        sigma = spread.relative_spread(values)
        assert spread.tolerance_factor(12 + more) * sigma <= 0.3
        assert more == 0 or spread.tolerance_factor(11 + more) * sigma > 0.295
    assert spread.sessions_needed([0.5, 1.0, 1.5] * 4, 0.3) is None
    assert spread.sessions_needed([0.05] * 5, 0.3, resolution=0.01) is None


def test_the_worst_ratio_passes_the_runs_that_it_came_from():
    assert spread.worst_ratio_tolerance([1.0] * 4 + [1.9], 0.3) >= 0.9
    assert spread.worst_ratio_tolerance([1.0] * 4, 0.3) == math.inf
    assert spread.worst_ratio_tolerance([1.0] * 11 + [1.9], 0.3) == 0.3
    assert spread.worst_ratio_sessions_needed([1.0, 1.0, 1.0], 0.3, 0.3) == 2
    # One disturbed run of five is pulled in when there are ten of them.
    assert spread.worst_ratio_sessions_needed([1.1] * 4 + [2.5], 1.0, 0.3) == 5
    assert spread.worst_ratio_sessions_needed([1.1] * 8 + [2.5] * 2, 1.0, 0.3) is None


@pytest.mark.parametrize(('width', 'median', 'late'), [
    (0.01, 5, 5), (0.03, 7, 11)])
def test_calibrated_references_keep_their_promise(width, median, late):
    row = references.simulate_calibration(references.normal_noise, 0.0, width, 1000, 60,
                                          np.random.default_rng(1))
    assert row['judged'] <= 1                    # of 1000 runs
    assert row['runs'] <= median and row['late'] <= late
    assert row['given'] > 0.99


def test_noise_beyond_the_max_tolerance_is_hardly_ever_judged():
    row = references.simulate_calibration(references.normal_noise, 0.0, 0.4, 500, 60,
                                          np.random.default_rng(1))
    assert row['given'] < 0.1 and row['all'] <= 1
