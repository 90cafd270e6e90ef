"""A tape around `strategy.run`, in eager code and around a `tf.function`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from record.replicas.setting import (
    Setting,
    all_gather,
    all_reduce,
    case,
    merged_sum,
    recorded,
    reduced,
    twice_back,
)


@case(traced=True)
def reduce_sum(s: Setting) -> Any:
    return reduced(s, lambda x: x * s.w * s.w), 6 * s.sum


@case(traced=True)
def reduce_mean(s: Setting) -> Any:
    return reduced(s, lambda x: x * s.w * s.w, "MEAN"), 6 * s.sum / s.count


@case(traced=True)
def custom_gradient(s: Setting) -> Any:
    return reduced(s, lambda x: twice_back(x * s.w)), 2 * s.sum


@case(traced=True)
def custom_gradient_after_a_reduction(s: Setting) -> Any:
    return reduced(s, lambda x: twice_back(all_reduce("SUM", twice_back(x * s.w)) ** 2)), s.count * 24 * s.sum**2


@tf.custom_gradient
def _reduced_back(value: Any) -> Any:
    return tf.identity(value), lambda grad: all_reduce("SUM", grad)


@tf.custom_gradient
def _numbered_back(value: Any) -> Any:
    def backward(grad: Any) -> Any:
        return grad * tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group + 1, tf.float32)

    return tf.identity(value), backward


@case(
    "ReplicaError: The path from the source to the target passes a custom gradient", "mirrored", "central", traced=True
)
def reduction_in_a_custom_gradient(s: Setting) -> Any:
    return reduced(s, lambda x: _reduced_back(x * s.w)), s.count * s.sum


@case()
def replica_of_a_custom_gradient(s: Setting) -> Any:
    return reduced(s, lambda x: _numbered_back(x * s.w)), float((s.given * np.arange(1, s.count + 1)).sum())


@case("ReplicaError: The path from the source to the target passes a custom gradient", "mirrored", "central")
def replica_of_a_custom_gradient_in_a_function(s: Setting) -> Any:
    with rt.Tape() as tape:
        y = tf.function(lambda: s.total(lambda x: _numbered_back(all_reduce("SUM", x * s.w))))()
    return tape.gradient(y, s.w), 0


@case(traced=True)
def all_reduce_sum(s: Setting) -> Any:
    return reduced(s, lambda x: all_reduce("SUM", x * s.w) ** 2), s.count * 6 * s.sum**2


@case(traced=True)
def all_reduce_mean(s: Setting) -> Any:
    return reduced(s, lambda x: all_reduce("MEAN", x * s.w) ** 2), 6 * s.sum**2 / s.count


@case(traced=True)
def all_reduce_several(s: Setting) -> Any:
    def body(x: Any) -> Any:
        first, second = all_reduce("MEAN", [x * s.w, tf.stack([x, s.w])])
        return first * second[1]

    return reduced(s, body), 6 * s.sum


@case(traced=True)
def all_gathered(s: Setting) -> Any:
    places = tf.range(1.0, s.count + 1.0)  # which replica stands where matters
    want = 6 * float((s.given_in_order**2 * places.numpy()).sum())
    return reduced(s, lambda x: tf.reduce_sum(all_gather(x * s.w) ** 2 * places)), s.count * want


@case(traced=True)
def gather(s: Setting) -> Any:
    places = tf.range(1.0, s.count + 1.0)
    with rt.Tape() as tape:
        per_replica = s.wrap(lambda: s.strategy.run(lambda x: tf.reshape(x * s.w, [1]), (s.x,)))()
        y = tf.reduce_sum(s.strategy.gather(per_replica, 0) ** 2 * places)
    return tape.gradient(y, s.w), 6 * float((s.given_in_order**2 * places.numpy()).sum())


@case(traced=True)
def merge_call(s: Setting) -> Any:
    return reduced(s, lambda x: merged_sum(x * s.w) ** 2), s.count * 6 * s.sum**2


@case(traced=True)
def every_keep(s: Setting) -> Any:
    parts = 0.1 * s.given * np.exp(0.3 * s.given)
    want = 2 * s.count * float(np.exp(0.3 * s.given).sum() * parts.sum())
    kinds = ("needed", "all", "leaves", "segments", "disk")
    body = lambda x: all_reduce("SUM", tf.exp(x * s.w * 0.1)) ** 2  # noqa: E731
    return [reduced(s, body, keep=keep) for keep in kinds], [want] * len(kinds)


@case(traced=True)
def second_derivatives(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: all_reduce("SUM", x * s.w * s.w) ** 2)
    one = tf.constant(1.0)
    found = [tape.hessian(y, s.w), tape.hvp(y, s.w, one), tape.jvp(y, s.w, one)]
    return found, [s.count * s.sum**2 * 108] * 3


@case(traced=True)
def default_sources(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: all_reduce("MEAN", x * s.w * s.w))
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

    return reduced(s, body), 18 * s.sum


@case(traced=True)
def stock_tape_inside(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with tf.GradientTape() as inner:
            y = all_reduce("SUM", x * s.w**3)
        return inner.gradient(y, s.w)

    return reduced(s, body), 18 * s.sum * s.count


@case("right", "mirrored")
def stock_tape_around_a_function(s: Setting) -> Any:
    w = tf.constant(3.0)
    with tf.GradientTape() as stock, rt.Tape() as tape:
        stock.watch(w)
        y = tf.function(lambda w: s.total(lambda x: all_reduce("SUM", x * w) ** 2))(w)
    want = s.count * 6 * s.sum**2
    return [stock.gradient(y, w), tape.gradient(y, w)], [want, want]


@case(traced=True)
def joined_around(s: Setting) -> Any:
    with rt.Tape() as first, rt.Tape() as second:
        y = s.wrap(lambda: s.total(lambda x: all_reduce("MEAN", x * s.w) ** 2))()
    both = rt.join(first, second)
    divisions = [sum(eqn.op == "RealDiv" for eqn in tape.program.eqns) for tape in (both, first)]
    return [both.gradient(y, s.w), divisions[0]], [6 * s.sum**2 / s.count, divisions[1]]


@case("ReplicaError: The source 'Variable:0' (float32[]) has a value of its own in each replica", "mirrored")
def sync_on_read(s: Setting) -> Any:
    kind: Any = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with s.strategy.scope():
        v = tf.Variable(1.0, **kind)
    with rt.Tape() as tape:
        y = s.total(lambda x: v * x)
    return tape.gradient(y, v), 0


# ---------------------------------------------------------------------- slices


def _slices(x: Any, value: Any) -> Any:
    """Return slices whose number differs from replica to replica."""
    count = tf.cast(tf.math.ceil(x), tf.int32)
    return tf.IndexedSlices(tf.fill([count, 1], value), tf.range(count), tf.constant([3, 1]))


def _dense(rows: Any) -> Any:
    return tf.reduce_sum(tf.convert_to_tensor(rows) ** 2)


def _slices_slope(s: Setting, mean: bool = False) -> float:
    total = np.zeros(3)
    for x in s.given:
        total[: int(np.ceil(x))] += x
    return 6 * float((total**2).sum()) / (s.count**2 if mean else 1)


@case(traced=True)
def all_reduce_slices(s: Setting) -> Any:
    found = [reduced(s, lambda x, op=op: _dense(all_reduce(op, _slices(x, x * s.w)))) for op in ("SUM", "MEAN")]
    return found, [s.count * _slices_slope(s, mean) for mean in (False, True)]


@case(traced=True)
def reduce_slices(s: Setting) -> Any:
    found = []
    for op in ("SUM", "MEAN"):
        with rt.Tape() as tape:
            rows = s.wrap(lambda op=op: s.total(lambda x: _slices(x, x * s.w), op))()
            y = _dense(rows)
        found.append(tape.gradient(y, s.w))
    return found, [_slices_slope(s), _slices_slope(s, mean=True)]


# ---------------------------------------------------------------------- control flow and nested functions


@case()
def loop_around_the_replicas(s: Setting) -> Any:
    def loop() -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total = total * s.w + s.total(lambda x: all_reduce("SUM", x * s.w))
        return total

    with rt.Tape() as tape:
        y = tf.function(loop)()
    scale, w = s.count * s.sum, 3.0  # y = scale * (w + w**2 + w**3)
    return tape.gradient(y, s.w), scale * (1 + 2 * w + 3 * w**2)


@case()
def branch_around_the_replicas(s: Setting) -> Any:
    def branch() -> Any:
        if s.w > 2.0:
            return s.total(lambda x: all_reduce("MEAN", x * s.w) ** 2)
        return s.w * 1.0

    with rt.Tape() as tape:
        y = tf.function(branch)()
    return tape.gradient(y, s.w), 6 * s.sum**2 / s.count


@case(traced=True)
def function_in_a_replica(s: Setting) -> Any:
    body = tf.function(lambda x: twice_back(all_reduce("SUM", tf.function(twice_back)(x * s.w))) ** 2)
    return reduced(s, body), s.count * 24 * s.sum**2


@case()
def function_called_twice(s: Setting) -> Any:
    step = tf.function(lambda: s.total(lambda x: all_reduce("SUM", x * s.w) ** 2))
    step()  # traced before
    found = []
    for _ in range(2):
        with rt.Tape() as tape:
            y = step() + step()
        found.append(tape.gradient(y, s.w))
    return found, [2 * s.count * 6 * s.sum**2] * 2


@case(traced=True)
def random_draws(s: Setting) -> Any:
    """What was drawn is not drawn again."""
    tape, y = recorded(s, lambda x: all_reduce("SUM", tf.random.uniform([]) * s.w * s.w))
    return tape.gradient(y, s.w) / y, 2 / 3
