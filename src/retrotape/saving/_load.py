"""File → recording. Nothing that a file says is believed before it was checked, and nothing in it is code."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape import store
from retrotape._saved_variable import SavedVariable
from retrotape._tf import tf
from retrotape.errors import CorruptTapeError, MalformedProgramError
from retrotape.execute import Values
from retrotape.ir import DTYPE_NUMBERS, LEAF, Program, TensorType
from retrotape.record import CUSTOM, TRAINABLE, Cell, Look, Recording, next_stamp, traits
from retrotape.saving._document import FunctionReader, Malformed, items, numbers, with_defaults
from retrotape.saving._kept import Withheld, is_computed
from retrotape.saving._mapped import Mapped
from retrotape.saving._ops import OpCheck, explained

Tensor = Any


class Named:
    """What a name stands for: a tensor that is known by identity, though nobody may have computed it."""

    __slots__ = ("_id", "dtype", "shape")

    def __init__(self, identity: int, kind: TensorType) -> None:
        self._id = identity
        self.dtype, self.shape = tf.as_dtype(kind.dtype), tf.TensorShape(kind.shape)


class Opened(NamedTuple):
    """What a file holds, as a recording."""

    recording: Recording
    names: dict[str, Any]  # a Named, or a SavedVariable
    redacted: frozenset[str]
    fields: Mapping[str, Any]


def read(
    path: str | os.PathLike[str],
    *,
    mmap: bool = True,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
) -> Opened:
    """Return the recording in a file, or raise where the file is damaged or not to be trusted."""
    limits = limits or store.Limits()
    container = store.open_tape(path, mmap=mmap, limits=limits)
    try:
        return _Reader(container, OpCheck(container.path, allow_ops, limits.total_bytes)).read()
    except (Malformed, MalformedProgramError, UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise CorruptTapeError(container.path, f"what it says makes no sense: {error}") from error


class _Reader:
    def __init__(self, container: store.Container, check: OpCheck) -> None:
        self._container, self._check = container, check
        self._fields = container.meta
        self._program = Program.parse(container.entry("program.txt").decode())
        check.check(self._program)

    def read(self) -> Opened:
        """Return everything."""
        recording = self._recording()
        self._add_values(recording)
        self._add_variables(recording)
        functions = json.loads(self._container.entry("functions.json"))
        if not isinstance(functions, dict):
            raise Malformed("functions.json is not an object")
        reader = FunctionReader(functions, self._check)
        recording.backwards = reader.backwards(self._fields.get("backwards"), self._program)
        for index, eqn in enumerate(self._program.eqns):
            if eqn.op == CUSTOM and index not in recording.backwards:
                raise Malformed(f"equation {index} is a custom gradient without a way back")
        self._add_looks(recording)
        self._add_births(recording)
        names = self._names(recording)
        redacted = items(self._fields.get("redacted"), str, "redacted")
        self._withhold(recording, names, redacted)
        return Opened(recording, names, frozenset(redacted), self._fields)

    def _recording(self) -> Recording:
        recording, program = Recording(), self._program
        builder = recording.builder
        builder.types[:] = program.types
        builder.producers[:] = program.producers
        builder.eqns[:] = [with_defaults(eqn) for eqn in program.eqns]
        for frame in program.frames:
            recording.frames.number(frame)
        recording.inert = {var for var, kind in enumerate(program.types) if kind.dtype not in TRAINABLE}
        recording.ends = {
            var for eqn in program.eqns if eqn.op != CUSTOM and traits(eqn.op).final for var in eqn.outputs
        }
        for name in ("assigned", "opaque", "gaps"):
            getattr(recording, name).update(self._vars(name))
        recording.guard = self._check
        return recording

    def _vars(self, name: str) -> tuple[int, ...]:
        return numbers(self._fields.get(name), len(self._program.types), name)

    def _add_values(self, recording: Recording) -> None:
        for name, info in self._container.tensors.items():
            prefix, _, number = name.partition("/")
            if prefix != "v" or not number.isdecimal() or int(number) >= len(self._program.types):
                raise Malformed(f"tensor {name!r} belongs to no var")
            kind = self._program.types[int(number)]
            if DTYPE_NUMBERS[info.dtype] != kind.dtype or info.shape != kind.shape:
                raise Malformed(f"tensor {name!r} is {info.dtype}{list(info.shape)} where the program says {kind}")
            recording.values[int(number)] = Mapped(self._container, name, info)
        recording.moments.update(recording.new_identity(var) for var in self._vars("moments"))

    def _add_variables(self, recording: Recording) -> None:
        for number, written in enumerate(items(self._fields.get("variables"), dict, "variables")):
            name, trainable = written.get("name"), written.get("trainable")
            versions = numbers(written.get("versions"), len(self._program.types), "versions")
            since = numbers(written.get("since"), len(self._program.eqns), "since", lowest=-1)
            if not isinstance(name, str) or not isinstance(trainable, bool) or not versions:
                raise Malformed(f"variable {number} has no name or no value")
            if len(since) != len(versions) or any(version in recording.cell_of for version in versions):
                raise Malformed(f"the values of variable {name!r} are not its own")
            kind = self._program.types[versions[-1]]

            def fetch(var: int = versions[-1]) -> Tensor:
                with explained(recording):
                    return Values(recording)(var)

            variable = SavedVariable(name, kind.dtype, kind.shape, trainable, fetch)
            cell = Cell(variable.handle, versions[0])
            cell.versions, cell.since = list(versions), list(since)
            recording.cells[variable.handle._id] = cell
            recording.cell_of.update(dict.fromkeys(versions, cell))
            recording.variables[variable.handle._id] = variable

    def _add_looks(self, recording: Recording) -> None:
        """Put equations and looks in the order in which they were."""
        looks: dict[int, list[tuple[int, int, str]]] = {}
        for written in items(self._fields.get("looks"), dict, "looks"):
            (var,) = numbers([written.get("var")], len(self._program.types), "looks")
            (before,) = numbers([written.get("before")], len(self._program.eqns) + 1, "looks")
            (frame,) = numbers([written.get("frame")], len(self._program.frames), "looks")
            looks.setdefault(before, []).append((var, frame, str(written.get("how"))))
        for index in range(len(self._program.eqns) + 1):
            for var, frame, how in looks.get(index, ()):
                number = len(recording.looks)
                recording.looks.append(Look(recording.new_identity(var), next_stamp(), frame, how, number))
            if index < len(self._program.eqns):
                recording.stamps.append(next_stamp())

    def _add_births(self, recording: Recording) -> None:
        """Say which constants Python made while recording, and after how many looks; older files do not tell."""
        recording.births = {}
        for written in items(self._fields.get("born", []), list, "born"):
            if len(written) != 2:
                raise Malformed("born is not a list of pairs")
            (var,) = numbers(written[:1], len(self._program.types), "born")
            (looks,) = numbers(written[1:], len(recording.looks) + 1, "born")
            recording.births[var] = looks - 0.5  # between two looks

    def _names(self, recording: Recording) -> dict[str, Any]:
        written, variables = self._fields.get("names"), list(recording.variables.values())
        if not isinstance(written, dict):
            raise Malformed("names is not an object")
        found: dict[str, Any] = {}
        for name, what in written.items():
            if not isinstance(what, dict) or len(what) != 1:
                raise Malformed(f"the name {name!r} stands for nothing")
            ((kind, number),) = what.items()
            if kind == "variable":
                found[name] = variables[numbers([number], len(variables), "names")[0]]
            elif kind == "var":
                (var,) = numbers([number], len(self._program.types), "names")
                found[name] = Named(recording.new_identity(var), self._program.types[var])
            else:
                raise Malformed(f"the name {name!r} stands for {kind!r}, which is neither a var nor a variable")
        return found

    def _withhold(self, recording: Recording, names: Mapping[str, Any], redacted: Sequence[str]) -> None:
        """Put what says so in the place of values that were left out; what was drawn must not be drawn again."""
        for name in redacted:
            what = names.get(name)
            if what is None:
                raise Malformed(f"{name!r} is redacted, and nothing has that name")
            known = recording.known(what._id) if isinstance(what, Named) else None
            for var in recording.cells[what.handle._id].versions if known is None else [known]:
                producer = self._program.producers[var]
                drawn = producer != LEAF and not is_computed(self._program.eqns[producer].op)
                if var not in recording.values and (producer == LEAF or drawn):
                    recording.values[var] = Withheld(name)
