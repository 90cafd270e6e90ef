"""File → recording. Nothing that a file says is believed before it was checked, and nothing in it is code."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from retrotape.errors import CorruptTapeError
from retrotape.execute import Values
from retrotape.files import store
from retrotape.files.checks._budget import ISOLATED, default_limit
from retrotape.files.checks._guard import Guard
from retrotape.files.checks._op_guards import RECOMPUTED
from retrotape.files.checks._ops import OpCheck
from retrotape.files.document import FunctionReader
from retrotape.files.kept import Withheld
from retrotape.files.values import InFile
from retrotape.ir import LEAF, NONSENSE, Fields, LayerRow, Program, TensorType, makes_no_sense, printable_frame
from retrotape.record import (
    CUSTOM,
    TRAINABLE,
    UNCOUNTED,
    Called,
    Cell,
    Kind,
    Look,
    Recording,
    Scope,
    is_computed,
    next_stamp,
    traits,
    with_defaults,
)
from retrotape.tf.core import tf
from retrotape.tf.saved_variable import SavedVariable

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
    mmap: bool = False,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolated: bool = False,
) -> Opened:
    """Return the recording in a file, or raise where the file is damaged or not to be trusted.

    With `isolated`, this process holds nothing else, and ops may run of which nobody can tell how much they make.
    """
    limits = limits or store.Limits()
    container = store.open_tape(path, mmap=mmap, limits=limits)
    try:
        limit = limits.total_bytes
        if limit is None:
            stored = sum(info.nbytes for info in container.tensors.values())
            limit = ISOLATED if isolated else default_limit(stored)
        guard = Guard(container.path, allow_ops, limit, isolated)
        return _Reader(container, OpCheck(container.path, allow_ops, limit), guard).read()
    except NONSENSE as error:
        raise CorruptTapeError(container.path, makes_no_sense(error)) from error


class _Reader:
    def __init__(self, container: store.Container, check: OpCheck, guard: Guard) -> None:
        self._container, self._check, self._guard = container, check, guard
        self._program = Program.parse(container.entry("program.txt").decode())
        self._fields = Fields(container.meta, self._program)
        check.check(self._program)

    def read(self) -> Opened:
        """Return everything."""
        recording = self._recording()
        self._add_values(recording)
        self._add_variables(recording)
        reader = FunctionReader(self._container.document("functions.json"), self._check, self._guard)
        recording.backwards = reader.backwards(self._container.meta.get("backwards"), self._program)
        self._add_looks(recording)
        recording.births = {var: looks - 0.5 for var, looks in self._fields.births}  # between two looks
        names = self._names(recording)
        self._withhold(recording, names)
        return Opened(recording, names, frozenset(self._fields.redacted), self._container.meta)

    def _recording(self) -> Recording:
        recording, program = Recording(), self._program
        builder = recording.builder
        builder.types[:] = program.types
        builder.producers[:] = program.producers
        builder.eqns[:] = [with_defaults(eqn) for eqn in program.eqns]
        for number, frame in enumerate(map(printable_frame, program.frames)):
            called = self._fields.called.get(number)
            recording.frames.number(frame if called is None else Called(frame, called))
        recording.inert = {var for var, kind in enumerate(program.types) if kind.dtype not in TRAINABLE}
        recording.ends = {
            var for eqn in program.eqns if eqn.op != CUSTOM and traits(eqn.op).final for var in eqn.outputs
        }
        recording.assigned.update(self._fields.versions("assigned"))
        recording.gaps.update(self._fields.versions("gaps"))
        recording.opaque = {
            var
            for eqn in program.eqns
            if eqn.op != CUSTOM and traits(eqn.op).kind is Kind.WRITE and traits(eqn.op).opaque
            for var in eqn.outputs
            if var in recording.assigned
        }
        recording.guard = self._guard
        return recording

    def _add_values(self, recording: Recording) -> None:
        for name, info in self._container.tensors.items():
            var = self._fields.var_of(name, info.dtype, info.shape)
            producer = self._program.producers[var]
            if producer == LEAF or self._program.eqns[producer].op not in RECOMPUTED:
                recording.values[var] = InFile(self._container, name, info)
        recording.moments.update(recording.new_identity(var) for var in self._fields.vars("moments"))

    def _add_variables(self, recording: Recording) -> None:
        for name, trainable, versions, since, frozen in self._fields.variables:
            kind = self._program.types[versions[-1]]

            def fetch(var: int = versions[-1]) -> Tensor:
                with recording.explained():
                    return Values(recording)(var)

            variable = SavedVariable(name, kind.dtype, kind.shape, trainable, fetch, frozen)
            cell = Cell(variable.handle, versions[0])
            cell.versions, cell.since = list(versions), list(accumulate(since, max))
            recording.cells[variable.handle._id] = cell
            recording.cell_of.update(dict.fromkeys(versions, cell))
            recording.variables[variable.handle._id] = variable

    def _add_looks(self, recording: Recording) -> None:
        """Put equations and looks in the order in which they were."""
        looks: dict[int, list[tuple[int, int, str]]] = {}
        for var, before, frame, how in self._fields.looks:
            looks.setdefault(before, []).append((var, frame, how))
        calls = _Calls(recording, self._fields.layers)
        for index in range(len(self._program.eqns) + 1):
            calls.come_to(index)
            for var, frame, how in looks.get(index, ()):
                number = len(recording.looks)
                recording.looks.append(Look(recording.new_identity(var), next_stamp(), frame, how, number))
            if index < len(self._program.eqns):
                recording.stamps.append(next_stamp())

    def _names(self, recording: Recording) -> dict[str, Any]:
        variables = list(recording.variables.values())
        return {
            name: variables[number]
            if kind == "variable"
            else Named(recording.new_identity(number), self._program.types[number])
            for name, (kind, number) in self._fields.names.items()
        }

    def _withhold(self, recording: Recording, names: Mapping[str, Any]) -> None:
        """Put what says so in the place of values that were left out; what was drawn must not be drawn again."""
        for name in self._fields.redacted:
            what = names[name]
            known = recording.known(what._id) if isinstance(what, Named) else None
            for var in recording.cells[what.handle._id].versions if known is None else [known]:
                producer = self._program.producers[var]
                drawn = producer != LEAF and not is_computed(self._program.eqns[producer].op)
                if var not in recording.values and (producer == LEAF or drawn):
                    recording.values[var] = Withheld(name)


class _Calls:
    """Puts calls of layers in the place that they had among the equations."""

    def __init__(self, recording: Recording, rows: Sequence[LayerRow]) -> None:
        self._recording, self._waiting = recording, deque(rows)
        self._open: list[tuple[LayerRow, int]] = []  # with when each began; the latest is last

    def come_to(self, index: int) -> None:
        """End and begin what ends and begins before equation number `index`."""
        self._end(index)
        while self._waiting and self._waiting[0].begin == index:
            self._end(index, inside=self._waiting[0].path)
            self._open.append((self._waiting.popleft(), next_stamp()))
        self._end(index)

    def _end(self, index: int, inside: str = "") -> None:
        """End calls, but not one that ran no equation and called the layer `inside`."""
        while self._open and self._open[-1][0].end <= index and not inside.startswith(self._open[-1][0].path + "/"):
            self._close()

    def _close(self) -> None:
        row, begin = self._open.pop()
        counted = self._recording.new_identity(row.returned) if row.returned >= 0 else 0
        returned = UNCOUNTED if row.returned == -2 else counted
        self._recording.scopes[begin] = Scope(row.path, begin, next_stamp(), returned)
