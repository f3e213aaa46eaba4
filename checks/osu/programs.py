"""The programs of OMB: what belongs to each is a row of one table.

The rows follow the sources of OMB 5.3 to 7.5.
"""
from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config.records import metrics

from ..core.options import SET_BY_CHECK
from ..core.parsers import Record

#: OMB's limit of memory per process (-M). Unit: bytes.
MEMORY_LIMIT = 1 << 29

#: The sentence of osu_init; 5.3 printed no title before it, and no unit.
INIT = re.compile(r'nprocs: ([0-9]{1,9}), min: ([0-9]{1,15}) ms, '
                  r'max: ([0-9]{1,15}) ms, avg: ([0-9]{1,15}) ms')
INIT_5_3 = re.compile(INIT.pattern.replace(' ms', ''))
#: The sentence of osu_hello.
HELLO = re.compile(r'This is a test with ([0-9]{1,9}) processes')


@dataclass(frozen=True)
class Program:
    """A program of OMB."""
    #: Its title without `OSU`, the place of the buffers and `Test`, in small letters.
    #: '': the parser recognises collectives by the words of the title.
    title: str = ''
    #: Check that runs it: pt2pt, threaded, multi, one_sided, startup, collective;
    #: '': none.
    group: str = ''
    #: Metrics that each row of its table has, and more with -f.
    metrics: tuple[str, ...] = ('latency',)
    full_metrics: tuple[str, ...] = ()
    #: Default size of the largest message. Unit: bytes. 0: there is none.
    largest: int = 1 << 22
    #: The table has a column of sizes. If `largest` is 0, it has one row, or the end
    #: of the table is not known.
    has_sizes: bool = True
    #: The buffer of a rank holds a message for every rank, so OMB's limit of memory
    #: may end the table earlier.
    message_for_each_rank: bool = False
    #: Its data can be validated (-c); and the data type for that (-T), because sums
    #: of characters and floats overflow or are rounded.
    validates: bool = False
    validation_type: str = ''
    #: Timed iterations of a size up to 8192 B, and of a larger one.
    iterations: tuple[int, int] = (10000, 1000)
    #: Messages per iteration and reported latency: 2 if that is half a round trip.
    trips: int = 1
    #: Bandwidth is the sum of: 'one' direction, 'both' directions, all 'pairs'.
    flows: str = 'one'
    #: Short modes with one of its test cases: smoke, veto.
    short_modes: tuple[str, ...] = ()
    #: Fewest ranks with which it prints a table.
    min_ranks: int = 2
    #: It prints one sentence in place of a table: its pattern and its numbers.
    result: re.Pattern[str] | None = None
    result_metrics: tuple[str, ...] = ()
    #: Its title is printed twice, from 6.0 to 7.2.
    title_twice: bool = False
    #: Its rows are narrower than their header.
    narrow_rows: bool = False
    #: Option -V prints tables over window sizes.
    varies_windows: bool = False
    #: Metric of the link between two nodes, for `plumb locate`; '': no single one.
    link_metric: str = ''
    #: Metric of the time of the whole job; '': the program measures itself.
    job_metric: str = ''
    #: Option -t starts threads of a rank, not processes.
    starts_threads: bool = False
    #: Exit codes of OMB after a complete table.
    exit_codes: tuple[int, ...] = (0,)
    #: Options that parameters of its check set, and what to use instead.
    reserved: tuple[tuple[str, str], ...] = ()


_THREADS = (('-t --num_threads', SET_BY_CHECK),)
_PAIRS = (('-p --num-pairs', 'use the parameter layout'),)
_WINDOW = (('-w --win-options', 'use the parameter window'),
           ('-s --sync-option', 'use the parameter synchronisation'))

_BANDWIDTH = Program(metrics=('bandwidth',), iterations=(100, 20))
_PT2PT = Program(group='pt2pt', validates=True, trips=2)
_PT2PT_BANDWIDTH = replace(_BANDWIDTH, group='pt2pt', validates=True)
_THREADED = Program(group='threaded', trips=2, reserved=_THREADS)
_ONE_SIDED = Program(group='one_sided', reserved=_WINDOW)
_ONE_SIDED_BANDWIDTH = replace(_BANDWIDTH, group='one_sided', reserved=_WINDOW)

