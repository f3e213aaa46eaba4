#!/usr/bin/env python3
"""The consumer of an aggregation, in Python: what does the language cost?

    consumer.py consumer --service FILE --bytes 65536 --producers 4
    consumer.py consumer --files DIR --bytes 65536 --producers 4

Reads the datasets that the ranks of `tensorload producer` append to lists, in
a loop, and prints what `tensorload consumer` prints. Python's standard
library alone: no NumPy, and not SmartRedis' own client. The commands are those
of the consumer in C (resp.c), and the files those of files.c. It polls each
50 ms, as the original does in Python.
"""
from __future__ import annotations

import argparse
import binascii
import math
import os
import re
import shutil
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

BEGIN = time.monotonic()

#: The stamps among the values of a dataset, see fill() in main.c.
STRIDE = 1024


class Fault(Exception):
    """Why it ends, in one line."""


# Values --------------------------------------------------------------------

class Values:
    """What the producers write: floats that count up, with stamps.

    :arg size: elements of a dataset.
    """

    def __init__(self, size: int) -> None:
        self.due = array('f', (float(i & 0xffffff) for i in range(size)))

    def check(self, dataset: memoryview, who: int, where: str) -> None:
        """:raises Fault: the dataset is not what rank `who` writes."""
        stamp = float(who + 1)
        self.due[::STRIDE] = array('f', [stamp]) * len(self.due[::STRIDE])
        # As the ranks do it: the last one keeps no other value.
        last, self.due[-1] = self.due[-1], stamp
        # Of two memoryviews each byte would be compared by itself.
        if bytes(dataset) != self.due.tobytes():
            found = dataset.cast('f')
            at = next(i for i, value in enumerate(found)
                      if value != self.due[i])
            raise Fault(f'{where}: element {at} of {len(found)} of rank '
                        f'{who} is {found[at]:g}, written was '
                        f'{self.due[at]:g}')
        self.due[-1] = last


def producer_of(dataset: str, producers: int) -> int:
    """The rank in {aggregation_rank_R} or aggregation_rank_R.dat."""
    match = re.search(r'_rank_(\d+)', dataset)
    if not match or int(match[1]) >= producers:
        raise Fault(f"a dataset of the list is called '{dataset[:60]}'")
    return int(match[1])


# Where lists are -----------------------------------------------------------

class Lists(Protocol):
    """Lists of datasets: in a database, or in a folder."""

    #: Names of this client and of its commands.
    client: str
    commands: str

    def length(self, name: str) -> int:
        """How many datasets a list has; 0: there is none."""

    def datasets(self, name: str) -> list[str]:
        """Names of the datasets of a list."""

    def read(self, name: str, dataset: str, views: list[memoryview],
             thread: int) -> None:
        """Reads a dataset's tensors."""

    def delete(self, name: str) -> None:
        """Removes the list."""


class Wire:
    """A connection to a server that speaks RESP."""

    def __init__(self, where: str, password: str, limit: float) -> None:
        self.where = where
        try:
            if where.startswith('unix:'):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(limit)
                self.sock.connect(where.removeprefix('unix:'))
            else:
                host, _, port = where.rpartition(':')
                self.sock = socket.create_connection((host, int(port)),
                                                     limit)
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY,
                                     1)
        except OSError as err:
            raise Fault(f'{where}: {err.strerror or err}: does the server '
                        'run, and listen there?') from None
        self.stream = self.sock.makefile('rb')
        if password:
            self.ask('AUTH', password)

    def send(self, *words: str) -> None:
        out = [f'*{len(words)}\r\n']
        out += [f'${len(word.encode())}\r\n{word}\r\n' for word in words]
        try:
            self.sock.sendall(''.join(out).encode())
        except OSError as err:
            raise Fault(f'{self.where}: {err.strerror or err}') from None

    def line(self) -> bytes:
        try:
            line = self.stream.readline()
        except OSError as err:
            raise Fault(f'{self.where}: {err.strerror or err}: does the '
                        'server hang?') from None
        if not line.endswith(b'\r\n'):
            raise Fault(f'{self.where}: the server closed the connection')
        if line.startswith(b'-'):
            said = ascii(line[1:-2].decode(errors='replace'))
            raise Fault(f'{self.where}: {said[1:-1]}')
        return line[:-2]

    def answer(self) -> bytes | int | list | None:
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b'+':
            return rest
        if kind not in (b':', b'$', b'*') or not rest.lstrip(b'-').isdigit():
            raise Fault(f'{self.where}: no RESP: {line[:40]!r}')
        number = int(rest)
        if kind == b':':
            return number
        if number < 0:
            return None
        if kind == b'*':
            return [self.answer() for _ in range(number)]
        found = memoryview(bytearray(number))
        self.fill(found)
        return bytes(found)

    def fill(self, view: memoryview) -> None:
        """The bytes of an answer, and the end of their line."""
        for part in (view, memoryview(bytearray(2))):
            while part:
                try:
                    got = self.stream.readinto(part)
                except OSError as err:
                    raise Fault(f'{self.where}: {err.strerror or err}: does '
                                'the server hang?') from None
                if not got:
                    raise Fault(f'{self.where}: the server closed the '
                                'connection')
                part = part[got:]

    def ask(self, *words: str) -> bytes | int | list | None:
        self.send(*words)
        return self.answer()

    def take_tensor(self, key: str, view: memoryview, plain: bool) -> None:
        """The answer to AI.TENSORGET key META BLOB, or to GET."""
        if not plain:
            head = self.line()
            told = [self.answer() for _ in range(5)] if head == b'*6' else []
            if not told or told[1] != b'FLOAT' or not isinstance(
                    told[3], list) or 4 * math.prod(told[3]) != len(view):
                raise Fault(f'{self.where}: {key}: {len(view) // 4} floats '
                            f'were due, the answer begins {head[:40]!r} '
                            f'{told[1:4]}')
        line = self.line()
        if line != b'$%d' % len(view):
            raise Fault(f'{self.where}: {key}: {len(view)} bytes were due, '
                        f'the answer begins {line[:40]!r}')
        self.fill(view)


