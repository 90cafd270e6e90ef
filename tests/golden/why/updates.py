"""Paths through variables."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def hypernetwork() -> Asked:
    code, kernel = tf.Variable([1.0, 2.0], name="code"), tf.Variable([0.0, 0.0], name="kernel")
    with rt.Tape() as tape:
        kernel.assign(code * 3.0)  # here
        loss = tf.reduce_sum(kernel**2)
    return tape, loss, code


@program
def set_weights() -> Asked:
    code, layer = tf.Variable([[1.0], [2.0]], name="code"), keras.layers.Dense(1, use_bias=False, name="head")
    layer.build([None, 2])
    with rt.Tape() as tape:
        layer.set_weights([code * 3.0])  # here
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    return tape, loss, code


@program
def optimizer_step_then_loss() -> Asked:
    w, x = weights(), tf.Variable(1.0, name="example")
    optimizer = keras.optimizers.SGD(0.1)
    with rt.Tape() as tape:
        inner = x * tf.reduce_sum(w**2)
        optimizer.apply([tape.gradient(inner, w)], [w])  # here
        loss = tf.reduce_sum(w**3)
    return tape, loss, x


@program
def variable_made_of_a_value() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        copied = tf.Variable(w * 2.0, name="copied")  # here
        loss = tf.reduce_sum(copied**2)
    return tape, loss, w


@program
def assigned_between_two_blocks() -> Asked:
    code, state = tf.Variable(2.0, name="code"), tf.Variable(1.0, name="state")
    tape = rt.Tape()
    with tape:
        state.assign(code * 3.0)  # here
        first = state * 2.0
    state.assign(7.0)
    with tape:
        loss = first * state
    return tape, loss, code


@program
def assigned_in_a_pause() -> Asked:
    code, state = tf.Variable(2.0, name="code"), tf.Variable(1.0, name="state")
    with rt.Tape() as tape:
        _ = code * 1.0 + state
        with tape.stop_recording():
            state.assign(code * 3.0)
        loss = state**2  # here
    return tape, loss, code


@program
def python_list_in_a_function() -> Asked:
    w, seen = weights(), []

    @tf.function
    def scores(x: Any) -> Any:
        seen.append(x * 2.0)
        return tf.constant(1.0)

    with rt.Tape() as tape:
        loss = scores(w) * 2.0
    return tape, loss, w