#: All programs with a title of their own.
PROGRAMS: dict[str, Program] = {
    'osu_latency': replace(_PT2PT, title='mpi latency', link_metric='latency',
                           short_modes=('smoke',)),
    'osu_bw': replace(_PT2PT_BANDWIDTH, title='mpi bandwidth',
                      link_metric='bandwidth'),
    'osu_bibw': replace(_PT2PT_BANDWIDTH, title='mpi bi-directional bandwidth',
                        flows='both'),
    # OMB 7.2 and 7.4 leave out MPI_Finalize: the launcher ends with 1.
    'osu_latency_mt': replace(_THREADED, title='mpi multi-threaded latency',
                              starts_threads=True, exit_codes=(0, 1)),
    'osu_latency_mp': replace(_THREADED, title='mpi multi-process latency',
                              narrow_rows=True),
    'osu_multi_lat': replace(_PT2PT, title='mpi multi latency', group='multi'),
    'osu_mbw_mr': replace(_PT2PT_BANDWIDTH, group='multi', flows='pairs',
                          title='mpi multiple bandwidth / message rate',
                          metrics=('bandwidth', 'message_rate'), reserved=_PAIRS,
                          title_twice=True, varies_windows=True),
    'osu_acc_latency': replace(_ONE_SIDED, title='mpi_accumulate latency'),
    'osu_get_latency': replace(_ONE_SIDED, title='mpi_get latency'),
    'osu_put_latency': replace(_ONE_SIDED, title='mpi_put latency'),
    'osu_get_acc_latency': replace(_ONE_SIDED, title='mpi_get_accumulate latency'),
    # One row, of the size of the data type: 1 or 8 B, by the version.
    'osu_cas_latency': replace(_ONE_SIDED, title='mpi_compare_and_swap latency',
                               largest=0),
    'osu_fop_latency': replace(_ONE_SIDED, title='mpi_fetch_and_op latency',
                               largest=0),
    'osu_get_bw': replace(_ONE_SIDED_BANDWIDTH, title='mpi_get bandwidth'),
    'osu_put_bw': replace(_ONE_SIDED_BANDWIDTH, title='mpi_put bandwidth'),
    'osu_put_bibw': replace(_ONE_SIDED_BANDWIDTH, flows='both',
                            title='mpi_put bi-directional bandwidth',
                            group='one_sided_active'),
    'osu_hello': Program('mpi hello world', 'startup', ('job_time', 'ranks'), largest=0,
                         has_sizes=False, result=HELLO, result_metrics=('ranks',),
                         job_metric='job_time'),
    'osu_init': Program('mpi init', 'startup', ('init_time',), largest=0,
                        has_sizes=False, result=INIT, result_metrics=(
                            'ranks', 'init_time_min', 'init_time_max', 'init_time')),
}

_COLLECTIVE = Program(group='collective', largest=1 << 20, validates=True,
                      iterations=(1000, 100),
                      full_metrics=('latency_min', 'latency_max'))
_REDUCTION = replace(_COLLECTIVE, validation_type='mpi_int')
_PER_RANK = replace(_COLLECTIVE, message_for_each_rank=True)

#: Kinds of collectives; each also non-blocking, of neighbours, persistent, and with
#: vectors.
COLLECTIVES: dict[str, Program] = {
    'allgather': _PER_RANK, 'alltoall': _PER_RANK, 'gather': _PER_RANK,
    'scatter': _PER_RANK, 'bcast': _COLLECTIVE,
    'allreduce': replace(_REDUCTION, short_modes=('veto',)),
    'reduce': _REDUCTION, 'reduce_scatter': _REDUCTION,
    'reduce_scatter_block': _REDUCTION,
    'barrier': replace(_COLLECTIVE, largest=0, has_sizes=False, validates=False),
}
COLLECTIVE = re.compile(
    r'osu_(?P<later>i)?(?P<near>neighbor_)?(?P<kind>' + '|'.join(COLLECTIVES) + ')'
    '[vw]?(?:_persistent)?')


def find_program(name: str) -> Program | None:
    """The row of a program; None: the suite does not know it."""
    match = COLLECTIVE.fullmatch(name)
    if not match:
        return PROGRAMS.get(name)
    row = COLLECTIVES[match['kind']]
    if name != f'osu_{match["kind"]}':
        row = replace(row, short_modes=())
    if match['later']:
        # Some of them use the smaller number of iterations for all sizes.
        row = replace(row, metrics=('overall_time', 'pure_comm_time', 'overlap'),
                      full_metrics=('init_call_time', 'wait_call_time'),
                      iterations=(row.iterations[1], row.iterations[1]))
    # With two ranks OMB 7.2 prints nothing for neighbours, and ends with 0.
    return replace(row, min_ranks=4) if match['near'] else row


def programs_of_group(*groups: str) -> tuple[str, ...]:
    """Names of the programs of some groups, in the order of the table."""
    return tuple(name for name, row in PROGRAMS.items() if row.group in groups)


_WITH_CHECK = programs_of_group('pt2pt', 'threaded', 'multi', 'one_sided',
                                'one_sided_active', 'startup')

#: Programs that are embedded.
EMBEDDED = (*_WITH_CHECK, 'osu_allgather', 'osu_allreduce', 'osu_barrier',
            'osu_ibarrier')


