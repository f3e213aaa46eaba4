"""Raw samples of a measurement.

config/records/samples.py describes the format of the file and writes it.
"""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from config.records.samples import CALL, COLUMNS, MAXIMUM, file_name

from . import attached
from .files import PerflogError


def read_samples_of_record(record: Any, faults: attached.Faults) -> pd.DataFrame | None:
    """The samples of the measurement of a record; None: it left none, or they
    were removed since.

    :param record: a row of the table of records (itertuples)
    """
    file = attached.attached_file_path(record, file_name(record.test_case))
    return None if file is None else read_samples_file(file, faults)


def read_samples_file(file: Path, faults: attached.Faults) -> pd.DataFrame:
    """The good rows of a file; its faults are added to a list.

    :returns: columns COLUMNS: rank, iteration and every as whole numbers,
        start (NaN: not known) and seconds in seconds
    """
    frame = attached.read_attached_file(
        file, COLUMNS, 'a file of raw samples (config/records/samples.py)',
        _parse_sample_row, 3, faults)
    if len(frame) > MAXIMUM:
        faults.append(
            PerflogError(
                file,
                MAXIMUM + 2,
                f'{len(frame)} samples, but the maximum is {MAXIMUM}; the '
                'others are not read',
            )
        )
        frame = frame[:MAXIMUM]
    return frame


def _parse_sample_row(rank: str, call: str, iteration: str, start: str, seconds: str,
                      every: str) -> tuple:
    """A row with its types.

    :raises ValueError: what is wrong with it
    """
    if not CALL.fullmatch(call):
        raise ValueError(f'call {call[:40]!r} is not the name of a call')
    step = attached.parse_nonnegative_integer('every', every)
    if not step:
        raise ValueError("every '0' is less than 1")
    return (attached.parse_nonnegative_integer('rank', rank), call,
            attached.parse_nonnegative_integer('iteration', iteration),
            attached.parse_nonnegative_number('start', start) if start else math.nan,
            attached.parse_nonnegative_number('seconds', seconds), step)
