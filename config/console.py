"""Tables, lines and progress for a terminal, 100 columns at most, and for files and
pipes; counts.

On a terminal that is narrower than a text, it wraps under its column. In files and
pipes a row is one line of any width. No name or number is ever cut.
"""
from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table

#: Maximum width of a table on a terminal. Unit: characters.
WIDTH = 100
#: Maximum width of a table in a file or a pipe.
UNLIMITED = 100_000

#: Entries of a long list that are printed; the others are counted.
LISTED = 20

#: The blank between a value and its unit.
UNIT = re.compile(r'(?<=\d) (?=%|(?:µs|[nm]?s|min|h|[KMG]i?B|B|x|[kMG]?/s|[MG]B/s)\b)')

#: Word in the first column -> its style.
STYLES = {'fail': 'bold red', 'not_run': 'bold red', 'flaky': 'bold red',
          'xpass': 'bold red', 'xfail': 'magenta', 'pass': 'green',
          'inconclusive': 'yellow', 'worse': 'bold red', 'better': 'green'}


def count_with_noun(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count_with_noun(1, 'test case'), count_with_noun(0, 'test case')
    ('1 test case', '0 test cases')
    """
    return f'{number} {noun}{"s" * (number != 1)}'


def shortened_list_text(texts: Sequence[str], maximum: int = LISTED) -> str:
    """The first texts, and how many more there are."""
    rest = len(texts) - maximum
    return ', '.join(texts[:maximum]) + f' and {rest} more' * (rest > 0)


def _console() -> Console:
    """The console of stdout with the width of a table."""
    from rich.console import Console
    console = Console(highlight=False)
    console.width = (min(console.width, WIDTH) if console.is_terminal
                     else UNLIMITED)
    return console


def _grid_lines(console: Console, table: Table, indent: int = 0) -> list[str]:
    from rich.padding import Padding
    with console.capture() as text:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    return [line.rstrip() for line in text.get().splitlines()]


def print_table(rows: Iterable[Sequence[object]], head: Sequence[str] = (),
                right: Iterable[int] = (), indent: int = 0, below: bool = False
                ) -> None:
    """Print a table.

    :param head: names of the columns; (): none
    :param right: columns whose cells are right-aligned
    :param indent: blanks before each line
    :param below: print the last column below its row if the terminal is too narrow
        for both
    """
    from rich.table import Table
    from rich.text import Text
    console = _console()
    texts = [list(map(str, row)) for row in rows]
    if not texts:
        return
    widths = [max(len(row[n]) for row in [*texts, list(head)] if n < len(row))
              for n in range(max(map(len, texts)))]
    last = ['' for _ in texts]
    room = console.width - indent - 2 * len(widths)
    if below and sum(widths[:-1]) <= room < sum(widths):
        last = [row.pop() for row in texts]
        head = head[:-1]
    table = Table(box=None, show_header=bool(head), pad_edge=False,
                  padding=(0, 2, 0, 0))
    for number in range(max(map(len, [head, *texts]))):
        table.add_column(
            Text(head[number]) if number < len(head) else '',
            overflow='fold', justify='right' if number in right else 'left')
    for first, *more in texts:
        table.add_row(Text(first, STYLES.get(first.strip(), '')),
                      *map(Text, more))
    lines = _grid_lines(console, table, indent)
    if not any(last):
        print(*lines, sep='\n')
        return
    # Each row is one line, because its long column is below.
    print(*lines[:-len(last)], sep='\n', end='\n' * (len(lines) > len(last)))
    for line, text in zip(lines[-len(last):], last, strict=True):
        print(line)
        print_lines([' ' * (indent + 4) + text])


def print_entries(entries: Iterable[tuple[str, str, Sequence[str]]]) -> None:
    """Print entries of a word, a title and details: on a terminal each detail has a
    line below the title, and in files and pipes an entry is one line.

    :param entries: (word of STYLES or another one, title, details); without a title,
        details of the entry before
    """
    from rich.table import Table
    from rich.text import Text
    console = _console()
    entries = list(entries)
    if not console.is_terminal:
        width = max((len(title) for _, title, _ in entries), default=0)
        print_table([(word, f'{title:{width}}  {"; ".join(details)}'.rstrip())
                     for word, title, details in entries])
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow='fold')
    for word, title, details in entries:
        table.add_row(Text(word, STYLES.get(word, '')), Text('\n').join(
            [*[Text(title, 'bold')] * bool(title), *map(Text, details)]))
    if entries:
        print(*_grid_lines(console, table), sep='\n')


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; on a terminal those that are too long wrap below their own indent
    and two blanks more."""
    console = _console()
    for line in lines:
        if len(line) <= console.width:
            print(line)
            continue
        indent = ' ' * (len(line) - len(line.lstrip()))
        # A value and its unit stay together.
        kept = UNIT.sub('\xa0', line)
        print(*(part.replace('\xa0', ' ') for part in textwrap.wrap(
            kept, console.width, subsequent_indent=indent + '  ',
            break_on_hyphens=False)), sep='\n')


class StatusLine:
    """One line of progress on stderr, if it is a terminal; results go to stdout."""

    def __init__(self) -> None:
        #: Whether stderr is a terminal, which shows the line.
        self.is_live = sys.stderr.isatty()
        self._status: Status | None = None

    def update(self, text: str) -> None:
        """Replace the line; without a terminal nothing is printed."""
        if not self.is_live:
            return
        from rich.console import Console
        from rich.text import Text
        if self._status is None:
            self._status = Console(stderr=True, highlight=False).status('')
            self._status.start()
        self._status.update(Text(text, no_wrap=True, overflow='ellipsis'))

    def close(self) -> None:
        """Remove the line."""
        if self._status is not None:
            self._status.stop()
            self._status = None
