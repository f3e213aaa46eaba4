"""How far each case of the perflogs is from bounds that can judge."""
from __future__ import annotations

from typing import NamedTuple

import pandas as pd

#: A median over fewer runs says nothing about the spread.
FEWEST_RUNS = 3


class Progress(NamedTuple):
    """One case, at one speed."""
    family: str
    check: str
    partition: str
    environ: str
    source: str
    #: Version, in families where another one is another program.
    edition: str
    speed: str
    params: str
    runs: int
    #: More runs until every judged figure has a bound below its cap; 0: there,
    #: None: no number of runs would do.
    needs: int | None
    #: Judged figure -> centre, bound, cap.
    bounds: dict[str, tuple[float, float, float]]


def progress(frame: pd.DataFrame) -> list[Progress]:
    """Every case at every speed that it was seen at, sound runs only."""
    sound = frame[frame['guard'].isin(['', 'reference'])
                  & ~frame['result'].isin(['fail', 'unfit'])]
    names = ['family', 'check', 'partition', 'environ', 'source', 'speed',
             'params']
    return [
        Progress(family, check, partition, environ, source,
                 '', speed, params, runs, max(FEWEST_RUNS - runs, 0), {})
        for (family, check, partition, environ, source, speed, params), runs
        in sound.groupby(names, observed=True)['run'].nunique().items()]
