"""Reader of the JSON file that nccl-tests write (-J)."""
from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any, NoReturn

from ..core.parsers import ParseError, parse_json
from ..core.tables import sizes_between
from .output import Half, Output, Printed, Row, check_output
from .programs import PROGRAMS, strip_build_suffix

#: The beginning of a document.
DOCUMENT = re.compile(r'^\s*\{\s*"version"\s*:', re.MULTILINE)
#: Columns of single iterations (-I), without `_us`.
_STATISTICS = ('min', 'p50', 'p99', 'max')


def _refuse(reason: str, line: int = 1) -> NoReturn:
    raise ParseError(line, '', reason)


def read_output(text: str) -> Output:
    """The output of one run.

    :raises ParseError: a part of the file cannot be trusted
    """
    data = parse_json(text, 'the JSON of -J')
    if not isinstance(data, dict) or 'config' not in data:
        _refuse('this JSON is not from nccl-tests (-J): it has no "config"')
    if data.get('version') not in (1, 2, 3):
        _refuse(f'the JSON has version {data.get("version")!r}; known: 1 to 3')
    for key in ('results', 'out_of_bounds', 'average_bus_bandwidth', 'end_time'):
        if not data.get(key):
            _refuse(f'the JSON has no {key}: the run was aborted before its end')
    try:
        out = _read_run(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        _refuse(f'a field is missing or has the wrong type: {error!r}')
    check_output(out, _refuse)
    return out


def _read_run(data: dict[str, Any]) -> Output:
    config, bounds = data['config'], data['out_of_bounds']
    average, devices = data['average_bus_bandwidth'], config['devices']
    name = strip_build_suffix(
        str(data['args'][0]).replace('\\', '/').rpartition('/')[2])
    for fault, reason in (
            (name not in PROGRAMS, f'{name} is not a known program of nccl-tests'),
            (bounds['okay'] != 'true' or bounds['count'],
             f'{bounds["count"]} rows have wrong values (exit code 7)'),
            (average['okay'] == 'false',
             'FAILED: the average is below 0.9 times NCCL_TESTS_MIN_BW'),
            (isinstance(average['bandwidth'], str),
             f'the average is {average["bandwidth"]}: no row was measured'),
            (not config['nthreads'] * config['ngpus'],
             'nthreads or ngpus is 0, so a process has no rank'),
            (not config['validation'], 'the program checked no data (-c 0)')):
        if fault:
            _refuse(reason)
    minimum, maximum = config['minimum_bytes'], config['maximum_bytes']
    return Output(
        program=name, threads=config['nthreads'], gpus=config['ngpus'],
        options={'agg_iters': str(config.get('aggregated_iterations', 1)),
                 'blocking': str(int(config.get('blocking_collectives') == 'true')),
                 **{name: str(config[name]) for name in ('graph', 'unalign')
                    if name in config}},
        minimum=minimum, maximum=maximum, request=sizes_between(
            minimum, maximum, config.get('step_factor', config.get('step_bytes', 0)),
            'step_factor' in config) or _refuse('the sizes do not grow by the step'),
        # It lists one device per process, its first.
        ranks=config['nthreads'] * config['ngpus'] * sum(
            device['group'] == devices[0]['group'] for device in devices),
        hosts=tuple(dict.fromkeys(device['hostname'] for device in devices)),
        average=_number(average['bandwidth']),
        rows=[Row(1, int(row['size']), int(row['count']), row['type'], row['redop'],
                  int(row['root']), _read_half(row, 'out_of_place'),
                  _read_half(row, 'in_place')) for row in data['results']],
        time=_time(data['start_time']) if 'start_time' in data else None)


def _time(text: str) -> datetime.datetime:
    """The time at which a run began. Its zone is unknown, and UTC is assumed.

    :raises ValueError: the text is not a time
    """
    return datetime.datetime.strptime(text, '%Y-%m-%d %H:%M:%S').replace(
        tzinfo=datetime.timezone.utc)


def _read_half(row: dict[str, Any], name: str) -> Half | None:
    body = row.get(name)
    if body is None:
        return None
    if body['nwrong']:
        _refuse(f'the data arrived wrong at {row["size"]} B: {body["nwrong"]:g} wrong '
                'element(s)')
    return Half(_number(body['time']) if 'time' in body else None,
                _number(body['alg_bw']), _number(body['bus_bw']),
                body['nwrong'] is not None,
                _read_statistics(row.get(f'{name}_per_iter')))


def _read_statistics(single: dict[str, Any] | None) -> dict[str, float]:
    """Statistics of single iterations, confirmed by their times."""
    if single is None:
        return {}
    times = sorted(single['times_us'][single['skipped_iterations']:])
    last = len(times) - 1
    computed = (times[0], times[len(times) // 2],
                times[min(last, (len(times) * 99 + 99) // 100 - 1)], times[last])
    for name, value in zip(_STATISTICS, computed, strict=True):
        if value <= 0 or abs(single[f'{name}_us'] - value) > 2e-6:
            _refuse(f'{name}_us does not match the times in times_us')
    return {name: single[f'{name}_us'] for name in _STATISTICS}


def _number(value: Any) -> Printed:
    """A number that was printed with six decimals.

    :raises ValueError: the value is not a finite number of at least 0.
    """
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f'{value!r} is not a number')
    return Printed(float(value), 0.5e-6)


def strip_environment_from_json(text: str) -> str:
    """The JSON without the environment variables of the user, which may contain
    passwords.

    :raises ValueError: the text is not JSON.
    """
    data = json.loads(text)
    if isinstance(data, dict):
        data.pop('env', None)
    return json.dumps(data, separators=(',', ':')) + '\n'
