"""Values that left TensorFlow, and came back as constants."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def numpy_round_trip() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        values = np.tanh(hidden.numpy())  # here
        loss = tf.reduce_sum(tf.constant(values) * 3.0)
    return tape, loss, w


@program
def float_of_the_loss() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        error = tf.reduce_sum(w**2)
        total = float(error) + 0.1  # here
        loss = tf.convert_to_tensor(total) * 2.0
    return tape, loss, w


@program
def item_of_the_loss() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        error = tf.reduce_sum(w**2).numpy().item()  # here
        loss = tf.sqrt(tf.constant(error))
    return tape, loss, w


@program
def list_of_numbers() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scores = [value.numpy() for value in tf.unstack(w * 2.0)]  # here
        loss = tf.reduce_mean(tf.stack(scores))
    return tape, loss, w


@program
def keras_predict() -> Asked:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="scores")], name="model")
    x = tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        scores = model.predict(x, verbose=0)  # here
        loss = tf.reduce_mean((scores - 1.0) ** 2)
    return tape, loss, model.trainable_variables[0]


@program
def numpy_function() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        squared = tf.numpy_function(np.square, [w], tf.float32)  # here
        loss = tf.reduce_sum(squared)
    return tape, loss, w


@program
def numpy_function_of_a_tensor() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scaled = w * 2.0
        squared = tf.numpy_function(np.square, [scaled], tf.float32)  # here
        loss = tf.reduce_sum(squared)
    return tape, loss, w


@program
def numpy_function_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def error(x: Any) -> Any:
        return tf.reduce_sum(tf.numpy_function(np.square, [x], tf.float32))  # here

    with rt.Tape() as tape:
        loss = error(w * 2.0)
    return tape, loss, w


@program
def np_array_of_a_tensor() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        loss = tf.reduce_sum(tf.constant(np.array(hidden)) ** 2)  # here
    return tape, loss, w


@program
def numpy_does_the_sum() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        loss = tf.sqrt(np.sum(hidden))  # here
    return tape, loss, w


@program
def a_number_for_an_op() -> Asked:
    w = tf.Variable(1.0, name="w")
    with rt.Tape() as tape:
        y = w * 2.0
        loss = tf.square(float(y))  # here
    return tape, loss, w


@program
def the_first_of_two_numbers() -> Asked:
    w, v = weights(), tf.Variable(1.0, name="v")
    with rt.Tape() as tape:
        total = float(tf.reduce_sum(w**2 * 0.3))  # here
        mean = float(tf.reduce_mean(w))
        loss = v * tf.constant(total)
    assert mean == 0.5
    return tape, loss, w


@program
def clipped_by_numpy() -> Asked:
    generator, critic = tf.Variable([[0.9, -0.3], [0.2, 0.7]], name="generator"), tf.Variable([[1.0], [2.0]])
    noise = tf.constant([[0.3, -0.6], [0.8, 0.1], [-0.4, 0.5], [0.7, 0.9]])
    with rt.Tape() as tape:
        fake = np.clip((noise @ generator).numpy(), -0.4, 0.8)  # here
        loss = tf.reduce_mean(fake @ critic)
    return tape, loss, generator


@program
def logged_before_another_batch() -> Asked:
    generator, critic = tf.Variable([[0.9, -0.3], [0.2, 0.7]], name="generator"), tf.Variable([[1.0], [2.0]])
    noise, random = tf.constant([[0.3, -0.6], [0.8, 0.1], [-0.4, 0.5], [0.7, 0.9]]), np.random.default_rng(3)
    with rt.Tape() as tape:
        shown = (noise @ generator).numpy()  # for a picture, not for the loss
        real = tf.constant(random.random([4, 2], np.float32))
        loss = tf.reduce_mean(real @ critic)
    assert shown.shape == real.shape
    return tape, loss, generator


@program
def divided_by_the_norm_of_numpy() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        z = w * 2.0
        unit = z / np.linalg.norm(z)
        loss = tf.reduce_sum(unit * [1.0, 2.0, 3.0])
    return tape, loss, w


@program
def rows_divided_by_norms_of_numpy() -> Asked:
    w = tf.Variable([[0.5, -1.5], [2.5, 1.0]], name="w")
    with rt.Tape() as tape:
        z = w * 2.0
        lengths = np.linalg.norm(z.numpy(), axis=1, keepdims=True)
        loss = tf.reduce_sum(z / lengths * [1.0, 2.0])
    return tape, loss, w


@program
def logged_on_the_way() -> Asked:
    w, rate = weights(), 0.01
    with rt.Tape() as tape:
        z = w * 2.0
        assert float(tf.reduce_sum(z)) > 0.0
        loss = tf.reduce_sum(z * rate)
    return tape, loss, w
