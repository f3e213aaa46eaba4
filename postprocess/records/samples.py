"""Raw samples of a measurement.

config/records/samples.py describes the format of the file and writes it.
"""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from config.records.samples import CALL, COLUMNS, file_name

from . import attached


def read_samples_of_record(record: Any, faults: attached.Faults) -> pd.DataFrame | None:
    """The samples of the measurement of a record; None: it left none, or they
    were removed since.

    :param record: a row of the table of records (itertuples)
    """
    file = attached.attached_file_path(record, file_name(record.test_case))
    return None if file is None else read_samples_file(file, faults)


def read_samples_file(file: Path, faults: attached.Faults) -> pd.DataFrame:
    """The rows of a file; see `attached.read_attached_file`.

    :returns: columns COLUMNS: rank, iteration and every as whole numbers,
        start (NaN: not known) and seconds in seconds
    """
    return attached.read_attached_file(
        file, COLUMNS, 'a file of raw samples (config/records/samples.py)',
        _parse_sample_row, 3, faults)


def _parse_sample_row(rank: str, call: str, iteration: str, start: str, seconds: str,
                      every: str) -> tuple:
    """A row with its types.

    :raises ValueError: what is wrong with it
    """
    if not CALL.fullmatch(call):
        raise ValueError(f'call {call[:40]!r} is not the name of a function')
    step = attached.parse_nonnegative_integer('every', every)
    if not step:
        raise ValueError("every is 0; it must be 1 or more")
    return (attached.parse_nonnegative_integer('rank', rank), call,
            attached.parse_nonnegative_integer('iteration', iteration),
            attached.parse_nonnegative_number('start', start) if start else math.nan,
            attached.parse_nonnegative_number('seconds', seconds), step)
