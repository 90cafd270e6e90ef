"""The table of gradients as text, for a terminal with rich, and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from retrotape.grads._table import HEADER, Row, Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GAP = "  "


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
        shown.add_column(title, justify="right" if title in ("norm", "share") else "left")
    for row in table.rows:
        # A reason goes into a column of its own, which rich adds: it would widen the column of norms.
        numbers = (row.norm, row.share) if row.share else ("", "", row.norm)
        shown.add_row(*map(Text, (row.name, row.shape, *numbers)))
    return shown


# No colour of its own: lines and bars use the text's colour with opacity, which works on light and dark pages.
_LEFT = "text-align:left;padding:2px 12px 2px 0;border:0"
_RIGHT = "text-align:right;padding:2px 12px 2px 0;border:0;white-space:nowrap"
_ROW = "background:transparent;color:inherit"
_BAR = "display:inline-block;height:0.7em;background:currentColor;opacity:0.4"


def as_html(table: Table) -> str:
    """Return the table for a notebook: one element, without scripts, style sheets or anything from elsewhere."""
    head = "".join(f'<th style="{_RIGHT if title in ("norm", "share") else _LEFT}">{title}</th>' for title in HEADER)
    body = "".join(f'<tr style="{_ROW}">{_cells(row)}</tr>' for row in table.rows)
    if table.rest:
        body += f'<tr style="{_ROW}"><td colspan="4" style="{_LEFT};opacity:0.7">{escape(table.rest)}</td></tr>'
    return (
        '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;background:transparent">'
        f'<thead><tr style="border-bottom:1px solid currentColor">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _cells(row: Row) -> str:
    named = "".join(f'<td style="{_LEFT}">{escape(text)}</td>' for text in (row.name, row.shape))
    if not row.share:
        return f'{named}<td colspan="2" style="{_LEFT};opacity:0.7">{escape(row.norm)}</td>'
    bar = f'<span style="{_BAR};width:{60 * row.part:.0f}px"></span>'
    share = f"{bar} {escape(row.share)}" if row.part else escape(row.share)
    return f'{named}<td style="{_RIGHT}">{escape(row.norm)}</td><td style="{_RIGHT}">{share}</td>'
