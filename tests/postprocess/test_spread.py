"""Tolerances from few sessions are wide enough for other days."""
from __future__ import annotations

import numpy as np
import references

from postprocess.references import spread

CALM = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99]


def test_one_outlier_in_ten_does_not_count():
    assert spread.compute_tolerance([*CALM, 1.5]) < 0.15
    # With fewer it looks like a wide spread.
    assert spread.compute_tolerance([*CALM[:5], 1.5]) > 0.3


def test_further_days_help_where_further_sessions_do_not():
    values = [0.93, 1.0, 1.07] * 4
    now = spread.noise_of_sessions(values)
    assert spread.tolerance_of_noise(now._replace(sessions=500), 0.05) > 0.3
    assert spread.tolerance_of_noise(
        now._replace(sessions=32, days=21), 0.05) <= 0.3


def test_healthy_sessions_of_other_days_pass():
    """Half of the variance is common to a day, calibrated on one."""
    rows = references.simulate_sessions(np.random.default_rng(1), 0.03, 0.5, 10,
                                        days=(1, 20))
    assert all(failed <= 0.02 for failed, _, _ in rows.values())
    # Tolerances become narrower with the days.
    one, twenty = rows.values()
    assert twenty[2] > one[2] + 0.1


def test_a_slow_size_is_found():
    """With a smallest tolerance of 0.3 it was found in one of four sessions."""
    false, power = references.simulate_curves(
        np.random.default_rng(1), 0.03, 0.0, False, 5)
    assert power > 0.8 and false <= 0.002


def test_noise_beyond_the_max_tolerance_is_hardly_ever_judged():
    rows = references.simulate_sessions(np.random.default_rng(1), 0.4, 0.0, 5,
                                        days=(1,))
    assert rows[1][1] < 0.02
