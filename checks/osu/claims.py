"""Minimum time that a program must have run for the values in its table.

If the iterations add up to more time than the program took, the table was not
measured. Iterations are counted as OMB 5.7 to 7.5 and the embedded programs
count them. Unknown times are left out, so the sum is a lower limit: the untimed
iterations may be faster, for example if a lossy link delays a few messages much.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from config.records import metrics

from . import programs

#: Above this many bytes the counts of large messages apply.
LARGE = 8192

#: Timed iterations per size, of small and of large messages.
COUNTS = {'latency': (10000, 1000), 'bandwidth': (100, 20), 'collective': (1000, 100)}

#: Messages under way at once.
WINDOW = 64

#: The first version with these counts.
SINCE = (5, 7)

_BANDWIDTH = re.compile('osu_(bw|bibw|mbw_mr|get_bw|put_bw|put_bibw)')
#: Programs whose latency is half a round trip.
_PING_PONG = re.compile('osu_(latency|latency_mt|latency_mp|multi_lat)')


def option_value(arguments: Sequence[str], short: str, name: str) -> int | None:
    """The value of an option of OMB, or None."""
    matches = re.findall(rf'(?:^| )(?:-{short} ?|--{name}[ =])(\d+)(?= |$)',
                         ' '.join(arguments))
    return int(matches[-1]) if matches else None


def iterations_per_size(program: str, size: int, arguments: Sequence[str]) -> int:
    """Timed iterations of a size."""
    blocking = not program.startswith('osu_i') or program == 'osu_init'
    kind = ('bandwidth' if _BANDWIDTH.fullmatch(program) else
            'collective' if programs.COLLECTIVE.fullmatch(program)
            else 'latency')
    # Some non-blocking programs use the smaller count for all sizes.
    given = option_value(arguments, 'i', 'iterations')
    return COUNTS[kind][size > LARGE or not blocking] if given is None else given


def minimum_seconds(program: str, version: str, values: Mapping[str, float],
                    arguments: Sequence[str], ranks: int, threads: int) -> float:
    """Minimum time that a program took for its values, in s.

    :arg values: metric key -> value, in µs, MB/s and ms.
    :arg threads: threads of a rank, which measure at the same time.
    """
    numbers = re.findall(r'\d+', version)[:2]
    if tuple(map(int, numbers)) < SINCE:
        return 0.0
    window = option_value(arguments, 'W', 'window-size') or WINDOW
    # Both directions or all pairs at once move several times the data.
    flows = (2 if 'bibw' in program else
             ranks // 2 if program == 'osu_mbw_mr' else 1)
    trips = (2 if _PING_PONG.fullmatch(program) else 1) / threads
    total = 0.0
    for metric, value in values.items():
        name, size = metrics.split_metric_key(metric)
        times = iterations_per_size(program, size or 0, arguments)
        if name == 'init_time':
            total += value / 1e3
        elif name == 'latency':
            total += times * trips * value / 1e6
        elif name in ('overall_time', 'pure_comm_time'):
            total += times * value / 1e6
        elif name == 'bandwidth' and value > 0:
            total += times * window * flows * (size or 0) / value / 1e6
    return total
