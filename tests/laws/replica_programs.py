"""Random programs of replicas, run in two ways: under a strategy, and in one process as a function of values.

Run in one process, there are no replicas and no variables: a list has the values of all replicas, an assignment puts
other values in the place of a variable, and stock tapes give the derivatives.

This is a script, since the devices have to be there before TensorFlow starts: `replica_programs.py FIRST LAST` runs
the programs with these seeds and prints, as JSON, what was wrong.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt

Tensor = Any
GIVEN = np.array([[1.0, -0.5, 0.3], [0.4, 0.8, -1.2]], np.float32)  # for each replica
FIRST = np.array([[0.7, 0.9, 1.1], [1.2, 0.6, 0.8]], np.float32)  # of each variable
ROWS = [0, 2]
PLACES = np.array([[0.3], [0.7]], np.float32)
KINDS = (
    *("times", "times", "tanh", "custom", "plus", "sum", "mean", "merge", "gather", "slices_sum", "slices_mean"),
    *("assign", "add", "stock", "branch"),
)


class Statement(NamedTuple):
    """One step of a program."""

    kind: str
    variable: int
    number: float


Program = Sequence[Statement]


def make(seed: int) -> Program:
    """Return a random program."""
    rng = random.Random(seed)
    body = [Statement(rng.choice(KINDS), rng.randrange(2), rng.uniform(0.2, 0.8)) for _ in range(rng.randint(3, 8))]
    return [Statement("times", 0, 0.9), *body, Statement("times", 1, 1.0)]


@tf.custom_gradient
def bent(value: Tensor) -> Tensor:
    """Return the same value, with a gradient that is not that of a copy."""
    return tf.identity(value), lambda grad: grad * (1.0 + 0.5 * tf.cos(value))


# ---------------------------------------------------------------------- under a strategy


def _reduce(op: str, value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(op, value)


def _merged(value: Tensor) -> Tensor:
    add = lambda strategy, values: strategy.extended.reduce_to("SUM", values, values)  # noqa: E731
    return tf.distribute.get_replica_context().merge_call(add, (value,))


def in_a_replica(program: Program, variables: Sequence[Any], x: Tensor) -> Tensor:
    """Run a program in one replica."""
    y = x
    for kind, which, number in program:
        v = variables[which]
        match kind:
            case "times":
                y = y * v * number
            case "tanh":
                y = tf.tanh(y)
            case "custom":
                y = bent(y)
            case "plus":
                y = y + number * x
            case "sum" | "mean":
                y = y * number + 0.5 * _reduce(kind.upper(), y)
            case "merge":
                y = y * number + 0.3 * _merged(y)
            case "gather":
                gathered = tf.distribute.get_replica_context().all_gather(y[None], 0)
                y = y + number * tf.reduce_sum(gathered * PLACES, 0)
            case "slices_sum" | "slices_mean":
                slices = tf.IndexedSlices(tf.gather(y, ROWS) * number, tf.constant(ROWS), tf.constant([3]))
                y = y + tf.convert_to_tensor(_reduce(kind.split("_")[1].upper(), slices))
            case "assign":  # which takes the mean of all replicas
                v.assign(v * 0.9 - 0.2 * number * y)
            case "add":
                v.assign_add(0.2 * number * y)
            case "stock":
                with tf.GradientTape() as inner:
                    z = tf.reduce_sum(_reduce("SUM", tf.tanh(y * v)))
                y = y + number * inner.gradient(z, v)
            case "branch":
                y = tf.cond(tf.reduce_sum(v) > 0.0, lambda y=y, c=number: tf.sin(y) * c, lambda y=y: y)
    return tf.reduce_sum(y)


# ---------------------------------------------------------------------- in one process


def in_one_process(program: Program, values: Sequence[Tensor], assigned: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Run a program on the values of all replicas; `assigned` takes what is assigned to a variable."""
    xs = [tf.constant(x) for x in GIVEN]
    ys, values, count = list(xs), list(values), len(xs)
    for kind, which, number in program:
        v, total = values[which], tf.add_n(ys)
        match kind:
            case "times":
                ys = [y * v * number for y in ys]
            case "tanh":
                ys = [tf.tanh(y) for y in ys]
            case "custom":
                ys = [bent(y) for y in ys]
            case "plus":
                ys = [y + number * x for x, y in zip(xs, ys, strict=True)]
            case "sum" | "mean":
                ys = [y * number + 0.5 * (total if kind == "sum" else total / count) for y in ys]
            case "merge":
                ys = [y * number + 0.3 * total for y in ys]
            case "gather":
                ys = [y + number * tf.reduce_sum(tf.stack(ys) * PLACES, 0) for y in ys]
            case "slices_sum" | "slices_mean":
                rows = total * tf.constant([1.0, 0.0, 1.0]) * number / (1 if kind == "slices_sum" else count)
                ys = [y + rows for y in ys]
            case "assign":
                values[which] = assigned(which, v * 0.9 - 0.2 * number * total / count)
            case "add":
                values[which] = assigned(which, v + 0.2 * number * total / count)
            case "stock":  # the gradients of all replicas are added
                ys = [y + number * count * y * (1.0 - tf.tanh(y * v) ** 2) for y in ys]
            case "branch":
                ys = [tf.sin(y) * number if float(tf.reduce_sum(v)) > 0.0 else y for y in ys]
    return tf.reduce_sum(tf.add_n(ys))


