#!/usr/bin/env python3
"""Simulates references: false alarms, and how often a slower machine is found.

    .plumbline/venv/bin/python bench/references.py [--systems N] [--seed S]

A system has 50 metrics. The noise of a metric has a part that all sessions of a day
have in common, and a part that every measurement draws anew; `common` is the share of
the variance of the first part. On the first day, each metric is measured
in five sessions, as by `plumb references calibrate`. Each later day has one session. A
metric is judged if its tolerance (postprocess/references/spread.py) is at most 0.3.

- `sessions`: the share of healthy sessions in which any metric fails, and how often
  a metric is found that is 15 % slower, with references from all sessions so far.
- `curves`: worst_ratio of a curve of 24 sizes, if one size is 30 % slower.
- `listing`: what 4 600 references cost `reframe -l`, and a session that reads them;
  and `reframe -l`, compared with a trivial suite of as many checks.

Goals: at most 1 % of healthy sessions fail after 20 days with half of the variance in
common and a noise of up to 5 %; at most 0.2 s more for `reframe -l`, which takes at
most three times the CPU time of the trivial suite. With outliers there is no goal: if
2 % of all values are outliers, so are both measurements of one of 50 metrics in 2 % of
the sessions.
"""
from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import (
    Done,
    measure_alternately,
    median_ratio,
    option_parser,
    print_table_head,
    print_table_row,
    run,
    run_main_and_exit,
    variables_from_plumb_env,
)

from config.references import read
from config.sessions.judged import MEASUREMENTS
from postprocess.references import spread

METRICS, MAX_TOLERANCE = 50, 0.3
#: Later sessions that each reference judges.
LATER = 100
DAYS = (1, 10, 20, 40)
SIZES = 24
#: References of the file that `reframe -l` is timed with.
REFERENCES = 4600
#: `reframe -l` of the suite may take so many times the CPU time of a trivial one.
MAX_LIST_RATIO = 3.0
TRIVIAL = '''
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, sanity_function

@rfm.simple_test
class Trivial(rfm.RunOnlyRegressionTest):
    number = parameter(range({checks}))
    valid_systems = ['*']
    valid_prog_environs = ['*']
    executable = 'true'

    @sanity_function
    def passes(self):
        return sn.assert_true(True)
'''


def days_of_sessions(first_day: int, days: int) -> list[str]:
    """So many sessions on the first day, and one on each further day."""
    return ['0'] * first_day + [str(day) for day in range(1, days)]


def add_outliers(rng, values: np.ndarray) -> np.ndarray:
    """2 % of the values are 5 to 30 % worse."""
    return values * (1 + (rng.random(values.shape) < 0.02)
                     * rng.uniform(0.05, 0.3, values.shape))


def draw_sessions(rng, width: float, common: float, shape: tuple[int, ...],
                  measurements: int, outliers: bool = False) -> np.ndarray:
    """Values of sessions on different days; the last axis has the measurements.

    :param outliers: whether some measurements are much worse
    """
    values = 1 + width * (
        math.sqrt(common) * rng.standard_normal((*shape, 1))
        + math.sqrt(1 - common) * rng.standard_normal((*shape, measurements)))
    return add_outliers(rng, values) if outliers else values


class System:
    """The sessions of a system, and its references after some days."""

    def __init__(self, rng, width: float, common: float, days: int,
                 outliers: bool = False) -> None:
        [self.first] = draw_sessions(
            rng, width, common, (1, METRICS), spread.FEWEST_RUNS, outliers)
        self.later = draw_sessions(
            rng, width, common, (METRICS, days - 1), 1, outliers)[..., 0]

    def centres_and_tolerances(self, days: int) -> np.ndarray:
        """Two rows: centre, and tolerance of each metric after some days."""
        pairs = []
        of_days = days_of_sessions(spread.FEWEST_RUNS, days)
        for first, later in zip(self.first, self.later, strict=True):
            values = [*first, *later[:days - 1]]
            pairs.append((statistics.median(values),
                          spread.compute_tolerance(values, days=of_days)))
        return np.array(pairs).T


def limits(pairs: np.ndarray) -> np.ndarray:
    """The limit of each metric; inf: it is not judged."""
    centres, tolerances = pairs
    return np.where(tolerances <= MAX_TOLERANCE, centres * (1 + tolerances), np.inf)


def simulate_sessions(rng, width: float, common: float, systems: int, *,
                      outliers: bool = False, days: Sequence[int] = DAYS
                      ) -> dict[int, np.ndarray]:
    """Days -> share of healthy sessions in which a metric fails, of metrics that are
    judged, of these found if 15 % slower."""
    rows: dict[int, list] = {count: [] for count in days}
    for _ in range(systems):
        system = System(rng, width, common, max(days), outliers)
        for count in days:
            limit = limits(system.centres_and_tolerances(count))
            values = draw_sessions(rng, width, common, (LATER, METRICS), MEASUREMENTS,
                                   outliers)
            healthy, slow = values.min(2), (1.15 * values).min(2)
            judged = np.isfinite(limit)
            rows[count].append((
                (healthy > limit).any(1).mean(), judged.mean(),
                (slow > limit)[:, judged].mean() if judged.any() else 0.0))
    return {count: np.mean(rates, 0) for count, rates in rows.items()}


