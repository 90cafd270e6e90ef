"""Runs programs and shows their source, with a table of what they printed."""

from __future__ import annotations

import inspect
import os
import re
import textwrap
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

Print: TypeAlias = Callable[[str, Any], None]
Scenario: TypeAlias = Callable[[Print], None]

_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Ran(NamedTuple):
    """What a program printed before it ended or crashed."""

    rows: dict[str, Any]
    crash: Exception | None


def ran(program: Scenario) -> Ran:
    """Run a program.

    >>> ran(lambda print: print("one", 1 / 0))
    Ran(rows={}, crash=ZeroDivisionError('division by zero'))
    """
    rows: dict[str, Any] = {}
    try:
        program(rows.__setitem__)
    except Exception as crash:  # any crash is a result to show
        return Ran(rows, crash)
    return Ran(rows, None)


def lines(program: Scenario) -> str:
    """Return the source lines of a program, as a user would type them."""
    body = textwrap.dedent(inspect.getsource(program)).splitlines()[2:]
    return textwrap.dedent("\n".join(body))


def show(console: Console, program: Scenario, ours: Ran, stock: Ran, true: Mapping[str, str]) -> None:
    """Print the source of a program, a table of the results of both tapes, and the tape's diagnosis."""
    console.print(Syntax(lines(program), "python", theme="ansi_dark", background_color="default"))
    short = {name: value for name, value in ours.rows.items() if "\n" not in str(value) or hasattr(value, "numpy")}
    console.print(table(list(short), ours, stock, true))
    for name, value in ours.rows.items():
        if name not in short:
            console.print(f"[bold]{name}[/bold]")
            console.print(hung(str(value).replace(_FOLDER, ""), console.width), markup=False, highlight=False)
    if stock.crash is not None:
        console.print(crashed(stock.crash), style="dim", markup=False, highlight=False)
    console.print()


def crashed(error: Exception) -> str:
    """Return the line where a program crashed, and the beginning of the error message."""
    ran_there = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_FOLDER)]
    said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    rows = (f"stock: {ran_there[-1].line}", f"       {said}")
    return "\n".join(row if len(row) < 80 else f"{row[:78]}…" for row in rows)


def table(names: list[str], ours: Ran, stock: Ran, true: Mapping[str, str]) -> Table:
    """Return the rows of two programs side by side; a crash is shown in the first row that was not reached."""
    made, crash = Table("", "tf.GradientTape", "retrotape", *(["true"] if true else [])), stock.crash
    for name in names:
        cell = "[dim]-[/dim]"
        if name in stock.rows:
            cell = format_value(stock.rows[name])
        elif crash is not None:
            cell, crash = "[red]crashes[/red]", None
        if true.get(name, cell) != cell:
            cell = f"[red]{cell}[/red]"
        made.add_row(name, cell, format_value(ours.rows[name]), *([true.get(name, "")] if true else []))
    return made


def hung(text: str, width: int) -> str:
    """Wrap text to a width, with hanging indents below the first word of each line's text.

    >>> print(hung("  do    Write less, if it helps.", 22))
      do    Write less, if
            it helps.
    """
    lines = []
    for line in text.splitlines():
        begin = re.match(r" *(?:\w+  +)?", line).end()  # type: ignore[union-attr]
        lines += textwrap.wrap(line, width, subsequent_indent=" " * begin, break_long_words=False)
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Return a value in a few characters.

    >>> format_value(None), format_value(3)
    ('[red]None[/red]', '3')
    """
    if hasattr(value, "numpy"):
        return " ".join(f"{number:.4g}" for number in value.numpy().reshape(-1))
    return "[red]None[/red]" if value is None else escape(str(value))
