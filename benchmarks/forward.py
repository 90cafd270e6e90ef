"""What recording costs: the forward pass of models and single ops, without a tape, under the stock tape and under ours.

CPU time, one thread, contenders in turn. Models are plain TensorFlow, or layers of Keras. A tape that is entered and
left without an op in between is measured as well.

Run: `python benchmarks/forward.py`
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import _measure
import tensorflow as tf
from workloads import in_keras, tensorflow_models

import retrotape as rt

ENTER_GOAL, CALLS = 25.0, 200  # microseconds; calls of an op under one tape
Figures = dict[str, _measure.Rounds]


def under_tapes(run: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """Return what runs a function without a tape and under both tapes."""

    def under(tape_type: Any) -> Callable[[], Any]:
        def recorded() -> None:
            with tape_type():
                run()

        return recorded

    return {"no tape": run, "stock": under(tf.GradientTape), "ours": under(rt.Tape)}


def forwards() -> dict[str, Callable[[], Any]]:
    plain = {f"{name}, plain": tensorflow_models.make(name).loss for name in ("mlp", "cnn", "transformer")}
    makers = {"mlp": in_keras.mlp, "cnn": in_keras.cnn, "transformer": in_keras.transformer}
    return plain | {f"{name}, Keras": make().loss for name, make in makers.items()}


def ops() -> dict[str, Callable[[], Any]]:
    x, matrix, variable = tf.constant([1.0, 2.0, 3.0]), tf.ones((8, 8)), tf.Variable([1.0, 2.0, 3.0])
    single = {
        "raw AddV2": lambda: tf.raw_ops.AddV2(x=x, y=x),
        "tf.add": lambda: tf.add(x, x),
        "a @ b": lambda: matrix @ matrix,
        "tf.nn.relu": lambda: tf.nn.relu(x),
        "tf.reduce_sum": lambda: tf.reduce_sum(x),
        "tf.reshape": lambda: tf.reshape(matrix, [-1]),
        "tf.sin(variable)": lambda: tf.sin(variable),
    }

    def many(op: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CALLS):
                op()

        return run

    return {name: many(op) for name, op in single.items()}


def compare(title: str, works: dict[str, Callable[[], Any]], repeat: int, scale: float) -> Figures:
    """Measure and print a table; `scale` makes seconds the unit of the title."""
    figures, rows = {}, []
    for name, run in works.items():
        found = figures[name] = _measure.take_turns(under_tapes(run), repeat, inner=None)
        row = [name, *(f"{statistics.median(times) * scale:.2f}" for times in found.values())]
        row += [str(_measure.ratio(found[kind], found["no tape"])) for kind in ("stock", "ours")]
        above = _measure.ratio(found["ours"], found["stock"])
        rows.append([*row, str(above), _measure.against(1.0, above.median)])
    columns = ["", "no tape", "stock", "ours", "stock / none", "ours / none", "ours / stock", "goal"]
    _measure.table(title, columns, rows)
    return figures


def entering(repeat: int) -> _measure.Rounds:
    """Measure tapes that record nothing."""
    runs = under_tapes(lambda: None)
    found = _measure.take_turns({name: runs[name] for name in ("stock", "ours")}, repeat, inner=None)
    micros = {name: statistics.median(times) * 1e6 for name, times in found.items()}
    rows = [[name, f"{time:.1f}"] for name, time in micros.items()]
    rows[1].append(_measure.against(ENTER_GOAL, micros["ours"]))
    _measure.table("Microseconds to enter and leave a tape", ["", "µs", "goal"], rows)
    return found


def main() -> None:
    given = _measure.options(__doc__).parse_args()
    _measure.one_thread()
    repeat = 2 if given.quick else 25
    works = forwards()
    if given.quick:
        works = {name: works[name] for name in list(works)[:1]}
    figures = {"models": compare("Milliseconds of a forward pass", works, repeat, 1e3)}
    figures["ops"] = compare("Microseconds of an op", ops(), repeat, 1e6 / CALLS)
    figures["enter"] = {"empty": entering(repeat)}
    _measure.write_json(given.json, figures)


if __name__ == "__main__":
    main()
