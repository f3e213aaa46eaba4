"""Output of nccl-tests 2.0 to 2.19 and of rccl-tests: their text (table.py) and their
JSON (-J, json_file.py)."""
from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from ..core import text as saved
from ..core.parsers import Output as SavedOutput
from ..core.parsers import ParseError, Record
from . import json_file, table
from .output import Output

#: Options that an output prints, and that have no effect without side_work.
_OF_SIDE_WORK = ('direction', 'work_sms')
#: A key or column of the JSON and CSV of rccl-tests (-x, -Z).
_FILE_OF_RCCL = re.compile(r'\bbusBw\b')
#: What distinguishes the test cases of a run with several of them.
_VARIED = ('type', 'redop', 'root')
#: Values that need no parameter: the defaults of the programs, and none.
_USUAL = ('float', 'sum', '0', 'None', '', 'none', '-1')
#: What the check's parameter `setting` calls them.
_SETTINGS = {'type': 'datatype', 'redop': 'operation'}


def read_output(text: str) -> Output:
    """The ranks, sizes, types and rows of a run.

    :raises ParseError: a part of the text cannot be trusted.
    """
    file = _FILE_OF_RCCL.search(text)
    if file and not table.BEGINS.search(text):
        raise ParseError(text.count('\n', 0, file.start()) + 1, file[0],
                         'rccl-tests wrote this file (option -x), which lacks the '
                         'sizes that were requested: save the printed output')
    return (json_file if _is_json(text) else table).read_output(text)


def _is_json(text: str) -> bool:
    """Whether a text has JSON of -J, and not a log with other JSON beside it."""
    return not table.BEGINS.search(text) and bool(
        text.lstrip().startswith('{') or json_file.DOCUMENT.search(text))


def _runs(text: str) -> list[str]:
    """The text of each run, behind as many empty lines as precede it."""
    if _is_json(text):
        return ['\n' * (first - 1) + document for first, document in
                saved.split_documents(text, json_file.DOCUMENT)]
    lines = text.split('\n')
    starts, ended = [0], False
    for number, line in enumerate(lines):
        if table.AVERAGE.search(line):
            ended = True
        elif ended and table.BEGINS.search(line):
            starts.append(number)
            ended = False
    return ['\n' * first + '\n'.join(lines[first:end]) + '\n' * (end < len(lines))
            for first, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def parse_log(text: str, options: argparse.Namespace | None = None
              ) -> list[SavedOutput]:
    """The runs in a saved log, in order, with ranks, nodes and what distinguishes
    their test cases.

    :raises ParseError: a part of the text cannot be trusted.
    """
    outputs = []
    for run in _runs(text):
        out = read_output(run)
        nodes = len(out.hosts)
        params = _parameters_of_options({
            name: str(*values) for name in _VARIED
            if len(values := {getattr(row, name) for row in out.rows}) == 1})
        # A rank of nccl-tests is a GPU.
        if nodes and not out.ranks % nodes:
            params = [f'gpus={out.ranks // nodes}', f'nodes={nodes}', *params]
        if out.gpus * out.threads > 1:
            params += [f'gpus_per_process={out.gpus * out.threads}']
        if out.threads > 1:
            params += [f'threads_per_process={out.threads}']
        params += [f'{name}={value}' for name, value in sorted(out.options.items())
                   if value != ('1' if name == 'agg_iters' else '0')
                   and (name not in _OF_SIDE_WORK
                        or out.options.get('side_work') != '0')]
        outputs.append(SavedOutput(
            records_of_output(out), num_nodes=nodes or None, num_tasks=out.ranks,
            params=' '.join(params), time=out.time))
    return outputs


def _parameters_of_options(options: Mapping[str, str]) -> list[str]:
    """The options that are not the defaults, as the check names them: its parameter
    `setting` has one of them."""
    others = {name: text for name, text in options.items() if text not in _USUAL}
    name = next(iter(others), '')
    if len(others) == 1 and name in _SETTINGS:
        return [f'setting={_SETTINGS[name]}={others[name]}']
    return [f'{name}={text}' for name, text in others.items()]


def records_of_output(out: Output) -> tuple[Record, ...]:
    """The records of a run; see `parse`."""
    program = out.program or 'nccl-tests'
    varied = [name for name in _VARIED
              if len({getattr(row, name) for row in out.rows}) > 1]
    results: list[Record] = []
    for row in out.rows:
        params = ' '.join(_parameters_of_options({
            name: str(getattr(row, name)) for name in varied}))
        for suffix, half in row.halves_with_metric_suffix:
            if not half.checked or not row.size:
                continue
            values = {'time': (half.time.value, 'us')} if half.time else {}
            values['algbw'] = half.algbw.value, 'GB/s'
            if out.ranks > 1:
                values['busbw'] = half.busbw.value, 'GB/s'
            values |= {f'time_{name}': (value, 'us')
                       for name, value in half.iterations.items()}
            results += [Record(program, out.version, row.size, name + suffix, value,
                               unit, row.line, params)
                        for name, (value, unit) in values.items()]
    if out.ranks > 1:
        results.append(Record(program, out.version, None, 'busbw_average',
                              out.average.value, 'GB/s', out.end))
    return (*results, Record(program, out.version, None, 'wrong', 0.0, '1', out.end))


def parse(text: str) -> tuple[Record, ...]:
    """The records of one run of one program.

    `time` (us), `algbw` and `busbw` (GB/s) are out of place. Metrics with
    `_in_place` are in place; a program that cannot check data in place
    (alltoall, sendrecv) has none of these. If a run has several types,
    reductions or roots, those that are not the default are parameters,
    `setting=datatype=half`. Each repetition of the table (-N) has its own records. Left
    out are sizes that were rounded to 0 B, busbw of one rank (which is 0), and values
    that no other number of the text confirms: the CPU's time of -C and, except in JSON,
    the columns of -I.

    :raises ParseError: a part of the text cannot be trusted.
    """
    return records_of_output(read_output(text))