def print_sessions(rng, systems: int) -> list[str]:
    """Prints the table of sessions; the goals that were missed."""
    missed = []
    print_table_head('noise', 'common', *(
        f'after {days} day{"s" * (days > 1)}' for days in DAYS))
    for width, common, outliers in (
            *((width, common, False) for width in (0.01, 0.03, 0.05, 0.10)
              for common in (0.0, 0.5, 0.8)), (0.03, 0.5, True)):
        row = simulate_sessions(rng, width, common, systems, outliers=outliers)
        print_table_row(f'{width:.0%}' + ', 2 % outliers' * outliers,
                        f'{common:.0%}', *(
            f'{failed:.1%}, {power:.2f} of {judged:.0%}'
            for failed, judged, power in row.values()))
        if common == 0.5 and width <= 0.05 and not outliers and row[20][0] > 0.01:
            missed.append(f'sessions, {width:.0%}: {row[20][0]:.1%} fail')
    return missed


def draw_curves(rng, width: float, common: float, spikes: bool, sessions: int
                ) -> np.ndarray:
    """Curves of the sessions of one day: sessions x sizes. Half of the variance is
    common to the day; `common` is the share that all sizes share."""
    def part(shape):
        return math.sqrt(0.5) * (rng.standard_normal(shape[1:])
                                 + rng.standard_normal(shape))
    values = 1 + width * (math.sqrt(common) * part((sessions, 1))
                          + math.sqrt(1 - common) * part((sessions, SIZES)))
    return add_outliers(rng, values) if spikes else values


def simulate_curves(rng, width: float, common: float, spikes: bool, systems: int
                    ) -> tuple[float, float]:
    """False alarms of worst_ratio, and share of sessions in which a size is found that
    is 30 % slower; references from 8 sessions of one day."""
    outcomes = []
    for _ in range(systems):
        before = draw_curves(rng, width, common, spikes, 8)
        centre = np.median(before, 0)
        tolerance = spread.tolerance_of_noise(spread.noise_of_curves(
            [[spread.noise_of_sessions(values) for values in before.T.tolist()]]),
            spread.FLOORS['worst_ratio'])
        for _ in range(LATER):
            now = draw_curves(rng, width, common, spikes, MEASUREMENTS)
            slow = now.copy()
            slow[:, rng.integers(SIZES)] *= 1.3
            outcomes.append([(values / centre).max(1).min() > 1 + tolerance
                             for values in (now, slow)])
    false, power = np.mean(outcomes, 0)
    return false, power


def print_curves(rng, systems: int) -> None:
    """Prints the table of curves."""
    print_table_head('noise', 'common to all sizes', '2 % of points +5 to +30 %',
                     'worst_ratio')
    for width in (0.01, 0.03, 0.05, 0.10):
        for common in (0.0, 0.5):
            for spikes in (False, True):
                false, power = simulate_curves(rng, width, common, spikes, systems)
                print_table_row(f'{width:.0%}', f'{common:.0%}',
                                'yes' if spikes else 'no',
                                f'{power:.2f} ({1e4 * false:.0f} per 10 000)')


def write_references(path: Path) -> None:
    """A file with REFERENCES references: test cases with 23 sizes each."""
    lines = ['OsuPt2pt:', '  $index: [$partition, $environ, source, params, settings]',
             '  local:thishost:', '    openmpi:', '      spack:']
    for number in range(REFERENCES // 23):
        lines += [f'        program={number}:', "          '':",
                  *(f'            latency@{2 ** n}B: [1.0, null, 0.1, us]'
                    for n in range(23))]
    path.write_text('\n'.join(lines))


def print_listing(rounds: int = 5) -> list[str]:
    """Prints the CPU seconds of `reframe -l`, by turns with and without references and
    of a trivial suite, and those of reading the references; the goals that were missed.
    """
    variables = variables_from_plumb_env()

    def list_checks(*options: object) -> Done:
        return run(['reframe', '-l', *options], 'reframe -l', env=variables)

    checks = sum(line.startswith('- ') for line in list_checks().out.splitlines())
    with tempfile.TemporaryDirectory() as folder:
        variables['RFM_REFERENCE_PREFIX'] = folder
        path, trivial = Path(folder, 'osu.yaml'), Path(folder, 'trivial.py')
        trivial.write_text(TRIVIAL.format(checks=checks))

        def measure_once(name: str) -> float:
            path.unlink(missing_ok=True)
            if name == 'references':
                write_references(path)
            return list_checks(*(['-c', trivial] if name == 'trivial' else [])).cpu

        suite, references, other = measure_alternately(
            rounds, ('suite', 'references', 'trivial'), measure_once).values()
        write_references(path)
        begin = time.process_time()
        read(path)
        reading = time.process_time() - begin
    more = statistics.median(references) - statistics.median(suite)
    ratio = median_ratio(suite, other)
    print_table_head('checks', '`reframe -l`', 'trivial suite', 'ratio',
                     f'with {REFERENCES} references', 'read once')
    print_table_row(checks, f'{statistics.median(suite):.2f} s',
                    f'{statistics.median(other):.2f} s', f'{ratio:.2f}',
                    f'{more:+.2f} s', f'{reading:.2f} s')
    return ([f'listing: {more:.2f} s more'] * (more > 0.2)
            + [f'listing: ratio {ratio:.2f}'] * (ratio > MAX_LIST_RATIO))


def main() -> bool:
    top = option_parser(__doc__)
    top.add_argument('--systems', type=int, default=200, metavar='N')
    top.add_argument('--seed', type=int, default=1)
    args = top.parse_args()
    missed = print_sessions(np.random.default_rng(args.seed), args.systems)
    print()
    print_curves(np.random.default_rng(args.seed), args.systems)
    print()
    missed += print_listing()
    if missed:
        print('missed: ' + '; '.join(missed), file=sys.stderr)
    return not missed


if __name__ == '__main__':
    run_main_and_exit(main)
