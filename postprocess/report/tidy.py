"""Records for plots and page; test cases and series are numbered once."""
from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .. import naming
from . import summary

#: What metrics are made of.
DRAWN = ['kind', 'session', 'measurement', 'time', 'metric', 'point', 'value',
         'reference', 'lower', 'upper', 'result', 'judged', 'sample']


@dataclass(frozen=True)
class Tidy:
    """Records, with the numbers of their test cases and series."""
    #: As records.read gives them, and `kind`.
    frame: pd.DataFrame
    #: The number of each record's test case by its short id.
    case: np.ndarray
    #: The number of each record's kind: its row in `table`.
    kind: np.ndarray
    #: naming.assign_series_kinds, and `valid`: whether no guard refused the
    #: run; those of refused runs are kinds apart.
    table: pd.DataFrame
    #: Whether a record counts for its run, or is of one of its repetitions;
    #: both where there are no repetitions.
    judged: np.ndarray
    sample: np.ndarray

    @functools.cached_property
    def metric_records(self) -> pd.DataFrame:
        """DRAWN of each record that has a metric."""
        has_value = (self.frame['metric'] != 'completed').to_numpy()
        frame = self.frame.loc[
            has_value, [c for c in DRAWN if c in self.frame]
        ]
        return frame.assign(
            kind=self.kind[has_value], judged=self.judged[has_value],
            sample=self.sample[has_value])

    @functools.cached_property
    def point_statistics_without_repetitions(self) -> pd.DataFrame:
        """summary.point_statistics of what counts."""
        return summary.point_statistics(
            self.metric_records[self.metric_records['judged']]
        )


def build_tidy_records(frame: pd.DataFrame) -> Tidy:
    """Numbers the records.

    :param frame: as records.read gives it, or a part of it
    """
    case = naming.group_number_of_records(frame, ['test_case'])
    run = naming.group_number_of_records(frame, ['test_case', 'copy', 'session'])
    sound = (frame['guard'].isin(['', 'reference'])
             | (frame['result'] == 'flaky')).to_numpy()
    valid = sound if sound.all() else ~np.isin(run, run[~sound])
    kind, table = naming.assign_series_kinds(frame, valid)
    metric = naming.group_number_of_records(
        frame[['metric', 'point']].assign(run=run), ['run', 'metric', 'point']
    )
    repetition = frame['repetition'].to_numpy(np.int64)
    alone = np.bincount(metric)[metric] == 1
    return Tidy(frame.assign(kind=kind), case, kind, table,
                judged=naming.mask_preferring_median_to_repetitions(frame, metric),
                sample=(repetition > 0) | alone)
