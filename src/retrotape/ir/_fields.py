"""The fields of a file beside its program: names, variables, host reads. All of them are checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from retrotape._types import Json
from retrotape.errors import MalformedProgramError, printable
from retrotape.ir._program import DTYPE_NUMBERS, Frame, Program


class Malformed(Exception):
    """A field is not what it should be."""


# What parsing the text of a program and its fields may raise.
NONSENSE = (Malformed, MalformedProgramError, UnicodeDecodeError)


def makes_no_sense(error: Exception) -> str:
    """Return one of these errors as a message: on one line and of bounded length, whatever the file holds."""
    return f"its content makes no sense: {printable(str(error).removesuffix('.'), 400)}"


_SHORT = 200  # characters


class VariableRow(NamedTuple):
    """A variable: every value that it had, and the equation that made each."""

    name: str
    trainable: bool
    versions: tuple[int, ...]
    made_by: tuple[int, ...]
    frozen: bool
    mirrored: int | None  # the number of a mirrored variable among those of the same name


class HostReadRow(NamedTuple):
    """Where Python read a value, before which equation."""

    var: int
    before: int
    frame: int
    method: str


class LayerRow(NamedTuple):
    """A call of a layer: the first equation inside, the first one after it, and the var that it returned.

    `returned` is −1 where it returned something other than one tensor, −2 where it returned no value.
    """

    path: str
    begin: int
    end: int
    returned: int


class Fields:
    """The fields that describe a program. Text that is shown to users is made printable here; names are not.

    Args:
      written: The fields as parsed from `tape.json`.
      program: The program that they describe.
    """

    def __init__(self, written: Mapping[str, Json], program: Program) -> None:
        self._written, self._program = written, program

    def check(self) -> None:
        """Raise if any of them is invalid."""
        self.vars("moments")
        for name in ("assigned", "unrecorded_updates"):
            self.versions(name)
        _ = self.variables, self.host_reads, self.layers, self.called, self.code, self.python_constants
        _ = self.names, self.redacted

    def vars(self, name: str) -> tuple[int, ...]:
        """Return a field that is a list of vars."""
        return numbers(self._written.get(name), len(self._program.types), name)

    def versions(self, name: str) -> tuple[int, ...]:
        """Return a field that is a list of values of variables."""
        found = self.vars(name)
        for var in found:
            if var not in self._versions:
                raise Malformed(f"{name} lists %{var}, which is not a value of a variable")
        return found

    @cached_property
    def _versions(self) -> frozenset[int]:
        return frozenset(var for row in self.variables for var in row.versions)

    def var_of(self, tensor: str, dtype: str, shape: tuple[int, ...]) -> int:
        """Return the var that a tensor of the file is the value of."""
        prefix, _, number = tensor.partition("/")
        if prefix != "v" or not number.isdecimal() or number != str(int(number)):
            raise Malformed(f"tensor {tensor!r} belongs to no var")
        var, types = int(number), self._program.types
        if var >= len(types):
            raise Malformed(f"tensor {tensor!r} belongs to no var")
        if DTYPE_NUMBERS[dtype] != types[var].dtype or shape != types[var].shape:
            raise Malformed(f"tensor {tensor!r} is {dtype}{list(shape)} where the program says {types[var]}")
        return var

    @cached_property
    def variables(self) -> list[VariableRow]:
        """The variables."""
        found: list[VariableRow] = []
        taken: set[int] = set()
        for index, row in enumerate(items(self._written.get("variables"), dict, "variables")):
            name, trainable = row.get("name"), row.get("trainable")
            versions = numbers(row.get("versions"), len(self._program.types), "versions")
            made_by = numbers(row.get("made_by"), len(self._program.eqns), "made_by", lowest=-1)
            if not isinstance(name, str) or not isinstance(trainable, bool) or not versions:
                raise Malformed(f"variable {index} has no name or no value")
            if len(made_by) != len(versions) or not taken.isdisjoint(versions):
                raise Malformed(f"the values of variable {name!r} are not its own")
            frozen = row.get("frozen", False)  # missing in older files
            if not isinstance(frozen, bool) or (frozen and trainable):
                raise Malformed(f"variable {name!r} is trainable and frozen")
            taken.update(versions)
            mirrored = row.get("mirrored")  # only on the workers of a job
            if mirrored is not None and (type(mirrored) is not int or mirrored < 0):
                raise Malformed(f"variable {name!r} is mirrored without a number")
            found.append(VariableRow(printable(name), trainable, versions, made_by, frozen, mirrored))
        return found

    @cached_property
    def host_reads(self) -> list[HostReadRow]:
        """Where Python read a value."""
        found = []
        for row in items(self._written.get("host_reads"), dict, "host_reads"):
            (var,) = numbers([row.get("var")], len(self._program.types), "host_reads")
            (before,) = numbers([row.get("before")], len(self._program.eqns) + 1, "host_reads")
            (frame,) = numbers([row.get("frame")], len(self._program.frames), "host_reads")
            found.append(HostReadRow(var, before, frame, printable(str(row.get("method")), 200)))
        return found

    @cached_property
    def layers(self) -> list[LayerRow]:
        """The calls of Keras layers, in the order in which they began; missing in older files."""
        found: list[LayerRow] = []
        for row in items(self._written.get("layers", []), list, "layers"):
            if len(row) != 4 or not isinstance(row[0], str):
                raise Malformed("layers is not a list of a name and three numbers")
            begin, end = numbers(row[1:3], len(self._program.eqns) + 1, "layers")
            (returned,) = numbers(row[3:], len(self._program.types), "layers", lowest=-2)
            if end < begin or (found and begin < found[-1].begin):
                raise Malformed(f"the layer {row[0]!r} ends before it begins, or begins too late")
            found.append(LayerRow(printable(row[0]), begin, end, returned))
        return found

    @cached_property
    def called(self) -> dict[int, str]:
        """The Keras function that was called at each frame that has one; missing in older files."""
        return self._by_frame("called", "name")

    @cached_property
    def code(self) -> dict[int, str]:
        """The text of the line of each frame, where it was saved; missing in older files."""
        return self._by_frame("code", "text")

    @property
    def lines(self) -> list[tuple[Frame, str, str]]:
        """Each frame, the Keras function that was called there, and the text of the line; safe to print."""
        frames = map(printable_frame, self._program.frames)
        return [(frame, self.called.get(n, ""), self.code.get(n, "")) for n, frame in enumerate(frames)]

    def _by_frame(self, field: str, what: str) -> dict[int, str]:
        found: dict[int, str] = {}
        for row in items(self._written.get(field, []), list, field):
            if len(row) != 2 or not isinstance(row[1], str):
                raise Malformed(f"{field} is not a list of pairs of a frame and a {what}")
            (number,) = numbers(row[:1], len(self._program.frames), field)
            found[number] = row[1] if row[1].isprintable() and len(row[1]) < _SHORT else printable(row[1])
        return found

    @cached_property
    def python_constants(self) -> list[tuple[int, int]]:
        """The constants that Python made while recording, each with the number of host reads before it."""
        found = []
        for row in items(self._written.get("python_constants", []), list, "python_constants"):
            if len(row) != 2:
                raise Malformed("python_constants is not a list of pairs")
            (var,) = numbers(row[:1], len(self._program.types), "python_constants")
            (reads,) = numbers(row[1:], len(self.host_reads) + 1, "python_constants")
            found.append((var, reads))
        return found

    @cached_property
    def names(self) -> dict[str, tuple[str, int]]:
        """What each name refers to: ("var", its number), or ("variable", its index in the list)."""
        written = self._written.get("names")
        if not isinstance(written, dict):
            raise Malformed("names is not an object")
        bounds = {"var": len(self._program.types), "variable": len(self.variables)}
        found = {}
        for name, what in written.items():
            if not isinstance(what, dict) or len(what) != 1:
                raise Malformed(f"the name {name!r} refers to nothing")
            ((kind, number),) = what.items()
            if kind not in bounds:
                raise Malformed(f"the name {name!r} refers to {kind!r}, which is neither a var nor a variable")
            found[name] = (kind, *numbers([number], bounds[kind], "names"))
        return found

    @cached_property
    def redacted(self) -> tuple[str, ...]:
        """The names whose values were left out."""
        found = items(self._written.get("redacted"), str, "redacted")
        for name in found:
            if name not in self.names:
                raise Malformed(f"{name!r} is redacted, and nothing has that name")
        return tuple(found)


def read_program(text: str) -> Program:
    """Return a program whose equations all have a frame."""
    program = Program.parse(text)
    for index, eqn in enumerate(program.eqns):
        if eqn.frame >= len(program.frames):
            raise Malformed(f"equation {index} has frame {eqn.frame}, and there are {len(program.frames)} frames")
    return program


def printable_frame(frame: Frame) -> Frame:
    """Return a frame whose text holds no terminal control characters."""
    return Frame(printable(frame.file), frame.line, printable(frame.function))


def numbers(written: Json, bound: int, what: str, lowest: int = 0) -> tuple[int, ...]:
    """Return a list of whole numbers below `bound`, or raise."""
    for number in items(written, int, what):
        if isinstance(number, bool) or not lowest <= number < bound:
            raise Malformed(f"{what} holds {printable(repr(number), 40)}, which is not from {lowest} to {bound - 1}")
    return tuple(written)


def items(written: Json, kind: type, what: str) -> list[Any]:
    """Return a list whose items are all of one type, or raise."""
    if not isinstance(written, list) or not all(isinstance(item, kind) for item in written):
        raise Malformed(f"{what} is not a list of {kind.__name__}")
    return written
