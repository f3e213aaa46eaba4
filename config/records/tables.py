"""Tables as CSV, which people open in a spreadsheet."""
from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

#: Texts that a spreadsheet would run as a formula. No number is one, nor is
#: the `-` of a column without a value.
_FORMULA = re.compile(r'[=@\t\r]|[+-].*[^0-9.]', re.DOTALL)


def write_csv(out: TextIO, names: Sequence[str], rows: Iterable[Sequence[Any]]
              ) -> None:
    """Write a table as CSV. A text that a spreadsheet would run as a formula begins
    with an apostrophe.

    :param names: of the columns; names of SQL are free, so that they may be formulas
    """
    writer = csv.writer(out, lineterminator='\n')
    writer.writerow(map(_safe_cell, names))
    writer.writerows(map(_safe_cell, row) for row in rows)


def _safe_cell(cell: Any) -> Any:
    text = cell_text(cell)
    return f"'{text}" if isinstance(text, str) and _FORMULA.match(text) else text


def cell_text(cell: Any) -> Any:
    """The text or number of a cell in a table, CSV and JSON; times are UTC."""
    if cell is None:
        return ''
    return cell.isoformat() + 'Z' if hasattr(cell, 'hour') and hasattr(
        cell, 'year') else str(cell) if not isinstance(
            cell, int | float | str) else cell
