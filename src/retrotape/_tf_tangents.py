"""Tangents that forward accumulators hold: of what a function is called with, and of what it returns.

TensorFlow computes the tangents of a function's outputs inside a rewritten call, whose derivative it gets wrong or
leaves out. Here they are the outputs of an ordinary function, which takes the tangents of the inputs as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from retrotape import _tf, _tf_functions
from retrotape._hooks import FunctionCall
from retrotape._tf import atomic_function, concrete_function, forwardprop, func_graph, ops, pywrap_tfe, record, tf

Tensor = Any
Indices = tuple[tuple[tuple[int, int], ...], ...]  # for each accumulator, which tensor has which tangent


class Tangents(NamedTuple):
    """The tangents of some tensors, numbered on from these."""

    indices: Indices
    tensors: list[Tensor]

    def primals(self) -> set[int]:
        """Return the numbers of the tensors that have a tangent."""
        return {primal for pairs in self.indices for primal, _ in pairs}


def tangents_of(tensors: Sequence[Tensor]) -> Tangents | None:
    """Return the tangents that forward accumulators of this thread hold for `tensors`; None where there are none."""
    if not _tf.stock_tape_listens():
        return None
    indices, found = pywrap_tfe.TFE_Py_PackJVPs(list(tensors))
    return Tangents(indices, list(found)) if found else None


def set_tangents(outputs: Sequence[Tensor], inputs: Sequence[Tensor], indices: Indices) -> None:
    """Tell the accumulators which of `outputs` are the tangents of which others."""
    record.record_operation_forwardprop_only("tangents", list(outputs), list(inputs), None, indices)


def link(copy: Tensor, tensor: Tensor) -> None:
    """Let accumulators and stock tapes take `copy`, which may be the handle of a variable, for `tensor`."""
    tangents = tangents_of([tensor])
    if tangents is not None:
        set_tangents([copy, *tangents.tensors], [tensor, *tangents.tensors], tangents.indices)
    record.record_operation_backprop_only("Identity", [copy], [tensor], lambda grad: [grad])


def without_tangents(tensors: Sequence[Tensor], tangents: Tangents) -> list[Tensor]:
    """Return `tensors`, with copies in the place of those for which an accumulator holds a tangent.

    Stock tapes take a copy for what it is a copy of; accumulators know nothing of it.
    """
    given = list(tensors)
    for position in tangents.primals():
        tensor = tensors[position]
        with record.stop_recording():
            given[position] = copy = tf.raw_ops.Identity(input=tensor)
        if copy.dtype == tf.resource:
            copy._handle_data = tensor._handle_data
        record.record_operation_backprop_only("Identity", [copy], [tensor], lambda grad: [grad])
    return given


_known: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
made: WeakSet[Any] = WeakSet()  # functions that `with_tangents` has returned


def with_tangents(function: Any, tangents: Tangents) -> Any:
    """Return the function from a concrete function's inputs and their tangents to its outputs and their tangents.

    The result's `output_indices` says which of its outputs are the tangents of which others.
    """
    kinds = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tangents.tensors)
    by_kind = _known.setdefault(function, {})
    if (tangents.indices, kinds) not in by_kind:
        by_kind[tangents.indices, kinds] = _trace(function, tangents.indices, kinds)
    return by_kind[tangents.indices, kinds]


def _trace(function: Any, indices: Indices, kinds: Sequence[tuple[Any, Any]]) -> Any:
    graph = func_graph.FuncGraph(f"tangents_of_{function.name}")
    with graph.as_default(), ExitStack() as stack:
        # One that is computing a tangent now would hide what happens here from those that are opened here.
        stack.enter_context(forwardprop.forwardprop_util.push_forwardprop_state())
        inputs = [_tf_functions.placeholder_like(tensor) for tensor in function._func_graph.inputs]
        tensors = [*inputs, *(tf.compat.v1.placeholder(dtype, shape) for dtype, shape in kinds)]
        for pairs in reversed(indices):  # the innermost comes first
            accumulator = tf.autodiff.ForwardAccumulator([], [])
            for primal, tangent in pairs:
                pywrap_tfe.TFE_Py_ForwardAccumulatorWatch(accumulator._accumulator, tensors[primal], tensors[tangent])
            stack.enter_context(accumulator)
        split = len(inputs) - len(function.captured_inputs)
        called = FunctionCall(function, inputs[:split], inputs[split:]).run()
        outputs = [tensor for tensor in tf.nest.flatten(called, expand_composites=True) if tensor is not None]
        found, jvps = pywrap_tfe.TFE_Py_PackJVPs(outputs)
    graph.outputs = [graph.capture(tensor) for tensor in (*outputs, *jvps)]
    graph.inputs = [*tensors, *graph.internal_captures]
    graph.structured_outputs = graph.outputs
    atomic = atomic_function.from_func_graph(f"__inference_tangents_{ops.uid()}", graph, {})
    result = concrete_function.ConcreteFunction(atomic)
    result.output_indices = tuple(found)[: len(indices)]  # behind it are accumulators that were open before
    result.constants = list(graph.external_captures)
    made.add(result)
    return result
