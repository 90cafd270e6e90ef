"""Runs a backward function that is stored as a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from retrotape._types import Cotangent, Tensor
from retrotape.errors import TooDeepError
from retrotape.execute._run import run_steps
from retrotape.ir import CUSTOM, BackwardFunction, Eqn, FunctionProgram, TensorType
from retrotape.record import current_stack
from retrotape.tf.core import tf

DEEPEST = 3  # nested custom gradients: one that contains itself would recurse forever


def custom_name(eqn: Eqn) -> str:
    """Return the name of the function that a custom gradient belongs to."""
    return dict(eqn.attrs)["name"].decode()  # type: ignore[union-attr]


def bind(function: FunctionProgram, captured: Sequence[Tensor], guard: Any = None) -> Callable[..., list[Any]]:
    """Bind the captured values, and return a function of the cotangents alone.

    Args:
      function: The function.
      captured: The values of its captures.
      guard: Checks and runs its ops if it comes from a file.
    """

    def apply(*cotangents: Cotangent) -> list[Any]:
        return apply_function(function, captured, cotangents, guard)

    return apply


def apply_function(
    function: FunctionProgram, captured: Sequence[Tensor], cotangents: Sequence[Cotangent], guard: Any = None
) -> list[Any]:
    """Return the cotangents of the inputs, and record the backward functions of custom gradients inside."""
    program = function.program
    env = dict(zip(function.captures, captured, strict=True))
    env.update(zip(function.cotangents, map(tf.convert_to_tensor, cotangents), strict=True))
    evaluate = None
    if guard is not None and tf.executing_eagerly():  # in a graph no op runs yet, and sizes are unknown
        evaluate = partial(guard.run, types=program.types, resized=True)
    for index, eqn in run_steps(program, env, None, evaluate):
        if eqn.op == CUSTOM:
            env.update((var, tf.identity(env[var])) for var in eqn.outputs)
            _emit(program.facts.backward_functions.get(index), eqn, env, guard)
    return [_result(env, found) for found in function.results]


def _emit(backward: BackwardFunction | None, eqn: Eqn, env: dict[int, Tensor], guard: Any) -> None:
    """Record the backward function of a custom gradient inside a backward function."""
    if not tf.executing_eagerly():
        return  # in an exported graph, its derivatives are those of its ops
    name, outputs = custom_name(eqn), [env[var] for var in eqn.outputs]
    if backward is None:

        def beyond(*_: Any) -> list[Any]:
            raise TooDeepError(name, DEEPEST)

        inputs = eqn.inputs[: len(eqn.inputs) - len(eqn.outputs)]
        current_stack().emit(name, outputs, [env[var] for var in inputs], beyond)
        return
    function = bind(backward.function, [env[var] for var in backward.captures], guard)
    current_stack().emit(name, outputs, [env[var] for var in backward.inputs], function)


def cotangent_tensors(grad: Any, kind: TensorType) -> list[Tensor]:
    """Return the tensors of a cotangent: one, or rows, their indices and the shape of the whole, which is of `kind`."""
    if not isinstance(grad, tf.IndexedSlices):
        return [tf.convert_to_tensor(grad)]
    shape = tf.constant(kind.shape, grad.indices.dtype) if grad.dense_shape is None else grad.dense_shape
    return [grad.values, grad.indices, shape]


def _result(env: dict[int, Tensor], found: tuple[int, ...]) -> Any:
    if not found:
        return None
    return env[found[0]] if len(found) == 1 else tf.IndexedSlices(*[env[var] for var in found])
