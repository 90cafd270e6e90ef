"""Text for terminals and pipes. Text from a file is untrusted, so its control characters are never printed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from retrotape import errors

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

LONGEST = 200
_PIPED = 2000  # columns: output to a pipe is not wrapped


def printable(text: str, longest: int = LONGEST) -> str:
    """Return untrusted text as one line without control characters, truncated if very long."""
    return errors.printable(text, longest)


def sanitize(value: Any) -> Any:
    """Return a JSON value with every string in it made printable."""
    if isinstance(value, dict):
        return {key: sanitize(item) for key, item in value.items()}
    if isinstance(value, list):
        return [sanitize(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def one_line(text: str) -> str:
    """Return a message as one line."""
    return printable(" ".join(text.split()), 1000)


def size(nbytes: int) -> str:
    """Return a number of bytes in readable form.

    >>> size(999), size(20_480), size(3_000_000_000)
    ('999 B', '20.5 kB', '3.0 GB')
    """
    if nbytes < 1000:
        return f"{nbytes} B"
    power = min(int(math.log10(nbytes) / 3 + 1e-9), 5)
    return f"{nbytes / 1000**power:.1f} {' kMGTP'[power]}B"


def count(number: int, what: str) -> str:
    """Return a count with its noun, in the plural if needed.

    >>> count(1, "equation"), count(2000, "equation")
    ('1 equation', '2,000 equations')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def number(value: float | None) -> float | str | None:
    """Return a number for JSON, which has neither NaN nor infinities: these become strings."""
    return value if value is None or math.isfinite(value) else str(value)


def print_json(value: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe, nothing is truncated or wrapped."""
    from rich.console import Console  # takes a tenth of a second, which --help can do without

    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPED)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> Table:
    """Return a table in which names may wrap and numbers may not.

    Args:
      columns: The titles.
      rows: Text for each column; it is not interpreted as markup.
      numbers: Titles of the numeric columns.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in columns:
        is_number = title in numbers
        whole = is_number or title == "type"  # a shape must not wrap either
        shown.add_column(title, justify="right" if is_number else "left", no_wrap=whole, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    return shown


def show_lines(*lines: RenderableType) -> None:
    """Print text verbatim, and tables."""
    from rich.text import Text

    out = console()
    for line in lines:
        out.print(Text(line) if isinstance(line, str) else line, soft_wrap=isinstance(line, str))
