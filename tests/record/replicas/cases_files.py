"""Files, replays and versions of what replicas did: a mirrored variable is one variable."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from record.replicas.cases_updates import OPTIMIZERS, Training
from record.replicas.setting import Setting, all_reduce, case, recorded, twice_back

ON_READ: Any = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}


def _saved(tape: rt.Tape, **names: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.rtape"
        tape.save(path, names=names)
        return rt.load(path)


@case(traced=True)
def save(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: x * s.w * s.w)
    return _saved(tape, y=y, w=s.w).gradient("y", "w"), 6 * s.sum


@case(traced=True)
def save_a_reduction(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: twice_back(all_reduce("MEAN", x * s.w * s.w)) ** 2)
    loaded = _saved(tape, y=y)
    first = 2 * 4 * 27.0 * s.sum**2 / s.count
    return [loaded.gradient("y", "Variable"), tape.gradient(y, s.w)], [first, first]


@case(traced=True)
def second_derivative_of_a_file(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: all_reduce("SUM", x * s.w * s.w) ** 2)
    return _saved(tape, y=y, w=s.w).hessian("y", "w"), s.count * s.sum**2 * 108


@case(traced=True)
def save_every_keep(s: Setting) -> Any:
    found = []
    for keep in ("needed", "all", "leaves", "segments", "disk"):
        tape, y = recorded(s, lambda x: all_reduce("SUM", tf.exp(0.1 * x * s.w)) ** 2, keep=keep)
        loaded = _saved(tape, y=y)
        found.append(loaded.gradient("y", "Variable") / tape.gradient(y, s.w))
    return found, [1.0] * 5


@case(traced=True)
def save_training(s: Setting) -> Any:
    found, want = [], []
    for name in OPTIMIZERS:
        for dense in (False, True):
            training = Training(s, name, 0.01, dense)
            with rt.Tape() as tape:
                loss = s.wrap(training.run)()
            rate, v = training.optimizer.learning_rate, training.v
            loaded = _saved(tape, loss=loss, rate=rate, v=v)
            for updates in (False, True):
                pair = loaded.gradient("loss", ["rate", "v"], through_updates=updates, none="zero")
                live = tape.gradient(loss, [rate, v], through_updates=updates, none="zero")
                found += [np.asarray(tf.convert_to_tensor(one)) for one in pair]
                want += [np.asarray(tf.convert_to_tensor(one)) for one in live]
            found.append(len(loaded.versions("v")))
            want.append(3)
    return found, want


@case("right", "mirrored")
def names_of_a_file(s: Setting) -> Any:
    with s.strategy.scope():
        v = tf.Variable(1.0, name="v")
        own = tf.Variable(1.0, name="own", **ON_READ)
        norm = keras.layers.BatchNormalization(name="norm")  # its statistics differ
        norm.build((None, 2))
    rows = tf.constant([[1.0, 2.0], [2.0, 5.0]])

    def body(x: Any) -> Any:
        own.assign_add(x * s.w)
        return tf.reduce_sum(norm(rows * x * s.w, training=True)) + own * v

    tape, y = recorded(s, body)
    loaded = _saved(tape, y=y, mine=own)
    parts = [f"{name}/replica_{i}" for name in ("mine", "norm/moving_mean", "own") for i in range(s.count)]
    assert {"norm/beta", "norm/gamma", "v", "Variable", *parts} <= set(loaded.names), loaded.names
    found = [loaded.gradient("y", part) for part in parts[: s.count]]
    return [*found, loaded.gradient("y", "Variable", through_updates=True)], [*[1.0] * s.count, s.sum]


@case(
    "ReplicaError: This variable cannot be treated as one: Update 1 of 'Variable:0', AssignVariableOp at ", "mirrored"
)
def save_what_is_not_proved(s: Setting) -> Any:
    with rt.Tape() as tape:
        for part in s.local(s.w):
            part.assign(tf.floor(tf.random.uniform([])))  # zero in all replicas, but who knows
        y = s.total(lambda x: x * s.w)
    return _saved(tape, y=y).gradient("y", "Variable"), 0


@case(
    "ReplicaError: This variable cannot be treated as one: Update 1 of 'Variable:0', AssignVariableOp at ", "mirrored"
)
def save_with_a_name_for_what_one_replica_was_given(s: Setting) -> Any:
    """A gradient with respect to `last` would not be counted."""
    given = [tf.constant(2.0) for _ in range(s.count)]
    with rt.Tape() as tape:
        for part, value in zip(s.local(s.w), given, strict=True):
            part.assign(value)
        y = s.total(lambda x: x * s.w)
    assert float(_saved(tape, y=y).gradient("y", "Variable")) == s.sum  # without a name, equal values are enough
    return _saved(tape, y=y, last=given[-1]).gradient("y", "last"), 0


@case(traced=True)
def replay(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: all_reduce("SUM", x * s.w) * s.w)
    parts = s.local(s.w) if type(s.w).__name__ == "MirroredVariable" else (s.w,)
    again = tape.replay([(s.w, 4.0)])
    found = [tape.replay([(part, 4.0) for part in parts]).value(y), again.value(y), again.gradient(y, s.w)]
    return found, [s.count * 16 * s.sum, s.count * 16 * s.sum, s.count * 8 * s.sum]


@case()
@case("right", "mirrored", traced=True)
def versions(s: Setting) -> Any:
    training = Training(s, "SGD", 0.01, dense=True)
    with rt.Tape() as tape:
        loss = s.wrap(training.run)()
    values = tape.versions(training.v)
    whole = tape.gradient(loss, training.v, through_updates=True)
    found = [len(values), *(tape.gradient(loss, tape.at(training.v, k)) for k in (0, 2)), values[2].numpy()]
    last = float((s.given**2).sum()) * 2 * training.v.numpy()
    return found, [3, whole, last, training.v.numpy()]


@case("ReplicaError: This variable cannot be treated as one: Update 1 of 'Variable:0'", "mirrored")
def versions_that_differ(s: Setting) -> Any:
    with rt.Tape() as tape:
        for number, part in enumerate(s.local(s.w)):
            part.assign(float(number))
        y = s.total(lambda x: x * s.w)
    return tape.gradient(y, tape.at(s.w, 1)), 0


@case(traced=True)
def export(s: Setting) -> Any:
    tape, y = recorded(s, lambda x: all_reduce("SUM", x * s.w) * s.w)
    with tempfile.TemporaryDirectory() as folder:
        tape.export_saved_model(folder, names={"y": y, "w": s.w})
        loaded = tf.saved_model.load(folder)
        found = loaded.signatures["gradient_of_y"]()
        return found["w"], s.count * 6 * s.sum


@case()
def replayed_and_saved(s: Setting) -> Any:
    """A replay knows the variables of the strategy too."""
    tape, y = recorded(s, lambda x: x * s.w * s.w)
    again = tape.replay([(s.w, 3.0)])
    return _saved(again, y=y, w=s.w).gradient("y", "w"), 6 * s.sum


class Holder:
    """An object that has a variable."""

    w: tf.Variable


@case(traced=True)
def variable_of_an_object(s: Setting) -> Any:
    held = Holder()
    with s.strategy.scope():
        held.w = tf.Variable(3.0, name="held")
    tape, y = recorded(s, lambda x: x * held.w * held.w)
    return [_saved(tape, y=y).gradient("y", "held"), tape.gradient(y, "held")], [6 * s.sum] * 2