class Database:
    """Lists in a store: what resp.c does."""

    client = 'python'

    def __init__(self, service: Path, plain: bool, threads: int,
                 limit: float) -> None:
        self.plain = plain
        self.commands = 'GET' if plain else 'AI.TENSORGET'
        servers, password, cluster = [], '', False
        for line in service.read_text().splitlines():
            word, *rest = line.split()
            if word == 'server':
                servers.append(':'.join(rest))
            elif word == 'password':
                password, = rest
            elif word == 'cluster':
                cluster = True
            else:
                raise Fault(f'{service}: {word}: not known here (TLS: '
                            'tensorload has it)')
        if not servers:
            raise Fault(f'{service}: no server')
        #: Last slot of a range -> index of the server.
        self.slots: list[tuple[int, int]] = []
        if cluster:
            ranges = Wire(servers[0], password, limit).ask('CLUSTER', 'SLOTS')
            assert isinstance(ranges, list)
            servers, seed = [], servers[0].rpartition(':')[0]
            for _, last, (host, port, *_), *_ in sorted(ranges):
                where = f'{(host or b"").decode() or seed}:{port}'
                if where not in servers:
                    servers.append(where)
                self.slots.append((last, servers.index(where)))
        #: Connections of each thread to all servers.
        self.wires = [[Wire(where, password, limit) for where in servers]
                      for _ in range(threads)]

    def owner(self, key: str, thread: int = 0) -> Wire:
        wires = self.wires[thread]
        if not self.slots:
            return wires[0]
        tag = re.search(r'\{(.+?)\}', key)
        slot = binascii.crc_hqx((tag[1] if tag else key).encode(), 0) % 16384
        return wires[next(server for last, server in self.slots
                          if slot <= last)]

    def length(self, name: str) -> int:
        found = self.owner(name).ask('LLEN', name)
        assert isinstance(found, int)
        return found

    def datasets(self, name: str) -> list[str]:
        found = self.owner(name).ask('LRANGE', name, '0', '-1')
        assert isinstance(found, list)
        return [one.decode() for one in found]

    def read(self, name: str, dataset: str, views: list[memoryview],
             thread: int) -> None:
        wire = self.owner(dataset, thread)
        found = wire.ask('HGETALL', f'{dataset}.meta')
        if not isinstance(found, list) or len(found) != 4:
            raise Fault(f'{wire.where}: the dataset {dataset} is not whole')
        keys = [f'{dataset}.tensor_{number}' for number in range(len(views))]
        for key in keys:
            wire.send(*(['GET', key] if self.plain else
                        ['AI.TENSORGET', key, 'META', 'BLOB']))
        for key, view in zip(keys, views, strict=True):
            wire.take_tensor(key, view, self.plain)

    def delete(self, name: str) -> None:
        self.owner(name).ask('DEL', name)


class Files:
    """Lists in a folder: what files.c does."""

    client, commands = 'python', 'readinto'

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def datasets(self, name: str) -> list[str]:
        try:
            return sorted(one for one in os.listdir(self.folder / name)
                          if not one.startswith('.'))
        except FileNotFoundError:
            return []

    def length(self, name: str) -> int:
        return len(self.datasets(name))

    def read(self, name: str, dataset: str, views: list[memoryview],
             thread: int) -> None:
        path = self.folder / name / dataset
        with open(path, 'rb', buffering=0) as file:
            has, due = os.fstat(file.fileno()).st_size, sum(map(len, views))
            if has != due:
                raise Fault(f'{path}: {due} bytes were due, it has {has}')
            for view in views:
                while view:
                    view = view[file.readinto(view):]

    def delete(self, name: str) -> None:
        shutil.rmtree(self.folder / name)


# The loop ------------------------------------------------------------------

def await_list(lists: Lists, name: str, length: int, poll: float,
               limit: float) -> None:
    """Waits until a list has so many datasets."""
    begin = time.monotonic()
    while (has := lists.length(name)) != length:
        if time.monotonic() - begin > limit:
            raise Fault(f'{name} has {has} of {length} datasets after '
                        f'{limit:g} s: is the producer alive?')
        time.sleep(poll)


