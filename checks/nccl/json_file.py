"""Reader of the JSON file that nccl-tests write (-J)."""
from __future__ import annotations

import json
from typing import Any, NoReturn

from ..core.parsers import ParseError, parse_json
from .output import Half, Judge, Output, Row, parse_six_decimal_number
from .programs import PROGRAMS, strip_build_suffix


def read_output(text: str) -> Output:
    """The output of one run.

    :raises ParseError: a part of the file cannot be trusted
    """
    lines = text.split('\n')

    def raise_json_error(reason: str, line: int = 1) -> NoReturn:
        raise ParseError(line, lines[line - 1].removesuffix('\r')[:200],
                         reason)

    data = parse_json(text, 'the JSON of -J')
    if not isinstance(data, dict) or 'config' not in data:
        raise_json_error('this JSON is not from nccl-tests (-J): it has no "config"')
    if data.get('version') not in (1, 2, 3):
        raise_json_error(
            f'the JSON has version {data.get("version")!r}; known versions '
               'are 1 to 3')
    for key in ('results', 'out_of_bounds', 'average_bus_bandwidth',
                'end_time'):
        if not data.get(key):
            raise_json_error(f'the JSON has no {key}: the run was aborted before its '
                             'end')
    try:
        out = _parse_json_output(data, raise_json_error)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise_json_error(f'a field is missing or has the wrong type: {error!r}')
    Judge(out, raise_json_error).check_all_rows()
    return out


def _parse_json_output(data: dict[str, Any], refuse: Any) -> Output:
    config, bounds = data['config'], data['out_of_bounds']
    average = data['average_bus_bandwidth']
    devices = config['devices']
    name = strip_build_suffix(
        str(data['args'][0]).replace('\\', '/').rpartition('/')[2])
    if name not in PROGRAMS:
        refuse(f'{name} is not a known program of nccl-tests')
    if bounds['okay'] != 'true' or bounds['count'] != 0:
        refuse(f'{bounds["count"]} rows have wrong values (exit code 7)')
    if average['okay'] == 'false':
        refuse('FAILED: the average is below 0.9 times NCCL_TESTS_MIN_BW')
    if isinstance(average['bandwidth'], str):
        refuse(f'the average is {average["bandwidth"]}: no row was measured')
    each = config['nthreads'] * config['ngpus']
    if not each:
        refuse('nthreads or ngpus is 0, so a process has no rank')
    # The JSON lists one device per process, its first.
    group = [device for device in devices
             if device['group'] == devices[0]['group']]
    out = Output(
        program=name, library=int(data.get('nccl_version', 0)),
        threads=config['nthreads'], gpus=config['ngpus'],
        minimum=config['minimum_bytes'], maximum=config['maximum_bytes'],
        step=config.get('step_factor', config.get('step_bytes', 0)),
        by_factor='step_factor' in config, checks=config['validation'],
        ranks=len(group) * each,
        hosts=tuple(dict.fromkeys(device['hostname'] for device in devices)),
        average=parse_six_decimal_number(average['bandwidth']))
    for row in data['results']:
        out.rows.append(_parse_json_row(row, refuse))
    out.warnings = [(1, str(line)) for line in data.get('errors', ())
                    if line]
    return out


def _parse_json_row(row: dict[str, Any], refuse: Any) -> Row:
    halves, iterations = {}, {}
    for half in ('out_of_place', 'in_place'):
        body = row.get(half)
        if body is None:
            continue
        wrong = body['nwrong']
        if wrong:
            refuse(
                f'the data arrived wrong at {row["size"]} B: {wrong:g} wrong '
                'element(s)'
            )
        halves[half] = Half(
            parse_six_decimal_number(body['time']) if 'time' in body else None,
            parse_six_decimal_number(body['alg_bw']),
            parse_six_decimal_number(body['bus_bw']),
            wrong is not None)
        if f'{half}_per_iter' in row:
            iterations[half] = _iteration_statistics(row[f'{half}_per_iter'], refuse)
    return Row(1, int(row['size']), int(row['count']), row['type'],
               row['redop'], int(row['root']), halves.get('out_of_place'),
               halves.get('in_place'), iterations)


def _iteration_statistics(statistics: dict[str, Any], refuse: Any) -> dict[str, float]:
    """Statistics of single iterations (-I), confirmed by their times."""
    times = sorted(statistics['times_us'][statistics['skipped_iterations']:])
    values = {'min': statistics['min_us'], 'p50': statistics['p50_us'],
              'p99': statistics['p99_us'], 'max': statistics['max_us']}
    if not times or min(times) <= 0:
        refuse('the times of the iterations (times_us) are missing or not '
               'positive')
    number = len(times)
    computed = {'min': times[0], 'p50': times[number // 2], 'max': times[-1],
                'p99': times[min(number - 1, (number * 99 + 99) // 100 - 1)]}
    for name, value in values.items():
        if abs(value - computed[name]) > 2e-6:
            refuse(f'{name}_us does not match the times in times_us')
    return values


def strip_environment_from_json(text: str) -> str:
    """The JSON of -J without the environment variables of the user, which may
    contain passwords.

    :raises ValueError: the text is not JSON.
    """
    data = json.loads(text)
    if isinstance(data, dict):
        data.pop('env', None)
    return json.dumps(data, separators=(',', ':')) + '\n'
