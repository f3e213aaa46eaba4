"""Options that the commands on records share, and output to a file or -."""
from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import places
from config.records.tables import cell_text
from config.records.tables import write_csv as write_csv_rows
from config.regular import draft_of_file
from config.schema import suggest_name

if TYPE_CHECKING:
    # It takes longer to import than many an answer takes.
    import pandas as pd


def add_record_options(cmd: argparse.ArgumentParser) -> Any:
    """Adds the options that choose the records; returns their group."""
    group = cmd.add_argument_group('which records')
    group.add_argument('--site', metavar='SITE', default='',
                       help='use only the records of this site (default: all '
                            'sites of the perflogs)')
    add_perflogs_option(group)
    return group


def add_perflogs_option(group: Any) -> None:
    """Adds --perflogs; the default is read when the parser is made."""
    group.add_argument('--perflogs', default=str(places.perflog_folder()),
                       metavar='DIR', help='read the perflogs in this folder (default: '
                            'PLUMBLINE_PERFLOGS, or perflogs)')


def add_saved_results_option(group: Any) -> None:
    """Adds the option that reads saved results, too."""
    group.add_argument('--from', dest='saved', nargs='+', metavar='FILE', default=[],
                       help='read saved results, too: CSV of `plumb parse`, one system '
                            'per file, or Parquet of `plumb export`; - reads CSV from '
                            'standard input')


@contextlib.contextmanager
def folders_of_records(args: argparse.Namespace, command: str) -> Iterator[list[Path]]:
    """The folder of the perflogs, and that of the files of --from.

    With --from the perflogs may be absent.

    :param command: reports what is left out, as `plumb COMMAND`
    :raises ValueError: a file of --from is not what `plumb parse` or `plumb export`
        writes
    :raises OSError: a file of --from cannot be read
    """
    perflogs = Path(args.perflogs)
    if not args.saved:
        yield [perflogs]
        return
    from .records.parsed import perflogs_of_saved_results
    with perflogs_of_saved_results(args.saved, lambda text: print(
            f'plumb {command}: {text}', file=sys.stderr)) as folder:
        yield [folder, *([perflogs] if perflogs.exists() else [])]


def print_faults(command: str, faults: Iterable[object]) -> None:
    """Print the faults of perflogs, as `plumb COMMAND`."""
    for fault in faults:
        print(f'plumb {command}: {fault}', file=sys.stderr)


def system_name(site: str) -> str:
    """The name that a site has in the records, from its name or folder."""
    if site and Path(site, places.SYSTEM).is_file():
        return Path(site).resolve().name
    return Path(site).name


def parse_positive_number(text: str) -> int:
    """The number of --last: 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0')
    return int(text)


def records_of_site(frame: pd.DataFrame, site: str) -> pd.DataFrame:
    """The records of a site, given by name or path; '': of all.

    :raises ValueError: it has none
    """
    site = system_name(site)
    if not site or frame.empty:
        return frame
    refuse_unknown_site(site, frame['system'].unique())
    return frame[frame['system'] == site]


def refuse_unknown_site(site: str, sites: Iterable[str]) -> None:
    """Refuses a site that has no records.

    :raises ValueError: names the sites that have some
    """
    names = sorted(map(str, sites))
    if site not in names:
        raise ValueError(f'no records of site {site!r}; {suggest_name(site, names)}')


def add_answer_options(group: Any) -> None:
    """Adds the options of :func:`write_rows`."""
    for name in ('CSV', 'JSON'):
        group.add_argument(f'--{name.lower()}', metavar='FILE', help='write all rows '
                           f'as {name} to FILE; - prints them, and nothing else')


def write_rows(args: argparse.Namespace, names: Sequence[str],
               rows: Iterable[Sequence[Any]]) -> bool:
    """Writes rows to the files of --csv and --json; returns whether one is given.

    :param names: of the columns
    :param rows: an iterator if only one of the options can be given
    :raises ValueError: a file cannot be written
    """
    def write_csv(file: Path) -> None:
        with file.open('w', encoding='utf-8', newline='') as out:
            write_csv_rows(out, names, rows)

    def write_json(file: Path) -> None:
        with file.open('w', encoding='utf-8') as out:
            # JSON has no number for infinity.
            json.dump([dict(zip(names, (
                None if isinstance(cell, float) and not math.isfinite(cell) else cell
                for cell in row), strict=True)) for row in rows], out,
                      indent=1, default=cell_text)
            out.write('\n')

    for name, write in ((args.csv, write_csv), (args.json, write_json)):
        if name:
            write_answer(name, write)
    return bool(args.csv or args.json)


def write_text_answer(file: Path | str, text: str) -> None:
    """Writes a text as :func:`write_answer` does."""
    write_answer(file, lambda path: path.write_text(text, 'utf-8'))


def write_answer(file: Path | str, write: Callable[[Path], Any]) -> None:
    """Writes a file completely or not at all.

    :param file: -: the text is printed
    :param write: writes to the path that it receives
    :raises ValueError: it cannot be written; an existing file is unchanged
    """
    try:
        if str(file) == '-':
            _print_file(write)
        else:
            with draft_of_file(Path(file)) as draft:
                write(draft)
    except BrokenPipeError:             # `| head`
        raise
    except OSError as err:
        raise ValueError(
            f'{file}: cannot be written ({err.strerror or err})') from None


def _print_file(write: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory(prefix='plumbline-') as folder:
        path = Path(folder, 'answer')
        write(path)
        sys.stdout.flush()
        with path.open('rb') as answer:
            shutil.copyfileobj(answer, sys.stdout.buffer)
