"""A readable listing of a program: grouped by user lines, repetitions folded, in color."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import click

from retrotape.cli._fold import fold
from retrotape.cli._tape import SavedTape
from retrotape.cli._text import console, count, printable

LONGEST_LINE = 400  # an attribute may be a megabyte
_COLOURS = {
    r"%\d+": "cyan",
    r"\b[a-z]\w*\[[\d,?]*\]": "green",
    r"(?<== )[^\s({]+": "bold",
    r"#.*": "dim",
}


def print_program(tape: SavedTape) -> None:
    """Print the program; in a pipe, without colors and with whole lines."""
    from rich.text import Text

    out = console()
    for line in lines(tape):
        if not out.is_terminal:
            click.echo(line)
            continue
        text = Text(line)
        for pattern, colour in _COLOURS.items():
            text.highlight_regex(pattern, colour)
        out.print(text, soft_wrap=True)


def lines(tape: SavedTape) -> Iterator[str]:
    """Yield the lines of the program."""
    for var in tape.program.leaves():
        yield f"%{var} : {tape.type_of(var)}{_comment(tape, [var])}"
    eqns = tape.program.eqns
    here = None
    for item in _folded([_key(tape, index) for index in range(len(eqns))], 0):
        if isinstance(item, str):
            yield item
            continue
        place = tape.place(eqns[item])
        if place != here:
            here = place
            yield f"# {place} in {place.function}"
        yield printable(tape.lines[item], LONGEST_LINE) + _comment(tape, eqns[item].outputs)


def _folded(keys: list[Hashable], offset: int) -> Iterator[int | str]:
    """Yield the numbers of equations to show, and a comment for those that are left out."""
    for start, length, times in fold(keys):
        begin = offset + start
        if times == 1:
            yield from range(begin, begin + length)
            continue
        yield from _folded(keys[start : start + length], begin)
        yield (
            f"# ... the last {count(length, 'equation')} {count(times - 1, 'more time')}, on other values: "
            f"equations {begin + length} to {begin + length * times - 1}"
        )


def _key(tape: SavedTape, index: int) -> Hashable:
    """Return a key that is equal for equations that do the same at the same line."""
    eqn, types = tape.program.eqns[index], tape.program.types
    kinds = tuple(types[var] for var in (*eqn.inputs, *eqn.outputs))
    return eqn.op, eqn.attrs, kinds, tape.program.frames[eqn.frame]


def _comment(tape: SavedTape, variables: Iterable[int]) -> str:
    names = [printable(tape.var_names[var]) for var in variables if var in tape.var_names]
    return f"  # {', '.join(names)}" if names else ""
