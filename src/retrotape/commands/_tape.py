"""A saved tape as data: read without TensorFlow, and nothing in it is believed before it was checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from retrotape import store
from retrotape.commands._text import printable
from retrotape.errors import CorruptTapeError, MalformedProgramError
from retrotape.ir import LEAF, Eqn, Frame, Program, TensorType

Json = Any


class Malformed(Exception):
    """A field is not what it should be."""


class Variable(NamedTuple):
    """A variable: its name, and every value that it had."""

    name: str
    trainable: bool
    versions: tuple[int, ...]


class Named(NamedTuple):
    """What a name stands for; of a variable, its last value."""

    name: str
    var: int
    variable: Variable | None


class SavedTape:
    """What a file says, in our words.

    Args:
      container: The open file.
    """

    def __init__(self, container: store.Container) -> None:
        self.container = container
        self.fields: Mapping[str, Json] = container.meta
        self.program = read_program(container.entry("program.txt").decode())
        self.variables = [self._variable(row) for row in items(self.fields.get("variables"), dict, "variables")]
        self.names = list(self._names())
        self.redacted = frozenset(items(self.fields.get("redacted"), str, "redacted"))

    @cached_property
    def functions(self) -> dict[str, Json]:
        """The ways back of custom gradients."""
        found = json.loads(self.container.entry("functions.json"))
        if not isinstance(found, dict):
            raise Malformed("functions.json is not an object")
        return found

    @property
    def format(self) -> str:
        """The name of the format."""
        begin = re.match(rb'\{"format":"([^"]*)"', self.container.entry("tape.json"))
        return begin[1].decode() if begin else "?"

    @cached_property
    def lines(self) -> list[str]:
        """Each equation as a line of text."""
        first = len(self.program.leaves())
        written = str(self.program).split("\n")[first : first + len(self.program.eqns)]
        return [line.rpartition(" @")[0] for line in written]

    def vars(self, name: str) -> tuple[int, ...]:
        """Return a field that is a list of vars."""
        return numbers(self.fields.get(name), len(self.program.types), name)

    def kept(self, var: int) -> store.TensorInfo | None:
        """Return what is known of the value of a var, if the file has it."""
        return self.container.tensors.get(f"v/{var}")

    def place(self, eqn: Eqn) -> Frame:
        """Return the line of the user's code, safe to print."""
        frame = self.program.frames[eqn.frame]
        return Frame(printable(frame.file), frame.line, printable(frame.function))

    @cached_property
    def called(self) -> dict[int, str]:
        """What vars are called: the user's names first, then those of variables."""
        found = {named.var: named.name for named in self.names if named.variable is None}
        for variable in self.variables:
            for number, var in enumerate(variable.versions):
                found.setdefault(var, variable.name if number == 0 else f"{variable.name}, value {number}")
        return found

    def _variable(self, row: dict[str, Json]) -> Variable:
        name, trainable = row.get("name"), row.get("trainable")
        versions = numbers(row.get("versions"), len(self.program.types), "versions")
        if not isinstance(name, str) or not isinstance(trainable, bool) or not versions:
            raise Malformed("a variable has no name or no value")
        return Variable(name, trainable, versions)

    def _names(self) -> Iterator[Named]:
        written = self.fields.get("names")
        if not isinstance(written, dict):
            raise Malformed("names is not an object")
        for name, what in written.items():
            if not isinstance(what, dict) or len(what) != 1:
                raise Malformed(f"the name {name!r} stands for nothing")
            ((kind, number),) = what.items()
            if kind == "variable":
                variable = self.variables[numbers([number], len(self.variables), "names")[0]]
                yield Named(name, variable.versions[-1], variable)
            else:
                yield Named(name, numbers([number], len(self.program.types), "names")[0], None)

    def kind(self, named: Named) -> str:
        """Return what a name is: variable, input or target."""
        if named.variable is not None:
            return "variable"
        return "input" if self.program.producers[named.var] == LEAF else "target"

    def type_of(self, var: int) -> TensorType:
        """Return the dtype and shape of a var."""
        return self.program.types[var]


@contextmanager
def open_saved(path: str | os.PathLike[str]) -> Iterator[SavedTape]:
    """Open a saved tape; whatever makes no sense in it is a CorruptTapeError."""
    with store.open_tape(path) as container:
        with sense(container.path):
            tape = SavedTape(container)
        yield tape


@contextmanager
def sense(path: str) -> Iterator[None]:
    """Say of a file that it makes no sense, where it does not."""
    try:
        yield
    except (Malformed, MalformedProgramError, UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise CorruptTapeError(path, f"what it says makes no sense: {printable(str(error))}") from error


def read_program(text: str) -> Program:
    """Return a program whose equations all have a place."""
    program = Program.parse(text)
    for index, eqn in enumerate(program.eqns):
        if eqn.frame >= len(program.frames):
            raise Malformed(f"equation {index} stands at place {eqn.frame}, and there are {len(program.frames)}")
    return program


def numbers(written: Json, bound: int, what: str, lowest: int = 0) -> tuple[int, ...]:
    """Return a list of whole numbers below `bound`, or raise."""
    for number in items(written, int, what):
        if isinstance(number, bool) or not lowest <= number < bound:
            raise Malformed(f"{what} says {number!r}, which is not from {lowest} to {bound - 1}")
    return tuple(written)


def items(written: Json, kind: type, what: str) -> list[Any]:
    """Return a list of which every item is of a kind, or raise."""
    if not isinstance(written, list) or not all(isinstance(item, kind) for item in written):
        raise Malformed(f"{what} is not a list of {kind.__name__}")
    return written