def consume(lists: Lists, args: argparse.Namespace,
            times: dict[str, list[float]]) -> int:
    """The loop; returns how many datasets were compared."""
    size = args.bytes // 4 * 4
    each = size * args.tensors
    room = memoryview(bytearray(args.producers * each))
    views = [[room[d * each + t * size:d * each + (t + 1) * size]
              for t in range(args.tensors)] for d in range(args.producers)]
    values = Values(each // 4)
    loop, verified = 0.0, 0

    def read_share(thread: int) -> None:
        for number in range(thread, args.producers, args.client_threads):
            lists.read(name, names[number], views[number], thread)

    with ThreadPoolExecutor(args.client_threads) as pool:
        for iteration in range(args.iterations):
            name = f'iteration_{iteration}'
            begin = time.monotonic()
            await_list(lists, name, args.producers, args.poll, args.limit)
            polled = time.monotonic()
            names = lists.datasets(name)
            if len(names) != args.producers:
                raise Fault(f'{name} has {len(names)} datasets, '
                            f'{args.producers} were due')
            list(pool.map(read_share, range(args.client_threads)))
            end = time.monotonic()
            times['poll_list'].append(polled - begin)
            times['get_list'].append(end - polled)
            loop += end - begin
            for number, dataset in enumerate(names):
                values.check(room[number * each:(number + 1) * each],
                             producer_of(dataset, args.producers), name)
                verified += 1
            begin = time.monotonic()
            lists.delete(name)
            loop += time.monotonic() - begin
    times['loop_time'].append(loop)
    return verified


# The report ----------------------------------------------------------------

def quantile(times: list[float], share: float) -> float:
    """Between two times, as main.c does it."""
    at = share * (len(times) - 1)
    low = int(at)
    high = min(low + 1, len(times) - 1)
    return times[low] + (at - low) * (times[high] - times[low])


def report(lists: Lists, args: argparse.Namespace,
           times: dict[str, list[float]], verified: int) -> Iterator[str]:
    """The lines that `tensorload consumer` prints."""
    size = args.bytes // 4 * 4
    heads = ('calls', 'min', 'mean', 'p50', 'p95', 'p99', 'max')
    yield '# tensorload 1.0 consumer'
    yield f'# client {lists.client} commands {lists.commands}'
    yield f'# ranks 1 iterations {args.iterations} bytes {size}'
    yield f'{"# function (s)":16} {heads[0]:>9} ' + ' '.join(
        f'{head:>13}' for head in heads[1:])
    for function, found in times.items():
        mine = sorted(found)
        figures = (mine[0], sum(mine) / len(mine), quantile(mine, 0.5),
                   quantile(mine, 0.95), quantile(mine, 0.99), mine[-1])
        yield f'{function:16} {len(mine):9} ' + ' '.join(
            f'{figure:13.9f}' for figure in figures)
    loop, = times['loop_time']
    moved = verified * size * args.tensors
    yield f'# moved {moved / loop / 1e6:.6f} MB/s'
    yield f'# loops {args.iterations / loop:.6f} 1/s'
    yield f'# verified {verified}'
    yield '# end'


def write_csv(folder: Path, times: dict[str, list[float]]) -> None:
    """rank_0_timing.csv, in the original's form."""
    folder.mkdir(exist_ok=True)
    (folder / 'rank_0_timing.csv').write_text(''.join(
        f'0,{function},{seconds:.9f}\n' for function, found in times.items()
        for seconds in found))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('mode', choices=['consumer'])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument('--service', type=Path, metavar='FILE',
                       help='names servers and password, as of tensorload')
    where.add_argument('--files', type=Path, metavar='DIR',
                       help='datasets are files there')
    parser.add_argument('--plain', action='store_true',
                        help='GET instead of AI.TENSORGET')
    for name, default, what in (
            ('bytes', 1024, 'of a tensor'), ('iterations', 100, ''),
            ('tensors', 4, 'of a dataset'), ('producers', 1, 'their ranks'),
            ('client-threads', 1, '')):
        parser.add_argument(f'--{name}', type=int, default=default,
                            metavar='N', help=f'{what} ({default})')
    parser.add_argument('--poll', type=float, default=0.05, metavar='S',
                        help='between two polls of a list (0.05)')
    parser.add_argument('--limit', type=float, default=60, metavar='S',
                        help='for an answer, and for the producer (60)')
    parser.add_argument('--folder', type=Path, metavar='DIR',
                        help='for rank_0_timing.csv (none)')
    return parser.parse_args()


def main() -> int:
    args = options()
    times: dict[str, list[float]] = {}
    try:
        begin = time.monotonic()
        lists: Lists = (
            Files(args.files) if args.files else
            Database(args.service, args.plain, args.client_threads,
                     args.limit))
        times['client()'] = [time.monotonic() - begin]
        times |= {'poll_list': [], 'get_list': [], 'loop_time': []}
        verified = consume(lists, args, times)
        times['main()'] = [time.monotonic() - BEGIN]
        if args.folder:
            write_csv(args.folder, times)
        print(*report(lists, args, times, verified), sep='\n')
    except (Fault, OSError) as err:
        print(f'consumer.py: {err}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
