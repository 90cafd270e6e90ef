"""Going back through a call of a `tf.function`.

The first derivative is TensorFlow's own: it kept what it needs when the function ran. Derivatives of that
derivative are taken from the function computed again, as a function of the recorded inputs, so that any
order can be asked afterwards and no order costs anything beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from retrotape import _hooks, _tf_functions
from retrotape._tf import tf
from retrotape.execute._values import Values
from retrotape.ir import Eqn
from retrotape.record import Backward, Recording, current_stack, function_traits

Cotangent = Any
Tensor = Any

_gradient_functions: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def pull_call(
    recording: Recording,
    eqn: Eqn,
    call: _hooks.FunctionCall,
    backward: Backward,
    grads: list[Cotangent | None],
    values: Values,
) -> Sequence[Cotangent | None]:
    """Return the cotangents of the inputs of a call, given those of the outputs that it recorded."""
    stack = current_stack()
    if not stack.hearing() or not function_traits(call.function).deterministic:
        return list(backward.function(*grads))
    with current_stack().unheard():
        found = [None if grad is None else tf.convert_to_tensor(grad) for grad in backward.function(*grads)]
    by_var = dict(zip(backward.outputs, grads, strict=True))
    outputs = eqn.outputs[: len(_tf_functions.output_types(call.function))]
    seeds = [_dense_or_zeros(by_var.get(var), recording.builder.types[var]) for var in outputs]
    operands = [values(var) for var in eqn.inputs]
    positions = [position for position, grad in enumerate(found) if grad is not None]

    def back(*seconds: Cotangent) -> list[Cotangent | None]:
        gradient = _gradient_function(call.function)
        aligned = _aligned(positions, seconds, gradient)
        return _apply_gradient(gradient, [*operands, *seeds], aligned)

    stack.emit(f"gradient of {eqn.op}", [found[p] for p in positions], [*operands, *seeds], back)
    return found


def _apply_gradient(function: Any, operands: list[Tensor], seeds: list[Tensor]) -> list[Cotangent | None]:
    """Return the gradients of a concrete function's inputs, and write down how they go back in turn."""
    gradient = _gradient_function(function)
    with current_stack().unheard():
        results = gradient._call_flat([*_with_handles(function, operands), *seeds], gradient.constants)
        results = list(tf.nest.flatten(results))

    def back(*seconds: Cotangent) -> list[Cotangent | None]:
        return _apply_gradient(gradient, [*operands, *seeds], [tf.convert_to_tensor(second) for second in seconds])

    if results:
        current_stack().emit(f"gradient of {function.name}", results, [*operands, *seeds], back)
    found: list[Cotangent | None] = [None] * len(operands)
    for position, result in zip(gradient.input_positions, results, strict=True):
        if position < len(found):
            found[position] = result
    return found


def _gradient_function(function: Any) -> Any:
    found = _gradient_functions.get(function)
    if found is None:
        with current_stack().unheard():
            found = _gradient_functions[function] = _tf_functions.gradient_function(function)
    return found


def _with_handles(function: Any, operands: list[Tensor]) -> list[Tensor]:
    """Put each recorded value of a variable into a variable of its own: the live one may have changed."""
    inputs = function._func_graph.inputs
    return [
        tf.Variable(operand).handle if tensor.dtype == tf.resource and operand.dtype != tf.resource else operand
        for operand, tensor in zip(operands, inputs, strict=False)
    ]


def _aligned(positions: list[int], seconds: Sequence[Cotangent], gradient: Any) -> list[Tensor]:
    by_position = dict(zip(positions, seconds, strict=True))
    return [
        tf.convert_to_tensor(by_position[position]) if position in by_position else tf.zeros(output.shape, output.dtype)
        for position, output in zip(gradient.input_positions, _tf_functions.output_types(gradient), strict=True)
    ]


def _dense_or_zeros(grad: Cotangent | None, kind: Any) -> Tensor:
    if grad is not None:
        return tf.convert_to_tensor(grad)
    return tf.zeros(kind.shape, kind.dtype)
