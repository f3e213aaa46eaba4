"""`plumb parse`: saved output of a family's programs as tidy CSV."""
from __future__ import annotations

import argparse
import datetime
import difflib
import io
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from checks.core import text as saved
from checks.core.parsers import Output, ParseError, load_parser_module
from config import families
from config.records.columns import PARSED
from config.records.tables import write_csv
from postprocess.options import write_text_answer


def add_family_options(parser: argparse.ArgumentParser, family: str) -> None:
    """Options of a family's own; an unknown family has none."""
    if family in families.parser_modules():
        add = getattr(load_parser_module(family), 'add_options', None)
        if add:
            add(parser)


def write_output_as_csv(args: argparse.Namespace) -> int:
    """Runs `plumb parse`; returns its exit code."""
    out = io.StringIO()
    code = convert_output_to_csv(args.family, args.files, out, sys.stderr, args)
    try:
        write_text_answer(args.csv, out.getvalue())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return code


def convert_output_to_csv(family: str, files: Iterable[str], out: TextIO,
                          err: TextIO, options: argparse.Namespace | None = None
                ) -> int:
    """Files of one family as tidy CSV; `-` is standard input. Where its
    parser reads folders, a file may be one.

    :param options: the family's own (`add_family_options`)
    :returns: 0, or 1 where a file cannot be trusted (it gives no row, or
        says on `err` what is wrong with them), or 2 where one cannot be read
        or the family is unknown.
    """
    known = families.parser_modules()
    if family not in known:
        near = difflib.get_close_matches(family, known, 1)
        hint = f'; did you mean {near[0]}?' if near else ''
        print(f'unknown family {family!r}: there are '
              f'{", ".join(sorted(known))}{hint}', file=err)
        return 2
    parser = load_parser_module(family)
    rows: list[list[object]] = []
    code = 0
    for file in files:
        try:
            outputs, warning = _read_outputs(parser, file, options)
        except ParseError as error:
            # A part of a JSON file is `[2]`, a file of a folder `/name`.
            between = '/' if error.file and not error.file.startswith('[') else ''
            print(f'{file}{between}{error.file}:{error}', file=err)
            code = max(code, 1)
        except (OSError, ValueError) as error:
            print(f'{file}: {getattr(error, "strerror", None) or error}',
                  file=err)
            code = 2
        else:
            counts: Counter[str] = Counter()
            for name, output in outputs:
                counts[name] += 1
                if isinstance(output, ParseError):
                    where = (f'{name}/{output.file}:{output.line}' if output.file
                             else name)
                    print(f'{where}: {output.reason}', file=err)
                    code = max(code, 1)
                else:
                    rows += _csv_rows(name, counts[name], family, output)
            if warning:
                print(warning, file=err)
    write_csv(out, PARSED, rows)
    return code


def _read_outputs(parser: Any, file: str, options: argparse.Namespace | None
                  ) -> tuple[list[tuple[str, Output | ParseError]], str]:
    """The outputs in a file or folder, each with the name of its file, or what is wrong
    with a part of the folder; and a warning."""
    if hasattr(parser, 'parse_folder') and Path(file).is_dir():
        records, warning = parser.parse_folder(Path(file), options)
        return [(str(path), rows if isinstance(rows, ParseError) else _with_time(
                    rows if isinstance(rows, Output) else Output(rows), str(path)))
                for path, rows in records], warning
    text = _read_text(file)
    if hasattr(parser, 'parse_log'):
        outputs = parser.parse_log(text, options)
    else:
        outputs = [Output(parser.parse(text))]
    return [(file + output.log, _with_time(output, file))
            for output in outputs], ''


def _csv_rows(file: str, number: int, family: str, output: Output
              ) -> Iterator[list[object]]:
    """The records of an output as rows of the CSV; None is an empty field."""
    for record in output.records:
        yield [file, number, f'{output.time:%Y-%m-%dT%H:%M:%SZ}', family,
               record.program, record.version, output.num_nodes, output.num_tasks,
               ' '.join(filter(None, (output.params, record.params))), record.size,
               record.metric, repr(record.value).removesuffix('.0'), record.unit]


def _with_time(output: Output, file: str) -> Output:
    """An output with the time of its log, else that at which its file was written;
    standard input is written now."""
    if output.time is not None:
        return output
    seconds = time.time() if file == '-' else Path(file).stat().st_mtime
    return output._replace(time=datetime.datetime.fromtimestamp(
        seconds, datetime.timezone.utc))


def _read_text(file: str) -> str:
    """The text of a file, as the parsers read it."""
    if file == '-':
        return saved.decode(sys.stdin.buffer.read())
    with open(file, 'rb') as stream:
        return saved.decode(stream.read())
