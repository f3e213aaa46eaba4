"""The CPU speed class of a job, from the readings of the speed probe."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.guards import Run


def cpu_speed_class(runs: Iterable[Run], extras: Mapping[str, Any]
                    ) -> tuple[str, str]:
    """The CPU speed class, and why its values cannot be compared.

    A job in which the speed changed is `mixed`, and the session measures
    it again. A change and back within one repetition is not visible.

    :arg extras: extras of the partition
    """
    boundary = extras.get('speed_boundary_ns')
    if boundary == math.inf:        # one class for all readings
        return 'fast', ''
    readings = [x for run in runs for x in (run.before, run.after)]
    if boundary is None or any(map(math.isnan, readings)):
        return '-', ''
    bands = {'fast': (0, boundary), 'slow': (boundary, math.inf),
             **extras.get('speed_bands_ns', {})}

    def speed_class_of_reading(x: float) -> str:
        name = 'fast' if x < boundary else 'slow'
        return name if bands[name][0] <= x <= bands[name][1] else 'other'

    odd = [x for x in readings if speed_class_of_reading(x) == 'other']
    if odd:
        known = ' nor '.join(f'{name} ({low:g} to {high:g} ns)'
                             for name, (low, high) in bands.items())
        return 'other', (
            'the node was in no known CPU speed class: the speed probe '
            f'measured {max(odd):g} ns, neither {known}; check for '
            'throttling or shared CPUs, or adapt speed_bands_ns')
    classes = set(map(speed_class_of_reading, readings))
    if len(classes) > 1:
        return 'mixed', 'the CPU speed class changed during the job'
    return classes.pop(), ''
