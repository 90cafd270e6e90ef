"""The cases: functions of a strategy, each returning what was found and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt

Run = Callable[[Any], Any]
CASES: dict[str, tuple[Callable[..., Any], str]] = {}  # with "right", or the beginning of the error that is raised
X = np.array([1.0, 2.0, 0.5, 2.5], np.float32)  # one number for each replica
STRATEGIES = ("one", "mirrored", "central")


def case(expected: str = "right", *strategies: str, traced: bool = False) -> Callable[[Callable], Callable]:
    """Take a function of a `Setting` for a case, with each of the strategies; if `traced`, in a `tf.function` too."""

    def add(function: Callable) -> Callable:
        for name in strategies or STRATEGIES:
            CASES[f"{function.__name__} {name}"] = (function, expected)
            if traced:
                CASES[f"{function.__name__} {name} function"] = (function, expected)
        return function

    return add


class Setting:
    """A strategy, a variable of it, and one number for each replica.

    Attributes:
      wrap: What the recorded code is passed through: `tf.function`, or nothing.
    """

    def __init__(self, strategy: Any, wrap: Run = lambda f: f) -> None:
        self.strategy, self.wrap = strategy, wrap
        self.count = strategy.num_replicas_in_sync
        self.given = X[: self.count]
        self.sum = float(self.given.sum())
        devices = [int(name.rsplit(":", 1)[1]) for name in strategy.extended.worker_devices]
        collective = isinstance(strategy, tf.distribute.MirroredStrategy)
        self.given_in_order = self.given[np.argsort(devices)] if collective else self.given  # as gathered
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


def recorded(s: Setting, body: Callable, op: str = "SUM", **options: Any) -> tuple[rt.Tape, Any]:
    """Return a tape around the replicas, and their reduced results."""
    with rt.Tape(**options) as tape:
        y = s.wrap(lambda: s.total(body, op))()
    return tape, y


def reduced(s: Setting, body: Callable, op: str = "SUM", **options: Any) -> Any:
    """Return the gradient of the reduced results with respect to the variable."""
    tape, y = recorded(s, body, op, **options)
    return tape.gradient(y, s.w)


def slope(function: Callable[[float], Any], at: float, step: float = 2e-3) -> float:
    """Return a derivative by finite differences."""
    return float((function(at + step) - function(at - step)) / (2 * step))
