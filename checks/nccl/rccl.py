"""What rccl-tests write into a file (-x), as JSON or as CSV (-Z).

An entry for each half of a row, without root, count and average, and without
what was asked for (`Reporter` of common.cu and common.cpp since 2024):

    {"numCycle":0, "name":"AllReduce", "nodes":1, "ranks":8, "ranksPerNode":8,
     "gpusPerRank":1, "size":1024, "type":"float", "redop":"sum", "inPlace":0,
     "time":12.345678, "algBw":0.082944, "busBw":0.145152, "wrong":"0"}

JSON is an array of them, at first it was one a line. CSV has names of its
own, and none for `nodes`, whose values are there all the same. Without MPI
`gpus` takes the place of the four numbers. `ranksPerNode` are the processes
of the communicator, on however many nodes, and `ranks` all that were started
(NCCL_TESTS_SPLIT makes several communicators of them).

Each entry must hold together, all entries must be of one run, and sizes must
follow each other as -b, -f and -i make them: lost, doubled and damaged
entries are refused, but for the first or last sizes of a file that has one
half alone (-O), which nothing confirms.
"""
from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ..core.parsers import ParseError
from .output import Half, Judge, Output, Row, exactly
from .programs import PROGRAMS, TYPES

#: Names of the CSV -> those of the JSON.
NAMES = {'numCycle': 'numCycle', 'collective': 'name', 'nodes': 'nodes',
         'ranks': 'ranks', 'rankspernode': 'ranksPerNode',
         'gpusperrank': 'gpusPerRank', 'gpus': 'gpus', 'size': 'size',
         'type': 'type', 'redop': 'redop', 'inplace': 'inPlace',
         'time': 'time', 'algbw': 'algBw', 'busbw': 'busBw',
         '#wrong': 'wrong'}
#: What every entry has.
NEEDED = {'name', 'size', 'type', 'redop', 'inPlace', 'time', 'algBw',
          'busBw', 'wrong'}
#: And with MPI.
PLACES = {'nodes', 'ranks', 'ranksPerNode', 'gpusPerRank'}
_WORDS = {'name', 'type', 'redop', 'wrong'}
_DECIMALS = {'time', 'algBw', 'busBw'}
#: AllReduce -> all_reduce_perf.
_PROGRAMS = {name.removesuffix('_perf').replace('_', ''): name
             for name in PROGRAMS}
_BEGIN = re.compile(r'\s*(?:\[\s*(?:[{\]]|\Z)|\{\s*"(?:numCycle|name)"|'
                    r'(?:numCycle, ?)?collective, ?(?:ranks|gpus)\b)')


def wrote(text: str) -> bool:
    """Whether this is such a file, by its begin."""
    return bool(_BEGIN.match(text))


