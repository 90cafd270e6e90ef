"""A long training loop: does memory grow, and do steps become slower?

Small steps with three structures in turn; one in a hundred has a batch of an odd size. Shown are the growth of the
resident set size and of the number of Python objects in the second half of the steps, when nearly all of the 192
structures have come, and the ratio to the stock tape at the beginning and at the end. One thread, CPU time.

Run: `python benchmarks/soak.py`, `--steps 1000000` for more than 100,000 of them.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import _measure
import tensorflow as tf
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

import retrotape as rt

WIDTH, BATCH, ODD = 16, 16, 0.01
GROWTH = {"megabytes": 20.0, "objects": 1000.0}  # what growth after the warm-up may be
Loss = Callable[[Any], Any]


def structures() -> tuple[list[Loss], list[tf.Variable]]:
    """Return three losses of different structure, and the variables that all of them share."""
    inner, outer = (tf.Variable(tf.random.normal((WIDTH, WIDTH), stddev=0.25, seed=seed)) for seed in (1, 2))
    bias = tf.Variable(tf.zeros([WIDTH]))

    def short(x: Any) -> Any:
        return tf.reduce_mean(tf.tanh(x @ inner + bias) ** 2)

    def deep(x: Any) -> Any:
        for matrix in (inner, outer, inner):
            x = tf.nn.relu(x @ matrix + bias)
        return tf.reduce_sum(x)

    def attentive(x: Any) -> Any:
        weights = tf.nn.softmax(tf.matmul(x @ inner, x @ outer, transpose_b=True))
        return tf.reduce_mean(tf.abs(weights @ x + bias))

    return [short, deep, attentive], [inner, outer, bias]


class Loop:
    """Steps, one after the other, under one kind of tape."""

    def __init__(self, tape_type: Any) -> None:
        self._tape_type = tape_type
        self._losses, self._variables = structures()
        self._draw = random.Random(1)
        self._x = tf.random.normal((64, WIDTH), seed=3)
        self._number = 0

    def step(self) -> None:
        """Record, differentiate and update."""
        self._number += 1
        loss = self._losses[self._number % len(self._losses)]
        size = self._draw.randrange(1, 65) if self._draw.random() < ODD else BATCH
        with self._tape_type() as tape:
            value = loss(self._x[:size])
        for variable, grad in zip(self._variables, tape.gradient(value, self._variables), strict=True):
            if grad is not None:
                variable.assign_sub(1e-4 * grad)

    def steps(self, count: int) -> None:
        """Run several steps."""
        for _ in range(count):
            self.step()


def state() -> dict[str, float]:
    """Return what must not grow."""
    _measure.return_memory()
    return {"megabytes": _measure.status("VmRSS"), "objects": float(len(gc.get_objects()))}


def compare(stock: Loop, ours: Loop, rounds: int) -> _measure.Ratio:
    """Return the ratio of ours to the stock tape."""
    found = _measure.take_turns({"stock": lambda: stock.steps(30), "ours": lambda: ours.steps(30)}, rounds)
    return _measure.ratio(found["ours"], found["stock"])


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="how many steps (%(default)s)")
    given = parser.parse_args()
    steps, rounds = (1000, 2) if given.quick else (given.steps, 15)
    _measure.one_thread()
    stock, ours = Loop(tf.GradientTape), Loop(rt.Tape)
    with Progress(*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task, chunk = progress.add_task("steps", total=steps), max(1, steps // 100)
        ours.steps(200)
        ratios = {"at the beginning": compare(stock, ours, rounds)}
        points = {}
        for done in range(0, steps, chunk):
            if done >= steps // 2 and not points:
                points[done] = state()
            ours.steps(min(chunk, steps - done))
            progress.update(task, advance=min(chunk, steps - done))
        points[steps] = state()
        ratios["at the end"] = compare(stock, ours, rounds)
    first, last = points.values()
    growth = {name: last[name] - first[name] for name in first}
    rows = [
        [name, f"{first[name]:,.0f}", f"{last[name]:,.0f}", f"{grown:+,.1f}", _measure.against(GROWTH[name], grown)]
        for name, grown in growth.items()
    ]
    _measure.table(f"{steps:,} steps", ["", *(f"after {done:,}" for done in points), "growth", "goal"], rows)
    _measure.table("CPU time, ours / stock", list(ratios), [list(map(str, ratios.values()))])
    _measure.write_json(given.json, {"steps": steps, "points": points, "ratios": ratios})


if __name__ == "__main__":
    main()
