"""No mistake at all."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def frozen_layer() -> Asked:
    layer = keras.layers.Dense(1, name="frozen", kernel_initializer="ones")
    layer.build([None, 2])
    layer.trainable = False
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    return tape, loss, layer.kernel


@program
def py_function() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.py_function(lambda x: x**2, [w], tf.float32))
    return tape, loss, w


@program
def while_loop() -> Asked:
    w = weights()

    @tf.function
    def power(x: Any) -> Any:
        for _ in tf.range(3):
            x = x * 1.5
        return x

    with rt.Tape() as tape:
        loss = tf.reduce_sum(power(w))
    return tape, loss, w


@program
def watched_by_nobody() -> Asked:
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        loss = x**2
    return tape, loss, x
