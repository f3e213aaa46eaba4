"""Tolerances from few sessions: wide enough for other days, and how many it takes."""
from __future__ import annotations

import numpy as np
import references

from postprocess.references import spread

CALM = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99]


def test_one_outlier_in_ten_does_not_count():
    assert spread.compute_tolerance([*CALM, 1.5]) < 0.15
    # With fewer it looks like a wide spread, but may vanish.
    assert spread.compute_tolerance([*CALM[:5], 1.5]) > 0.3
    assert spread.sessions_needed([*CALM[:5], 2.5], 0.3) == 4


def test_sessions_needed_is_the_inverse_of_the_tolerance():
    for width in (0.01, 0.02, 0.03):
        values = [1 - width, 1.0, 1 + width] * 4
        now = spread.noise_of_sessions(values)
        more = spread.sessions_needed(values, 0.2)
        for further, is_enough in ((more, True), (more - 1, more == 0)):
            later = now._replace(sessions=12 + further)
            assert (spread.tolerance_of_noise(later, 0.05) <= 0.2) is is_enough
    assert spread.sessions_needed([0.5, 1.0, 1.5] * 4, 0.3) is None
    assert spread.sessions_needed([0.05] * 5, 0.3, floor=0.4) is None


def test_further_days_help_where_further_sessions_do_not():
    values = [0.93, 1.0, 1.07] * 4
    now = spread.noise_of_sessions(values)
    assert spread.tolerance_of_noise(now._replace(sessions=500), 0.05) > 0.3
    more = spread.sessions_needed(values, 0.3)
    assert spread.tolerance_of_noise(
        now._replace(sessions=12 + more, days=1 + more), 0.05) <= 0.3


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
