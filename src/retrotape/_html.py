"""HTML for notebooks: no scripts, no style sheets, nothing from elsewhere, and every text escaped.

No colour of its own: lines and bars use the text's colour with opacity, which works on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

from retrotape.errors import printable

_LEFT = "text-align:left;padding:2px 12px 2px 0;border:0"
_RIGHT = "text-align:right;padding:2px 12px 2px 0;border:0;white-space:nowrap"
_ROW = "background:transparent;color:inherit"
_BAR = "display:inline-block;height:0.7em;background:currentColor;opacity:0.4"
_PRE = "background:transparent;color:inherit;margin:0;padding:2px 0;white-space:pre;overflow-x:auto"


def text(value: str) -> str:
    """Return text as it is, line by line.

    >>> "<b>" in text("<b>")
    False
    """
    return f'<pre style="{_PRE}">{_escaped(value)}</pre>'


def folded(title: str, body: str) -> str:
    """Return HTML that is shown when its title is clicked."""
    return f'<details><summary style="cursor:pointer">{_escaped(title)}</summary>{body}</details>'


def cell(content: str, *, is_number: bool = False, span: int = 1, faint: bool = False, part: float = 0.0) -> str:
    """Return one cell of a table.

    Args:
      content: Its text.
      is_number: Whether it is aligned to the right.
      span: How many columns it takes.
      faint: Whether it is less important.
      part: The length of a bar before the text, from 0 to 1.
    """
    style = (_RIGHT if is_number else _LEFT) + (";opacity:0.7" if faint else "")
    wide = f' colspan="{span}"' if span > 1 else ""
    bar = f'<span style="{_BAR};width:{60 * part:.0f}px"></span> ' if part else ""
    return f'<td{wide} style="{style}">{bar}{_escaped(content)}</td>'


def table(titles: Sequence[str], rows: Iterable[str], numbers: Collection[str] = (), rest: str = "") -> str:
    """Return a table.

    Args:
      titles: Of the columns.
      rows: The cells of each row, as `cell` makes them.
      numbers: The titles that stand over numbers.
      rest: A line below the rows; a line each, if it has several.
    """
    head = "".join(f'<th style="{_RIGHT if title in numbers else _LEFT}">{_escaped(title)}</th>' for title in titles)
    below = (cell(line, span=len(titles), faint=True) for line in rest.splitlines())
    body = "".join(f'<tr style="{_ROW}">{row}</tr>' for row in (*rows, *below))
    return (
        '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;background:transparent">'
        f'<thead><tr style="border-bottom:1px solid currentColor">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def plain_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = (), rest: str = ""
) -> str:
    """Return a table of texts."""
    made = (
        "".join(cell(part, is_number=title in numbers) for title, part in zip(titles, row, strict=True)) for row in rows
    )
    return table(titles, made, numbers, rest)


def _escaped(value: str) -> str:
    """Return text that is neither markup nor changes the direction or the encoding of what is around it."""
    return escape("\n".join(map(printable, value.split("\n"))))