#: Programs of OMB 7.2 or newer, for a site that has not installed it yet.
OMB7 = (*_WITH_CHECK, *(
    f'osu_{later}{name}' for later in ('', 'i') for name in (
        'allgather', 'allgatherv', 'allreduce', 'alltoall', 'alltoallv', 'alltoallw',
        'barrier', 'bcast', 'gather', 'gatherv', 'reduce', 'reduce_scatter', 'scatter',
        'scatterv', 'neighbor_allgather', 'neighbor_allgatherv', 'neighbor_alltoall',
        'neighbor_alltoallv', 'neighbor_alltoallw')))


def program_features(source: str) -> tuple[str, ...]:
    """Programs of a source before they are installed: the embedded ones, or
    those of OMB in a stack."""
    return EMBEDDED if source == 'embedded' else OMB7


def last_message_sizes(program: str, ranks: int, requested: int = 0, first: int = 1,
                       memory: int = MEMORY_LIMIT) -> tuple[int, int] | None:
    """Smallest and largest permitted size of the last row. Unit: bytes.

    Sizes double from the first one up to the largest requested one. OMB's limit of
    memory may end the table earlier; some versions do not heed it.

    :arg ranks: number of ranks; 0: unknown.
    :arg requested: largest size of -m; 0: OMB's default.
    :arg first: the first size above 0
    :arg memory: limit of memory per process (-M). Unit: bytes
    :returns: None if the table has no sizes, or its end is not known.
    """
    row = find_program(program)
    if row is None or not row.largest:
        return None
    high = low = requested or row.largest
    if row.message_for_each_rank:
        if not ranks:
            return None
        low = min(high, memory // ranks)

    def doubled(limit: int) -> int:
        return first << max((limit // first).bit_length() - 1, 0)

    return doubled(low), doubled(high)


def missing_part(records: Sequence[Record], ranks: int, requested: int = 0,
                 memory: int = MEMORY_LIMIT) -> tuple[str, int, str] | None:
    """What an output lacks of what was requested: rows or ranks, a line, and a reason;
    None: it is complete. The arguments are those of `last_message_sizes`."""
    last = records[-1]
    permitted = last_message_sizes(
        last.program, ranks, requested,
        next((record.size for record in records if record.size), 1), memory)
    if permitted and not permitted[0] <= (last.size or 0) <= permitted[1]:
        return 'rows', last.line, (
            f'the table ends at {last.size} B instead of {permitted[1]} B: was the run '
            'cut short, or is there a memory limit (-M)?')
    for record in records:
        if record.metric == 'ranks' and ranks and record.value != ranks:
            return 'ranks', record.line, (
                f'{record.value:g} of {ranks} ranks answered: is the launcher of the '
                'same MPI as the program?')
    return None


#: Messages under way at once, unless option -W changes it.
WINDOW = 64

#: Above this many bytes the iterations of large messages apply.
LARGE = 8192


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: 7.2-embedded.1 is (7, 2)."""
    return tuple(map(int, re.findall(r'\d+', version)[:2]))


def minimum_seconds(row: Program, version: str, values: Mapping[str, float],
                    ranks: int, threads: int, iterations: int = 0,
                    window: int = WINDOW) -> float:
    """Minimum time that a program took for its values, in s.

    If the iterations add up to more time than the program took, the table was not
    measured. Iterations are counted as OMB 5.7 to 7.5 and the embedded programs
    count them. Unknown times are left out, so the sum is a lower limit: the untimed
    iterations may be faster, for example if a lossy link delays a few messages much.

    :arg values: metric key -> value, in µs, MB/s and ms.
    :arg threads: threads of a rank, which measure at the same time.
    :arg iterations: of each size; 0: the program's default.
    """
    if version_numbers(version) < (5, 7):
        return 0.0
    # Both directions or all pairs at once move several times the data.
    flows = {'one': 1, 'both': 2, 'pairs': ranks // 2}[row.flows]
    total = 0.0
    for metric, value in values.items():
        name, size = metrics.split_metric_key(metric)
        times = iterations or row.iterations[(size or 0) > LARGE]
        if name == 'init_time':
            total += value / 1e3
        elif name == 'latency':
            total += times * row.trips / threads * value / 1e6
        elif name in ('overall_time', 'pure_comm_time'):
            total += times * value / 1e6
        elif name == 'bandwidth' and value > 0:
            total += times * window * flows * (size or 0) / value / 1e6
    return total


def find_installed_programs(prefix: str | os.PathLike[str]) -> dict[str, str]:
    """Programs of an installation: name -> path.

    Programs are in libexec/osu-micro-benchmarks/mpi/<kind> (up to 6.x) or in
    c/mpi/<kind> (7.x).

    :arg prefix: prefix of the installation, or a folder with programs.
    """
    result: dict[str, str] = {}
    for path in sorted(Path(prefix).glob('**/osu_*')):
        if (re.fullmatch(r'osu_[a-z_0-9]+', path.name) and path.is_file()
                and os.access(path, os.X_OK)
                and not {'openshmem', 'upc', 'upcxx', 'xccl'}
                & set(path.parts)):
            result.setdefault(path.name, str(path))
    return result
