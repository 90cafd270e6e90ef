"""Tangents that forward accumulators hold for the inputs and outputs of function calls.

TensorFlow computes the tangents of a function's outputs inside a rewritten call, whose derivative is wrong or missing.
Here they are outputs of an ordinary function, which takes the tangents of the inputs as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from retrotape._types import Tensor
from retrotape.tf import core, functions
from retrotape.tf.core import atomic_function, concrete_function, func_graph, ops, pywrap_tfe, record, tf
from retrotape.tf.hooks import FunctionCall

Kind = tuple[Any, tuple[int | None, ...]]  # dtype and shape
Indices = tuple[tuple[tuple[int, int], ...], ...]  # for each accumulator, which tensor has which tangent


class Tangents(NamedTuple):
    """The tangents of some tensors, numbered after them."""

    indices: Indices
    tensors: list[Tensor]


def tangents_of(tensors: Sequence[Tensor]) -> Tangents | None:
    """Return the tangents that forward accumulators of this thread hold for `tensors`; None if there are none."""
    if not core.stock_tape_listens():
        return None
    indices, found = pywrap_tfe.TFE_Py_PackJVPs(list(tensors))
    return Tangents(indices, list(found)) if found else None


def tangents_for(call: FunctionCall) -> Tangents | None:
    """Return the tangents of the inputs of a call; None if there are none, or the function has no outputs."""
    return tangents_of(_inputs(call)) if functions.output_types(call.function) else None


def _inputs(call: FunctionCall) -> list[Tensor]:
    own = hasattr(call.function, "constants")  # made here: its captures are internal
    return list(call.arguments) if own else [*call.arguments, *call.captures]


def link(copy: Tensor, tensor: Tensor) -> None:
    """Make accumulators and stock tapes treat `copy`, which may be the handle of a variable, as `tensor`."""
    core.pass_tangents(tensor, copy)
    record.record_operation_backprop_only("Identity", [copy], [tensor], lambda grad: [grad])


def widened(call: FunctionCall, tangents: Tangents) -> tuple[FunctionCall, FunctionCall]:
    """Return a call that also computes the tangents of `call`'s outputs, as it is recorded and as it is run.

    The latter takes copies of the inputs, which have no tangents: otherwise accumulators would differentiate it too.
    """
    function = with_tangents(call.function, tangents)
    inputs = [*_inputs(call), *tangents.tensors]
    given = list(inputs)
    for position in {primal for pairs in tangents.indices for primal, _ in pairs}:
        with record.stop_recording():
            given[position] = copy = tf.raw_ops.Identity(input=inputs[position])
        if copy.dtype == tf.resource:
            copy._handle_data = inputs[position]._handle_data
        record.record_operation_backprop_only("Identity", [copy], [inputs[position]], lambda grad: [grad])
    return FunctionCall(function, inputs, function.constants), FunctionCall(function, given, function.constants)


def narrowed(call: FunctionCall, wide: FunctionCall, outputs: Sequence[Tensor]) -> Any:
    """Pass the tangents that a widened call computed to the accumulators, and return the result of `call`."""
    indices = wide.function.output_indices
    record.record_operation_forwardprop_only("tangents", list(outputs), wide.arguments, None, indices)
    return call.function.function_type.pack_output(outputs[: len(functions.output_types(call.function))])


def without_tangents(call: FunctionCall, outputs: int) -> FunctionCall:
    """Return the original of a widened call, if its own outputs cover the first `outputs`."""
    function = call.function.narrow()
    if function is None or outputs > len(functions.output_types(function)):
        return call
    return FunctionCall(function, call.arguments[: len(function._func_graph.inputs)], [])


_known: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
made: WeakSet[Any] = WeakSet()  # functions that `with_tangents` has returned


def with_tangents(function: Any, tangents: Tangents) -> Any:
    """Return the function from a concrete function's inputs and their tangents to its outputs and their tangents.

    Its attribute `output_indices` says which outputs are the tangents of which others, and `second` which are
    tangents of tangents.
    """
    kinds = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tangents.tensors)
    by_kind = _known.setdefault(function, {})
    if (tangents.indices, kinds) not in by_kind:
        by_kind[tangents.indices, kinds] = _widen(function, tangents.indices, kinds)
    return by_kind[tangents.indices, kinds]


def _widen(function: Any, indices: Indices, kinds: Sequence[Kind]) -> Any:
    """Widen a function for one accumulator after the other, innermost first."""
    result, found, count, done = function, [], len(functions.output_types(function)), 0
    for pairs in indices:
        own: tuple[tuple[int, int], ...] = ()
        if pairs:
            result, own = _widen_once(result, pairs, kinds[done : done + len(pairs)])
            done += len(pairs)
        found.append(own)
    result.narrow = ref(function)  # weak: `_known` must not keep the function alive
    result.output_indices = tuple(found)
    result.second = {tangent for pairs in found for primal, tangent in pairs if primal >= count}
    made.add(result)
    return result


def _widen_once(
    function: Any, pairs: Sequence[tuple[int, int]], kinds: Sequence[Kind]
) -> tuple[Any, tuple[tuple[int, int], ...]]:
    constants = getattr(function, "constants", [])
    inner = function._func_graph.inputs
    graph = func_graph.FuncGraph(f"tangents_of_{functions.function_name(function)}")
    with graph.as_default(), record.stop_recording():
        inputs = [functions.placeholder_like(tensor) for tensor in inner[: len(inner) - len(constants)]]
        tangents = [tf.compat.v1.placeholder(dtype, shape) for dtype, shape in kinds]
        called = FunctionCall(function, inputs, list(constants)).run()
        outputs = [tensor for tensor in tf.nest.flatten(called, expand_composites=True) if tensor is not None]
        jvps = _jvps(outputs, [inputs[primal] for primal, _ in pairs], tangents)
    found = [(position, jvp) for position, jvp in enumerate(jvps) if jvp is not None]
    graph.outputs = [*outputs, *(jvp for _, jvp in found)]
    graph.inputs = [*inputs, *tangents, *graph.internal_captures]
    graph.structured_outputs = graph.outputs
    atomic = atomic_function.from_func_graph(f"__inference_tangents_{ops.uid()}", graph, {})
    result = concrete_function.ConcreteFunction(atomic)
    result.constants = list(graph.external_captures)
    return result, tuple((position, len(outputs) + number) for number, (position, _) in enumerate(found))


def _jvps(outputs: Sequence[Tensor], inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the tangents of `outputs` in a graph, by transposing the gradient, which is linear in its seeds."""
    smooth = [position for position, output in enumerate(outputs) if core.is_trainable(output)]
    seeds = [tf.ones_like(outputs[position]) for position in smooth]
    grads = tf.gradients([outputs[position] for position in smooth], list(inputs), seeds)
    pairs = [(grad, tangent) for grad, tangent in zip(grads, tangents, strict=True) if grad is not None]
    found: list[Tensor | None] = [None] * len(outputs)
    if pairs:
        transposed = tf.gradients(
            [tf.convert_to_tensor(grad) for grad, _ in pairs], seeds, [tangent for _, tangent in pairs]
        )
        for position, tangent in zip(smooth, transposed, strict=True):
            found[position] = None if tangent is None else tf.convert_to_tensor(tangent)
    return found