class Wanted:
    """The value of a program in one process, and its derivatives with respect to the variables."""

    def __init__(self, program: Program, first: np.ndarray = FIRST) -> None:
        values = [tf.constant(value) for value in first]
        with tf.GradientTape() as outer:
            outer.watch(values)
            with tf.GradientTape() as inner:
                inner.watch(values)
                self.value = in_one_process(program, values, lambda _, new: new)
            self.through = [_dense(one, values[0]) for one in inner.gradient(self.value, values)]
            total = tf.add_n([tf.reduce_sum(one) for one in self.through])
        self.second = [_dense(one, values[0]) for one in outer.gradient(total, values)]
        self.plain = self._plain(program, values)

    def _plain(self, program: Program, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of all reads, where a path ends at an assignment."""
        versions = [[value] for value in values]
        with tf.GradientTape() as tape:
            tape.watch(values)

            def assigned(which: int, new: Tensor) -> Tensor:
                cut = tf.stop_gradient(new)
                tape.watch(cut)
                versions[which].append(cut)
                return cut

            value = in_one_process(program, values, assigned)
        found = tape.gradient(value, versions)
        return [tf.add_n([_dense(one, values[0]) for one in some]) for some in found]


def _dense(gradient: Any, like: Tensor) -> Tensor:
    return tf.zeros_like(like) if gradient is None else tf.convert_to_tensor(gradient)


# ---------------------------------------------------------------------- the law


class Trial:
    """One program, under a strategy, eagerly or in a function."""

    def __init__(self, strategy: Any, seed: int) -> None:
        self._strategy, self.program, self._seed = strategy, make(seed), seed
        kind: Any = {"aggregation": tf.VariableAggregation.MEAN}
        with strategy.scope():
            self._variables = [tf.Variable(value, name=f"v{i}", **kind) for i, value in enumerate(FIRST)]
        self._x = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(GIVEN[context.replica_id_in_sync_group])
        )

    def _run(self) -> Tensor:
        body = lambda x: in_a_replica(self.program, self._variables, x)  # noqa: E731
        return self._strategy.reduce("SUM", self._strategy.run(body, (self._x,)), axis=None)

    def check(self, wrap: Callable) -> list[str]:
        """Return what was wrong with a tape around the replicas, and with its file."""
        for variable, value in zip(self._variables, FIRST, strict=True):
            variable.assign(value)
        with rt.Tape(keep=("needed", "all", "leaves", "segments", "disk")[self._seed % 5]) as tape:
            y = wrap(self._run)()
        want, other = Wanted(self.program), FIRST * np.array([[1.1], [1.0]], np.float32)
        found = {
            "value": (y, want.value),
            "through": (tape.gradient(y, self._variables, through_updates=True, none="zero"), want.through),
            "plain": (tape.gradient(y, self._variables, none="zero"), want.plain),
        }
        ones = [tf.ones(3), tf.ones(3)]
        second = tape.hvp(y, self._variables, ones, through_updates=True)
        found["second"] = ([_dense(one, ones[0]) for one in second], want.second)
        with tempfile.TemporaryDirectory() as folder:
            tape.save(Path(folder) / "t.rtape", names={"y": y})
            loaded = rt.load(Path(folder) / "t.rtape")
            names = [name for name in ("v0", "v1") if name in loaded.names]
            through = loaded.gradient("y", names, through_updates=True, none="zero")
            plain = loaded.gradient("y", names, none="zero")
        numbers = [int(name[1]) for name in names]
        found["loaded through"] = (through, [want.through[number] for number in numbers])
        found["loaded plain"] = (plain, [want.plain[number] for number in numbers])
        if not any(kind == "branch" for kind, *_ in self.program):  # a replay cannot take another branch
            again = tape.replay([(self._variables[0], other[0])])
            found["replayed"] = (again.value(y), Wanted(self.program, other).value)
        return [
            f"{what}: {np.asarray(ours)}, not {np.asarray(theirs)}" for what, (ours, theirs) in found.items()
            if not np.allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-3, atol=2e-5)
        ]  # fmt: skip

    def check_graph(self) -> list[str]:
        """Return what was wrong with a tape inside of a function."""
        for variable, value in zip(self._variables, FIRST, strict=True):
            variable.assign(value)

        @tf.function
        def step() -> Any:
            with rt.Tape() as tape:
                y = self._run()
            return tape.gradient(y, self._variables, none="zero")

        found, want = np.asarray(step()), np.asarray(Wanted(self.program).plain)
        return [] if np.allclose(found, want, rtol=2e-3, atol=2e-5) else [f"graph: {found}, not {want}"]


def main(first: int, last: int) -> None:
    """Run the programs of a range of seeds."""
    physical = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.get_logger().setLevel("ERROR")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    problems: dict[str, Any] = {}
    for seed in range(first, last):
        trial = Trial(strategy, seed)
        ways = {"eager": lambda f: f, "function": tf.function, "graph": None}
        for way, wrap in ways.items():
            try:
                wrong = trial.check_graph() if wrap is None else trial.check(wrap)
            except Exception:  # no error is right here
                wrong = [traceback.format_exc()]
            if wrong:
                problems[f"seed {seed}, {way}: {[kind for kind, *_ in trial.program]}"] = wrong
    print("problems:" + json.dumps(problems))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
