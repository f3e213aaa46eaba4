"""Made-up perflogs for the tests, through the csv module.

    python tests/data/perflogs_factory.py FOLDER [RUNS]

writes a site of twenty programs, to look at a report.
"""
from __future__ import annotations

import csv
import datetime
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from config import families  # noqa: E402
from postprocess.perflogs import schema_number_and_columns  # noqa: E402

METRICS = families.all_metrics()
START = datetime.datetime(2026, 11, 1, 3)


def record(metric='latency', value=1.0, size=None, day=1, **columns) -> dict:
    """One record; `day` makes the run and its time."""
    when = START + datetime.timedelta(days=day)
    return {
        'schema': schema_number_and_columns()[0], 'time': f'{when:%Y-%m-%dT%H:%M:%SZ}',
        'run': f'{when:%Y%m%dT%H%M%SZ}-aaaaaa', 'suite': '0.1.0',
        'commit': '0123456789ab', 'reframe': '4.10.4',
        'system': 'alpha', 'partition': 'cpu',
        'environ': 'openmpi', 'family': 'osu', 'check': 'OsuPt2pt',
        'params': 'program=osu_latency placement=intra_node',
        'case': 'c0ffee00', 'job': 12, 'nodes': 'n1', 'machine': '',
        'binding': '', 'gpus': '', 'num_nodes': 1,
        'num_tasks': 2, 'tasks_per_node': 2, 'source': 'embedded',
        'program': 'osu_latency', 'version': '7.5',
        'stack': 'openmpi 5.0.6', 'spec': '', 'emulated': 0,
        'speed': 'fast', 'repetition': 1, 'metric': metric,
        'point': '' if size is None else f'{size} B', 'value': repr(value),
        'unit': METRICS.get(metric, {}).get('unit', 'us'),
        'better': METRICS.get(metric, {}).get('better', 'lower'),
        'reference': '', 'lower': '', 'upper': '', 'result': 'no_reference',
        'guard': '', **columns}


def curve(metric, value, sizes, **columns) -> list[dict]:
    """A record a size; value(size) gives the figure."""
    return [record(metric, value(size), size, **columns) for size in sizes]


def write(root: Path, records: list[dict]) -> list[Path]:
    """Writes the records as the suite does, in the order of their times;
    returns the files."""
    files: dict[Path, list[dict]] = {}
    for rec in sorted(records, key=lambda rec: rec['time']):
        path = (Path(root) / rec['system'] / rec['partition']
                / f"{rec['check']}.v{rec['schema']}.csv")
        files.setdefault(path, []).append(rec)
    for path, recs in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with open(path, 'a', newline='', encoding='utf-8') as handle:
            out = csv.DictWriter(
                handle, schema_number_and_columns()[1], lineterminator='\n'
            )
            if new:
                out.writeheader()
            out.writerows(recs)
    return list(files)


PT2PT = {'osu_latency': 'latency', 'osu_latency_mt': 'latency',
         'osu_bw': 'bandwidth', 'osu_bibw': 'bandwidth',
         'osu_mbw_mr': 'bandwidth', 'osu_put_latency': 'latency',
         'osu_get_latency': 'latency', 'osu_put_bw': 'bandwidth'}
COLLECTIVES = ['osu_allreduce', 'osu_alltoall', 'osu_allgather', 'osu_bcast',
               'osu_gather', 'osu_reduce', 'osu_scatter', 'osu_ibcast',
               'osu_iallreduce']


