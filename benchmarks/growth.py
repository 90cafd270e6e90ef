"""How CPU time grows with ops, sources, tapes, losses and updates: exponents, 1 is linear.

The exponent is fitted to the logarithms of the larger sizes, from a tenth of the largest on: below that, constant costs
hide the growth. None should be above 1.1. Seconds are CPU seconds, without garbage collection.

Run: `python benchmarks/growth.py`, some groups with `python benchmarks/growth.py ops tapes`, all as JSON with `--json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import _measure

LIMIT = 1.1
Work = tuple[str, Callable[[], Any]]
Rows = dict[str, dict[int, float]]  # what → size → seconds


def _chain(count: int) -> tuple[Any, Any, Any]:
    """Return a tape of a chain of `count` ops, its result and the variable that every other op reads."""
    import tensorflow as tf

    import retrotape as rt

    w, x = tf.Variable([0.999] * 16), tf.linspace(0.1, 1.0, 16)
    with rt.Tape() as tape:
        h, k = x, tf.convert_to_tensor(w)
        for _ in range(count // 2):
            h = tf.sin(tf.multiply(h, k))
        loss = tf.reduce_sum(h)
    return tape, loss, w


def ops(count: int) -> Iterator[Work]:
    """Yield what is done with a tape of so many ops."""
    import retrotape as rt

    def record() -> None:
        made[:] = _chain(count)
        assert len(made[0].program.eqns) >= count

    made: list[Any] = []
    yield "record", record
    tape, loss, w = made
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "chain.tape")
        yield "gradient", lambda: tape.gradient(loss, w)
        yield "why", lambda: str(tape.why(loss, w))
        yield "save", lambda: tape.save(path, {"loss": loss, "w": w})
        yield "load", lambda: rt.load(path)
        loaded = rt.load(path)
        yield "loaded: gradient", lambda: loaded.gradient("loss", "w")


def sources(count: int) -> Iterator[Work]:
    """Yield queries with respect to so many variables."""
    import tensorflow as tf

    import retrotape as rt

    used, others = ([tf.Variable(tf.ones(4)) for _ in range(count)] for _ in range(2))
    with rt.Tape() as tape:
        loss = tf.add_n([tf.reduce_sum(one * 2.0) for one in used])
        stopped = tf.add_n([tf.stop_gradient(one * 2.0) for one in used])
        for one in others:
            one + 1.0
    tape.gradient(loss, used[0])
    yield "gradient", lambda: tape.gradient(loss, used)
    yield "backward", lambda: tape.backward(loss, used)
    yield "backward, not connected", lambda: tape.backward(loss, others)
    yield "backward, stopped", lambda: tape.backward(stopped, used)
    grads = tape.backward(loss, used)
    yield "table", lambda: str(grads)
    yield "watched_variables", tape.watched_variables


def tapes(count: int) -> Iterator[Work]:
    """Yield joins of so many tapes of eleven ops, with a gradient through all of them."""
    import tensorflow as tf

    import retrotape as rt

    x, w = tf.linspace(0.1, 1.0, 16), tf.Variable([0.999] * 16)
    recorded, losses, starts, h = [], [], [], x
    for _ in range(count):
        starts.append(h)
        with rt.Tape() as tape:
            for _ in range(5):
                h = tf.sin(h * w)
            losses.append(tf.reduce_sum(h))
        tape.gradient(losses[-1], w)
        recorded.append(tape)

    def one_by_one() -> None:
        joined: Any = recorded[0]
        for tape in recorded[1:]:
            joined = rt.join(joined, tape)
        joined.gradient(losses[-1], x)

    def each_used() -> None:
        joined: Any = recorded[0]
        for tape in recorded[1:]:
            joined = rt.join(joined, tape)
            assert len(joined.variables) == 1
        joined.gradient(losses[-1], starts[-1])

    yield "joined at once", lambda: rt.join(*recorded).gradient(losses[-1], x)
    yield "joined one by one", one_by_one
    yield "one by one, each used", each_used


def losses(count: int) -> Iterator[Work]:
    """Yield the gradients of so many losses with a common trunk."""
    import tensorflow as tf

    import retrotape as rt

    trunk = [tf.Variable(tf.random.stateless_normal((32, 32), [number, 1]) / 6.0) for number in range(6)]
    heads = [tf.Variable(tf.random.stateless_normal((32, 4), [number, 2])) for number in range(count)]
    with rt.Tape() as tape:
        h = tf.ones((8, 32))
        for layer in trunk:
            h = tf.tanh(tf.matmul(h, layer))
        found = [tf.reduce_mean(tf.square(tf.matmul(h, head))) for head in heads]
    yield "backward_each, of the trunk", lambda: tape.backward_each(found, trunk)
    yield "backward_each, of everything", lambda: tape.backward_each(found, [*trunk, *heads])


def updates(count: int) -> Iterator[Work]:
    """Yield a gradient through so many updates of an optimizer."""
    import keras
    import tensorflow as tf

    import retrotape as rt

    keras.utils.set_random_seed(0)
    weights = [keras.Variable(keras.random.normal(shape) / 3.0) for shape in ((8, 8), (8, 1))]
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(weights)
    made: list[Any] = []

    def loss() -> Any:
        return tf.reduce_mean(tf.square(tf.tanh(tf.ones((8, 8)) @ weights[0]) @ weights[1] - 1.0))

    def train() -> None:
        with rt.Tape() as tape:
            for _ in range(count):
                optimizer.apply(tape.gradient(loss(), weights), weights)
            made[:] = tape, loss()
        assert tape.program.eqns

    yield "train", train
    tape, last = made
    yield "through_updates", lambda: tape.gradient(last, [optimizer.learning_rate, *weights], through_updates=True)


def second(count: int) -> Iterator[Work]:
    """Yield second derivatives of a chain of so many ops."""
    import tensorflow as tf

    tape, loss, w = _chain(count)
    yield "hvp", lambda: tape.hvp(loss, w, tf.ones(16))


GROUPS: dict[str, tuple[Callable[[int], Iterator[Work]], tuple[int, ...]]] = {
    "ops": (ops, (1_000, 10_000, 30_000, 100_000)),
    "sources": (sources, (10, 100, 1_000, 3_000, 10_000)),
    "tapes": (tapes, (4, 16, 64, 128, 256)),
    "losses": (losses, (1, 8, 16, 32, 64)),
    "updates": (updates, (5, 20, 50, 100, 200)),
    "second": (second, (300, 1_000, 3_000)),
}


def measure(group: str) -> Rows:
    """Return the CPU seconds of each piece of work for each size; small ones are the best of several runs."""
    make, sizes = GROUPS[group]
    rows: Rows = {}
    for _, run in make(sizes[0]):  # what is done once
        run()
    for size in sizes:
        for what, run in make(size):
            first = _measure.cpu_seconds(run)
            more = min(7, int(0.6 / max(first, 1e-4)))
            rows.setdefault(what, {})[size] = min([first, *(_measure.cpu_seconds(run) for _ in range(more))])
    return rows


def exponent(by_size: dict[int, float]) -> float:
    """Return the slope of the logarithms from a tenth of the largest size on, by least squares."""
    points = [(math.log(size), math.log(max(value, 1e-6))) for size, value in by_size.items()]
    points = [point for point in points if point[0] >= points[-1][0] - math.log(10.5)]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def main(groups: list[str], as_json: bool) -> None:
    _measure.one_thread()
    found: dict[str, Any] = {}
    for group in groups:
        rows = measure(group)
        found[group] = {what: {"seconds": row, "exponent": exponent(row)} for what, row in rows.items()}
        if not as_json:
            sizes = GROUPS[group][1]
            table = [
                [what, *(f"{row[size] * 1e3:,.1f}" for size in sizes), _mark(exponent(row))]
                for what, row in rows.items()
            ]
            _measure.table(f"{group}: ms", [group, *(f"{size:,}" for size in sizes), "exponent"], table)
    if as_json:
        print(json.dumps(found, indent=1))


def _mark(value: float) -> str:
    return f"{value:.2f}" + (" !" if value > LIMIT else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="default: all")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    main(given.groups or list(GROUPS), given.json)