class _File:
    """One file; what it refuses it refuses with a line."""

    def __init__(self, text: str) -> None:
        self.lines = text.split('\n')

    def refuse(self, reason: str, line: int = 1) -> NoReturn:
        raise ParseError(line, self.lines[line - 1].removesuffix('\r')[:200],
                         reason)

    # Entries: (line, name -> value) --------------------------------------

    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        text = '\n'.join(self.lines)
        if text.lstrip().startswith('['):
            return [(1, entry) for entry in self.loaded(text, 1)]
        if not text.lstrip().startswith('{'):
            return self.of_csv()
        return [(number, self.loaded(line, number))
                for number, line in enumerate(self.lines, 1) if line.strip()]

    def loaded(self, text: str, line: int) -> Any:
        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len({key for key, _ in pairs}) != len(pairs):
                self.refuse('a key twice: damaged', line)
            return dict(pairs)

        try:
            return json.loads(text, object_pairs_hook=once, parse_float=str,
                              parse_constant=lambda word: self.refuse(
                                  f'{word} is no number', line))
        except (ValueError, RecursionError) as error:
            self.refuse('not the whole JSON that rccl-tests write (-x): '
                        f'{str(error)[:80]}', line)

    def of_csv(self) -> list[tuple[int, dict[str, Any]]]:
        try:
            rows = list(enumerate(csv.reader(
                (line.strip() for line in self.lines),
                skipinitialspace=True), 1))
        except csv.Error as error:
            self.refuse(f'no CSV as rccl-tests write it (-x): {error}')
        names = rows[0][1]
        for name in names:
            if name not in NAMES:
                self.refuse(f'unknown column {name!r}')
        if 'nodes' not in names and 'ranks' in names:
            names.insert(names.index('collective') + 1, 'nodes')
        results = []
        for line, values in rows[1:]:
            if not values:
                continue
            if len(values) != len(names):
                self.refuse(f'{len(values)} values for {len(names)} columns: '
                            'lost, or two lines in one', line)
            entry: dict[str, Any] = {}
            for name, value in zip(names, values, strict=True):
                key = NAMES[name]
                if key in _WORDS or key in _DECIMALS:
                    entry[key] = value
                elif re.fullmatch(r'\d{1,18}', value):
                    entry[key] = int(value)
                else:
                    self.refuse(f'{name} is {value!r}', line)
            results.append((line, entry))
        return results

    # Rows ----------------------------------------------------------------

    def read(self) -> Output:
        entries = self.entries()
        if not entries:
            self.refuse('no entry: nothing was measured')
        for line, entry in entries:
            self.of_one_run(entry, entries[0][1], line)
        first = entries[0][1]
        program = _PROGRAMS.get(first['name'].lower())
        if not program:
            self.refuse(f'{first["name"]} is no program of rccl-tests that '
                        'is known', entries[0][0])
        blocks = self.blocks(entries)
        out = Output(program=program, average=None, end=entries[-1][0],
                     ranks=self.ranks(first, entries[0][0]),
                     rows=[row for block in blocks for row in block])
        judge, kind = Judge(out, self.refuse), PROGRAMS[program]
        for row in out.rows:
            if not any(half.checked for _, half in row.halves):
                self.refuse('no data of this row was checked (N/A, -c 0)',
                            row.line)
            for suffix, half in row.halves:
                output = judge.disagrees(kind, row.size, half)
                if output:
                    self.refuse(output + (' (in place)' if suffix else
                                        ' (out of place)'), row.line)
        # Sizes are rounded down to elements, or to parts of 16 B.
        loss = (16 * out.ranks if kind.split else 8) - 1
        self.alike(blocks, loss)
        for block in blocks:
            self.follow(block, loss)
        return out

    def ranks(self, entry: dict[str, Any], line: int) -> int:
        """Ranks of the communicator."""
        if 'gpus' in entry:
            return int(entry['gpus']) or self.refuse('no GPU', line)
        each, processes = entry['gpusPerRank'], entry['ranksPerNode']
        if not each or not processes or (
                entry['nodes'] != entry['ranks'] // processes):
            self.refuse(f'{entry["ranks"]} ranks, {processes} of each of '
                        f'{entry["nodes"]}: damaged', line)
        return int(each * processes)

    def of_one_run(self, entry: Any, first: Any, line: int) -> None:
        """An entry is whole, and of the run of the first one."""
        if not isinstance(entry, dict) or not set(entry) >= NEEDED or (
                set(entry) - set(NAMES.values())) or not (
                'gpus' in entry or set(entry) >= PLACES):
            self.refuse('no entry as rccl-tests write it (-x): a name is '
                        'missing or unknown', line)
        for name, value in entry.items():
            if name in _WORDS | _DECIMALS:
                right = isinstance(value, str)
            else:
                right = type(value) is int and 0 <= value < 1 << 60
            if not right:
                self.refuse(f'{name} is {value!r}', line)
        for name in ('name', 'nodes', 'ranks', 'ranksPerNode',
                     'gpusPerRank', 'gpus'):
            if entry.get(name) != first.get(name):
                self.refuse(f'{name} is {entry.get(name)!r}, and '
                            f'{first.get(name)!r} above: two runs in one '
                            'text, or damaged', line)
        if entry['inPlace'] not in (0, 1) or entry['type'] not in TYPES:
            self.refuse(f'inPlace {entry["inPlace"]}, type '
                        f'{entry["type"]!r}: damaged', line)

    def half(self, entry: dict[str, Any], line: int) -> Half:
        for name in _DECIMALS:
            if not re.fullmatch(r'(?:0|[1-9]\d*)\.\d{6}', entry[name]):
                self.refuse(f'{name} is {entry[name]!r}: no number with six '
                            'decimals', line)
        if entry['wrong'] not in ('0', 'N/A'):
            self.refuse(f'{entry["wrong"]} wrong elements at '
                        f'{entry["size"]} B: data arrived wrong', line)
        time, algbw, busbw = (exactly(float(entry[name])) for name in (
            'time', 'algBw', 'busBw'))
        return Half(time, algbw, busbw, entry['wrong'] == '0')

    def blocks(self, entries: Sequence[tuple[int, dict[str, Any]]]
               ) -> list[list[Row]]:
        """Rows of each sweep over the sizes: cycles, types, reductions and
        roots follow each other."""
        results: list[list[Row]] = []
        key: tuple[Any, ...] = ()
        for line, entry in entries:
            subset = entry.get('numCycle', 0), entry['type'], entry['redop']
            half = self.half(entry, line)
            if entry['inPlace'] and results and subset == key:
                last = results[-1][-1]
                if last.in_place is None and last.size == entry['size']:
                    results[-1][-1] = replace(last, in_place=half)
                    continue
            row = Row(line, entry['size'], entry['size'] // TYPES[
                entry['type']], entry['type'], entry['redop'], None,
                None if entry['inPlace'] else half,
                half if entry['inPlace'] else None)
            if not results or subset != key or row.size < results[-1][-1].size:
                results.append([])
            results[-1].append(row)
            key = subset
        return results

    def follow(self, rows: Sequence[Row], loss: int) -> None:
        """Sizes are each a factor of, or a step from, the one before.

        :param loss: B that a size may have less than was asked for
        """
        steps = list(itertools.pairwise(row.size for row in rows))
        if len(steps) < 2 or rows[0].size == rows[-1].size:
            return
        before, last = steps[-1]
        factor = max(2, round(last / max(1, before)))
        if not (all(-loss <= b - factor * a <= factor * loss
                    for a, b in steps)
                or all(abs(b - a - (last - before)) <= 2 * loss
                       for a, b in steps)):
            self.refuse('sizes do not follow each other by one factor or '
                        'step: entries were lost or damaged', rows[0].line)

    def alike(self, blocks: Sequence[Sequence[Row]], loss: int) -> None:
        """All sweeps have the same sizes and the same halves, and nothing
        stands twice."""
        if len({(row.out_of_place is None, row.in_place is None)
                for block in blocks for row in block}) > 1:
            self.refuse('some sizes lack a half, in place or out of place: '
                        'entries were lost', blocks[0][0].line)
        for block in blocks[1:]:
            if len(block) != len(blocks[0]) or any(
                    abs(row.size - other.size) > loss for row, other
                    in zip(block, blocks[0], strict=True)):
                self.refuse('a sweep has other sizes than the first one: '
                            'entries were lost', block[0].line)
        seen = set()
        for row in itertools.chain(*blocks):
            subset = (row.size, row.type, row.redop, row.out_of_place,
                    row.in_place)
            if subset in seen:
                self.refuse('an entry twice, to the last digit', row.line)
            seen.add(subset)


def read(text: str) -> Output:
    """What such a file says.

    :raises ParseError: where any of it cannot be trusted
    """
    return _File(text).read()
