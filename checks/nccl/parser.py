"""Output of nccl-tests 2.0 to 2.19 and of rccl-tests: their text (table.py), their
JSON (-J, json_file.py), and the files of rccl-tests (-x, rccl.py)."""
from __future__ import annotations

import argparse
import re

from ..core.parsers import Output as SavedOutput
from ..core.parsers import ParseError, Record, Remark
from . import json_file, rccl, table
from .output import Output, Row


def read_output(text: str) -> Output:
    """The ranks, sizes, types and rows of a run.

    :raises ParseError: a part of the text cannot be trusted.
    """
    text = text.removeprefix('\ufeff')
    if rccl.is_rccl_output(text):
        return rccl.read_output(text)
    if text.lstrip().startswith('{'):
        return json_file.read_output(text)
    return table.read_output(text)


def _split_into_runs(text: str) -> list[str]:
    """The text of each run, behind as many empty lines as precede it."""
    lines = text.split('\n')
    starts, ended = [0], False
    for number, line in enumerate(lines):
        if table.AVERAGE.search(line):
            ended = True
        elif ended and table.BEGINS.search(line):
            starts.append(number)
            ended = False
    return ['\n' * first + '\n'.join([*lines[first:end], ''][
        :None if end < len(lines) else -1])
        for first, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def parse_log(text: str, options: argparse.Namespace | None = None
              ) -> list[SavedOutput]:
    """The runs in a saved log, in order, with ranks, nodes and what distinguishes
    their test cases.

    :raises ParseError: a part of the text cannot be trusted.
    """
    outputs, tags = [], ['']
    for run in _runs(text):
        out = read_output(run)
        if (rank := _rank_of_tag(out.rank_tag)) and _rank_of_tag(tags[-1]) not in (
                '', rank):
            raise ParseError(
                out.rows[0].line, '', 'the text has tables of more than one rank, one '
                f'after the other ({tags[-1]!r} and {out.rank_tag!r}): was the program '
                'built with MPI?')
        tags += [out.rank_tag] * bool(rank)
        single = {name: {getattr(row, name) for row in out.rows}
                  for name in ('type', 'redop', 'root')}
        about = {name: str(*values) for name, values in single.items()
                 if len(values) == 1 and not values & {None, '', 'none', -1}}
        if out.gpus * out.threads > 1:
            about |= {'gpus_per_process': str(out.gpus * out.threads)}
        outputs.append(SavedOutput(
            records_of_output(out), num_nodes=len(out.hosts) or None,
            num_tasks=out.ranks, params=' '.join(
                f'{name}={value}' for name, value in about.items())))
    return outputs


def _rank_of_tag(tag: str) -> str:
    """The rank in a tag of a launcher; '': it has none."""
    match = re.search(r'(\d+)\D*$', tag)
    return match[1] if match else ''


def _runs(text: str) -> list[str]:
    return ([text] if rccl.is_rccl_output(text) or text.lstrip().startswith('{')
            else _split_into_runs(text))


def records_of_output(out: Output) -> tuple[Record, ...]:
    """The records of a run; see `parse`."""
    results: list[Record] = []
    rows = [row for row in out.rows if row.size]
    varies = {name: len({getattr(row, name) for row in out.rows}) > 1
              for name in ('type', 'redop', 'root')}
    program = out.program or 'nccl-tests'

    def add_record(row: Row, metric: str, value: float, unit: str) -> None:
        results.append(Record(program, out.version, row.size, metric, value,
                              unit, row.line, ' '.join(
                                  f'{name}={getattr(row, name)}'
                                  for name, several in varies.items() if several)))

    for row in rows:
        for suffix, half in row.halves_with_metric_suffix:
            if not half.checked:
                continue
            if half.time is not None:
                add_record(row, f'time{suffix}', half.time.value, 'us')
            add_record(row, f'algbw{suffix}', half.algbw.value, 'GB/s')
            if out.ranks > 1:
                add_record(row, f'busbw{suffix}', half.busbw.value, 'GB/s')
            statistics = row.iterations.get(suffix[1:] or 'out_of_place', {})
            for name, value in statistics.items():
                add_record(row, f'time_{name}{suffix}', value, 'us')
    if out.ranks > 1 and out.average:
        results.append(Record(program, out.version, None, 'busbw_average',
                              out.average.value, 'GB/s', out.end))
    results.append(Record(program, out.version, None, 'wrong', 0.0, '1',
                          out.end))
    return tuple(results)


def parse(text: str) -> tuple[Record, ...]:
    """The records of one run of one program.

    `time` (us), `algbw` and `busbw` (GB/s) are out of place. Metrics with
    `_in_place` are in place; a program that cannot check data in place
    (alltoall, sendrecv) has none of these. If a run has several types,
    reductions or roots, they are parameters, `type=half`. Each repetition of the table
    (-N) has its own records. Left out are sizes that
    were rounded to 0 B, busbw of one rank (which is 0), and values that no
    other number of the text confirms: the CPU's time of -C and, except in
    JSON, the columns of -I.

    :raises ParseError: a part of the text cannot be trusted.
    """
    return records_of_output(read_output(text))


def remarks(text: str) -> list[Remark]:
    """Values that were left out of the records, and warnings of NCCL."""
    return [remark for run in _runs(text) for remark in _remarks_on_run(run)]


def _remarks_on_run(text: str) -> list[Remark]:
    out = read_output(text)
    messages = [Remark(number, number, words[:200])
                for number, words in out.warnings]
    zero = [row.line for row in out.rows if not row.size]
    if zero:
        messages.append(
            Remark(
                zero[0],
                zero[-1],
                'left out: sizes that are rounded to 0 B for so many ranks',
            )
        )
    unchecked = [row.line for row in out.rows
                 for _, half in row.halves_with_metric_suffix if not half.checked]
    if unchecked:
        messages.append(
            Remark(
                unchecked[0],
                unchecked[-1],
                'left out: values in place, where the program checks no data',
            )
        )
    if out.ranks == 1:
        messages.append(Remark(out.rows[0].line, out.rows[-1].line,
                               'left out: busbw, because one rank sends '
                               'nothing over a link'))
    if 'cputime' in out.columns:
        messages.append(Remark(out.rows[0].line, out.rows[-1].line,
                               'left out: cputime (-C), because no other '
                               'number confirms it'))
    if 'i_min' in out.columns:
        messages.append(Remark(out.rows[0].line, out.rows[-1].line,
                               'left out: times of single iterations (-I), '
                               'which only the JSON of -J confirms'))
    return messages
