"""Tables for a terminal, 100 columns at most, and for files and pipes; counts.

On a terminal that is narrower than a table, cells wrap under their column. In
files and pipes a row is one line of any width. No name or number is ever cut.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Maximum width of a table on a terminal. Unit: characters.
WIDTH = 100
#: Maximum width of a table in a file or a pipe.
UNLIMITED = 100_000

#: Word in the first column -> its style.
STYLES = {'fail': 'bold red', 'not_run': 'bold red', 'flaky': 'bold red',
          'xpass': 'bold red', 'xfail': 'magenta', 'pass': 'green',
          'inconclusive': 'yellow'}


def count_with_noun(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count_with_noun(1, 'test case'), count_with_noun(0, 'test case')
    ('1 test case', '0 test cases')
    """
    return f'{number} {noun}{"s" * (number != 1)}'


def print_table(rows: Iterable[Sequence[object]], head: Sequence[str] = (),
                right: Iterable[int] = (), indent: int = 0) -> None:
    """Print a table.

    :param head: names of the columns; (): none
    :param right: columns whose cells are right-aligned
    :param indent: blanks before each line
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text
    console = Console(highlight=False)
    console.width = (min(console.width, WIDTH) if console.is_terminal
                     else UNLIMITED)
    texts = [list(map(str, row)) for row in rows]
    table = Table(box=None, show_header=bool(head), pad_edge=False,
                  padding=(0, 2, 0, 0))
    for number in range(max(map(len, [head, *texts]))):
        table.add_column(
            Text(head[number]) if number < len(head) else '',
            overflow='fold', justify='right' if number in right else 'left')
    for first, *more in texts:
        table.add_row(Text(first, STYLES.get(first.strip(), '')),
                      *map(Text, more))
    with console.capture() as text:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    print(*(line.rstrip() for line in text.get().splitlines()), sep='\n')
