"""How long a program must have run for what its table says: pure.

A table whose iterations add up to more time than the program took was not
measured. Iterations are counted as OMB 5.7 to 7.5 and the embedded programs
count them; what is not known is not claimed, so the sum is a lower bound.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..core import metrics
from . import programs

#: Above this many bytes the counts of large messages apply.
LARGE = 8192

#: Timed and untimed iterations of a size: of small and of large messages.
COUNTS = {'latency': ((10000, 100), (1000, 10)),
          'bandwidth': ((100, 10), (20, 2)),
          'collective': ((1000, 100), (100, 10))}

#: Messages under way at once.
WINDOW = 64

#: The first version that counts so.
SINCE = (5, 7)

_BANDWIDTH = re.compile('osu_(bw|bibw|mbw_mr|get_bw|put_bw|put_bibw)')
#: A figure of these is half a round trip.
_PING_PONG = re.compile('osu_(latency|latency_mt|latency_mp|multi_lat)')


def option(arguments: Sequence[str], short: str, name: str) -> int | None:
    """The value of an option of OMB; None: not given."""
    matches = re.findall(rf'(?:^| )(?:-{short} ?|--{name}[ =])(\d+)(?= |$)',
                       ' '.join(arguments))
    return int(matches[-1]) if matches else None


def iterations(program: str, size: int, arguments: Sequence[str]) -> int:
    """Iterations of a size, untimed ones too: each is as long as another."""
    blocking = not program.startswith('osu_i') or program == 'osu_init'
    kind = ('bandwidth' if _BANDWIDTH.fullmatch(program) else
            'collective' if programs.COLLECTIVE.fullmatch(program)
            else 'latency')
    # Some non-blocking ones count all sizes as large: the least is claimed.
    timed, untimed = COUNTS[kind][size > LARGE or not blocking]
    given = option(arguments, 'i', 'iterations')
    warm = option(arguments, 'x', 'warmup')
    return ((timed if given is None else given)
            + (untimed if warm is None else warm))


def seconds(program: str, version: str, values: Mapping[str, float],
            arguments: Sequence[str], ranks: int, threads: int) -> float:
    """The least time that a program took for its figures, in s.

    :arg figures: figure key -> value, in µs, MB/s and ms.
    :arg threads: of a rank; they measure at the same time.
    """
    numbers = re.findall(r'\d+', version)[:2]
    if tuple(map(int, numbers)) < SINCE:
        return 0.0
    window = option(arguments, 'W', 'window-size') or WINDOW
    # Both ways, or all pairs, at once: so much more was moved meanwhile.
    flows = (2 if 'bibw' in program else
             ranks // 2 if program == 'osu_mbw_mr' else 1)
    trips = (2 if _PING_PONG.fullmatch(program) else 1) / threads
    total = 0.0
    for metric, value in values.items():
        name, size = metrics.split(metric)
        times = iterations(program, size or 0, arguments)
        if name == 'init_time':
            total += value / 1e3
        elif name == 'latency':
            total += times * trips * value / 1e6
        elif name in ('overall_time', 'pure_comm_time'):
            total += times * value / 1e6
        elif name == 'bandwidth' and value > 0:
            total += times * window * flows * (size or 0) / value / 1e6
    return total
