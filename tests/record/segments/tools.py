"""What the tests of long recordings share: answers to the bit, and chains of layers to be recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.execute import _values
from retrotape.ir import bytes_of
from retrotape.record import is_offloaded

KEEPS = ["leaves", "segments", "disk"]  # each against "needed"
TINY = 100  # bytes: a few small tensors fill a segment
Program = Callable[[rt.Tape], Callable[[], Any]]


def combined(*axes: Any, known: dict[tuple[str, ...], str]) -> list[Any]:
    """Return every combination; those that are known to fail, with the reason why they do."""

    def name(item: Any) -> str:
        return item if isinstance(item, str) else item.__name__

    rows = [(row, tuple(map(name, row))) for row in product(*axes)]
    assert known.keys() <= {names for _, names in rows}
    return [
        pytest.param(*row, id="-".join(names), marks=pytest.mark.xfail(reason=known[names]) if names in known else ())
        for row, names in rows
    ]


def frozen(answer: Any) -> Any:
    """Return an answer as something that can be compared, to the bit."""
    if isinstance(answer, (list, tuple)) and not isinstance(answer, rt.Nonfinite):
        return [frozen(item) for item in answer]
    if isinstance(answer, dict):
        return {key: frozen(item) for key, item in answer.items()}
    if isinstance(answer, (tf.IndexedSlices, tf.RaggedTensor, tf.SparseTensor)):
        return [type(answer).__name__, *map(frozen, tf.nest.flatten(answer, expand_composites=True))]
    if isinstance(answer, tf.Tensor):
        array = answer.numpy()
        return answer.dtype.name, tuple(answer.shape), array.tobytes() if answer.dtype != tf.string else array.tolist()
    return answer


def numbers(low: float, high: float, *shape: int, dtype: str = "float32") -> tf.Tensor:
    return tf.constant(np.linspace(low, high, int(np.prod(shape))).reshape(shape), dtype)


def chain(y: Any, length: int = 8) -> tf.Tensor:
    for _ in range(length):
        y = tf.sin(1.3 * y) + tf.exp(-y) * y
    return y


def into(table: dict[str, Program]) -> Callable[[Program], Program]:
    """Return a decorator that puts a program into `table` under its own name."""

    def add(program: Program) -> Program:
        table[program.__name__] = program
        return program

    return add


X = numbers(0.2, 1.0, 6, dtype="float64")


def is_near(one: Any, other: Any) -> bool:
    """Return whether what `frozen` returned is the same but for rounding: second derivatives add up in other orders."""
    if isinstance(one, tuple) and len(one) == 3 and isinstance(one[2], bytes):
        arrays = [np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in (one, other)]
        tolerance = 1e-13 if one[0] == "float64" else 1e-6
        return one[:2] == other[:2] and np.allclose(*arrays, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_near, one, other))
    return one == other


def close(one: tf.Tensor | None, other: tf.Tensor | None) -> None:
    """Check that both are there and the same but for rounding: an outer tape may hear sums in another order."""
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ long recordings, watched

LAYER = 400  # bytes of what one layer makes
LAYERS: dict[str, Callable[[Any], Any]] = {
    "looks at its result": lambda h: tf.tanh(1.01 * h),
    "looks at what it is given": lambda h: tf.sin(h),
    "looks at both": lambda h: tf.sigmoid(h) * h + 0.1 * h,
    "has a custom gradient": lambda h: tf.nn.silu(h) + 0.1 * h,
    "adds to what it is given": lambda h: h + tf.sin(h),
}


def long(keep: str, length: int, layer: str = "looks at its result", **options: Any) -> tuple[rt.Tape, Any, Any]:
    x = tf.fill([LAYER // 4], 0.5)
    with rt.Tape(keep=keep, **options) as tape:
        y = x
        for _ in range(length):
            y = LAYERS[layer](y)
        loss = tf.reduce_sum(y)
    return tape, x, loss


class Watched:
    """What a walk computes, and the most that it and the tape hold meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times: Counter[int] = Counter()  # by the first output of an equation
        self.peak = 0
        self._kept: tuple[Any, int] = (None, 0)  # by whom, and how many bytes
        evaluate, fetch = _values.Values._evaluate, _values.Values._load

        def watched_evaluate(values: Any, eqn: Any, inputs: Any) -> Any:
            self.times[eqn.outputs[0]] += 1
            self._measure(values)
            return evaluate(values, eqn, inputs)

        def watched_fetch(values: Any, var: int) -> None:
            fetch(values, var)
            self._measure(values)

        patch.setattr(_values.Values, "_evaluate", watched_evaluate)
        patch.setattr(_values.Values, "_load", watched_fetch)

    def _measure(self, values: Any) -> None:
        types, key = values._trace.program.types, (values, len(values._kept))  # a walk only drops from what is kept
        if self._kept[0] != key:
            held = [var for var, value in values._kept.items() if not is_offloaded(value)]
            self._kept = key, sum(bytes_of(types[var]) for var in held)
        self.peak = max(self.peak, self._kept[1] + sum(bytes_of(types[var]) for var in values._recomputed))
