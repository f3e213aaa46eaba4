#!/usr/bin/env python3
"""Simulates calibrated references, and counts their false alarms.

    .plumbline/venv/bin/python bench/references.py [--cases N] [--runs N]

Each test case has a metric with some noise. It runs, as `plumb references
calibrate` does, until its tolerance is no wider than the max tolerance or no
number of runs would do; what it is given then is kept, and judges further
runs: a false alarm is one whose tries (config/sessions/judged.py, TRIES) are
all beyond. For each kind and width of the noise: the share of test cases that
are given a tolerance, the runs that took (median, 95th percentile), the
tolerance (median), and false alarms per 1000 runs: of the test cases that are
judged, and of all (a test case that is not judged raises none). Goal: at most
1 in 1000 with normal noise.

The tries of a run draw their noise anew, except in the last kind: there half
of the variance is that of the whole session, and the tries help less.
"""
from __future__ import annotations

import math
import sys

import numpy as np
from common import option_parser, print_table_head, print_table_row, run_main_and_exit

from config.sessions.judged import MEASUREMENTS
from postprocess.references import spread

MAX_TOLERANCE, RESOLUTION = 0.3, 0.01
#: Further runs that each reference judges.
JUDGED = 500
WIDTHS = (0.01, 0.03, 0.05, 0.10, 0.15)


def normal_noise(rng, width, size):
    """The last axis of each kind: the tries of one run."""
    return 1 + width * rng.standard_normal(size)


def noise_with_outliers(rng, width, size):
    """2 % of the tries are 5 to 30 % worse, for a reason of their own."""
    late = (rng.random(size) < 0.02) * rng.uniform(0.05, 0.3, size)
    return normal_noise(rng, width, size) * (1 + late)


def rounded_noise(rng, width, size):
    """0.14 us, printed with two digits."""
    return np.round(normal_noise(rng, width, size) * 0.14 / RESOLUTION) * RESOLUTION


def session_correlated_noise(rng, width, size):
    """Half of the variance is the same in all tries of a run."""
    session = rng.standard_normal((*size[:-1], 1))
    return 1 + width * math.sqrt(0.5) * (
        session + rng.standard_normal(size))


KINDS = {
    'normal': (normal_noise, 0.0),
    '2 % outliers': (noise_with_outliers, 0.0),
    'two digits': (rounded_noise, RESOLUTION),
    'lasting': (session_correlated_noise, 0.0),
}


def calibration_runs_and_tolerance(values: list[float],
                                   resolution: float) -> tuple[int, float]:
    """(runs until the test case may stop, its tolerance; inf where it has
    none)."""
    for runs in range(spread.FEWEST_RUNS, len(values) + 1):
        seen = values[:runs]
        tolerance = spread.compute_tolerance(seen, resolution=resolution)
        if tolerance <= MAX_TOLERANCE:
            return runs, tolerance
        if (
            spread.sessions_needed(seen, MAX_TOLERANCE, resolution=resolution)
            is None
        ):
            return runs, float('inf')
    return len(values), float('inf')


def simulate_calibration(draw, resolution, width, cases, runs, rng) -> dict[str, float]:
    """One row of the table."""
    history = draw(rng, width, (cases, runs, 1))[..., 0]
    took, tolerances, alarms = [], [], []
    for values in history.tolist():
        n, tolerance = calibration_runs_and_tolerance(values, resolution)
        if tolerance <= MAX_TOLERANCE:
            took.append(n)
            tolerances.append(tolerance)
            later = draw(rng, width, (JUDGED, MEASUREMENTS)).min(axis=1)
            limit = np.median(values[:n]) * (1 + tolerance)
            alarms.append(float((later > limit * (1 + 1e-12)).mean()))
    rate = 1000 * float(np.mean(alarms)) if alarms else 0.0
    given = len(alarms) / cases
    return {'given': given, 'runs': float(np.median(took)) if took else 0,
            'late': float(np.percentile(took, 95)) if took else 0,
            'tolerance': float(np.median(tolerances)) if tolerances else 0,
            'judged': rate, 'all': rate * given}


def main() -> bool:
    top = option_parser(__doc__)
    top.add_argument('--cases', type=int, default=4000, metavar='N')
    top.add_argument('--runs', type=int, default=60, metavar='N',
                     help='sessions after which a test case gets no reference')
    args = top.parse_args()
    bad = []
    rng = np.random.default_rng(20261101)
    print_table_head('noise', 'spread', 'judged', 'runs: median (95th)', 'tolerance',
                     'false alarms per 1000 judged runs',
                     'per 1000 runs of all test cases')
    for name, (draw, resolution) in KINDS.items():
        for width in WIDTHS:
            result = simulate_calibration(
                draw, resolution, width, args.cases, args.runs, rng
            )
            print_table_row(name, f'{width:.0%}', f'{result["given"]:.1%}',
                            f'{result["runs"]:.0f} ({result["late"]:.0f})',
                            f'{result["tolerance"]:.2f}', f'{result["judged"]:.2f}',
                            f'{result["all"]:.2f}')
            if name == 'normal' and result['judged'] > 1:
                bad.append(f'{name} {width:.0%}: {result["judged"]:.2f}')
    if bad:
        print('more than 1 false alarm in 1000: ' + '; '.join(bad),
              file=sys.stderr)
    return not bad


if __name__ == '__main__':
    run_main_and_exit(main)
