"""File → trace. Everything in a file is checked before it is used, and nothing in it is code."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from retrotape._types import Place, Tensor
from retrotape.errors import CorruptTapeError
from retrotape.execute import Values
from retrotape.files import store
from retrotape.files.checks import RECOMPUTED, Guard, OpCheck, memory_limit
from retrotape.files.kept import Withheld
from retrotape.files.values import InFile
from retrotape.ir import (
    CUSTOM,
    LEAF,
    NONSENSE,
    UNCOUNTED,
    Builder,
    Fields,
    Functions,
    GrowingFacts,
    HostRead,
    LayerCall,
    LayerRow,
    Program,
    VariableHistory,
    makes_no_sense,
)
from retrotape.record import (
    TRAINABLE,
    FrameTable,
    Kind,
    SavedPlace,
    TensorMap,
    Trace,
    is_deterministic,
    new_trace,
    next_time,
    traits,
    with_defaults,
)
from retrotape.tf import core
from retrotape.tf.nests import TensorRef
from retrotape.tf.saved_variable import SavedVariable
from retrotape.transform import NUMBER


class Opened(NamedTuple):
    """What a file holds, as a trace."""

    trace: Trace
    names: dict[str, Any]  # a TensorRef, or a SavedVariable
    redacted: frozenset[str]
    fields: Mapping[str, Any]
    mirrored: dict[int, str]  # names of variables that all workers of a job keep equal, by key of their history


def read(
    path: str | os.PathLike[str],
    *,
    mmap: bool = False,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolated: bool = False,
) -> Opened:
    """Return the trace in a file, or raise if the file is damaged or unsafe.

    With `isolated`, this process holds nothing else, so ops whose output size is not known in advance may run.
    """
    limits = limits or store.Limits()
    container = store.open_tape(path, mmap=mmap, limits=limits)
    try:
        limit = limits.total_bytes
        if limit is None:
            limit = memory_limit(sum(info.nbytes for info in container.tensors.values()), isolated)
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
        eqns = [with_defaults(eqn) for eqn in self._program.eqns]
        self._builder = Builder(replace(self._program, eqns=eqns), FrameTable(self._places()))
        self._trace = new_trace(self._builder, guard)
        self._mirrored: dict[int, str] = {}

    def _places(self) -> Iterator[Place]:
        return (SavedPlace(*line) for line in self._fields.lines)

    def read(self) -> Opened:
        """Return everything."""
        trace, fields = self._trace, self._fields
        self._add_facts()
        self._add_values()
        self._add_variables()
        self._add_host_reads()
        trace.python_constants = {var: reads - 0.5 for var, reads in fields.python_constants}  # between two host reads
        names = self._names()
        self._withhold(names)
        return Opened(trace, names, frozenset(fields.redacted), self._container.meta, self._mirrored)

    def _add_facts(self) -> None:
        facts, program = self._builder.facts, self._program
        facts.discrete.update(var for var, kind in enumerate(program.types) if kind.dtype not in TRAINABLE)
        facts.assigned.update(self._fields.versions("assigned"))
        facts.unrecorded_updates.update(self._fields.versions("unrecorded_updates"))
        for eqn in program.eqns:
            features = None if eqn.op == CUSTOM else traits(eqn.op)
            if features is not None and features.nondifferentiable:
                facts.nondifferentiable.update(eqn.outputs)
            if features is not None and features.kind is Kind.WRITE and features.opaque:
                facts.opaque.update(facts.assigned.intersection(eqn.outputs))
        functions = Functions(self._container.document("functions.json"), self._check_function)
        written = self._container.meta.get("backward_functions")
        facts.backward_functions.update(functions.backward_functions(written, program, whole=True))

    def _check_function(self, program: Program) -> Program:
        self._check.check(program)
        return replace(program, eqns=tuple(map(with_defaults, program.eqns)))

    def _add_values(self) -> None:
        trace = self._trace
        for name, info in self._container.tensors.items():
            var = self._fields.var_of(name, info.dtype, info.shape)
            producer = self._program.producers[var]
            if producer == LEAF or self._program.eqns[producer].op not in RECOMPUTED:
                trace.values[var] = InFile(self._container, name, info)
        self._builder.facts.moments.update(trace.tensors.new_identity(var) for var in self._fields.vars("moments"))

    def _add_variables(self) -> None:
        trace, facts = self._trace, self._builder.facts
        for name, trainable, versions, made_by, frozen, mirrored in self._fields.variables:
            kind = self._program.types[versions[-1]]

            def load(var: int = versions[-1]) -> Tensor:
                with trace.explained():
                    return Values(trace)(var)

            variable = SavedVariable(name, kind.dtype, kind.shape, trainable, load, frozen)
            key = core.identity_of(variable.handle)
            history = VariableHistory(key, variable.handle, versions, list(accumulate(made_by, max)))
            facts.histories[key] = history
            facts.history_of.update(dict.fromkeys(versions, history))
            trace.variables[key] = variable
            if mirrored is not None:
                self._mirrored[key] = f"{name}{NUMBER}{mirrored}" if mirrored else name

    def _add_host_reads(self) -> None:
        """Restore the order of equations, host reads and layer calls."""
        trace, facts = self._trace, self._builder.facts
        reads: dict[int, list[tuple[int, int, str]]] = {}
        for var, before, frame, method in self._fields.host_reads:
            reads.setdefault(before, []).append((var, frame, method))
        calls = _LayerCalls(trace.tensors, facts, self._fields.layers)
        for index in range(len(self._program.eqns) + 1):
            calls.advance_to(index)
            for var, frame, method in reads.get(index, ()):
                number, identity = len(facts.host_reads), trace.tensors.new_identity(var)
                facts.host_reads.append(HostRead(identity, next_time(), frame, method, number))
            if index < len(self._program.eqns):
                facts.times.append(next_time())

    def _names(self) -> dict[str, Any]:
        trace, types = self._trace, self._program.types
        variables = list(trace.variables.values())
        return {
            name: variables[number]
            if kind == "variable"
            else TensorRef(trace.tensors.new_identity(number), *types[number])
            for name, (kind, number) in self._fields.names.items()
        }

    def _withhold(self, names: Mapping[str, Any]) -> None:
        """Put a `Withheld` in place of each value that was left out; random values must not be drawn again."""
        trace = self._trace
        for name in self._fields.redacted:
            what = names[name]
            known = trace.tensors.find(what) if isinstance(what, TensorRef) else None
            history = None if known is not None else trace.facts.histories[core.identity_of(what.handle)]
            for var in [known] if history is None else history.versions:
                assert var is not None
                producer = self._program.producers[var]
                drawn = producer != LEAF and not is_deterministic(self._program.eqns[producer].op)
                if var not in trace.values and (producer == LEAF or drawn):
                    trace.values[var] = Withheld(name)


class _LayerCalls:
    """Restores the position of layer calls among the equations."""

    def __init__(self, tensors: TensorMap, facts: GrowingFacts, rows: Sequence[LayerRow]) -> None:
        self._tensors, self._facts, self._waiting = tensors, facts, deque(rows)
        self._open: list[tuple[LayerRow, int]] = []  # with the time when each began; innermost last

    def advance_to(self, index: int) -> None:
        """End and begin the calls that end and begin before equation number `index`."""
        self._end(index)
        while self._waiting and self._waiting[0].begin == index:
            self._end(index, inside=self._waiting[0].path)
            self._open.append((self._waiting.popleft(), next_time()))
        self._end(index)

    def _end(self, index: int, inside: str = "") -> None:
        """End calls, but not one that ran no equation and called the layer `inside`."""
        while self._open and self._open[-1][0].end <= index and not inside.startswith(self._open[-1][0].path + "/"):
            self._close()

    def _close(self) -> None:
        row, begin = self._open.pop()
        counted = self._tensors.new_identity(row.returned) if row.returned >= 0 else 0
        returned = UNCOUNTED if row.returned == -2 else counted
        self._facts.layer_calls[begin] = LayerCall(row.path, begin, next_time(), returned)
