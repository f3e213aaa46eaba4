"""Reader of the file that rccl-tests write (-x), as JSON or as CSV (-Z).

It has an entry for each half of a row, without root, count and average, and
without the requested sizes (`Reporter` of common.cu and common.cpp since
2024):

    {"numCycle":0, "name":"AllReduce", "nodes":1, "ranks":8, "ranksPerNode":8,
     "gpusPerRank":1, "size":1024, "type":"float", "redop":"sum", "inPlace":0,
     "time":12.345678, "algBw":0.082944, "busBw":0.145152, "wrong":"0"}

JSON is an array of entries; early versions wrote one entry per line. CSV has
names of its own, and has values but no name for `nodes`. Without MPI `gpus`
replaces the four numbers. `ranksPerNode` are the processes of the
communicator, on however many nodes, and `ranks` are all processes
(NCCL_TESTS_SPLIT divides them into several communicators).

Each entry must be consistent, all entries must belong to one run, and sizes
must follow each other as -b, -f and -i make them. Lost, doubled and damaged
entries are refused. An exception are the first or last sizes of a file with
one half alone (-O): nothing confirms these.
"""
from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ..core.parsers import ParseError, parse_json
from .output import Half, Judge, Output, Row, parse_six_decimal_number
from .programs import PROGRAMS, TYPES

#: The file, for messages.
JSON = 'the JSON of rccl-tests (-x)'
#: Names of the CSV -> those of the JSON.
NAMES = {'numCycle': 'numCycle', 'collective': 'name', 'nodes': 'nodes',
         'ranks': 'ranks', 'rankspernode': 'ranksPerNode',
         'gpusperrank': 'gpusPerRank', 'gpus': 'gpus', 'size': 'size',
         'type': 'type', 'redop': 'redop', 'inplace': 'inPlace',
         'time': 'time', 'algbw': 'algBw', 'busbw': 'busBw',
         '#wrong': 'wrong'}
#: Names that every entry has.
NEEDED = {'name', 'size', 'type', 'redop', 'inPlace', 'time', 'algBw',
          'busBw', 'wrong'}
#: Further names with MPI.
PLACES = {'nodes', 'ranks', 'ranksPerNode', 'gpusPerRank'}
_WORDS = {'name', 'type', 'redop', 'wrong'}
_DECIMALS = {'time', 'algBw', 'busBw'}
#: AllReduce -> all_reduce_perf.
_PROGRAMS = {name.removesuffix('_perf').replace('_', ''): name
             for name in PROGRAMS}
_BEGIN = re.compile(r'\s*(?:\[\s*(?:[{\]]|\Z)|\{\s*"(?:numCycle|name)"|'
                    r'(?:numCycle, ?)?collective, ?(?:ranks|gpus)\b)')


def is_rccl_output(text: str) -> bool:
    """Whether rccl-tests wrote this text, by its beginning."""
    return bool(_BEGIN.match(text))


