"""The whole Hessian of a small network of 661 weights: `hessian`, `jacobian` of the gradient, and two stock tapes.

CPU time of recording and query, with one thread, relative to the stock tapes. Run: `python benchmarks/hessians.py`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import _measure
import tensorflow as tf

import retrotape as rt

SIZES, BATCH = (10, 20, 20, 1), 32


def as_vector(grads: Sequence[Any]) -> Any:
    return tf.concat([tf.reshape(grad, [-1]) for grad in grads], 0)


def as_matrix(blocks: Sequence[Any], height: int) -> Any:
    return tf.concat([tf.reshape(block, [height, -1]) for block in blocks], 1)


def contenders() -> dict[str, Callable[[], Any]]:
    pairs = list(pairwise(SIZES))
    kernels = [tf.Variable(tf.random.normal(pair, stddev=0.3)) for pair in pairs]
    biases = [tf.Variable(tf.zeros(after)) for _, after in pairs]
    weights = [*kernels, *biases]
    count = sum(weight.shape.num_elements() for weight in weights)
    x, y = tf.random.normal((BATCH, SIZES[0])), tf.random.normal((BATCH, SIZES[-1]))

    def loss() -> Any:
        hidden = x
        for kernel, bias in zip(kernels, biases, strict=True):
            hidden = tf.tanh(hidden @ kernel + bias)
        return tf.reduce_mean((hidden - y) ** 2)

    def stock() -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = loss()
            slope = as_vector(inner.gradient(value, weights))
        return as_matrix(outer.jacobian(slope, weights), count)

    def jacobian() -> Any:
        with rt.Tape() as tape:
            slope = as_vector(tape.gradient(loss(), weights))
        return as_matrix(tape.jacobian(slope, weights), count)

    def hessian() -> Any:
        with rt.Tape() as tape:
            value = loss()
        return tape.hessian(value, weights, whole=True)

    return {"two stock tapes": stock, "jacobian of the gradient": jacobian, "hessian(whole=True)": hessian}


def main() -> None:
    _measure.one_thread()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # the stock tape's advice about tracing
    runs = contenders()
    reference = runs["two stock tapes"]()
    apart = {name: float(tf.reduce_max(tf.abs(run() - reference))) for name, run in runs.items()}
    times = _measure.interleaved(runs, repeat=11)
    base = times["two stock tapes"]
    rows = [[name, f"{seconds / base:.2f}", f"{seconds:.3f}", f"{apart[name]:.0e}"] for name, seconds in times.items()]
    columns = ["", "ratio to stock", "seconds", "largest difference"]
    _measure.table(f"the Hessian of {len(reference)} weights", columns, rows)


if __name__ == "__main__":
    main()
