"""Programs as text, and parsed again: `parse(render(p)) == p`. Users paste the text into bug reports.

The text is untrusted: parsing takes time linear in its length, for any input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NoReturn

from retrotape.errors import MalformedProgramError, printable
from retrotape.ir._attributes import dtype_number, parse_attrs, render_attrs, whole_number
from retrotape.ir._check import check
from retrotape.ir._program import LEAF, Attr, Eqn, Frame, Program, TensorType

# No two parts of an expression can match the same character, so none of them backtracks. A line is read once, from
# left to right.
_VAR = r"%([0-9]+)"
_TYPED = re.compile(rf"{_VAR} : ([a-z]\w*)\[([0-9,?]*|\.\.\.)\]", re.ASCII)
_OP = re.compile(r" = ([^\s{(]+)")
_OP_ALONE = re.compile(r"= ([^\s{(]+)")
_FRAME_BEGIN = re.compile(r'@[0-9]+ = (?=")')
_FRAME_MIDDLE = re.compile(r':(-?[0-9]+) in (?=")')
_JSON = json.JSONDecoder()
_KNOWN = 10_000  # texts of attributes that are cached
_SHOWN = 200  # characters of a line in a message


def render(program: Program) -> str:
    """Return the program as text, one line for each leaf, equation and frame."""
    return "\n".join(_lines(program, program.leaves(), program.eqns, range(len(program.frames))))


def render_first(program: Program, count: int) -> str:
    r"""Return the first equations as text, with the leaves and frames that they use, and how many there are more.

    >>> print(render_first(parse('%0 : int32[]\n%1 : int32[] = Neg(%0) @0\n@0 = "a.py":1 in "f"'), 0))
    … 1 more
    """
    eqns = program.eqns[:count]
    leaves = sorted({var for eqn in eqns for var in eqn.inputs if program.producers[var] == LEAF})
    more = [f"… {len(program.eqns) - count:,} more"] if len(program.eqns) > count else []
    return "\n".join([*_lines(program, leaves, eqns, sorted({eqn.frame for eqn in eqns})), *more])


def _lines(program: Program, leaves: Iterable[int], eqns: Iterable[Eqn], frames: Iterable[int]) -> Iterator[str]:
    for var in leaves:
        yield f"%{var} : {program.types[var]}"
    for eqn in eqns:
        outs = ", ".join(f"%{var} : {program.types[var]}" for var in eqn.outputs)
        ins = ", ".join(f"%{var}" for var in eqn.inputs)
        yield f"{outs} = {eqn.op}{render_attrs(eqn.attrs)}({ins}) @{eqn.frame}".lstrip()
    for number in frames:
        frame = program.frames[number]
        yield f"@{number} = {json.dumps(frame.file)}:{frame.line} in {json.dumps(frame.function)}"


def parse(text: str) -> Program:
    r"""Return the program that `text` shows.

    >>> parse("%0 : float32[2]\n%1 : float32[2] = Neg{T=float32}(%0) @0\n@0 = \"a.py\":1 in \"f\"").eqns[0].op
    'Neg'
    """
    reader = _Reader()
    for line in filter(str.strip, text.split("\n")):
        try:
            reader.read(line)
        except ValueError as error:
            shown = printable(repr(line), _SHOWN)
            raise MalformedProgramError(f"Cannot read the line {shown}: {printable(str(error), _SHOWN)}.") from error
    program = reader.program()
    check(program)
    return program


class _Reader:
    """Parses a program, line by line."""

    def __init__(self) -> None:
        self._types: dict[int, TensorType] = {}
        self._producers: dict[int, int] = {}
        self._eqns: list[Eqn] = []
        self._frames: list[Frame] = []
        self._known: dict[str, tuple[Attr, ...]] = {}

    def read(self, line: str) -> None:
        """Parse a line; raise ValueError if it is not one of a program."""
        if line.startswith("@"):
            self._frames.append(_frame(line))
            return
        outputs, at = _typed(line)
        if at == len(line) and len(outputs) == 1:
            self._declare(outputs, LEAF)
            return
        op = (_OP if outputs else _OP_ALONE).match(line, at) or _refuse()
        if not op[1].isprintable():
            raise ValueError("the name of an op has characters that cannot be printed")
        attrs: tuple[Attr, ...] = ()
        at = op.end()
        if line.startswith("{", at):
            attrs, at = self._attrs(line, at)
        inputs, frame = _uses(line, at)
        declared = self._declare(outputs, len(self._eqns))
        self._eqns.append(Eqn(op[1], inputs, declared, attrs, frame))

    def _attrs(self, line: str, at: int) -> tuple[tuple[Attr, ...], int]:
        """Return the attributes that begin at `at`, and where they end; cached, because equations repeat them."""
        end = line.find("}(", at) + 1
        if (known := self._known.get(line[at:end])) is not None:
            return known, end
        attrs, found = parse_attrs(line, at)
        if found == end and len(self._known) < _KNOWN:
            self._known[line[at:end]] = attrs
        return attrs, found

    def _declare(self, typed: list[tuple[int, TensorType]], producer: int) -> tuple[int, ...]:
        for var, kind in typed:
            if var in self._types:
                raise ValueError(f"%{var} is defined twice")
            self._types[var], self._producers[var] = kind, producer
        return tuple(var for var, _ in typed)

    def program(self) -> Program:
        """Return what was read."""
        order = range(len(self._types))
        if sorted(self._types) != list(order):
            raise MalformedProgramError(f"The vars are not numbered from 0 to {len(order) - 1}.")
        types, producers = (tuple(table[var] for var in order) for table in (self._types, self._producers))
        return Program(types, producers, tuple(self._eqns), tuple(self._frames))  # type: ignore[arg-type]


def _refuse() -> NoReturn:
    raise ValueError("it is neither a leaf, nor an equation, nor a frame")


def _frame(line: str) -> Frame:
    begin = _FRAME_BEGIN.match(line) or _refuse()
    file, at = _JSON.raw_decode(line, begin.end())
    middle = _FRAME_MIDDLE.match(line, at) or _refuse()
    function, at = _JSON.raw_decode(line, middle.end())
    if at != len(line):
        _refuse()
    return Frame(file, whole_number(middle[1]), function)


def _typed(line: str) -> tuple[list[tuple[int, TensorType]], int]:
    """Return the vars with their types that a line begins with, and where they end."""
    found: list[tuple[int, TensorType]] = []
    at, more = 0, line.startswith("%")
    while more:
        typed = _TYPED.match(line, at) or _refuse()
        found.append((whole_number(typed[1]), TensorType(dtype_number(typed[2]), _shape(typed[3]))))
        more = line.startswith(", ", typed.end())
        at = typed.end() + 2 * more
    return found, at


def _uses(line: str, at: int) -> tuple[tuple[int, ...], int]:
    """Return the inputs of an equation and its frame, which end a line."""
    end = line.find(") @", at)
    if end < 0 or not line.startswith("(", at):
        _refuse()
    names = line[at + 1 : end].split(", ") if end > at + 1 else []
    numbers = [line[end + 3 :], *(name[1:] for name in names)]
    if not all(name.startswith("%") for name in names) or not all(n.isascii() and n.isdigit() for n in numbers):
        _refuse()
    frame, *inputs = map(whole_number, numbers)
    return tuple(inputs), frame


def _shape(text: str) -> tuple[int | None, ...] | None:
    if text == "...":
        return None
    return tuple(None if dim == "?" else whole_number(dim) for dim in text.split(",")) if text else ()
