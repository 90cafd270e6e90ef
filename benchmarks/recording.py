"""Cost of recording, per op and per step, compared with no tape and with the stock tape.

Run: `python benchmarks/recording.py`
"""

from __future__ import annotations

import _measure
import tensorflow as tf
from models import MODELS, Work

import retrotape as rt

CALLS = 200


def per_op() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    matrix = tf.ones((8, 8))
    variable = tf.Variable([1.0, 2.0, 3.0])
    ops = {
        "raw AddV2": lambda: tf.raw_ops.AddV2(x=x, y=x),
        "tf.add": lambda: tf.add(x, x),
        "a @ b": lambda: matrix @ matrix,
        "tf.nn.relu": lambda: tf.nn.relu(x),
        "tf.reduce_sum": lambda: tf.reduce_sum(x),
        "tf.reshape": lambda: tf.reshape(matrix, [-1]),
        "tf.sin(variable)": lambda: tf.sin(variable),
    }
    rows = []
    for name, op in ops.items():

        def bare(op=op):
            for _ in range(CALLS):
                op()

        def stock(op=op):
            with tf.GradientTape() as tape:
                tape.watch([x, matrix])
                for _ in range(CALLS):
                    op()

        def ours(op=op):
            with rt.Tape():
                for _ in range(CALLS):
                    op()

        found = _measure.interleaved({"bare": bare, "stock": stock, "ours": ours}, repeat=41)
        micros = {key: value / CALLS * 1e6 for key, value in found.items()}
        ratios = [found["stock"] / found["bare"], found["ours"] / found["bare"]]
        rows.append([name, *(f"{value:.1f}" for value in micros.values()), *(f"{ratio:.2f}" for ratio in ratios)])
    _measure.table("Microseconds per op", ["op", "no tape", "stock", "ours", "stock / none", "ours / none"], rows)


def per_step() -> None:
    rows = []
    for name, make in MODELS.items():
        work: Work = make()
        weights = work.model.trainable_variables

        def stock(work=work, weights=weights):
            with tf.GradientTape() as tape:
                loss = work.loss()
            tape.gradient(loss, weights)

        def ours(work=work, weights=weights):
            with rt.Tape() as tape:
                loss = work.loss()
            tape.gradient(loss, weights)

        def stock_forward(work=work):
            with tf.GradientTape():
                work.loss()

        def ours_forward(work=work):
            with rt.Tape():
                work.loss()

        contenders = {
            "bare": work.loss,
            "f stock": stock_forward,
            "f ours": ours_forward,
            "stock": stock,
            "ours": ours,
        }
        found = _measure.interleaved(contenders, repeat=61)
        rows.append(
            [
                name,
                *(f"{found[key] * 1000.0:.1f}" for key in found),
                f"{found['f ours'] / found['bare']:.2f}",
                f"{found['ours'] / found['stock']:.2f}",
            ]
        )
    columns = ["model", "forward", "forward stock", "forward ours", "step stock", "step ours"]
    _measure.table("Milliseconds per step", [*columns, "recording / none", "step ours / stock"], rows)


if __name__ == "__main__":
    _measure.one_thread()
    per_op()
    per_step()
