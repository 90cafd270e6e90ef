"""Simplify a computation: what depends on shapes and constants alone is computed now, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from retrotape.execute import run_eqn
from retrotape.ir import Attr, DType, Eqn, TensorType
from retrotape.lower._no_ops import FILLS, UNCHANGED, unchanged_input
from retrotape.lower._observed import Computation, NotCompilableError, array_of
from retrotape.lower._shapes import has_known_shapes, may_fail, shaping_inputs, size_of
from retrotape.record import current_stack, traits
from retrotape.tf.core import tf

ASSUMABLE = 64  # elements of a value that is assumed to be the same each time
LARGEST = 1024  # elements of a constant that is computed now


class Simplified(NamedTuple):
    """The part of a computation that has to run each time.

    Attributes:
      eqns: Its equations, in the order in which they run.
      constants: The values of vars that are the same each time, as arrays.
      results: The vars of each result.
      assumed: The leaves whose values were assumed to be the same each time.
    """

    eqns: list[Eqn]
    constants: dict[int, Any]
    results: tuple[tuple[int, ...], ...]
    assumed: list[int]

    def used(self) -> set[int]:
        """Return the vars that equations take, or that are results."""
        return {var for eqn in self.eqns for var in eqn.inputs}.union(*self.results)


class Simplifier:
    """One pass over the equations of a computation.

    Args:
      computation: The computation.
      small: The values of small leaves: those that shapes depend on are assumed to be the same each time.
      specialize: Whether exponents are too.
      forward: The equations of the trace: what they have computed need not be computed again.
      checks_shapes: Whether shapes that may depend on values, those of the vars `unsure`, are checked each time.
    """

    def __init__(
        self,
        computation: Computation,
        small: Mapping[int, Any],
        specialize: bool = False,
        forward: Iterable[Eqn] = (),
        checks_shapes: bool = False,
    ) -> None:
        self._computation, self._small, self._specialize = computation, small, specialize
        self._checks_shapes = checks_shapes
        self.unsure: dict[int, None] = {}  # vars whose shapes may depend on values
        self._types = list(computation.types)
        given = {var: array_of(self._types[var], data) for var, data in computation.constants}
        self._large = {var: array for var, array in given.items() if array.size > LARGEST}
        self._static: dict[int, Any] = {var: array for var, array in given.items() if var not in self._large}
        self._same: dict[int, int] = {}  # var → the first var with that value
        self._filled: dict[int, int] = {}  # var → the number that all its elements are
        self._seen: dict[Any, tuple[int, ...]] = {}
        self._eqns: dict[int, Eqn] = {}  # by first output
        self._assumed: set[int] = set()
        self._add_computed(forward)

    def _add_computed(self, forward: Iterable[Eqn]) -> None:
        """Add the equations from feeds to feeds."""
        leaf_of = {var: leaf for leaf, var in self._computation.feeds}
        for eqn in forward:
            if traits(eqn.op).replayable and all(var in leaf_of for var in (*eqn.inputs, *eqn.outputs)):
                inputs, outputs = (tuple(leaf_of[var] for var in vars_of) for vars_of in (eqn.inputs, eqn.outputs))
                self._seen.setdefault((eqn.op, inputs, eqn.attrs), outputs)

    def run(self) -> Simplified:
        """Return the simplified computation."""
        self.visit_all()
        for var in self._computation.read_inside:
            if self._same.get(var, var) not in self._static:
                raise NotCompilableError("a gradient function reads in Python what another op computed")
        results = self._results()
        needed, kept = {var for row in results for var in row}, []
        for eqn in reversed(self._eqns.values()):
            if not needed.isdisjoint(eqn.outputs) or may_fail(eqn.op):
                kept.append(eqn)
                needed.update(var for var in eqn.inputs if var not in self._static)
        return Simplified(kept[::-1], {**self._large, **self._static}, results, sorted(self._assumed))

    def whole(self) -> Simplified:
        """Return the simplified computation with equations that no result needs."""
        self.visit_all()
        constants = {**self._large, **self._static}
        return Simplified(list(self._eqns.values()), constants, self._results(), sorted(self._assumed))

    def types(self) -> list[TensorType]:
        """Return the types of vars, also of new constants."""
        return self._types

    def same_as(self, var: int) -> int:
        """Return the var that has the value of a var."""
        return self._same.get(var, var)

    def visit_all(self) -> None:
        """Visit the equations in order."""
        for given in self._computation.eqns:
            eqn = given._replace(inputs=tuple(self._same.get(var, var) for var in given.inputs))
            if not all(var in self._static or self._assume(var) for var in shaping_inputs(eqn)):
                if not self._checks_shapes:  # and Python may have read the shapes
                    raise NotCompilableError(f"the shape of what {eqn.op} returns may depend on values")
                if eqn.outputs and not has_known_shapes(eqn, self._types, self._static):
                    self.unsure.update(dict.fromkeys(eqn.outputs))
            self._visit(eqn)

    def _results(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._same.get(var, var) for var in row) for row in self._computation.results)

    def _visit(self, eqn: Eqn) -> None:
        if eqn.op in UNCHANGED:
            self._same.update(zip(eqn.outputs, eqn.inputs[len(eqn.inputs) - len(eqn.outputs) :], strict=True))
            return
        if self._fold(eqn):
            return
        is_known = all(map(self._is_known, (*eqn.inputs, *eqn.outputs)))
        found = unchanged_input(eqn, self._types, self._static, self._filled) if is_known else None
        if found is not None:
            self._same[eqn.outputs[0]] = found
            return
        if eqn.op == "Pow":
            eqn = self._square(eqn)
        elif eqn.op in FILLS and self._is_known(eqn.inputs[0]):
            eqn = self._fill(eqn)
        repeats = traits(eqn.op).replayable  # not those that draw random numbers, or print
        twin = self._seen.setdefault((eqn.op, eqn.inputs, eqn.attrs), eqn.outputs) if repeats else eqn.outputs
        if twin is not eqn.outputs:
            self._same.update(zip(eqn.outputs, twin, strict=True))
            return
        self._eqns[eqn.outputs[0] if eqn.outputs else -len(self._eqns)] = eqn
        if eqn.op == "Fill" and eqn.inputs[1] in self._static:
            self._filled[eqn.outputs[0]] = self._static[eqn.inputs[1]].item()

    def _is_known(self, var: int) -> bool:
        shape = self._types[var].shape
        return shape is not None and None not in shape

    def _fold(self, eqn: Eqn) -> bool:
        """Compute an equation now, if it depends on nothing else; return whether it does."""
        if eqn.op in ("Shape", "ShapeN", "Size", "Rank") and all(map(self._is_known, eqn.inputs)):
            for var, given in zip(eqn.outputs, eqn.inputs, strict=True):
                self._static[var] = self._sizes(eqn.op, var, self._types[given])
            return True
        sizes = sum(size_of(self._types[var]) for var in eqn.outputs if self._is_known(var))
        if not all(var in self._static for var in eqn.inputs) or sizes > LARGEST or not traits(eqn.op).replayable:
            return False
        made = self._run(eqn, self._static)
        if any(tensor.dtype in (tf.resource, tf.variant) for tensor in made):
            return False
        self._static.update(zip(eqn.outputs, (tensor.numpy() for tensor in made), strict=True))
        return True

    def _run(self, eqn: Eqn, values: Mapping[int, Any]) -> list[Any]:
        with current_stack().unrecorded(identified=True):
            return run_eqn(eqn, [tf.constant(values[var], self._types[var].dtype) for var in eqn.inputs])

    def _sizes(self, op: str, var: int, given: TensorType) -> Any:
        shape = given.shape or ()
        value = {"Size": prod(shape), "Rank": len(shape)}.get(op, shape)  # type: ignore[arg-type]
        return np.array(value, tf.as_dtype(self._types[var].dtype).as_numpy_dtype)

    # ------------------------------------------------------------------ rewriting

    def _fill(self, eqn: Eqn) -> Eqn:
        """Return the equation that makes zeros or ones without the value whose shape they have."""
        kind = self._types[eqn.inputs[0]]
        if not tf.as_dtype(kind.dtype).is_floating:
            return eqn
        number = np.array(FILLS[eqn.op], tf.as_dtype(kind.dtype).as_numpy_dtype)
        inputs = self._constant(np.array(kind.shape, np.int32), 3), self._constant(number, kind.dtype)
        attrs: tuple[Attr, ...] = (("T", DType(kind.dtype)), ("index_type", DType(3)))
        return Eqn("Fill", inputs, eqn.outputs, attrs, 0)

    def _constant(self, array: Any, dtype: int) -> int:
        """Return the var of a constant, the same one for equal constants."""
        key = "constant", dtype, array.shape, array.tobytes()
        found = self._seen.get(key)
        if found is None:
            self._types.append(TensorType(dtype, array.shape))
            found = self._seen[key] = (len(self._types) - 1,)
            self._static[found[0]] = array
        return found[0]

    def _square(self, eqn: Eqn) -> Eqn:
        """Return a power as a square if its exponent is two: the kernel of Pow is twenty times slower."""
        base, exponent = eqn.inputs
        leaves: set[int] = set()
        value = self._assumed_value(exponent, leaves) if self._specialize else None
        if value is None or self._types[base] != self._types[eqn.outputs[0]] or not np.all(value == 2.0):
            return eqn
        self._assumed |= leaves
        return Eqn("Square", (base,), eqn.outputs, (("T", DType(self._types[base].dtype)),), 0)

    def _assume(self, var: int) -> bool:
        """Assume that a var has the same value each time, if it is computed from small leaves; return whether it is."""
        leaves: set[int] = set()
        value = self._assumed_value(var, leaves)
        if value is not None:
            self._static[var] = value
            self._assumed |= leaves
        return value is not None

    def _assumed_value(self, var: int, leaves: set[int]) -> Any | None:
        """Return a value computed from constants and from leaves that may be assumed; None if it is no such."""
        if var in self._static:
            return self._static[var]
        if var in self._small:
            leaves.add(var)
            return self._small[var]
        eqn = self._eqns.get(var)
        if eqn is None or not self._is_known(var) or size_of(self._types[var]) > ASSUMABLE:
            return None
        values = {one: self._assumed_value(one, leaves) for one in eqn.inputs}
        return None if any(value is None for value in values.values()) else self._run(eqn, values)[0].numpy()
