"""Loops that are compiled with XLA: they run once, and are differentiated op by op."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

X = tf.constant([0.5, 2.0])


def while_loop(z):
    return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.sin(a) + a), [0, z])[1]


def over_range(z):
    a = z
    for _ in tf.range(3):
        a = tf.cos(a) + z
    return a


def mapped(z):
    return tf.map_fn(lambda one: tf.sin(one) * one, z)


def recurrent():
    keras.utils.set_random_seed(1)
    layer = keras.layers.LSTM(1)
    layer.build((1, 2, 1))
    return lambda z: layer(tf.reshape(z, [1, 2, 1]))[0]


FUNCTIONS = {"while_loop": while_loop, "range": over_range, "map_fn": mapped, "LSTM": recurrent()}


@pytest.mark.parametrize("plain", [False, True], ids=["direct", "in a plain function"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_and_effects(name, plain):
    function = FUNCTIONS[name]
    compiled = tf.function(function, jit_compile=True)
    count = tf.Variable(0)

    @tf.function
    def calling(z):
        count.assign_add(1)
        return compiled(z) + 1.0

    call = calling if plain else compiled
    w, v = tf.Variable([3.0, 1.0]), tf.Variable([0.4, 0.8])
    with tf.GradientTape() as outer, tf.GradientTape(persistent=True) as stock:
        y = tf.reduce_sum(w * (function(v) + float(plain)))
        slope = tf.reduce_sum(stock.gradient(y, v))
    curved = outer.gradient(slope, v)
    for calls in range(1, 4):
        with rt.Tape() as tape:
            ours = tf.reduce_sum(w * call(v))
        np.testing.assert_allclose(ours, y, rtol=1e-5)
        for source in (w, v):
            np.testing.assert_allclose(tape.gradient(ours, source), stock.gradient(y, source), rtol=1e-4)
        assert int(count) == calls * plain
        np.testing.assert_allclose(tape.hvp(ours, v, tf.ones_like(v)), curved, rtol=1e-3, atol=1e-6)
