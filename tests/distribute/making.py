"""Many small tapes, and the sum of their gradients by a plain loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

import retrotape as rt


def record(step: int) -> tuple[rt.Tape, dict[str, tf.Tensor]]:
    """Return a step of a small model on data of its own: w and b are used in all, the table sparsely."""
    rng = np.random.default_rng(step)
    w = tf.Variable([[0.5, -0.25], [0.125, 1.5], [0.75, 0.1]], name="w")
    b = tf.Variable([0.3, -0.7], name="b")
    table = tf.Variable(tf.reshape(tf.range(10.0), [5, 2]) / 7.0, name="table")
    x = tf.constant(rng.normal(size=(4, 3)), tf.float32)
    with rt.Tape() as tape:
        hidden = tf.tanh(x @ w + b) + tf.gather(table, [step % 5, 1, 1, 3])
        loss = tf.reduce_sum(hidden**2) / 3.0
    return tape, {"x": x, "hidden": hidden, "loss": loss}


def save_tapes(folder: Path, count: int) -> list[str]:
    """Save some tapes and return their paths in order."""
    paths = []
    for step in range(count):
        tape, names = record(step)
        paths.append(str(folder / f"{step:04}.tape"))
        tape.save(paths[-1], names)
    return paths


def dense(grad: object) -> np.ndarray:
    return tf.convert_to_tensor(grad).numpy()


def plain_sum(paths: list[str], chunk: int, names: tuple[str, ...] = ("w", "b", "table")) -> dict[str, np.ndarray]:
    """Return the sums by a loop with `rt.load`, in double precision: first within chunks, then over them."""
    parts = []
    for begin in range(0, len(paths), chunk):
        part = dict.fromkeys(names, np.float64(0.0))
        for path in paths[begin : begin + chunk]:
            tape = rt.load(path)
            for name in names:
                grad = tape.gradient("loss", name)
                if isinstance(grad, tf.IndexedSlices):
                    whole = np.zeros(grad.dense_shape.numpy())
                    np.add.at(whole, grad.indices.numpy(), grad.values.numpy().astype(np.float64))
                    part[name] = part[name] + whole
                else:
                    part[name] = part[name] + grad.numpy().astype(np.float64)
        parts.append(part)
    total = dict.fromkeys(names, np.float64(0.0))
    for part in parts:
        total = {name: total[name] + part[name] for name in names}
    return total


def assert_same_bits(total: rt.farm.Total, expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(dense(total[name]), value)
        assert dense(total[name]).dtype == value.dtype
