"""What a computation ran, as data: from values of a trace, and from inputs, to its results."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np

from retrotape._types import Cotangent, Tensor
from retrotape.ir import CUSTOM, LEAF, Builder, Eqn, Program, TensorType, bytes_of
from retrotape.record import RESOURCE, Recorder, Trace, current_stack, is_deterministic
from retrotape.tf import core
from retrotape.tf.core import TensorProto, identity_of, shape_of, tf

_STRING, _VARIANT = 7, 21
LARGEST = 1 << 20  # bytes of a constant, which a function holds as long as it is remembered
_Find = Callable[[int], int | None]
Result = tuple[int, ...]  # vars: of a tensor, of `tf.IndexedSlices` (values, indices, perhaps dense shape), or none


class NotCompilableError(Exception):
    """A computation cannot be compiled; the message says why."""


class Computation(NamedTuple):
    """A computation as data. Equal ones compute the same from the same values.

    Attributes:
      types: The types of its vars.
      producers: For each var, the number of its equation, or `LEAF`.
      eqns: Its equations, without source lines.
      inputs: The leaves for what the caller passes in.
      feeds: Leaves, each with the var of the trace whose value it takes.
      constants: Leaves, each with the bytes of its value.
      read: Vars of the trace that Python read, each with the bytes of its value: others may lead to other ops.
      read_inside: Vars of its own that Python read.
      results: The vars of each result.
    """

    types: tuple[TensorType, ...]
    producers: tuple[int, ...]
    eqns: tuple[Eqn, ...]
    inputs: tuple[int, ...]
    feeds: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, bytes], ...]
    read: tuple[tuple[int, bytes], ...]
    read_inside: tuple[int, ...]
    results: tuple[Result, ...]


class Observation:
    """Runs a computation and observes the ops that it runs.

    Args:
      trace: The trace whose values it reads.
      inputs: What it reads besides.
      size: How many vars the trace had before, if the ops are also recorded there.

    Attributes:
      var_by_identity: Of each tensor that was used or made, its var in the computation.
      assumed: The vars of the trace that were taken for constants.
    """

    of_query = True

    def __init__(self, trace: Trace, inputs: Sequence[Tensor], size: int | None = None) -> None:
        self._trace, self._inputs, self._size = trace, list(inputs), size
        self._fixed: Container[int] = ()
        self._recorder = Recorder("leaves")
        self._recorder.observer = self
        self._read: dict[int, Tensor] = {}
        self._gap = False
        self.var_by_identity: dict[int, int] = {}
        self.assumed: set[int] = set()

    def _on_trace(self, identity: int) -> int | None:
        """Return the var that a tensor had on the trace before; None if it had none, or was a constant."""
        var = self._trace.tensors.get(identity)
        if var is None or (self._size is not None and var >= self._size):
            return None
        if var in self._fixed:
            self.assumed.add(var)
            return None
        return var

    def on_gap(self) -> None:
        """Ops are about to run that are not observed."""
        self._gap = True

    def on_gap_end(self) -> None:
        """Ops are observed again."""

    def on_host_read(self, tensor: Tensor, only_shown: bool) -> None:
        """Python is about to read the value of a tensor."""
        self._read[identity_of(tensor)] = tensor

    def run(self, compute: Callable[[], list[Cotangent | None]]) -> list[Cotangent | None]:
        """Run the computation, and return its results."""
        try:
            stack, own = current_stack(), self._recorder
            with stack.only(own) if self._size is None else stack.beside(own):
                return compute()
        except BaseException:
            self._recorder.observer = None  # see `computation`
            raise

    def computation(self, found: Sequence[Cotangent | None], fixed: Container[int] = ()) -> Computation:
        """Return what ran as data, given its results.

        Args:
          found: The results.
          fixed: Vars of the trace that are constants of earlier computations.

        Raises:
          NotCompilableError: If it cannot be a function of TensorFlow.
        """
        recorder, self._fixed = self._recorder, fixed
        recorder.flush()
        self.end()
        if self._gap:
            raise NotCompilableError("part of the derivative is computed by ops that cannot be observed")
        if recorder.facts.histories:
            raise NotCompilableError("a backward function reads or assigns a variable")
        for op in {eqn.op for eqn in recorder.program.eqns}:
            _check_op(op)  # also those that no result needs, such as `tf.print`
        extraction = _Extraction(self._trace, recorder, self._inputs, self._on_trace)
        computation = extraction.extract(found, self._read)
        self.var_by_identity = extraction.vars_by_identity()
        return computation

    def end(self) -> None:
        """Stop observing: or both would live until the next garbage collection, and the trace with them."""
        self._recorder.observer = None


class _Extraction:
    """Copies the equations that the results need, with vars numbered anew."""

    def __init__(self, trace: Trace, recorder: Recorder, inputs: Sequence[Tensor], on_trace: _Find) -> None:
        self._trace, self._recorder, self._on_trace, self._builder = trace, recorder, on_trace, Builder()
        self._map: dict[int, int] = {}  # from vars of the recorder
        self._leaves: dict[int, int] = {}  # by identity
        self._feeds: dict[int, int] = {}
        self._constants: dict[int, bytes] = {}
        self._inputs = tuple(self._add_leaf(tensor) for tensor in inputs)

    def extract(self, found: Sequence[Cotangent | None], read: dict[int, Tensor]) -> Computation:
        """Return the computation of the results."""
        tensors, program = [_tensors_in(grad) for grad in found], self._recorder.program
        guards, inside = self._sort_reads(read)
        for eqn in program.eqns:  # also what no result needs: Python may have read the shape
            self._copy(eqn, program)
        results = tuple(tuple(self._of(tensor) for tensor in row) for row in tensors)
        read_inside = tuple(self._var(var) for var in inside)
        builder = self._builder
        return Computation(
            tuple(builder.types),
            tuple(builder.producers),
            tuple(builder.eqns),
            self._inputs,
            tuple(self._feeds.items()),
            tuple(self._constants.items()),
            guards,
            read_inside,
            results,
        )

    def _sort_reads(self, read: dict[int, Tensor]) -> tuple[tuple[tuple[int, bytes], ...], list[int]]:
        """Return the reads of values of the trace, and the vars of values that the computation itself made."""
        guards, inside = [], []
        for identity, tensor in read.items():
            own = self._recorder.tensors.get(identity)
            if own is not None and self._recorder.program.producers[own] == LEAF:
                identity = identity_of(self._recorder.values[own])  # of the tensor that this one is a copy of
            var = self._on_trace(identity)
            if identity in self._leaves:
                raise NotCompilableError("a backward function reads in Python what it is given")
            if var is not None:
                guards.append((var, value_bytes(tensor)))
            elif own is not None and self._recorder.program.producers[own] != LEAF:
                inside.append(own)
            # else a constant that Python has made
        return tuple(guards), inside

    def _copy(self, eqn: Eqn, program: Program) -> None:
        kinds = [program.types[var] for var in eqn.outputs]
        if any(kind.dtype == RESOURCE for kind in kinds):
            raise NotCompilableError(f"it runs {eqn.op}, which makes a resource")
        inputs = tuple(map(self._var, eqn.inputs))
        outputs = self._builder.define(kinds)
        self._map.update(zip(eqn.outputs, outputs, strict=True))
        self._builder.append(eqn.op, inputs, outputs, eqn.attrs)

    def _of(self, tensor: Tensor) -> int:
        var = self._recorder.tensors.find(tensor)
        return self._leaf(tensor) if var is None else self._var(var)

    def _var(self, var: int) -> int:
        found = self._map.get(var)
        if found is None:
            found = self._map[var] = self._leaf(self._recorder.values[var])
        return found

    def _leaf(self, tensor: Tensor) -> int:
        """Return the var of a tensor that no observed op has made."""
        found = self._leaves.get(identity_of(tensor))
        if found is None:
            found = self._add_leaf(tensor)
            var = self._on_trace(identity_of(tensor))
            if var is not None:
                self._feeds[found] = var
            elif core.eager_dtype(tensor) in (RESOURCE, _VARIANT):
                raise NotCompilableError("it uses a resource or a list of tensors that is not on the tape")
            elif bytes_of(self._builder.types[found]) > LARGEST:
                raise NotCompilableError("it uses a large tensor that is not on the tape")
            else:
                self._constants[found] = value_bytes(tensor)
        return found

    def vars_by_identity(self) -> dict[int, int]:
        """Return the vars of tensors that were used or made."""
        made = {key: self._map[var] for key, var in self._recorder.tensors.items() if var in self._map}
        return {**self._leaves, **made}

    def _add_leaf(self, tensor: Tensor) -> int:
        kind = TensorType(core.eager_dtype(tensor), shape_of(tensor))
        self._leaves[identity_of(tensor)] = var = self._builder.leaf(kind)
        return var


def _check_op(op: str) -> None:
    """Raise if an op may not be part of a compiled function."""
    if op == CUSTOM:
        return
    if core.op_def(op) is None:
        raise NotCompilableError(f"it calls the function {op}")
    if not is_deterministic(op):
        raise NotCompilableError(f"it runs {op}, which has an effect, or another result each time")


def _tensors_in(grad: Cotangent | None) -> list[Tensor]:
    if not isinstance(grad, tf.IndexedSlices):
        return [] if grad is None else [grad]
    return [tensor for tensor in (grad.values, grad.indices, grad.dense_shape) if tensor is not None]


def value_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a value, to compare it with another one of the same type; see `array_of`."""
    array = tensor.numpy()
    if core.eager_dtype(tensor) == _STRING:
        return tf.make_tensor_proto(array).SerializeToString(deterministic=True)
    return array.tobytes()


def array_of(kind: TensorType, data: bytes) -> np.ndarray:
    """Return a value, given its type and its bytes."""
    dtype = tf.as_dtype(kind.dtype)
    if dtype == tf.string:
        return tf.make_ndarray(TensorProto.FromString(data))
    return np.frombuffer(data, dtype.as_numpy_dtype).reshape(kind.shape)