class _File:
    """Reader of one file; each refusal names a line."""

    def __init__(self, text: str) -> None:
        self.lines = text.split('\n')

    def raise_parse_error(self, reason: str, line: int = 1) -> NoReturn:
        raise ParseError(line, self.lines[line - 1].removesuffix('\r')[:200],
                         reason)

    # Entries: (line, name -> value) --------------------------------------

    def read_entries(self) -> list[tuple[int, dict[str, Any]]]:
        text = '\n'.join(self.lines)
        if text.lstrip().startswith('['):
            return [(1, entry) for entry in parse_json(text, JSON, 1, str)]
        if not text.lstrip().startswith('{'):
            return self.read_csv_entries()
        return [(number, parse_json(line, JSON, number, str))
                for number, line in enumerate(self.lines, 1) if line.strip()]

    def read_csv_entries(self) -> list[tuple[int, dict[str, Any]]]:
        try:
            rows = list(enumerate(csv.reader(
                (line.strip() for line in self.lines),
                skipinitialspace=True), 1))
        except csv.Error as error:
            self.raise_parse_error('this is not a CSV file of rccl-tests (-x): '
                                   f'{error}')
        names = rows[0][1]
        for name in names:
            if name not in NAMES:
                self.raise_parse_error(f'the column {name!r} is unknown')
        if 'nodes' not in names and 'ranks' in names:
            names.insert(names.index('collective') + 1, 'nodes')
        results = []
        for line, values in rows[1:]:
            if not values:
                continue
            if len(values) != len(names):
                self.raise_parse_error(
                    f'the row has {len(values)} values for '
                    f'{len(names)} columns: values were lost, or two '
                    'lines joined',
                    line,
                )
            entry: dict[str, Any] = {}
            for name, value in zip(names, values, strict=True):
                key = NAMES[name]
                if key in _WORDS or key in _DECIMALS:
                    entry[key] = value
                elif re.fullmatch(r'\d{1,18}', value):
                    entry[key] = int(value)
                else:
                    self.raise_parse_error(f'{name} is {value!r}: expected a whole '
                                           'number', line)
            results.append((line, entry))
        return results

    # Rows ----------------------------------------------------------------

    def read(self) -> Output:
        entries = self.read_entries()
        if not entries:
            self.raise_parse_error('the file has no entry: nothing was measured')
        for line, entry in entries:
            self.check_entry(entry, entries[0][1], line)
        first = entries[0][1]
        program = _PROGRAMS.get(first['name'].lower())
        if not program:
            self.raise_parse_error(f'{first["name"]} is not a known program of '
                                   'rccl-tests', entries[0][0])
        blocks = self.rows_by_sweep(entries)
        out = Output(program=program, average=None, end=entries[-1][0],
                     ranks=self.rank_count(first, entries[0][0]),
                     rows=[row for block in blocks for row in block])
        judge, kind = Judge(out, self.raise_parse_error), PROGRAMS[program]
        for row in out.rows:
            if not any(half.checked for _, half in row.halves_with_metric_suffix):
                self.raise_parse_error(
                    'the data of this row was not checked (N/A, -c 0)',
                    row.line,
                )
            for suffix, half in row.halves_with_metric_suffix:
                reason = judge.describe_time_bandwidth_mismatch(kind, row.size, half)
                if reason:
                    self.raise_parse_error(reason + (' (in place)' if suffix else
                                                     ' (out of place)'), row.line)
        # Sizes are rounded down to elements, or to parts of 16 B.
        loss = (16 * out.ranks if kind.split else 8) - 1
        self.check_sweeps_have_same_sizes(blocks, loss)
        for block in blocks:
            self.check_size_progression(block, loss)
        return out

    def rank_count(self, entry: dict[str, Any], line: int) -> int:
        """Ranks of the communicator."""
        if 'gpus' in entry:
            return int(entry['gpus']) or self.raise_parse_error(
                'the key gpus is 0; it must be at least 1', line
            )
        each, processes = entry['gpusPerRank'], entry['ranksPerNode']
        if not each or not processes or (
                entry['nodes'] != entry['ranks'] // processes):
            self.raise_parse_error(f'ranks {entry["ranks"]}, ranksPerNode {processes} '
                                   f'and nodes {entry["nodes"]} contradict each other',
                                   line)
        return int(each * processes)

    def check_entry(self, entry: Any, first: Any, line: int) -> None:
        """Refuse an entry that is incomplete or of another run than the
        first entry."""
        if not isinstance(entry, dict) or not set(entry) >= NEEDED or (
                set(entry) - set(NAMES.values())) or not (
                'gpus' in entry or set(entry) >= PLACES):
            self.raise_parse_error('this is not an entry of rccl-tests (-x): a name is '
                                   'missing or unknown', line)
        for name, value in entry.items():
            if name in _WORDS | _DECIMALS:
                valid = isinstance(value, str)
            else:
                valid = type(value) is int and 0 <= value < 1 << 60
            if not valid:
                self.raise_parse_error(f'{name} is {value!r}, which is not a valid '
                                       'value', line)
        for name in ('name', 'nodes', 'ranks', 'ranksPerNode',
                     'gpusPerRank', 'gpus'):
            if entry.get(name) != first.get(name):
                self.raise_parse_error(f'{name} is {entry.get(name)!r} here and '
                                       f'{first.get(name)!r} in the first entry: the '
                                       'file has two runs, or is damaged', line)
        if entry['inPlace'] not in (0, 1) or entry['type'] not in TYPES:
            self.raise_parse_error(f'inPlace {entry["inPlace"]} or type '
                                   f'{entry["type"]!r} is not a valid value', line)

    def parse_row_half(self, entry: dict[str, Any], line: int) -> Half:
        for name in _DECIMALS:
            if not re.fullmatch(r'(?:0|[1-9]\d*)\.\d{6}', entry[name]):
                self.raise_parse_error(f'{name} is {entry[name]!r}: expected a number '
                                       'with six decimals', line)
        if entry['wrong'] not in ('0', 'N/A'):
            self.raise_parse_error('the data arrived wrong at '
                                   f'{entry["size"]} B: {entry["wrong"]} wrong '
                                   'element(s)', line)
        time, algbw, busbw = (parse_six_decimal_number(float(entry[name])) for name in (
            'time', 'algBw', 'busBw'))
        return Half(time, algbw, busbw, entry['wrong'] == '0')

    def rows_by_sweep(self, entries: Sequence[tuple[int, dict[str, Any]]]
               ) -> list[list[Row]]:
        """Rows of each sweep over the sizes; there is a sweep for each cycle,
        type, reduction and root."""
        results: list[list[Row]] = []
        last_key: tuple[Any, ...] = ()
        for line, entry in entries:
            key = entry.get('numCycle', 0), entry['type'], entry['redop']
            half = self.parse_row_half(entry, line)
            if entry['inPlace'] and results and key == last_key:
                last = results[-1][-1]
                if last.in_place is None and last.size == entry['size']:
                    results[-1][-1] = replace(last, in_place=half)
                    continue
            row = Row(line, entry['size'], entry['size'] // TYPES[
                entry['type']], entry['type'], entry['redop'], None,
                None if entry['inPlace'] else half,
                half if entry['inPlace'] else None)
            if (not results or key != last_key
                    or row.size < results[-1][-1].size):
                results.append([])
            results[-1].append(row)
            last_key = key
        return results

    def check_size_progression(self, rows: Sequence[Row], loss: int) -> None:
        """Refuse sizes that do not grow by one factor or one step.

        :param loss: B by which a size may be below the requested one
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
            self.raise_parse_error('the sizes do not grow by one factor or one step: '
                                   'entries were lost or damaged', rows[0].line)

    def check_sweeps_have_same_sizes(
        self, blocks: Sequence[Sequence[Row]], loss: int
    ) -> None:
        """Refuse sweeps with different sizes or halves, and doubled rows."""
        if len({(row.out_of_place is None, row.in_place is None)
                for block in blocks for row in block}) > 1:
            self.raise_parse_error(
                'some sizes lack the entry in place or out of place: '
                'entries were lost',
                blocks[0][0].line,
            )
        for block in blocks[1:]:
            if len(block) != len(blocks[0]) or any(
                    abs(row.size - other.size) > loss for row, other
                    in zip(block, blocks[0], strict=True)):
                self.raise_parse_error('this sweep has other sizes than the first one: '
                                       'entries were lost', block[0].line)
        seen = set()
        for row in itertools.chain(*blocks):
            key = (row.size, row.type, row.redop, row.out_of_place,
                   row.in_place)
            if key in seen:
                self.raise_parse_error('the same entry occurs twice, to the last digit',
                                       row.line)
            seen.add(key)


def read_output(text: str) -> Output:
    """The output in a file of rccl-tests (-x).

    :raises ParseError: a part of the file cannot be trusted
    """
    return _File(text).read()
