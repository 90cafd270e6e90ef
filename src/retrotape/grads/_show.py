"""The table of gradients as text, for a terminal with rich, and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrotape import _html
from retrotape.grads._table import HEADER, Row, Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GAP = "  "
NUMBERS = ("norm", "share")


def as_text(table: Table) -> str:
    """Return the table as lines of text; a reason may run past its column."""
    full = [HEADER, *(row[:4] for row in table.rows if row.share)]
    named = [HEADER, *(row[:4] for row in table.rows)]
    widths = [_width(named, 0), _width(named, 1), _width(full, 2), _width(full, 3)]
    return "\n".join([*(_line(cells, widths) for cells in named), *([table.rest] if table.rest else [])])


def _width(lines: Sequence[tuple[str, ...]], column: int) -> int:
    return max(len(cells[column]) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def as_rich(table: Table) -> RichTable:
    """Return the table for rich; names are `Text` objects, so that brackets in them are not parsed as markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, caption=Text(table.rest) if table.rest else None, caption_justify="left")
    for title in HEADER:
        shown.add_column(title, justify="right" if title in NUMBERS else "left")
    for row in table.rows:
        # A reason goes into a column of its own, which rich adds: it would widen the column of norms.
        numbers = (row.norm, row.share) if row.share else ("", "", row.norm)
        shown.add_row(*map(Text, (row.name, row.shape, *numbers)))
    return shown


def as_html(table: Table) -> str:
    """Return the table for a notebook."""
    return _html.table(HEADER, map(_cells, table.rows), NUMBERS, table.rest)


def _cells(row: Row) -> str:
    named = _html.cell(row.name) + _html.cell(row.shape)
    if not row.share:
        return named + _html.cell(row.norm, span=2, faint=True)
    return named + _html.cell(row.norm, is_number=True) + _html.cell(row.share, is_number=True, part=row.part)
