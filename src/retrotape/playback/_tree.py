"""Recorded paths as a tree of functions: paths that begin alike share what they have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from retrotape._types import Handle, Tensor
from retrotape.ir import DType, Eqn, TensorType
from retrotape.lower import CALL, SINGLE_THREADED, FunctionBuilder, add_node, may_fail, size_of
from retrotape.playback._path import Path, Segment
from retrotape.record import RESOURCE
from retrotape.tf.lowering import LoweredFunction

LARGE = 16_384  # elements, from which on the last bits of a power are given up for speed
_HANDLE = TensorType(RESOURCE, ())


class Options(NamedTuple):
    """How functions are made.

    Attributes:
      jit: Whether XLA compiles them.
      keeps_state: Whether the last one also returns what variables held before.
    """

    jit: bool
    keeps_state: bool


class Lowered(NamedTuple):
    """A segment as a function.

    Attributes:
      function: From `fixed` and the values of `takes` to those of `gives`.
      fixed: Handles of variables and other tensors that are passed in each time.
      takes: The vars whose values it takes.
      gives: The vars whose values it returns.
      dtypes: The dtypes of these.
    """

    function: LoweredFunction | None
    fixed: list[Tensor]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    dtypes: tuple[int, ...]


class Node:
    """A segment in the tree.

    Attributes:
      segment: The segment.
      path: The first path through it, for types, constants and variables.
      children: What follows, by the values of the checks.
      is_end: Whether the path ends here.
    """

    def __init__(self, segment: Segment, path: Path, is_end: bool, options: Options) -> None:
        self.segment, self.path, self.is_end, self._options = segment, path, is_end, options
        self.children: dict[tuple[Hashable, ...], Node] = {}
        self._lowered: Lowered | None = None
        self._needed: frozenset[int] = frozenset()
        self._needs: frozenset[int] | None = None

    def needs(self) -> frozenset[int]:
        """Return the vars whose values this node, and all after it, take from earlier ones or from inputs."""
        if self._needs is None:
            kept, needed = self._kept()
            made = {var for eqn in kept for var in eqn.outputs}
            self._needs = frozenset(var for var in needed if var not in made and not self._is_fixed(var))
        return self._needs

    def changed(self) -> None:
        """Another path goes through this node."""
        self._needs = None

    def _is_fixed(self, var: int) -> bool:
        return var in self.path.constants or var in self.path.handles or var in self.path.captures

    def _effects(self) -> list[Eqn]:
        return self.path.effects if self.is_end else []

    def _wanted(self) -> set[int]:
        """Return the vars whose values are needed after this node."""
        if not self.is_end:
            later = (child.needs() for child in self.children.values())
            return {check.var for check in self.segment.checks}.union(*later)
        path = self.path
        found = {*path.outputs, *(update.last for update in path.updates)}
        if self._options.keeps_state:
            found |= path.handles.keys()
        return found

    def _kept(self) -> tuple[list[Eqn], set[int]]:
        """Return the equations that run, and the vars that are needed."""
        needed = self._wanted() | {var for eqn in self._effects() for var in eqn.inputs}
        kept = []
        for eqn in reversed(self.segment.eqns):
            if not needed.isdisjoint(eqn.outputs) or may_fail(eqn.op):
                kept.append(eqn)
                needed.update(eqn.inputs)
        return kept[::-1], needed

    def lowered(self) -> Lowered:
        """Return the segment as a function, built when it is first needed, and again if a later path needs more."""
        wanted = frozenset(self._wanted()) if self._lowered is None or not self.is_end else self._needed
        if self._lowered is None or not wanted <= self._needed:
            self._lowered, self._needed = self._lower(), wanted | self._needed
        return self._lowered

    def _lower(self) -> Lowered:
        kept, needed = self._kept()
        path = self.path
        made = {var for eqn in kept for var in eqn.outputs}
        loose = sorted(var for var in needed if var not in made and var not in path.constants)
        takes = [var for var in loose if var not in path.handles and var not in path.captures]
        gives = [
            var
            for var in sorted(self._wanted())
            if (var in made or var in path.handles) and not (self.is_end and self._only_assigned(var))
        ]
        if not kept and not gives and not self._effects() and not (self.is_end and path.updates):
            return Lowered(None, [], (), (), ())
        return _Lowering(self, kept, loose, takes, gives).run()

    def _only_assigned(self, var: int) -> bool:
        """Return whether a var is assigned to a variable, but not returned."""
        path = self.path
        return var not in path.outputs and not (self._options.keeps_state and var in path.handles)

    @property
    def jit(self) -> bool:
        """Whether XLA compiles the function."""
        return self._options.jit


class _Lowering:
    """Builds the function of a node."""

    def __init__(
        self, node: Node, kept: Sequence[Eqn], loose: Sequence[int], takes: Sequence[int], gives: Sequence[int]
    ) -> None:
        self._node, self._path, self._kept = node, node.path, kept
        self._takes, self._gives = takes, gives
        self._builder = FunctionBuilder()
        self._references: dict[int, str] = {}
        self._constants: dict[Hashable, str] = {}
        handles = {var: self._path.handles[var] for var in loose if var in self._path.handles}
        self._assigned = self._path.updates if node.is_end else ()
        for update in self._assigned:
            handles.setdefault(update.first, update.handle)
        self._captured = [var for var in loose if var in self._path.captures]
        self._handles: Mapping[int, Handle] = handles
        self._handle_references: dict[int, str] = {}
        self._reads: dict[int, str] = {}  # names of nodes

    def run(self) -> Lowered:
        """Return the function."""
        builder, types = self._builder, self._path.types
        for var in self._handles:
            self._handle_references[var] = builder.argument(_HANDLE)
        for var in (*self._captured, *self._takes):
            self._references[var] = builder.argument(types[var])
        used: set[int] = set()
        names: dict[int, str] = {}
        for eqn in self._kept:
            made = self._add(eqn)
            self._references.update(zip(eqn.outputs, made, strict=True))
            names[eqn.outputs[0]] = builder.latest()
            used.update(eqn.inputs)
        ends = [names[eqn.outputs[0]] for eqn in self._kept if used.isdisjoint(eqn.outputs)]
        for eqn in self._kept:  # TensorFlow inlines calls, and would drop ops inside that fail
            for var in eqn.outputs if eqn.op == CALL else ():
                builder.node("Identity", [self._references[var]], (("T", DType(types[var].dtype)),))
                ends.append(builder.latest())
        self._add_effects(ends)
        for var in self._gives:
            builder.result(self._reference(var), types[var].dtype)
        largest = max((size_of(types[var]) for eqn in self._kept for var in eqn.outputs), default=0)
        # The single-threaded executor has no loops.
        is_small = largest <= SINGLE_THREADED and all(eqn.op != CALL for eqn in self._kept)
        function = builder.build(is_small, stateful=True, jit=self._node.jit)
        fixed = [*self._handles.values(), *(self._path.captures[var] for var in self._captured)]
        dtypes = tuple(types[var].dtype for var in self._gives)
        return Lowered(function, fixed, tuple(self._takes), tuple(self._gives), dtypes)

    def _add(self, eqn: Eqn) -> list[str]:
        """Add an equation; a large square or cube without the kernel of Pow, which is twenty times slower."""
        builder, types = self._builder, self._path.types
        inputs = [self._reference(var) for var in eqn.inputs]
        kind = types[eqn.outputs[0]]
        if eqn.op != "Pow" or size_of(kind) < LARGE or types[eqn.inputs[0]] != kind:
            return add_node(builder, eqn, inputs)
        exponent = self._path.constants.get(eqn.inputs[1])
        if exponent is None or not (np.all(exponent == 2.0) or np.all(exponent == 3.0)):
            return add_node(builder, eqn, inputs)
        attrs = (("T", DType(kind.dtype)),)
        square = builder.node("Square", inputs[:1], attrs)
        return square if np.all(exponent == 2.0) else builder.node("Mul", [inputs[0], *square], attrs)

    def _reference(self, var: int) -> str:
        if var not in self._references:
            if var in self._handles:
                self._references[var] = self._read(var)
            else:
                self._references[var] = self._constant(np.asarray(self._path.constants[var]))
        return self._references[var]

    def _read(self, var: int) -> str:
        kind = self._path.types[var]
        (found,) = self._builder.node("ReadVariableOp", [self._handle_references[var]], (("dtype", DType(kind.dtype)),))
        self._reads[var] = self._builder.latest()
        return found

    def _constant(self, value: np.ndarray) -> str:
        key = value.dtype, value.shape, tuple(value.flat) if value.dtype == object else value.tobytes()
        if key not in self._constants:
            self._constants[key] = self._builder.constant(value)
        return self._constants[key]

    def _add_effects(self, ends: list[str]) -> None:
        """Add assignments and prints, which run after everything else has succeeded."""
        builder = self._builder
        effects = self._path.effects if self._node.is_end else []
        values = [self._reference(update.last) for update in self._assigned]
        inputs = [[self._reference(var) for var in eqn.inputs] for eqn in effects]
        for var in self._gives:
            self._reference(var)
        for eqn, given in zip(effects, inputs, strict=True):
            if eqn.op == "Assert":
                builder.node(eqn.op, given, eqn.attrs)
                ends.append(builder.latest())
        shown = [(eqn, given) for eqn, given in zip(effects, inputs, strict=True) if eqn.op != "Assert"]
        if not self._assigned and not shown:
            for name in ends:
                builder.run_always(name)
            return
        builder.node("NoOp", [], (), after=[*ends, *self._reads.values()])
        before = builder.latest()
        for eqn, given in shown:
            builder.node(eqn.op, given, eqn.attrs, after=[before])
            before = builder.latest()
            builder.run_always(before)
        for update, value in zip(self._assigned, values, strict=True):
            attrs = (("dtype", DType(self._path.types[update.last].dtype)), ("validate_shape", False))
            builder.node("AssignVariableOp", [self._handle_references[update.first], value], attrs, after=[before])
            builder.run_always(builder.latest())


class Played(NamedTuple):
    """What a path gave: the node where it ended, and the values of vars."""

    node: Node
    values: dict[int, Tensor]


def play(root: Node, values: dict[int, Tensor]) -> Played | tuple[Node, tuple[Hashable, ...]]:
    """Run the path that fits; return what it gave, or where no recorded path goes on.

    Args:
      root: The first node.
      values: The values of inputs, by var; those of other vars are added.
    """
    node = root
    while True:
        lowered = node.lowered()
        if lowered.function is not None:
            found = lowered.function([*lowered.fixed, *[values[var] for var in lowered.takes]])
            values.update(zip(lowered.gives, found, strict=True))
        if node.is_end:
            return Played(node, values)
        key = tuple([check.value(values[check.var]) for check in node.segment.checks])
        after = node.children.get(key)
        if after is None:
            return node, key
        node = after
