"""Made-up perflogs for the tests, as ReFrame writes them (config/records/writing.py).

    python tests/data/perflogs_factory.py FOLDER [SESSIONS]

writes a site of twenty programs, to look at a report.
"""
from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from config import families  # noqa: E402
from config.records.columns import reframe_names  # noqa: E402
from config.records.identity import IDENTITY, test_case_id  # noqa: E402
from config.records.writing import (  # noqa: E402
    VALUE_COLUMNS,
    Measurement,
    Session,
    Value,
    write_sessions,
)

METRICS = families.all_metrics()
START = datetime.datetime(2026, 11, 1, 3, tzinfo=datetime.timezone.utc)
#: Guard of a failure -> ReFrame's result, stage and text.
FAILURES = {
    'build': ('fail_deps', None, None), 'dependency': ('fail_deps', None, None),
    'cancelled': ('abort', None, None), 'skipped': ('skip', None, None),
    'setup': ('fail', 'setup', 'value error: {}'),
    'submit': ('fail', 'run', 'job error: {}'),
    'job_state': ('fail', 'run_wait', 'job error: {}'),
    'time_limit': ('fail', 'run_wait', 'job error: job timed out {}'),
    'sanity': ('fail', 'sanity', 'sanity error: {}'),
    'performance': ('fail', 'performance', 'performance error: {}'),
    'cleanup': ('fail', 'cleanup', 'error: {}')}


def record(metric='latency', value=1.0, size=None, day=1, **columns) -> dict:
    """A value of a measurement; `day` makes the session and its time.

    `completed` = 0, with `guard` and `reason`, is a measurement without values.
    `inconclusive` gives reasons, `measurement` and `retry` tell measurements of a
    session apart. Repetition 0 is the median of several.
    """
    when = START + datetime.timedelta(days=day)
    return {
        'time': f'{when:%Y-%m-%dT%H:%M:%SZ}',
        'session': f'{when:%Y%m%dT%H%M%SZ}-aaaaaa', 'suite': '0.1.0',
        'commit': '0123456789ab', 'reframe': '4.10.4',
        'system': 'alpha', 'partition': 'cpu',
        'environ': 'openmpi', 'family': 'osu', 'check': 'OsuPt2pt',
        'params': 'program=osu_latency placement=intra_node', 'settings': '',
        'name': '', 'mode': '', 'job': '12', 'nodes': 'n1', 'machine': '',
        'binding': '', 'gpus': '', 'num_nodes': 1,
        'num_tasks': 2, 'tasks_per_node': 2, 'source': 'embedded',
        'program': 'osu_latency', 'version': '7.5',
        'stack': 'openmpi 5.0.6', 'spec': '', 'emulated': False,
        'inconclusive': '', 'transient': False, 'not_checked': '', 'no_reference': '',
        'measurement': '', 'retry': 0, 'repetition': 1, 'metric': metric,
        'point': size, 'value': value,
        'unit': METRICS.get(metric, {}).get('unit', 'us'),
        'reference': None, 'lower': None, 'upper': None, 'result': 'pass',
        'guard': '', 'reason': '', **columns}


def short_id(one: dict) -> str:
    """The short id of the test case of a record."""
    return test_case_id(*(one[name] for name in IDENTITY))


def curve(metric, value, sizes, **columns) -> list[dict]:
    """A record per size; value(size) gives the number."""
    return [record(metric, value(size), size, **columns) for size in sizes]


def time_of(one: dict) -> datetime.datetime:
    """The time of a record."""
    return datetime.datetime.fromisoformat(one['time'].replace('Z', '+00:00'))


