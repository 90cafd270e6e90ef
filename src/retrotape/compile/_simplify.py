"""Simplify a computation: what depends on shapes and constants alone is computed now, and nothing twice."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from retrotape.compile._observed import Computation, NotCompilableError
from retrotape.execute import run_eqn
from retrotape.ir import CUSTOM, Attr, DType, Eqn, TensorType
from retrotape.record import current_stack, traits
from retrotape.tf.core import TensorProto, tf

LARGEST = 1024  # elements of a constant that is computed now
_LIKE = {"ZerosLike": 0, "OnesLike": 1}
_SAME = frozenset((CUSTOM, "ReadVariableOp", "Identity", "PreventGradient", "StopGradient"))


class Simplified(NamedTuple):
    """The part of a computation that has to run each time.

    Attributes:
      eqns: Its equations, in the order in which they run.
      constants: The values of vars that are the same each time, as `TensorProto`.
      results: The vars of each result.
    """

    eqns: list[Eqn]
    constants: dict[int, Any]
    results: tuple[tuple[int, ...], ...]


class Simplifier:
    """One pass over the equations of a computation."""

    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        self._types = list(computation.types)
        self._static: dict[int, Any] = {}  # arrays
        self._protos: dict[int, Any] = {}
        for var, data in computation.constants:
            proto = TensorProto.FromString(data)
            self._protos[var] = proto
            if prod(dim.size for dim in proto.tensor_shape.dim) <= LARGEST:
                self._static[var] = tf.make_ndarray(proto)
        self._same: dict[int, int] = {}  # var → the first var with that value
        self._seen: dict[Any, tuple[int, ...]] = {}
        self._eqns: list[Eqn] = []

    def run(self) -> Simplified:
        """Return the simplified computation."""
        for eqn in self._computation.eqns:
            self._visit(eqn._replace(inputs=tuple(self._same.get(var, var) for var in eqn.inputs)))
        for var in self._computation.read_inside:
            if self._same.get(var, var) not in self._static:
                raise NotCompilableError("a gradient function reads in Python what another op computed")
        results = tuple(tuple(self._same.get(var, var) for var in row) for row in self._computation.results)
        needed, kept = {var for row in results for var in row}, []
        for eqn in reversed(self._eqns):
            if not needed.isdisjoint(eqn.outputs):
                kept.append(eqn)
                needed.update(var for var in eqn.inputs if var not in self._static)
        constants = {var: self._proto(var) for var in {*self._static, *self._protos}}
        return Simplified(kept[::-1], constants, results)

    def _proto(self, var: int) -> Any:
        found = self._protos.get(var)
        if found is None:
            found = tf.make_tensor_proto(self._static[var], self._types[var].dtype)
        return found

    def _visit(self, eqn: Eqn) -> None:
        if eqn.op in _SAME:
            self._same.update(zip(eqn.outputs, eqn.inputs[len(eqn.inputs) - len(eqn.outputs) :], strict=True))
            return
        if self._fold(eqn):
            return
        if eqn.op in _LIKE and self._is_known(eqn.inputs[0]):
            eqn = self._filled(eqn)
        key = eqn.op, eqn.inputs, eqn.attrs
        twin = self._seen.setdefault(key, eqn.outputs)
        if twin is not eqn.outputs:
            self._same.update(zip(eqn.outputs, twin, strict=True))
            return
        self._eqns.append(eqn)

    def _is_known(self, var: int) -> bool:
        shape = self._types[var].shape
        return shape is not None and None not in shape

    def _fold(self, eqn: Eqn) -> bool:
        """Compute an equation now, if it depends on nothing else; return whether it does."""
        if eqn.op in ("Shape", "ShapeN", "Size", "Rank") and all(map(self._is_known, eqn.inputs)):
            for var, given in zip(eqn.outputs, eqn.inputs, strict=True):
                self._static[var] = self._sizes(eqn.op, var, self._types[given])
            return True
        sizes = sum(prod(self._types[var].shape or ()) for var in eqn.outputs if self._is_known(var))
        if not all(var in self._static for var in eqn.inputs) or sizes > LARGEST or not traits(eqn.op).replayable:
            return False
        with current_stack().unrecorded(identified=True):
            given = [tf.constant(self._static[var], self._types[var].dtype) for var in eqn.inputs]
            made = run_eqn(eqn, given)
        if any(tensor.dtype in (tf.resource, tf.variant) for tensor in made):
            return False
        self._static.update(zip(eqn.outputs, (tensor.numpy() for tensor in made), strict=True))
        return True

    def _sizes(self, op: str, var: int, given: TensorType) -> Any:
        shape = given.shape or ()
        value = {"Size": prod(shape), "Rank": len(shape)}.get(op, shape)  # type: ignore[arg-type]
        return np.array(value, tf.as_dtype(self._types[var].dtype).as_numpy_dtype)

    def _filled(self, eqn: Eqn) -> Eqn:
        """Return the equation that makes zeros or ones without the value whose shape they have."""
        kind = self._types[eqn.inputs[0]]
        if not tf.as_dtype(kind.dtype).is_floating:
            return eqn
        shape, value = (self._constant(array) for array in self._fill_arguments(eqn.op, kind))
        attrs: tuple[Attr, ...] = (("T", DType(kind.dtype)), ("index_type", DType(3)))
        return Eqn("Fill", (shape, value), eqn.outputs, attrs, 0)

    def _fill_arguments(self, op: str, kind: TensorType) -> tuple[Any, Any]:
        return np.array(kind.shape, np.int32), np.array(_LIKE[op], tf.as_dtype(kind.dtype).as_numpy_dtype)

    def _constant(self, array: Any) -> int:
        """Return the var of a constant, the same one for equal constants."""
        key = "constant", str(array.dtype), array.shape, array.tobytes()
        found = self._seen.get(key)
        if found is None:
            self._types.append(TensorType(tf.as_dtype(array.dtype).as_datatype_enum, array.shape))
            found = self._seen[key] = (len(self._types) - 1,)
            self._static[found[0]] = array
        return found[0]
