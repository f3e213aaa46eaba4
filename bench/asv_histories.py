"""Real histories for detect.py: results of airspeed velocity (asv), cut by hindsight.

A folder of asv has results/MACHINE/COMMIT-ENVIRONMENT.json (asv's format 2: a list
per benchmark, whose first two parts are the results and the parameters, and whose
third is the version of the benchmark). A series is one benchmark with one set of
parameters and one version, on one machine in one environment, in the order of the
commits. Times and memory are read: both are better if they are lower.

A series is cut where its level changed by hindsight (`cut_into_levels`), which
uses the values after a session as well and so knows more than the detector may.
"""
from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from common import Missing

#: Fewest sessions of a level. A change that lasts for less is part of the noise.
SHORTEST = 10
#: Gain of log-likelihood from which on a cut is one, in units of log(sessions).
CUT = 10.0
#: Benchmarks whose results are better if they are lower.
LOWER_IS_BETTER = ('time_', 'mem_', 'peakmem_', 'timeraw_')


def read_asv_histories(folder: Path, fewest: int) -> dict[str, np.ndarray]:
    """Logs of the results of each series.

    :arg folder: with the folder `results` of asv
    :arg fewest: sessions that a series has at least
    :raises Missing: it has no results
    """
    values: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for path in sorted(folder.glob('results/*/*-*.json')):
        data = json.loads(path.read_text())
        if data.get('version') != 2:
            continue
        for name, (result, parameters, version, *_) in data['results'].items():
            if not name.rpartition('.')[2].startswith(LOWER_IS_BETTER) or not result:
                continue
            place = f'{path.parent.name} {data["env_name"]} {name} {version}'
            for value, of in zip(result, itertools.product(*parameters), strict=False):
                if value is not None and value > 0:
                    values[f'{place} {of}'].append((data['date'], value))
    if not values:
        raise Missing(f'no results of asv (format 2) in {folder}/results')
    return {name: np.log([value for _, value in sorted(series)])
            for name, series in sorted(values.items()) if len(series) >= fewest}


def cut_into_levels(x: np.ndarray) -> list[tuple[int, int]]:
    """The sessions of each level, by binary segmentation.

    Values are clipped to 4 spreads around a running median, so that an outlier is
    no level. A cut is made where it lowers the sum of squares most, if that is more
    than chance does on a series whose neighbours resemble each other.
    """
    clipped, variance = _clip_outliers(x)
    # The variance of a mean over a level: neighbours that resemble each other
    # make it larger than that of single sessions.
    off = clipped - _running_median(clipped)
    power = float((off ** 2).mean()) or 1.0
    phi = float(np.clip((off[1:] * off[:-1]).mean() / power, 0.0, 0.8))
    variance *= (1 + phi) / (1 - phi)
    edges, todo = [0, len(x)], [(0, len(x))]
    while todo:
        first, last = todo.pop()
        number = last - first
        if number < 2 * SHORTEST:
            continue
        part = clipped[first:last]
        sums, left = np.cumsum(part - part.mean())[:-1], np.arange(1, number)
        gain = sums ** 2 * number / (left * (number - left)) / (2 * variance)
        gain[:SHORTEST - 1] = gain[number - SHORTEST:] = 0.0
        at = int(gain.argmax())
        if gain[at] > CUT * np.log(len(x)) / 2:
            edges.append(first + at + 1)
            todo += [(first, first + at + 1), (first + at + 1, last)]
    return list(itertools.pairwise(sorted(edges)))


def _running_median(x: np.ndarray, sessions: int = 2 * SHORTEST - 1) -> np.ndarray:
    padded = np.pad(x, sessions // 2, mode='reflect')
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, sessions), 1)


def _clip_outliers(x: np.ndarray) -> tuple[np.ndarray, float]:
    """The values without outliers, and the variance of a session."""
    middle = _running_median(x)
    spread = 1.4826 * float(np.median(np.abs(x - middle))) or 1e-4
    clipped = np.clip(x, middle - 4 * spread, middle + 4 * spread)
    return clipped, max(float(np.var(clipped - _running_median(clipped))), 1e-8)
