"""The backward pass through a call of a `tf.function`.

The first derivative is TensorFlow's own: it kept the intermediates it needs when the function ran. Higher derivatives
come from recomputing the function on its recorded inputs, so any order can be queried later at no cost while recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from retrotape._types import Cotangent, Tensor
from retrotape.errors import TapeUseError
from retrotape.execute._function_program import custom_name
from retrotape.execute._past import PastVariables
from retrotape.ir import CUSTOM, BackwardFunction, Eqn
from retrotape.record import Trace, current_stack, function_traits
from retrotape.tf import functions, hooks, threads
from retrotape.tf.core import identity_of, tf
from retrotape.tf.function_gradients import making_gradients

_GRADIENT = "gradient of "
_gradient_functions: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def is_gradient_of_call(eqn: Eqn) -> bool:
    """Return whether an equation is the gradient of a call, of any order."""
    return eqn.op == CUSTOM and custom_name(eqn).startswith(_GRADIENT)


def call_vjp(
    trace: Trace,
    eqn: Eqn,
    call: hooks.FunctionCall,
    backward: BackwardFunction,
    grads: list[Cotangent | None],
    values: Callable[[int], Tensor],
    past: PastVariables,
) -> Sequence[Cotangent | None]:
    """Return the cotangents of the inputs of a call, given those of its recorded outputs."""
    if threads.gone:
        before = "The path leads through a call of a tf.function that ran before the fork"
        raise TapeUseError(f"{before}: {threads.GONE}. Or query the tape before the fork.")
    stack = current_stack()
    if not stack.recording() or not function_traits(call.function).deterministic:
        return list(backward.function(*grads))
    with current_stack().unrecorded():
        found = [None if grad is None else tf.convert_to_tensor(grad) for grad in backward.function(*grads)]
    by_var = dict(zip(backward.outputs, grads, strict=True))
    outputs = eqn.outputs[: len(functions.output_types(call.function))]
    seeds = [_dense_or_zeros(by_var.get(var), trace.program.types[var]) for var in outputs]
    operands = [values(var) for var in eqn.inputs]
    back = CallGradient(call.function, [*operands, *seeds], functions.captured_by(backward.function), past, found)
    stack.emit(f"{_GRADIENT}{eqn.op}", [found[p] for p in back.positions], back.inputs, back)
    return found


class CallGradient:
    """The backward function of a gradient that TensorFlow computed for a function.

    Attributes:
      positions: The positions of the function's inputs that have a gradient.
      captured: Other tensors and variable handles that user code in the gradient reads.
      inputs: What the gradient was computed from: the function's inputs, its output cotangents, the captured values.
    """

    def __init__(
        self,
        function: Any,
        operands: list[Tensor],
        captured: Sequence[Tensor],
        past: PastVariables,
        found: Sequence[Cotangent | None],
    ) -> None:
        self._function, self._operands, self._past = function, operands, past
        self.captured = captured
        self.positions = [position for position, grad in enumerate(found) if grad is not None]
        self.inputs = [*operands, *(_value_of(tensor, past) for tensor in captured)]

    def __call__(self, *seconds: Cotangent) -> list[Cotangent | None]:
        """Return the gradients of all inputs."""
        gradient = self.gradient()
        by_position = dict(zip(self.positions, seconds, strict=True))
        aligned = [
            tf.convert_to_tensor(by_position[position]) if position in by_position else tf.zeros(kind.shape, kind.dtype)
            for position, kind in zip(gradient.input_positions, functions.output_types(gradient), strict=True)
        ]
        constants = [_value_of(tensor, self._past) for tensor in gradient.constants]
        found = _apply_gradient(gradient, [*self._operands, *constants], aligned, self._past)
        by_identity = dict(
            zip([identity_of(tensor) for tensor in gradient.constants], found[len(self._operands) :], strict=True)
        )
        return [*found[: len(self._operands)], *(by_identity.get(identity_of(tensor)) for tensor in self.captured)]

    def gradient(self) -> Any:
        """Return the gradient as a concrete function."""
        return _gradient_function(self._function)


def _apply_gradient(
    function: Any, operands: list[Tensor], seeds: list[Tensor], past: PastVariables
) -> list[Cotangent | None]:
    """Return the gradients of a concrete function's inputs, and record their own backward function."""
    gradient = _gradient_function(function)
    constants = gradient.constants
    with current_stack().unrecorded():
        handles = _with_handles(constants, [_value_of(tensor, past) for tensor in constants])
        results = functions.call_flat(gradient, [*_with_handles(_inputs_of(function), operands), *seeds], handles)
        results = list(tf.nest.flatten(results))
    found: list[Cotangent | None] = [None] * (len(operands) + len(seeds))
    for position, result in zip(gradient.input_positions, results, strict=True):
        found[position] = result
    if results:
        back = CallGradient(function, [*operands, *seeds], constants, past, found)
        current_stack().emit(f"{_GRADIENT}{function.name}", results, back.inputs, back)
    return found[: len(operands)]


def _gradient_function(function: Any) -> Any:
    found = _gradient_functions.get(function)
    if found is None:
        with making_gradients, current_stack().unrecorded():
            found = _gradient_functions.get(function)  # another thread may have made it in the meantime
            if found is None:
                found = _gradient_functions[function] = functions.gradient_function(function)
    return found


def _inputs_of(function: Any) -> Sequence[Tensor]:
    return functions.graph_of(function).inputs


def _value_of(tensor: Tensor, past: PastVariables) -> Tensor:
    """Return a tensor unchanged; for a variable's handle, return the value that the variable held."""
    if tensor.dtype != tf.resource:
        return tensor
    value = past.value(tensor)
    return tensor if value is None else value


def _with_handles(inputs: Sequence[Tensor], operands: Sequence[Tensor]) -> list[Tensor]:
    """Put each recorded value of a variable into a new variable: the live one may have changed."""
    return [
        tf.Variable(operand).handle if tensor.dtype == tf.resource and operand.dtype != tf.resource else operand
        for operand, tensor in zip(operands, inputs, strict=False)
    ]


def _dense_or_zeros(grad: Cotangent | None, kind: Any) -> Tensor:
    if grad is not None:
        return tf.convert_to_tensor(grad)
    return tf.zeros(kind.shape, kind.dtype)
