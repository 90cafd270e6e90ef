"""What tapes answer under `tf.distribute`, each against one process on the whole batch.

Several devices have to be there before TensorFlow starts, so this runs as a script of its own, once for all cases:
it prints, as JSON, what came of each. An answer is right, or an error of this library says what to type.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt

Run = Callable[[Any], Any]
CASES: dict[str, tuple[Callable[..., Any], str]] = {}  # with "right", or the beginning of the error that is raised
X = np.array([1.0, 2.0], np.float32)
STRATEGIES = ("one", "mirrored", "central")


def case(expected: str = "right", *strategies: str) -> Callable[[Callable], Callable]:
    """Take a function of a `Setting` for a case, with each of the strategies."""

    def add(function: Callable) -> Callable:
        for name in strategies or STRATEGIES:
            CASES[f"{function.__name__} {name}"] = (function, expected)
        return function

    return add


class Setting:
    """A strategy, a variable of it, and one number for each replica."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync
        self.given = X[: self.count]
        self.sum = float(self.given.sum())
        with strategy.scope():
            self.w = tf.Variable(3.0)
        self.x = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(X[context.replica_id_in_sync_group])
        )

    def total(self, body: Callable, op: str = "SUM") -> Any:
        """Return the results of all replicas, reduced."""
        return self.strategy.reduce(op, self.strategy.run(body, (self.x,)), axis=None)

    def each(self, body: Callable) -> np.ndarray:
        """Return the results of all replicas."""
        return np.array([float(one) for one in self.local(self.strategy.run(body, (self.x,)))])

    def local(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)