def measurement(records: list[dict]) -> Measurement:
    """The records of one measurement, as the writer takes them."""
    first = records[0]
    several = any(one['repetition'] == 0 for one in records)
    failed = next((one for one in records if one['metric'] == 'completed'), None)
    values = [Value(
        one['metric'], one['value'], one['point'],
        one['repetition'] or None if several else None,
        0.0 if one['reference'] is None else one['reference'], one['lower'],
        one['upper'], one['result'] if one['result'] in ('fail', 'xfail', 'xpass')
        else 'pass', one['unit']) for one in records if one is not failed]
    made = Measurement(time_of(first), {
        name: first[name] for name in reframe_names()
        if name in first and name not in (*VALUE_COLUMNS, 'time', 'session')},
        values, retry=first['retry'])
    if failed:
        made.result, made.fail_phase, text = FAILURES.get(failed['guard'], (
            'fail', 'sanity', f'sanity error: {failed["guard"]}: {{}}'))
        made.fail_reason = text and text.format(failed['reason'])
    elif any(value.result in ('fail', 'xpass') for value in values):
        made.result, made.fail_phase = 'fail', 'performance'
        made.fail_reason = 'performance error: failed to meet reference(s)'
    return made


def write(root: Path, records: list[dict], options: str = '', ended: bool = True
          ) -> list[Path]:
    """Writes sessions with these records; returns their reports.

    :param options: options of ReFrame on the command line of all sessions
    :param ended: False: the sessions were cut short, and have no report
    """
    sessions: dict[str, dict[tuple, list[dict]]] = {}
    for one in records:
        key = *(one[name] for name in IDENTITY), one['name'], one['measurement'], \
            one['retry'], one['time']
        sessions.setdefault(one['session'], {}).setdefault(key, []).append(one)
    write_sessions(Path(root), [
        Session(name, min(time_of(group[0]) for group in groups.values()),
                sorted((measurement(group) for group in groups.values()),
                       key=lambda one: (one.retry, one.time)), options, ended)
        for name, groups in sorted(sessions.items())])
    return [Path(root, 'sessions', f'{name}.json') for name in sorted(sessions)]


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
        drift = 1.35 if day == 3 else noise()
        columns |= {'system': system, 'day': day,
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
                    last = {'reference': base}
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
            guard='transport', reason='tcp used, shared memory asked for'))
    return records


#: Columns of a value that is compared with a reference.
JUDGED = {'reference': 1.0, 'upper': 0.2}


def case(program: str, day: int, result: str = 'pass', **more) -> dict:
    """The record of a test case with one value.

    :param result: pass, fail, xfail, xpass, no_reference, inconclusive; another word is
        the guard that refused it
    """
    columns = {'program': program, 'params': f'program={program}', 'day': day}
    if result in ('no_reference', 'inconclusive'):
        columns['inconclusive'] = 'shared CPUs' * (result == 'inconclusive')
    elif result in ('pass', 'fail', 'xfail', 'xpass'):
        columns |= {**JUDGED, 'result': result}
    else:
        return record('completed', 0.0, **{
            **columns, 'repetition': 0, 'guard': result, **more})
    return record('latency', 1.0, 8, **{**columns, **more})


#: Figures of runs on a machine that is calm, and of one that is not.
CALM = [1.0, 1.005, 0.995, 1.0, 1.0]
WILD = [1.0, 1.5, 0.5, 1.2, 0.8] * 2


def latencies(values, sizes=(1, 8, 64), first=0, **columns) -> list[dict]:
    """A session for each value: a curve that is `value` everywhere.

    :param first: day of the first session
    """
    return [r for day, value in enumerate(values, first)
            for r in curve('latency', lambda s, v=value: v, sizes, day=day,
                           **columns)]


if __name__ == '__main__':
    write(Path(sys.argv[1]), site(*map(int, sys.argv[2:])))


def slow_node() -> list[dict]:
    """40 sessions of 40 test cases; the seven on n7 are slower in the last five."""
    slow = {2: 1.2, 5: 1.4, 8: 1.3, 11: 1.5, 14: 1.6, 17: 1.7, 20: 1.25}
    return [
        record('latency', (n + 1) * (1 + 0.001 * (day * (7 + n) % 5)) * (
            slow.get(n, 1) if day > 34 else 1), 8, day=day, params=f'n={n}',
            check=f'Check{n}', program=f'p{n}', partition=f'p{n % 2}',
            nodes='n7' if n in slow else 'n1')
        for day in range(40) for n in range(40)]
