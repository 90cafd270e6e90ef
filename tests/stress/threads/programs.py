"""Small programs that threads run side by side, each in two spellings: with this library, and plainly.

A program takes a number, which it computes with, and `Shared`, which all threads use. Plain spellings are the truth.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

Program = Callable[["Shared", float], Any]
OURS: dict[str, Program] = {}
PLAIN: dict[str, Program] = {}


class Shared:
    """What all threads use: a constant variable, one that is written, a function, a layer, a tape and a folder."""

    def __init__(self) -> None:
        self.constant = tf.Variable(3.0, dtype=tf.float64, name="constant")
        self.written = tf.Variable(1.0, dtype=tf.float64, name="written")
        self.function = tf.function(lambda x: tf.sin(x) * self.constant * x)
        self.layer = keras.layers.Dense(3, activation="tanh", dtype="float64", name="shared")
        self.layer.build((1, 2))
        self.source = tf.constant(1.5, tf.float64)
        with rt.Tape() as self.tape:
            self.target = tf.exp(self.source) * self.source**2
        self.folder = tempfile.mkdtemp()


def ours(program: Program) -> Program:
    OURS[program.__name__] = program
    return program


def plain(program: Program) -> Program:
    PLAIN[program.__name__.removeprefix("plain_")] = program
    return program


def variable(k: float) -> tf.Variable:
    return tf.Variable(tf.ones([4], tf.float64) * k, name="own")


def chain(w: Any) -> Any:
    y = tf.convert_to_tensor(w)
    for _ in range(5):
        y = tf.nn.silu(y) * w
    return tf.reduce_sum(y)


def slope(f: Callable[[Any], Any], at: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(at)
        y = f(at)
    return tape.gradient(y, at)


# ------------------------------------------------------------------ variables and tapes of one's own


@ours
def own(shared: Shared, k: float) -> Any:
    w = variable(k)
    with rt.Tape() as tape:
        y = chain(w)
    return tape.gradient(y, w)


@plain
def plain_own(shared: Shared, k: float) -> Any:
    return slope(chain, variable(k))


@ours
def saved(shared: Shared, k: float) -> Any:
    w = variable(k)
    with rt.Tape() as tape:
        y = chain(w)
    path = os.path.join(shared.folder, f"{threading.get_ident()}.tape")
    tape.save(path, y=y)
    loaded = rt.load(path)
    assert loaded.names == ("own", "y"), loaded.names
    return loaded.gradient("y", "own")


PLAIN["saved"] = PLAIN["own"]


@ours
def saved_layer(shared: Shared, k: float) -> Any:
    x = tf.constant([[k, 1.0]], tf.float64)
    with rt.Tape() as tape:
        y = tf.reduce_sum(shared.layer(x))
    path = os.path.join(shared.folder, f"{threading.get_ident()}.layer.tape")
    tape.save(path, y=y, x=x)
    loaded = rt.load(path)
    assert loaded.names == ("shared/bias", "shared/kernel", "x", "y"), loaded.names
    return loaded.gradient("y", ["shared/kernel", "x"])


@plain
def plain_saved_layer(shared: Shared, k: float) -> Any:
    x = tf.constant([[k, 1.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(shared.layer(x))
    return tape.gradient(y, [shared.layer.kernel.value, x])


@ours
def joined(shared: Shared, k: float) -> Any:
    w = variable(k)
    with rt.Tape() as first:
        h = tf.sin(w) * w
    with rt.Tape() as second:
        y = tf.reduce_sum(h**2)
    return rt.join(first, second).gradient(y, w)


@plain
def plain_joined(shared: Shared, k: float) -> Any:
    return slope(lambda w: tf.reduce_sum((tf.sin(w) * w) ** 2), variable(k))


@ours
def paused(shared: Shared, k: float) -> Any:
    w = variable(k)
    with rt.Tape() as tape:
        y = w * w
        with tape.stop_recording():
            w.assign(2.0 * w)
        y = tf.reduce_sum(y * w)
    return tape.gradient(y, w)


@plain
def plain_paused(shared: Shared, k: float) -> Any:
    with tf.GradientTape() as tape:
        w = variable(k)
        y = w * w
        with tape.stop_recording():
            w.assign(2.0 * w)
        y = tf.reduce_sum(y * w)
    return tape.gradient(y, w)


@ours
def through_an_update(shared: Shared, k: float) -> Any:
    w = variable(k)
    with rt.Tape() as tape:
        w.assign(w * tf.cos(w))
        y = tf.reduce_sum(w**2)
    return tape.gradient(y, w, through_updates=True)


@plain
def plain_through_an_update(shared: Shared, k: float) -> Any:
    return slope(lambda w: tf.reduce_sum((w * tf.cos(w)) ** 2), variable(k))


@ours
def custom(shared: Shared, k: float) -> Any:
    w, scale = variable(k), tf.Variable(2.0, dtype=tf.float64)

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        return x * 1.0, lambda grad: grad * scale

    with rt.Tape() as tape:
        y = tf.reduce_sum(scaled(tf.sin(w)))
        scale.assign(7.0)  # the backward function sees what it saw
    return tape.gradient(y, w)


@plain
def plain_custom(shared: Shared, k: float) -> Any:
    return slope(lambda w: tf.reduce_sum(2.0 * tf.sin(w)), variable(k))


@ours
def tangents(shared: Shared, k: float) -> Any:
    x = tf.constant(k, tf.float64)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0, tf.float64)) as forward:
        with rt.Tape() as tape:
            y = tf.sin(x) * x**2
        grad = tape.gradient(y, x)
    return [grad, forward.jvp(y), forward.jvp(grad)]


@plain
def plain_tangents(shared: Shared, k: float) -> Any:
    x = tf.constant(k, tf.float64)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0, tf.float64)) as forward:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sin(x) * x**2
        grad = tape.gradient(y, x)
    return [grad, forward.jvp(y), forward.jvp(grad)]


# ------------------------------------------------------------------ what others use at the same time


@ours
def shared_constant(shared: Shared, k: float) -> Any:
    w = variable(k)
    with rt.Tape() as tape:
        y = tf.reduce_sum(shared.constant**2 * w)
    assert len(tape.versions(shared.constant)) == 1, "an assignment that nobody made"
    return tape.gradient(y, [shared.constant, w])


@plain
def plain_shared_constant(shared: Shared, k: float) -> Any:
    w = variable(k)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(shared.constant**2 * w)
    return tape.gradient(y, [shared.constant, w])


@ours
def shared_written(shared: Shared, k: float) -> Any:
    x = tf.constant(2.0, tf.float64)
    with rt.Tape() as tape:
        shared.written.assign_add(k)
        y = shared.written * x
    held = float(y) / 2.0  # what was read, whoever wrote it
    return [tape.gradient(y, x) - held, tape.gradient(y, shared.written)]


@plain
def plain_shared_written(shared: Shared, k: float) -> Any:
    return [tf.constant(0.0, tf.float64), tf.constant(2.0, tf.float64)]


@ours
def function(shared: Shared, k: float) -> Any:
    x = tf.constant(k, tf.float64)
    with rt.Tape() as tape:
        y = shared.function(x)
    return [tape.gradient(y, x), tape.hvp(y, x, tf.ones_like(x))]


@plain
def plain_function(shared: Shared, k: float) -> Any:
    def f(x: Any) -> Any:
        return tf.sin(x) * 3.0 * x

    x = tf.constant(k, tf.float64)
    return [slope(f, x), slope(lambda x: slope(f, x), x)]


@ours
def saved_function(shared: Shared, k: float) -> Any:
    x = tf.constant(k, tf.float64)
    with rt.Tape() as tape:
        y = shared.function(x)
    path = os.path.join(shared.folder, f"{threading.get_ident()}.function.tape")
    tape.save(path, x=x, y=y)
    return rt.load(path).gradient("y", "x")


@plain
def plain_saved_function(shared: Shared, k: float) -> Any:
    return slope(lambda x: tf.sin(x) * 3.0 * x, tf.constant(k, tf.float64))


@ours
def new_function(shared: Shared, k: float) -> Any:
    w = variable(k)
    f = tf.function(lambda x: x * w * k)
    x = tf.constant(k, tf.float64)
    with rt.Tape() as tape:
        y = tf.reduce_sum(f(x))
    return tape.gradient(y, [x, w])


@plain
def plain_new_function(shared: Shared, k: float) -> Any:
    w, x = variable(k), tf.constant(k, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(x * w * k)
    return tape.gradient(y, [x, w])


@ours
def shared_tape(shared: Shared, k: float) -> Any:
    tape, x = shared.tape, shared.source
    assert tape.why(shared.target, x).verdict is rt.Verdict.CONNECTED
    return [tape.gradient(shared.target, x), tape.hvp(shared.target, x, tf.constant(k, tf.float64))]


@plain
def plain_shared_tape(shared: Shared, k: float) -> Any:
    def f(x: Any) -> Any:
        return tf.exp(x) * x**2

    return [slope(f, shared.source), k * slope(lambda x: slope(f, x), shared.source)]


@ours
def first_nonfinite(shared: Shared, k: float) -> Any:
    x = tf.constant([k, 0.0], tf.float64)
    with rt.Tape() as tape:
        _ = tf.math.log(x)
    found = tape.first_nonfinite()
    assert found is not None
    assert "Log" in str(found), str(found)
    return tape.gradient(tape.tensors(op="Log")[0], x)[:1]


@plain
def plain_first_nonfinite(shared: Shared, k: float) -> Any:
    return np.array([1.0 / k])
