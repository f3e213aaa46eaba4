"""Options that the commands on records share, and output to a file or -."""
from __future__ import annotations

import argparse
import contextlib
import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import places

if TYPE_CHECKING:
    # It takes longer to import than many an answer takes.
    import pandas as pd


def add_record_options(cmd: argparse.ArgumentParser) -> Any:
    """Adds the options that choose the records; returns their group."""
    group = cmd.add_argument_group('which records')
    group.add_argument('--site', metavar='SITE', type=system_name, default='',
                       help='use only the records of this site (default: all '
                            'sites of the perflogs)')
    group.add_argument('--perflogs', default=str(places.perflog_folder()),
                       metavar='DIR', help='read the perflogs in this folder (default: '
                            'PLUMBLINE_PERFLOGS, or perflogs)')
    return group


def add_parsed_csv_option(group: Any) -> None:
    """Adds the option that reads saved results instead of perflogs."""
    group.add_argument('--from', dest='parsed', nargs='+', metavar='FILE', default=[],
                       help='read saved results instead of perflogs: CSV of `plumb '
                            'parse`, a system per file; - reads standard input')


@contextlib.contextmanager
def folder_of_records(args: argparse.Namespace, command: str) -> Iterator[Path]:
    """The folder of the perflogs, or of those made from the files of --from.

    :param command: reports what is left out, as `plumb COMMAND`
    :raises ValueError: a file of --from is not CSV of `plumb parse`
    :raises OSError: a file of --from cannot be read
    """
    if not args.parsed:
        yield Path(args.perflogs)
        return
    from .perflogs.parsed import perflogs_of_parsed_csv
    with perflogs_of_parsed_csv(args.parsed, lambda text: print(
            f'plumb {command}: {text}', file=sys.stderr)) as folder:
        yield folder


def system_name(site: str) -> str:
    """The name that a site has in the records, from its name or folder."""
    return Path(site).name


def parse_positive_number(text: str) -> int:
    """The number of --last: 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0')
    return int(text)


def records_of_site(frame: pd.DataFrame, site: str) -> pd.DataFrame:
    """The records of a site; '': of all.

    :raises ValueError: it has none
    """
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
        near = difflib.get_close_matches(site, names, 1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise ValueError(f'no records of site {site!r} (the perflogs have '
                         f'{", ".join(names)}){hint}')


def write_or_print_answer(file: str | None, text: str) -> None:
    """Writes an answer to a file, or prints it if the file is -.

    :raises OSError: it cannot be written
    """
    if file == '-':
        sys.stdout.write(text)
    elif file:
        Path(file).write_text(text, 'utf-8')
