"""detect.py: alarms, change points, recovery, on made-up sessions.

Rates are measured by bench/detect.py; here stands what must hold at all.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from postprocess.regressions import detect

WARM = 40


def noise(series, sessions, phi=0.0, seed=1):
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal((series, sessions))
    result = steps.copy()
    for t in range(1, sessions):
        result[:, t] = phi * result[:, t - 1] + (1 - phi ** 2) ** 0.5 * steps[
            :, t]
    return np.log1p(0.01 * result)


def stepped(step, sessions, series=40, back=None):
    x = noise(series, WARM + sessions)
    x[:, WARM:back] += np.log1p(step)
    return x


@pytest.mark.parametrize('step, sessions', [(0.05, 3), (0.03, 6)])
def test_a_step_is_found_in_time_and_where_it_began(step, sessions):
    result = detect.detect_level_changes(
        stepped(step, sessions), pool=np.zeros(40, int)
    )
    late = result.states[:, -1] == detect.WORSE
    assert late.mean() >= 0.9
    assert (abs(result.start[late] - WARM) <= 1).mean() >= 0.85


@pytest.mark.parametrize('phi', [0.0, 0.5])
def test_noise_alone_is_no_alarm(phi):
    result = detect.detect_level_changes(noise(100, 100, phi), pool=np.zeros(100, int))
    assert (result.states[:, 30:] == detect.WORSE).mean() < 0.002


def test_what_better_than_it_was_is_no_alarm_but_the_new_level():
    x = stepped(-0.2, 30)
    x[0, -4:] += np.log(1.15)           # lost again, most of it
    result = detect.detect_level_changes(x)
    assert not (result.states[1:] == detect.WORSE).any()
    assert (result.states[:, WARM + 5] == detect.BETTER).all()
    assert result.states[0, -1] == detect.WORSE


def test_the_baseline_never_follows_a_regression():
    result = detect.detect_level_changes(stepped(0.1, 150, 5))
    assert (result.states[:, -1] == detect.WORSE).all()
    assert (abs(result.start - WARM) <= 1).all()
    assert np.abs(result.baseline.centre).max() < 0.01


def test_one_outlier_and_two_in_three_sessions_are_no_step():
    x = noise(10, WARM + 3)
    x[:, -1] += 0.25
    x[5:, -3] += 0.25
    result = detect.detect_level_changes(x)
    assert (result.states[:, -1] == detect.NORMAL).all()
    assert result.suspect.all()


def test_one_session_of_a_series_without_a_unit_is_no_alarm():
    """A mean of standardised values, in which 0.5 is less than its noise."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, WARM))
    x[:, -1] += 9.0
    result = detect.detect_level_changes(x)
    assert (result.states[:, -1] == detect.NORMAL).all()


def test_sessions_without_a_value_do_not_count():
    x = stepped(0.05, 6)
    apart = np.full((40, 2 * x.shape[1]), np.nan)
    apart[:20, ::2], apart[20:, 1::2] = x[:20], x[20:]
    one, other = (detect.detect_level_changes(values, pool=np.zeros(40, int))
                  for values in (x, apart))
    assert (other.states[:20, ::2] == one.states[:20]).all()
    assert (other.start == 2 * one.start + (np.arange(40) >= 20)).all()
    assert (np.isfinite(other.z) == np.isfinite(apart)).all()


def test_change_has_an_interval_that_holds_the_truth():
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(200):
        new = 0.05 + 0.01 * rng.standard_normal(6)
        result = detect.compare_with_baseline(new, detect.Baseline(
            0.01 * rng.standard_normal() / 40**0.5, 0.01, 0.0, 40, 35.0))
        inside += result.low <= 0.05 <= result.high
    assert inside >= 180


def test_quantiles_of_student():
    # 0.99865 of a normal is 3; of t with 10 degrees of freedom 3.957.
    assert detect.student_t_quantile(10, 3.0) == pytest.approx(3.957, rel=0.01)
    assert detect.student_t_quantile(1e9, 3.0) == pytest.approx(3.0)


def bumps(series, sessions, length, at, size=0.06):
    """Noise in which each series is once worse for some sessions."""
    x = noise(series, sessions)
    for row in range(series):
        begin = at(row)
        x[row, begin:begin + length] += size
    return x


def worse_and_reported(x):
    walk = detect.detect_level_changes(x, pool=np.zeros(len(x), int))
    worse = walk.states == detect.WORSE
    return worse, detect.control_false_discoveries(
        worse, walk.strengths, np.isfinite(x))


def test_a_change_of_a_kind_that_passes_by_itself_is_told_when_it_lasts():
    x = bumps(40, 140, 5, lambda row: 40 + 2 * row)
    x[7, 125:] += 0.045                 # no bump
    worse, result = worse_and_reported(x)
    assert worse[7, 130] and not result[7, 130]
    assert result[7, 139]
    # Far stronger than what passed, or many at once.
    x[7, 125:] += 0.3
    assert worse_and_reported(x)[1][7, 130]
    x[7, 125:] -= 0.3
    x[20:, 125:] += 0.06
    assert worse_and_reported(x)[1][20:, 130].mean() > 0.9


def test_a_repaired_fault_does_not_hide_the_next_one():
    x = noise(40, 100)
    x[:20, 50:54] += 0.3                # many metrics, for four sessions
    x[30, 90:] += 0.05
    assert worse_and_reported(x)[1][30, 95]


def test_what_did_not_run_does_not_end_a_change():
    worse = np.zeros((1, 30), bool)
    worse[0, [20, 21, 25, 26]] = True
    measured = np.ones((1, 30), bool)
    measured[0, 22:25] = False
    strengths = np.where(worse, 1.2, 0.0)
    result = detect.control_false_discoveries(worse, strengths, measured)
    assert result[0, 20:27].all() and not result[0, 27:].any()


@pytest.mark.parametrize('window, phi', [(3, 0.0), (6, 0.4)])
def test_the_smallest_detectable_change_is_found_nine_times_in_ten(window, phi):
    x = noise(600, 60 + window, phi)
    pool = np.arange(600) // 25
    before = detect.detect_level_changes(x[:, :60], pool=pool)
    size = detect.smallest_detectable_change(before, np.arange(600), window)
    rows = np.arange(0, 600, 5)
    x[rows, 60:] += size[rows, None]
    after = detect.detect_level_changes(x, pool=pool)
    share = (after.states[rows, 60:] == detect.WORSE).any(1).mean()
    assert 0.8 < share < 0.99


def test_the_example_of_the_readme_works_without_the_suite(monkeypatch):
    """The detector can be copied: it imports numpy alone."""
    folder = Path(detect.__file__).parent
    example = re.search('```python\n(.*?)```', (folder / 'README.md').read_text(),
                        re.DOTALL)
    assert example
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, 'detect', raising=False)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example[1], {})
    assert printed.getvalue() == '[3] 50\n'
    imported = set(re.findall(r'^(?:from|import) (\S+)', Path(
        detect.__file__).read_text(), re.MULTILINE))
    assert imported == {'__future__', 'math', 'typing', 'numpy'}
    monkeypatch.delitem(sys.modules, 'detect', raising=False)
