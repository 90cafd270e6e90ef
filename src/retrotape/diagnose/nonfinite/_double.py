"""The same op in float64: a result that is finite there, and larger than the dtype can hold, is an overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.nonfinite._scene import Scene, as_numbers
from retrotape.execute import run_eqn
from retrotape.ir import DTYPE_NUMBERS, DType, Eqn, TensorType
from retrotape.record import Kind, traits
from retrotape.tf.core import StockTape, tf

_EXPLODED = 1e4  # a weight that is larger has not been initialized so
Verdict = tuple[Cause, str]
_WITH_TINY = frozenset(DTYPE_NUMBERS[name] for name in ("float16", "float32", "float64"))
_SHORT = frozenset(DTYPE_NUMBERS[name] for name in ("float16", "bfloat16", "float32"))


def largest(kind: TensorType) -> float:
    """Return the largest number of a dtype."""
    return float(tf.as_dtype(kind.dtype).max)


def smallest(kind: TensorType) -> float:
    """Return the smallest positive normal number of a dtype."""
    return float(np.finfo(tf.as_dtype(kind.dtype).as_numpy_dtype).tiny) if kind.dtype in _WITH_TINY else 0.0


def dtype_name(kind: TensorType) -> str:
    """Return the name of a dtype."""
    return tf.as_dtype(kind.dtype).name


def overflow(scene: Scene, eqn: Eqn) -> Verdict | None:
    """Return that an op overflows, if the same op in float64 does not."""
    return _exceeds(scene, eqn, scene.trace.program.types[eqn.outputs[0]], lambda inputs, run: run(inputs)[0])


def overflow_backward(scene: Scene, eqn: Eqn, given: Sequence[Any], position: int) -> Verdict | None:
    """Return that the gradient of an op with respect to an input overflows, if it does not in float64."""
    if given[0] is None or isinstance(given[0], tf.IndexedSlices):
        return None

    def gradient(inputs: list[Tensor], run: Callable[[list[Tensor]], list[Tensor]]) -> Tensor:
        with StockTape() as tape:
            tape.watch(inputs[position])
            output = run(inputs)[0]
        return tape.gradient(output, inputs[position], output_gradients=tf.cast(given[0], output.dtype))

    return _exceeds(scene, eqn, scene.trace.program.types[eqn.inputs[position]], gradient)


def _exceeds(scene: Scene, eqn: Eqn, kind: TensorType, compute: Callable[..., Tensor]) -> Verdict | None:
    inputs = [value for value in map(scene.tensor, eqn.inputs) if value is not None]
    if kind.dtype not in _SHORT or traits(eqn.op).kind is not Kind.PLAIN or len(inputs) < len(eqn.inputs):
        return None
    guard = scene.trace.guard
    if guard is not None:
        guard.check(eqn, inputs, scene.trace.program.types)
    wide = _in_double(eqn)
    try:
        doubles = [tf.cast(value, tf.float64) if value.dtype.is_floating else value for value in inputs]
        numbers = as_numbers(compute(doubles, lambda given: run_eqn(wide, given)))
    except (tf.errors.OpError, TypeError, ValueError):
        return None  # there is no such kernel
    limit = largest(kind)
    if numbers is None or not numbers.size or not np.isfinite(numbers).all() or np.abs(numbers).max() <= limit:
        return None
    name = dtype_name(kind)
    text = f"In float64 the largest value is {np.abs(numbers).max():.3g}; the maximum of {name} is {limit:.4g}."
    weight, size = _largest_weight(scene)
    if size > _EXPLODED:
        return Cause.EXPLODED, f"{text} The largest weight is {size:.3g}, in {weight}."
    return (Cause.HALF_OVERFLOW if name == "float16" else Cause.OVERFLOW), text


def _largest_weight(scene: Scene) -> tuple[str, float]:
    """Return the trainable variable with the largest number, and that number."""
    found = "", 0.0
    trace = scene.trace
    for key, variable in trace.variables.items():
        if key in trace.facts.histories and trace.is_trainable(variable):
            numbers = as_numbers(scene.tensor(trace.facts.histories[key].versions[0]))
            size = 0.0 if numbers is None or not numbers.size else float(np.abs(numbers).max())
            found = (trace.path_of(variable), size) if size > found[1] else found
    return found


def _in_double(eqn: Eqn) -> Eqn:
    """Return the same op for float64."""

    def wide(value: Any) -> Any:
        if isinstance(value, DType):
            return DType(DTYPE_NUMBERS["float64"]) if value.number in _SHORT else value
        return tuple(map(wide, value)) if type(value) is tuple else value

    return eqn._replace(attrs=tuple((name, wide(value)) for name, value in eqn.attrs))
