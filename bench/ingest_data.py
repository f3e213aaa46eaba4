"""Perflogs of any size, for bench/ingest.py.

A night is 400 cases of 20 checks, a curve of 25 points each: 10 000 records.
Everything but the time is the same each time it is made.
"""
from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from pathlib import Path

CHECKS, CASES, POINTS = 20, 20, 25
NIGHT = CHECKS * CASES * POINTS
START = datetime.datetime(2020, 1, 1, 1)
#: Metric of a check, and its unit; by the number of the check.
METRICS = (('latency', 'us', 'lower'), ('bandwidth', 'MB/s', 'higher'))
#: Columns before `repeat` and from it on (config/perflog.yaml).
_HEAD = (
    '3,{time},{run},0.1.0,0123456789ab,4.10.4,alpha,cpu,openmpi,osu,'
    'Bench{check:02},program=osu_{check:02} size={case} placement='
    'inter_node,{hash},{job},{nodes},{machine},"{binding}",2,4,2,spack,'
    'osu_{check:02},7.5,openmpi 5.0.6,abcdef{check:02},0,fast,')
_TAIL = '1,{metric},{point} B,{value!r},{unit},{better},{ref!r},-0.1,0.1,' \
        'pass,\n'


def night(number: int, check: int) -> Iterator[str]:
    """The records of a check of a night, as lines of ours."""
    rng = random.Random(number * CHECKS + check)
    metric, unit, better = METRICS[check % 2]
    for case in range(CASES):
        when = START + datetime.timedelta(days=number, minutes=case)
        head = _HEAD.format(
            time=f'{when:%Y-%m-%dT%H:%M:%SZ}',
            run=f'{when:%Y%m%d}T010000Z-{number:06x}', check=check,
            case=case, hash=f'{check:04x}{case:04x}',
            job=number * 1000 + check * CASES + case,
            nodes=f'n{case} n{case + 1}', machine='0a1b2c3d4e5f',
            binding=f'n{case}:0,1 n{case + 1}:0,1')
        drift = rng.gauss(1, 0.01)
        for point in range(POINTS):
            value = (2 + case + 1.5 ** point) * drift
            yield head + _TAIL.format(
                metric=metric, point=2 ** point, value=value, unit=unit,
                better=better, ref=2 + case + 1.5 ** point)


def ours(folder: Path, records: int, first: int = 0) -> int:
    """Writes or goes on with perflogs of ours, from a night on.

    :returns: the number of records that were written
    """
    from config.records import perflog
    _, columns = perflog.columns()
    place = folder / 'alpha' / 'cpu'
    place.mkdir(parents=True, exist_ok=True)
    nights = max(1, round(records / NIGHT))
    checks = CHECKS if records >= NIGHT else max(
        1, records // (CASES * POINTS))
    for check in range(checks):
        path = place / f'Bench{check:02}.v3.csv'
        with open(path, 'a', encoding='utf-8') as handle:
            if not handle.tell():
                handle.write(','.join(columns) + '\n')
            for number in range(first, first + nights):
                handle.writelines(night(number, check))
    return nights * checks * CASES * POINTS
