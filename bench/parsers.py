#!/usr/bin/env python3
"""Measures the parsers of saved output: speed, and linearity.

    bench/parsers.py [--size MB] [--least MB/s]

Each parser reads a text of its kind of --size MB (default 2) and one of twice
that, made from the outputs under tests/*/golden; all rows differ. csv.reader
reads the same text in the same run, so that a slow machine is not taken for a
slow parser. Times are CPU time, the best of three. Goal: at least --least MB/s
(default 5), and at most 2.6 times as long for twice the text.
"""
from __future__ import annotations

import argparse
import csv
import gc
import json
import re
import sys
import time
from collections.abc import Callable, Iterator

from common import EXIT_CODES, ROOT, exit_with, head, row

sys.path.insert(0, str(ROOT))

from checks.keyvalue import parser as keyvalue
from checks.osu import parser as osu
from checks.taobench import parser as tao

TESTS = ROOT / 'tests'
#: Largest ratio of the times for a text of twice the length; linear is 2.
MAX_RATIO = 2.6
csv.field_size_limit(1 << 30)


def golden(name: str) -> str:
    folder, _, file = name.partition('/')
    return (TESTS / folder / 'golden' / file).read_bytes().decode()


def enough(parts: Iterator[str], size: int) -> str:
    """Parts until they are as long as `size`."""
    found, length = [], 0
    while length < size:
        found.append(next(parts))
        length += len(found[-1])
    return ''.join(found)


def numbered(make: Callable[[int], str]) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield make(number)


def tao_log(size: int) -> str:
    lines = golden('taobench/server_v1.log').splitlines(True)[140:190]
    return enough(numbered(lambda n: re.sub(
        'nanosleeps_per_sec = .*', f'nanosleeps_per_sec = {n}.00',
        lines[n % 50])), size)


def tao_servers(size: int) -> str:
    """Logs of many servers after one another, and items without room."""
    lines = golden('taobench/server_v1.log').splitlines(True)[1::9]
    return enough(numbered(lambda n: 'Initialized item generators.\n'
                           + ''.join(lines).replace('= 2100', f'= {n}')
                           + 'OUT OF MEMORY when ...\n'), size)


def resp_csv(size: int) -> str:
    head, row, *_ = golden('keyvalue/redis-benchmark-7.0.15.csv').split('\n')
    _, _, figures = row.partition('","')
    return head + '\n' + enough(numbered(
        lambda n: f'"test {n}","{figures}\n'), size)


def resp_quiet(size: int) -> str:
    line = golden('keyvalue/redis-benchmark-7.0.15.quiet.txt').split('\n')[0]
    return enough(numbered(
        lambda n: line.replace('SET', f'test {n}') + '\n'), size)


def resp_text(size: int) -> str:
    text = golden('keyvalue/redis-benchmark-7.0.15.precision.txt')
    title = re.search('====== (.+) ======', text)
    assert title
    return enough(numbered(
        lambda n: text.replace(title[1], f'test {n}')), size)


def memtier_text(size: int) -> str:
    return enough(numbered(
        lambda n: golden('keyvalue/memtier-2.3.0.get.txt')), size)


def memtier_json(size: int) -> str:
    found = json.loads(golden('keyvalue/memtier-2.3.0.runs.json'))
    block = found['RUN #1 RESULTS']
    one = len(json.dumps(block, indent=1))
    return json.dumps({
        'configuration': found['configuration'],
        **{f'RUN #{n} RESULTS': block
           for n in range(1, size // one + 2)}}, indent=1)


def plumbload(size: int) -> str:
    line = golden('load/mixed-two-clients.json').split('\n')[0]
    count = size // len(line) + 1
    client = json.loads(line)

    def one(number: int) -> str:
        return json.dumps({**client, 'name': f'client {number}',
                           'share': [number, count]}) + '\n'
    return ''.join(one(number) for number in range(count))


def osu_tables(size: int) -> str:
    """-T all with more data types than MPI has, and sizes up to 32 MiB."""
    blank, title, mark, head, *_ = golden(
        'osu/7.2/osu_allreduce.Tall.txt').splitlines(True)
    rows = ''.join(f'{4 << n:<10}{18.77:>18.2f}\n' for n in range(24))
    return title + enough(numbered(lambda n: mark.replace(
        'CHAR', f'TYPE{n}') + head + rows), size)


TEXTS: dict[str, tuple[Callable[[str], object], Callable[[int], str]]] = {
    'tao': (tao.parse, tao_log),
    'tao, many servers': (tao.parse, tao_servers),
    'redis-benchmark --csv': (keyvalue.parse, resp_csv),
    'redis-benchmark -q': (keyvalue.parse, resp_quiet),
    'redis-benchmark, text': (keyvalue.parse, resp_text),
    'memtier, text': (keyvalue.parse, memtier_text),
    'memtier, JSON': (keyvalue.parse, memtier_json),
    'plumbload': (keyvalue.parse, plumbload),
    'osu': (osu.parse, osu_tables),
}


def seconds(parse: Callable[[str], object], text: str) -> float:
    best = float('inf')
    gc.collect()
    gc.disable()
    for _ in range(3):
        start = time.process_time()
        parse(text)
        best = min(best, time.process_time() - start)
    gc.enable()
    return best


def yardstick(text: str) -> None:
    for _ in csv.reader(text.splitlines()):
        pass


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', type=float, default=2, metavar='MB')
    parser.add_argument('--least', type=float, default=5, metavar='MB/s')
    args = parser.parse_args()
    head('parser', 'MB/s', "time / csv.reader's", 'twice the text', 'result')
    good = True
    for name, (parse, make) in TEXTS.items():
        text = make(int(args.size * 1e6))
        took = seconds(parse, text)
        rate = len(text) / took / 1e6
        more = make(int(args.size * 2e6))
        twice = seconds(parse, more) / took * 2 * len(text) / len(more)
        met = rate >= args.least and twice <= MAX_RATIO
        good &= met
        row(name, f'{rate:.1f}', f'{took / seconds(yardstick, text):.1f}',
            f'{twice:.2f}', 'pass' if met else 'too slow')
    return good


if __name__ == '__main__':
    exit_with(main)