def site(runs=6, repetitions=3, seed=1, system='alpha', days=None,
         sizes=tuple(2 ** n for n in range(23))) -> list[dict]:
    """Twenty programs over some runs: one run slow, one case regressed.

    :param days: the runs whose records are made; None: all
    """
    rng = random.Random(seed)
    days = range(runs) if days is None else days
    records = []

    def noise() -> float:
        return rng.lognormvariate(0, 0.03)

    def case(day, value, metric, points, more=(), **columns) -> None:
        speed = 'slow' if day == 3 else 'fast'
        drift = 1.35 if day == 3 else noise()
        columns |= {'system': system, 'speed': speed, 'day': day,
                    'num_tasks': 2 * columns['num_nodes']}
        lower = METRICS[metric]['better'] == 'lower'
        judged = 8 if lower else 4194304
        bad = (day == runs - 1 and columns['program'] == 'osu_bcast'
               and columns['num_nodes'] == 2)
        for name in (metric, *more):
            for size in points:
                base = value(size or 1) * (1 if name == metric else 0.6)
                factor = drift * (1.5 if bad else 1)
                values = [base * (factor if lower else 1 / factor) * noise()
                          for _ in range(repetitions)]
                last = {}
                if day >= 4:
                    last = {'reference': repr(base)}
                    if name == metric and size in (judged, None):
                        bound = {'upper': 0.2} if lower else {'lower': -0.2}
                        last |= bound | {'result': 'pass'}
                for n, v in enumerate(values, 1):
                    records.append(
                        record(name, v, size, repetition=n, **columns)
                    )
                middle = sorted(values)[repetitions // 2]
                if 'result' in last and (
                        middle > 1.2 * base if lower
                        else middle < 0.8 * base):
                    last['result'] = 'fail'
                records.append(record(name, middle, size, repetition=0,
                                      **columns, **last))
        for name, share in (('wall_time', 3), ('user_time', 4),
                            ('system_time', 0.8)):
            records.append(record(
                name, share * columns['num_nodes'] * noise() * drift,
                **columns))

    def params(program, **more) -> str:
        return ' '.join(f'{k}={v}' for k, v in
                        {'program': program, **more}.items())

    for day in days:
        for nodes, place in ((1, 'intra_node'), (2, 'inter_node')):
            far = 1 if nodes == 1 else 6
            for program, metric in PT2PT.items():
                case(day,
                     (lambda s, far=far: far * (0.2 + s / 12000))
                     if metric == 'latency' else
                     (lambda s, far=far: s / (far * (0.2 + s / 12000))),
                     metric, sizes, program=program, num_nodes=nodes,
                     more=('message_rate',) * (program == 'osu_mbw_mr'),
                     params=params(program, placement=place, buffers='host'))
        for nodes in (1, 2, 4):
            for program in COLLECTIVES:
                blocking = not program.startswith('osu_i')
                case(day, lambda s, n=nodes: n * (1.5 + s / 5000),
                     'latency' if blocking else 'overall_time',
                     [size for size in sizes if size <= 2 ** 20],
                     check='OsuCollective', program=program, num_nodes=nodes,
                     more=() if blocking else
                     ('compute_time', 'pure_comm_time'),
                     params=params(program, num_nodes=nodes))
            for program, metric, value in (
                    ('osu_barrier', 'latency', 2.0),
                    ('osu_ibarrier', 'overall_time', 5.0),
                    ('osu_init', 'init_time', 180.0)):
                case(day, lambda s, v=value * nodes: v, metric, [None],
                     check='OsuCollective', program=program, num_nodes=nodes,
                     params=params(program, num_nodes=nodes))
    if runs - 1 in days:
        records.append(record(
            'completed', 0.0, day=runs - 1, repetition=0, system=system,
            check='OsuCollective', program='osu_reduce_scatter',
            params='program=osu_reduce_scatter num_nodes=4', num_nodes=4,
            reference='1.0', lower='0.0', result='fail',
            guard='transport: tcp used, shared memory asked for'))
    return records


#: Figures of runs on a machine that is calm, and of one that is not.
CALM = [1.0, 1.005, 0.995, 1.0, 1.0]
WILD = [1.0, 1.5, 0.5, 1.2, 0.8] * 2


def latencies(values, sizes=(1, 8, 64), **columns) -> list[dict]:
    """A run for each value: a curve that is `value` everywhere."""
    return [r for day, value in enumerate(values)
            for r in curve('latency', lambda s, v=value: v, sizes, day=day,
                           **columns)]


if __name__ == '__main__':
    write(Path(sys.argv[1]), site(*map(int, sys.argv[2:])))