def all_reduce(op: str, value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(op, value)


def all_gather(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_gather(tf.reshape(value, [1]), 0)


def merged_sum(value: Any) -> Any:
    def add(strategy: Any, values: Any) -> Any:
        return strategy.extended.reduce_to("SUM", values, values)

    return tf.distribute.get_replica_context().merge_call(add, (value,))


@tf.custom_gradient
def twice_back(value: Any) -> Any:
    return tf.identity(value), lambda grad: 2.0 * grad


# ---------------------------------------------------------------------- around `run`


@case()
def reduce_sum(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: x * s.w * s.w)
    return tape.gradient(y, s.w), 6 * s.sum


@case()
def reduce_mean(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: x * s.w * s.w, "MEAN")
    return tape.gradient(y, s.w), 6 * s.sum / s.count


@case()
def inside_a_function(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = tf.function(lambda: s.total(lambda x: x * s.w * s.w))()
    return tape.gradient(y, s.w), 6 * s.sum


@case()
def custom_gradient(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: twice_back(x * s.w))
    return tape.gradient(y, s.w), 2 * s.sum


def _reduced(s: Setting, body: Callable, wrap: Run = lambda f: f, **options: Any) -> Any:
    with rt.Tape(**options) as tape:
        y = wrap(lambda: s.total(body))()
    return tape.gradient(y, s.w)


@case()
def all_reduce_sum(s: Setting) -> Any:
    return _reduced(s, lambda x: all_reduce("SUM", x * s.w) ** 2), s.count * 6 * s.sum**2


@case()
def all_reduce_mean(s: Setting) -> Any:
    return _reduced(s, lambda x: all_reduce("MEAN", x * s.w) ** 2), 6 * s.sum**2 / s.count


@case()
def all_gathered(s: Setting) -> Any:
    body = lambda x: tf.reduce_sum(all_gather(x * s.w) ** 2)  # noqa: E731
    return _reduced(s, body), s.count * 6 * float((s.given**2).sum())


@case()
def merge_call(s: Setting) -> Any:
    return _reduced(s, lambda x: merged_sum(x * s.w) ** 2), s.count * 6 * s.sum**2


@case("right", "one", "central")
def all_reduce_in_a_function(s: Setting) -> Any:
    return _reduced(s, lambda x: all_reduce("SUM", x * s.w) ** 2, tf.function), s.count * 6 * s.sum**2


@case("right", "mirrored")
def collective_in_a_function(s: Setting) -> Any:
    return all_reduce_in_a_function(s)


@case("right", "mirrored")
def collective_in_a_function_by_default(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = tf.function(lambda: s.total(lambda x: all_reduce("SUM", x * s.w)))()
    return len(tape.backward(y)), 1


@case()
def every_keep(s: Setting) -> Any:
    parts = 0.1 * s.given * np.exp(0.3 * s.given)
    want = 2 * s.count * float(np.exp(0.3 * s.given).sum() * parts.sum())
    body = lambda x: all_reduce("SUM", tf.exp(x * s.w * 0.1)) ** 2  # noqa: E731
    kinds = ("needed", "all", "leaves", "segments", "disk")
    return [_reduced(s, body, keep=keep) for keep in kinds], [want] * len(kinds)


@case()
def second_derivatives(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: all_reduce("SUM", x * s.w * s.w) ** 2)
    one = tf.constant(1.0)
    found = [tape.hessian(y, s.w), tape.hvp(y, s.w, one), tape.jvp(y, s.w, one)]
    return found, [s.count * s.sum**2 * 108, s.count * s.sum**2 * 108, s.count * s.sum**2 * 108]


@case()
def default_sources(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: x * s.w * s.w)
    grads = tape.backward(y)
    return [len(grads), grads[s.w], tape.gradient(y, "Variable")], [1, 6 * s.sum, 6 * s.sum]


@case()
def in_the_scope(s: Setting) -> Any:
    with s.strategy.scope(), rt.Tape() as tape:
        y = s.total(lambda x: x * s.w * s.w)
        found = tape.gradient(y, s.w)
    return found, 6 * s.sum


@case()
def nested(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as inner:
            y = x * s.w**3
        return inner.gradient(y, s.w)

    return _reduced(s, body), 18 * s.sum


@case()
def stock_tape_inside(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with tf.GradientTape() as inner:
            y = all_reduce("SUM", x * s.w**3)
        return inner.gradient(y, s.w)

    return _reduced(s, body), 18 * s.sum * s.count


@case()
def around_in_a_graph(s: Setting) -> Any:
    @tf.function
    def step() -> Any:
        with rt.Tape() as tape:
            y = s.total(lambda x: x * s.w * s.w)
        return tape.gradient(y, s.w)

    return step(), 6 * s.sum


@case("right", "one", "central")
def around_a_reduction_in_a_graph(s: Setting) -> Any:
    @tf.function
    def step() -> Any:
        with rt.Tape() as tape:
            y = s.total(lambda x: all_reduce("SUM", x * s.w) ** 2)
        return tape.gradient(y, s.w)

    return step(), s.count * 6 * s.sum**2


@case("right", "mirrored")
def around_a_collective_in_a_graph(s: Setting) -> Any:
    return around_a_reduction_in_a_graph(s)


@case()
def replay(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: all_reduce("SUM", x * s.w) * s.w)
    parts = s.local(s.w) if type(s.w).__name__ == "MirroredVariable" else (s.w,)
    return tape.replay([(part, 4.0) for part in parts]).value(y), s.count * 16 * s.sum


@case()
def replay_of_the_whole(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: x * s.w)
    return tape.replay([(s.w, 4.0)]).value(y), 4 * s.sum


@case()
def save(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: x * s.w * s.w)
    with tempfile.TemporaryDirectory() as folder:
        tape.save(Path(folder) / "t.rtape", names={"y": y, "w": s.w})
        return rt.load(Path(folder) / "t.rtape").gradient("y", "w"), 6 * s.sum


@case("right", "one", "central")
def save_one_variable(s: Setting) -> Any:
    return save(s)


@case()
def one_version(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = s.total(lambda x: x * s.w * s.w)
    return tape.gradient(y, tape.at(s.w, 0)), 6 * s.sum


@case("ReplicaError: The source 'Variable:0' (float32[]) has a value of its own in each replica", "mirrored")
def sync_on_read(s: Setting) -> Any:
    kind: Any = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with s.strategy.scope():
        v = tf.Variable(1.0, **kind)
    with rt.Tape() as tape:
        y = s.total(lambda x: v * x)
    return tape.gradient(y, v), 0


# ---------------------------------------------------------------------- inside of a replica


@case()
def inside(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            y = x * s.w * s.w
        return tape.gradient(y, s.w)

    return [s.each(body), s.total(tf.function(body))], [6 * s.given, 6 * s.sum]


@case()
def inside_through_a_reduction(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            y = all_reduce("SUM", x * s.w) ** 2
        return tape.gradient(y, s.w)

    want = s.count * 6 * s.sum**2
    return [s.total(body), tf.function(lambda: s.total(body))()], [want, want]


@case("ReplicaError: The path from the source to the target passes a merge_call", "mirrored", "central")
def inside_through_a_merge(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            y = merged_sum(x * s.w)
        return tape.gradient(y, s.w, none="zero")

    return s.total(body), s.count * s.sum


@case("ReplicaError: The path from the source to the target passes ", "mirrored", "central")
def inside_through_a_merge_in_a_graph(s: Setting) -> Any:
    return tf.function(lambda: inside_through_a_merge(s)[0])(), s.count * s.sum


def _recorded_inside(s: Setting, body: Callable) -> list[tuple[Any, Any]]:
    found = []

    def replica(x: Any) -> None:
        with rt.Tape() as tape:
            y = body(x)
        found.append((tape, y))

    s.strategy.run(replica, (s.x,))
    return found


@case()
def asked_afterwards(s: Setting) -> Any:
    return [tape.gradient(y, s.w) for tape, y in _recorded_inside(s, lambda x: x * s.w)], s.given


@case("ReplicaError: The path from the source to the target passes an all_reduce", "mirrored", "central")
def reduction_asked_afterwards(s: Setting) -> Any:
    found = _recorded_inside(s, lambda x: all_reduce("SUM", x * s.w))
    return [tape.gradient(y, s.w) for tape, y in found], s.given


@case()
def only_its_own_replica(s: Setting) -> Any:
    found = _recorded_inside(s, lambda x: merged_sum(x * s.w))
    return [sum(eqn.op == "Mul" for eqn in tape.program.eqns) for tape, _ in found], [1] * s.count


@case()
def joined(s: Setting) -> Any:
    found = _recorded_inside(s, lambda x: x * s.w)
    return rt.join(*(tape for tape, _ in found)).gradient([y for _, y in found], s.w), s.sum


@case()
def joined_around(s: Setting) -> Any:
    with rt.Tape() as first, rt.Tape() as second:
        y = s.total(lambda x: all_reduce("MEAN", x * s.w) ** 2)
    both = rt.join(first, second)
    sums = sum(eqn.op == "RealDiv" for eqn in both.program.eqns)
    return [both.gradient(y, s.w), sums], [6 * s.sum**2 / s.count, sum(e.op == "RealDiv" for e in first.program.eqns)]


@case("UnseenUpdateError: The target depends on a value of 'Variable:0'", "mirrored")
def update_by_a_merge(s: Setting) -> Any:
    with s.strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            v.assign(v * x)  # all replicas together
            y = v * 1.0
        return tape.gradient(y, v, through_updates=True)

    return s.total(body), 0


# ---------------------------------------------------------------------- updates


def _trained(s: Setting, make: Callable, rate: float, tape: Any = None) -> Any:
    import keras

    with s.strategy.scope():
        v = tf.Variable([[1.0, 2.0], [3.0, 4.0], [0.5, 0.2]])
        optimizer = getattr(keras.optimizers, make)(rate)
        optimizer.build([v])
    rows = lambda x: tf.gather(v, tf.stack([tf.cast(x, tf.int32), 0]))  # noqa: E731 - its gradient is sparse

    def step(x: Any) -> None:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum((x * rows(x)) ** 2) + tf.reduce_sum(v * 0.1)
        optimizer.apply([inner.gradient(loss, v)], [v])

    def steps() -> Any:
        for _ in range(2):
            s.strategy.run(step, (s.x,))
        return s.total(lambda x: tf.reduce_sum((x * v) ** 2))

    if tape is None:
        return float(steps())
    with tape:
        loss = steps()
    return float(tape.gradient(loss, optimizer.learning_rate, through_updates=True))


@case()
def optimizers(s: Setting) -> Any:
    step = 2e-3
    names = ("SGD", "Adam")
    want = [(_trained(s, n, 0.01 + step) - _trained(s, n, 0.01 - step)) / (2 * step) for n in names]
    found = [_trained(s, name, 0.01, rt.Tape()) for name in names]
    return np.array(found) / want, [1.0] * len(names)


def _fitted(s: Setting, kind: str, rate: float, tape: Any = None) -> Any:
    import keras

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(8, 4)).astype(np.float32)
    numbers = np.arange(16).reshape(8, 2) % 5
    wanted = rows.sum(1, keepdims=True)
    data = numbers if kind == "embedding" else rows
    with s.strategy.scope():
        keras.utils.set_random_seed(0)
        first = [keras.layers.Dense(3, activation="silu"), keras.layers.BatchNormalization(synchronized=True)]
        if kind == "embedding":
            first = [keras.layers.Embedding(5, 3), keras.layers.Flatten()]
        model = keras.Sequential([keras.Input(data.shape[1:]), *first, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=True)

    def train() -> Any:
        model.fit(data, wanted, epochs=1, verbose=0, batch_size=4, shuffle=False)
        return tf.reduce_mean((model(data, training=False) - wanted) ** 2)

    if tape is None:
        return float(train())
    with tape:
        loss = train()
    return float(tape.gradient(loss, model.optimizer.learning_rate, through_updates=True))


@case("right", "one", "mirrored")
def eager_fit(s: Setting) -> Any:
    step = 2e-3
    found = []
    for kind in ("normalized", "embedding"):
        want = (_fitted(s, kind, 0.05 + step) - _fitted(s, kind, 0.05 - step)) / (2 * step)
        found.append(_fitted(s, kind, 0.05, rt.Tape()) / want)
    return found, [1.0, 1.0]


# ---------------------------------------------------------------------- random programs


def _program(seed: int) -> list[tuple[str, float]]:
    rng = np.random.default_rng(seed)
    kinds = ["times_w", "tanh", "custom", "plus", "sum", "mean", "gather", "merge", "update"]
    return [(str(rng.choice(kinds)), float(rng.uniform(0.2, 0.8))) for _ in range(6)] + [("times_w", 1.0)]


def _in_a_replica(s: Setting, program: list[tuple[str, float]], x: Any) -> Any:
    y = x * s.w * 0.3
    for kind, number in program:
        if kind == "times_w":
            y = y * s.w * number
        elif kind == "tanh":
            y = tf.tanh(y)
        elif kind == "custom":
            y = twice_back(y)
        elif kind == "plus":
            y = y + number * x
        elif kind in ("sum", "mean"):
            y = y * number + all_reduce(kind.upper(), y)
        elif kind == "gather":
            y = y + tf.reduce_sum(all_gather(y) ** 2) * number
        elif kind == "merge":
            y = y * number + merged_sum(y)
        else:  # the same for all replicas, as a variable that is mirrored must have it
            s.w.assign(s.w - 0.1 * number * all_reduce("MEAN", y))
    return y


def _in_one_process(program: list[tuple[str, float]], w: Any, given: np.ndarray) -> Any:
    ys = [float(x) * w * 0.3 for x in given]
    for kind, number in program:
        total = tf.add_n(ys)
        if kind == "times_w":
            ys = [y * w * number for y in ys]
        elif kind == "tanh":
            ys = [tf.tanh(y) for y in ys]
        elif kind == "custom":
            ys = [twice_back(y) for y in ys]
        elif kind == "plus":
            ys = [y + number * float(x) for x, y in zip(given, ys, strict=True)]
        elif kind in ("sum", "mean", "merge"):
            ys = [y * number + (total / len(ys) if kind == "mean" else total) for y in ys]
        elif kind == "gather":
            squares = tf.add_n([y**2 for y in ys])
            ys = [y + squares * number for y in ys]
        else:
            w = w - 0.1 * number * total / len(ys)
    return tf.add_n(ys)


def _compare(s: Setting, program: list[tuple[str, float]], wrap: Run) -> tuple[float, float]:
    s.w.assign(0.7)
    with rt.Tape() as tape:
        y = wrap(lambda: s.total(lambda x: _in_a_replica(s, program, x)))()
    w = tf.constant(0.7)
    with tf.GradientTape() as stock:
        stock.watch(w)
        want = _in_one_process(program, w, s.given)
    slope = float(stock.gradient(want, w))
    assert np.allclose(float(y), float(want), rtol=1e-4), "the two programs are not the same"
    return float(tape.gradient(y, s.w, through_updates=True)) / slope, 1.0


def _assigns_together(s: Setting) -> None:
    with s.strategy.scope():
        s.w = tf.Variable(0.7, aggregation=tf.VariableAggregation.MEAN)


@case()
def random_programs(s: Setting) -> Any:
    _assigns_together(s)
    found = [_compare(s, _program(seed), lambda f: f) for seed in range(12)]
    return [pair[0] for pair in found], [pair[1] for pair in found]


@case()
def random_programs_in_functions(s: Setting) -> Any:
    _assigns_together(s)
    found = []
    for seed in range(5):
        try:
            found.append(_compare(s, _program(seed), tf.function)[0])
        except rt.errors.RetrotapeError:  # what cannot be answered is not answered
            found.append(1.0)
    return found, [1.0] * len(found)


# ---------------------------------------------------------------------- the script


def _outcome(function: Callable, setting: Setting) -> str:
    try:
        found, want = function(setting)
    except Exception as error:  # which one it is, is what the test looks at
        return f"{type(error).__name__}: {error}"
    pairs = zip(found, want, strict=True) if isinstance(found, list) else [(found, want)]
    right = all(one is not None and np.allclose(one, other, rtol=2e-3) for one, other in pairs)
    return "right" if right else f"wrong: {found}, not {want}"


def main(replicas: int) -> None:
    """Run all cases, with one strategy of each kind: two with collectives in one process disturb each other."""
    physical = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * replicas)
    tf.get_logger().setLevel("ERROR")
    devices = [f"CPU:{number}" for number in range(replicas)]
    made = {
        "one": tf.distribute.OneDeviceStrategy("CPU:0"),
        "mirrored": tf.distribute.MirroredStrategy(devices),
        "central": tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0"),
    }
    outcomes = {name: _outcome(run, Setting(made[name.split()[1]])) for name, (run, _) in CASES.items()}
    print("outcomes:" + json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
