"""Sixteen small sub-models with a shared variable: one tape each and the sum of the gradients, or one tape over all.

CPU time of recording and query, with one thread. Run: `python benchmarks/submodels.py`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _measure
import tensorflow as tf

import retrotape as rt

COUNT, WIDTH, BATCH = 16, 16, 8


def matrix(*shape: int) -> tf.Variable:
    return tf.Variable(tf.random.normal(shape, stddev=0.25))


class SubModel:
    """Two layers; the first one is shared."""

    def __init__(self, shared: tf.Variable) -> None:
        self.variables = [shared, matrix(WIDTH, WIDTH), matrix(WIDTH), matrix(WIDTH, 1)]
        self.x, self.y = tf.random.normal((BATCH, WIDTH)), tf.random.normal((BATCH, 1))

    def loss(self) -> Any:
        """Return the mean squared error of the model."""
        shared, inner, bias, outer = self.variables
        hidden = tf.tanh(tf.tanh(self.x @ shared) @ inner + bias)
        return tf.reduce_mean((hidden @ outer - self.y) ** 2)


def contenders(models: list[SubModel], shared: tf.Variable) -> dict[str, Callable[[], Any]]:
    everything = [shared, *(variable for model in models for variable in model.variables[1:])]

    def stock_tapes() -> list[Any]:
        total, own = 0.0, []
        for model in models:
            with tf.GradientTape() as tape:
                loss = model.loss()
            first, *rest = tape.gradient(loss, model.variables)
            total, own = total + first, own + rest
        return [total, *own]

    def stock_tape() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.add_n([model.loss() for model in models])
        return tape.gradient(loss, everything)

    def our_tapes() -> list[Any]:
        total = rt.Gradients([])
        for model in models:
            with rt.Tape() as tape:
                loss = model.loss()
            total += tape.backward(loss, model.variables)
        return [total[variable] for variable in everything]

    def our_tape() -> list[Any]:
        with rt.Tape() as tape:
            loss = tf.add_n([model.loss() for model in models])
        return tape.gradient(loss, everything)

    def no_tape() -> Any:
        return tf.add_n([model.loss() for model in models])

    return {
        f"{COUNT} stock tapes": stock_tapes,
        "one stock tape": stock_tape,
        f"{COUNT} of our tapes": our_tapes,
        "one of our tapes": our_tape,
        "forward, no tape": no_tape,
    }


def main() -> None:
    shared = matrix(WIDTH, WIDTH)
    runs = contenders([SubModel(shared) for _ in range(COUNT)], shared)
    results = [run() for name, run in runs.items() if "no tape" not in name]
    for result in results[1:]:
        for got, expected in zip(result, results[0], strict=True):
            tf.debugging.assert_near(got, expected, rtol=1e-4, atol=1e-6)
    found = _measure.interleaved(runs, repeat=61)
    many, one, *_ = found.values()
    rows = [[name, f"{1000.0 * time:.1f}", f"{time / many:.2f}", f"{time / one:.2f}"] for name, time in found.items()]
    _measure.table("Milliseconds per step", ["", "time", f"/ {COUNT} stock tapes", "/ one stock tape"], rows)


if __name__ == "__main__":
    _measure.one_thread()
    main()
