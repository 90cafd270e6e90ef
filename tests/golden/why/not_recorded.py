"""What was not recorded, and other objects than the one that is meant."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def computed_before_the_block() -> Asked:
    w = weights()
    loss = tf.reduce_sum(w**2)
    with rt.Tape() as tape:
        _ = w * 1.0
    return tape, loss, w


@program
def computed_after_the_block() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scores = w * 2.0
    loss = tf.reduce_sum(scores)
    return tape, loss, w


@program
def computed_in_a_pause() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scores = w * 2.0
        with tape.stop_recording():
            loss = tf.reduce_sum(scores)
    return tape, loss, w


@program
def source_used_only_in_a_pause() -> Asked:
    w, x = weights(), tf.ones([3])
    with rt.Tape() as tape:
        with tape.stop_recording():
            scores = w * x
        loss = tf.reduce_sum(scores)  # here
    return tape, loss, w


@program
def path_through_a_pause() -> Asked:
    w, x = weights(), tf.ones([3])
    with rt.Tape() as tape:
        _ = w * 1.0
        with tape.stop_recording():
            scores = w * x
        loss = tf.reduce_sum(scores)
    return tape, loss, w


@program
def features_made_before_the_block() -> Asked:
    w, x = weights(), tf.ones([3])
    features = w * x
    with rt.Tape() as tape:
        loss = tf.reduce_sum(features**2) + tf.reduce_sum(x)
    return tape, loss, w


@program
def on_another_thread() -> Asked:
    w, found = weights(), []
    with rt.Tape() as tape:
        _ = w * 1.0
        worker = threading.Thread(target=lambda: found.append(tf.reduce_sum(w**2)))
        worker.start()
        worker.join()
    return tape, found[0], w


@program
def input_from_another_thread() -> Asked:
    w, found = weights(), []
    with rt.Tape() as tape:
        _ = w * 1.0
        worker = threading.Thread(target=lambda: found.append(w**2))
        worker.start()
        worker.join()
        loss = tf.reduce_sum(found[0])  # here
    return tape, loss, w


@program
def computed_again_on_another_thread() -> Asked:
    w, found = weights(), []
    with rt.Tape() as tape:
        _ = w**2
        worker = threading.Thread(target=lambda: found.append(w**2))
        worker.start()
        worker.join()
        loss = tf.reduce_sum(found[0])  # here
    return tape, loss, w


@program
def asked_after_reset() -> Asked:
    w = weights()
    tape = rt.Tape()
    with tape:
        loss = tf.reduce_sum(w**2)
        tape.reset()
        _ = w * 1.0
    return tape, loss, w


@program
def a_copy_of_the_input() -> Asked:
    kernel, x = tf.Variable([[1.0], [2.0]], name="kernel"), np.array([[3.0, 4.0]], np.float32)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.constant(x) @ kernel)
    return tape, loss, tf.constant(x)


@program
def a_copy_of_the_weights() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        copied = tf.identity(w)
        loss = tf.reduce_sum(w**2)
    return tape, loss, copied


@program
def another_layer_of_the_same_name() -> Asked:
    def make() -> Any:
        keras.backend.clear_session()
        return keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="head")], name="model")

    old, model = make(), make()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 2])))
    return tape, loss, old.trainable_variables[0]


@program
def another_variable_of_the_same_name() -> Asked:
    old, new = tf.Variable(1.0, name="scale"), tf.Variable(1.0, name="scale")
    with rt.Tape() as tape:
        loss = new**2
    return tape, loss, old


@program
def a_layer_that_is_not_used() -> Asked:
    layers = [keras.layers.Dense(2, name="body"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input([2]), *layers], name="model")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model.layers[0](tf.ones([1, 2])))
    return tape, loss, model.layers[1].kernel


@program
def logged_and_unrelated() -> Asked:
    first, second, rate = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second"), float(np.sqrt(2.0))
    with rt.Tape() as tape:
        seen = float(second**2)  # for the log, not for the loss
        loss = first**2 * rate
    assert seen == 4.0
    return tape, loss, second


@program
def the_other_loss() -> Asked:
    first, second = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second")
    with rt.Tape() as tape:
        loss = first**2
        _ = second**2
    return tape, loss, second


@program
def target_and_source_swapped() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        loss = tf.reduce_sum(hidden**2)
    return tape, hidden, loss


@program
def chosen_by_an_if() -> Asked:
    w, v = tf.Variable(2.0, name="w"), tf.Variable(3.0, name="v")
    with rt.Tape() as tape:
        loss = v**2 if w > 0.0 else v
    return tape, loss, w


@program
def a_copy_of_a_variable() -> Asked:
    w = weights()
    value = w.read_value()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w**2)
    return tape, loss, value
