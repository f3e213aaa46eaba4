"""Parser of plumbload's output, the suite's own load generator (src/).

The output has one line of JSON per client. The histograms of all clients are
added up, so that a percentile covers all requests and is not a mean of
percentiles.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.parsers import ParseError, Record, parse_json

SCHEMA = 1
#: Buckets per power of two of a histogram; below that one bucket per ns.
STEPS = 128
PERCENTILES = {'latency_p50': 0.5, 'latency_p90': 0.9, 'latency_p99': 0.99,
               'latency_p999': 0.999, 'latency_p9999': 0.9999}
#: Keys on which all clients of one run must agree.
COMMON = ('version', 'protocol', 'tls', 'cluster', 'parameters')
KINDS = ('get', 'set', 'mset', 'lpush', 'xadd', 'connect')


@dataclass(frozen=True)
class Run:
    """The measurement of all clients of one run."""
    #: Name of each client -> what limited it: client, rate or server.
    limited: Mapping[str, str]
    #: Name of each client -> its own rate. Unit: requests/s.
    rates: Mapping[str, float]
    #: The values of all requests.
    records: tuple[Record, ...]


def parse(text: str) -> tuple[Record, ...]:
    """The values of one run.

    The metric `client_limited` is 1 if a client and not the store limited the
    rate.

    :raises ParseError: a document is missing, damaged or contradictory.
    """
    return read_run(text).records


def read_run(text: str) -> Run:
    """One run: the documents of all its clients."""
    clients = [_parse_client_document(number, line) for number, line
               in enumerate(text.splitlines(), 1) if line.strip()]
    if not clients:
        raise ParseError(1, '', 'the output is empty: plumbload did not '
                         'finish')
    first = clients[0]
    _check_one_document_per_client(clients, text.splitlines())
    size = first['parameters']['value_size']
    records = (*_request_records(clients, first, size),
               *_client_records(clients, first, size))
    return Run({c['name']: c['limited'] for c in clients},
               {c['name']: sum(kind['count'] for kind in c['kinds'].values())
                / c['measured_s'] for c in clients}, records)


def histogram_percentile(histogram: Mapping[int, int], share: float) -> float:
    """The percentile of a histogram by nearest rank: the middle of the bucket of the
    request with the rank ceil(share * n) of n.

    :arg share: from 0 to 1.
    """
    # 0.07 * 100 is a little more than 7.
    rank = max(1, math.ceil(share * sum(histogram.values()) - 1e-9))
    for lower in sorted(histogram):
        rank -= histogram[lower]
        if rank <= 0:
            return lower + _bucket_width(lower) / 2 if lower >= STEPS else lower
    raise ValueError('a histogram is empty')


def _bucket_width(lower: int) -> int:
    """Width of the bucket that begins at `lower`."""
    return max(1, 1 << (lower.bit_length() - STEPS.bit_length()))


def _parse_client_document(number: int, line: str) -> dict[str, Any]:
    """Check one document and return it."""
    def document_parse_error(reason: str) -> ParseError:
        return ParseError(number, line, reason)

    client = parse_json(line, 'the JSON document', number)
    if not isinstance(client, dict) \
            or client.get('program') != 'plumbload':
        raise document_parse_error('it is not a document of plumbload')
    if client.get('schema') != SCHEMA:
        raise document_parse_error(f'schema {client.get("schema")!r}; this suite reads '
                                   f'{SCHEMA}')
    try:
        _check_client_document(client, number, line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise document_parse_error(f'{client.get("name")}: not as plumbload writes it: '
                                   f'{type(error).__name__} {error}') from None
    return client


def _check_client_document(client: dict[str, Any], number: int, line: str) -> None:
    def require(good: bool, reason: str) -> None:
        if not good:
            raise ParseError(number, line, f'{client["name"]}: {reason}')

    require(client['limited'] in ('client', 'rate', 'server'),
            f'limited by {client["limited"]!r}')
    index, shares = client['share']
    require(0 <= index < shares, f'share {index} of {shares}')
    require(0 < client['measured_s'] <= client['wall_s'],
            f'measured {client["measured_s"]} s of {client["wall_s"]} s')
    threads = client['threads']
    require(client['connections'] > 0 and client['connections']
            == sum(t['connections'] for t in threads),
            f'{client["connections"]} connections are not those of its threads')
    require(client['cpu_user_s'] >= 0 and client['cpu_system_s'] >= 0
            and client['cpu_user_s'] + client['cpu_system_s']
            <= 1.1 * client['wall_s'] * len(threads)
            and all(0 <= t['cpu_share'] <= 1.1 and t['wait_share'] >= 0
                    for t in threads), 'its CPU time is not possible')
    require('operation' in client['parameters']
            and 'value_size' in client['parameters'], 'parameters are missing')
    require(set(client['kinds']) <= set(KINDS) and client['kinds'] != {},
            f'kinds of requests {", ".join(client["kinds"]) or "none"}')
    counted = 0
    for name, kind in client['kinds'].items():
        require(kind['errors'] == 0, f'{kind["errors"]} errors of {name}')
        require(0 <= kind['misses'] <= kind['count'] and kind['bytes'] >= 0,
                f'{kind["misses"]} misses of {kind["count"]} {name}')
        lowers = [lower for lower, _ in kind['histogram']]
        require(lowers == sorted(set(lowers))
                and all(lower >= 0 and lower % _bucket_width(lower) == 0
                        for lower in lowers)
                and all(type(n) is int and n > 0 for _, n in kind['histogram']),
                f'the histogram of {name} is damaged')
        total = sum(count for _, count in kind['histogram'])
        require(total == kind['count'] > 0,
                f'the histogram of {name} holds {total} of {kind["count"]}')
        require(lowers[0] <= kind['min_ns'] < lowers[0] + _bucket_width(lowers[0])
                and lowers[-1] <= kind['max_ns']
                < lowers[-1] + _bucket_width(lowers[-1])
                and sum(lower * n for lower, n in kind['histogram'])
                <= kind['sum_ns']
                < sum((lower + _bucket_width(lower)) * n
                      for lower, n in kind['histogram']),
                f'the latencies of {name} contradict their histogram')
        counted += total
    rate = client['rate']['achieved']
    require(abs(rate * client['measured_s'] - counted) <= 0.001 * counted,
            f'{counted} requests in {client["measured_s"]} s are not {rate} '
            'a second')


def _check_one_document_per_client(clients: Sequence[dict[str, Any]],
                                   lines: Sequence[str]) -> None:
    """Check that each client of one run has exactly one document."""
    first = clients[0]
    total = first['share'][1]
    number = len(lines)
    for key in COMMON:
        for client in clients[1:]:
            if client[key] != first[key]:
                raise ParseError(
                    number, '', f'{client["name"]} and {first["name"]} '
                    f'differ in {key}: {_describe_difference(client[key], first[key])}'
                )
    for what, values in (
            ('named', [c['name'] for c in clients]),
            ('the share', ['/'.join(map(str, c['share'])) for c in clients])):
        for value, times in Counter(values).items():
            if times > 1:
                raise ParseError(number, '', f'{times} clients are {what} '
                                 f'{value}; the same document occurs twice')
    if len(clients) != total or {c['share'][1] for c in clients} != {total}:
        raise ParseError(number, '', f'{len(clients)} documents of {total} '
                         f'clients: {", ".join(c["name"] for c in clients)}')


def _describe_difference(one: Any, other: Any) -> str:
    """The difference of two values; only the differing keys of mappings."""
    if isinstance(one, dict) and isinstance(other, dict):
        return ', '.join(f'{key} {one.get(key)!r} and {other.get(key)!r}'
                         for key in sorted({*one, *other})
                         if one.get(key) != other.get(key))
    return f'{one!r} and {other!r}'


def _records_of_values(values: Iterator[tuple[str, float, str]], first: dict[str, Any],
                       size: str) -> tuple[Record, ...]:
    point = int(size) if size.isdigit() else None
    return tuple(Record('plumbload', first['version'], point, metric, value,
                        unit, 1) for metric, value, unit in values)


def _request_records(clients: Sequence[dict[str, Any]], first: dict[str, Any],
                     size: str) -> tuple[Record, ...]:
    """Rates and latencies of all requests over all clients."""
    histogram: Counter[int] = Counter()
    rate = value_rate = total = top = 0.0
    gets = misses = 0
    for client in clients:
        for name, kind in client['kinds'].items():
            for lower, count in kind['histogram']:
                histogram[lower] += count
            rate += kind['count'] / client['measured_s']
            value_rate += kind['bytes'] / client['measured_s']
            total += kind['sum_ns']
            top = max(top, kind['max_ns'])
            if name == 'get':
                gets += kind['count']
                misses += kind['misses']

    def metric_values() -> Iterator[tuple[str, float, str]]:
        operation = first['parameters']['operation']
        connect = operation == 'connect'
        yield ('connection_rate' if connect else 'operations'), rate, '1/s'
        yield 'latency', total / sum(histogram.values()) / 1e3, 'us'
        for metric, share in PERCENTILES.items():
            yield metric, min(histogram_percentile(histogram, share), top) / 1e3, 'us'
        yield 'latency_max', top / 1e3, 'us'
        if not connect:
            yield 'bandwidth', value_rate / 1e6, 'MB/s'
        if gets:
            yield 'hit_ratio', 1 - misses / gets, '1'

    return _records_of_values(metric_values(), first, size)


def _client_records(clients: Sequence[dict[str, Any]], first: dict[str, Any],
                    size: str) -> tuple[Record, ...]:
    """Metrics of the clients themselves."""
    cpu = sum(c['cpu_user_s'] + c['cpu_system_s'] for c in clients)
    count = sum(k['count'] for c in clients for k in c['kinds'].values())
    share = max(t['cpu_share'] for c in clients for t in c['threads'])
    limited = any(c['limited'] == 'client' for c in clients)
    return _records_of_values(iter([('client_cpu', cpu / count * 1e6, 'us'),
                                    ('client_cpu_share', share, '1'),
                                    ('client_limited', float(limited), '1')]),
                              first, size)
