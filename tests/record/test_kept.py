"""What is kept changes memory, never a gradient; with tf.recompute_grad too."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, batch, dense_net, stock_gradient


def dropout_net() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    net = keras.Sequential([layers.Dense(6, "gelu"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)])
    net.build((None, 3))
    return net


@pytest.mark.parametrize("compiled", [False, True])
def test_whatever_is_kept_the_gradients_are_identical(compiled):
    net, data = dropout_net(), batch(8)

    def head(a):
        return tf.reduce_logsumexp(a, axis=1)

    head = tf.function(head) if compiled else head
    tapes = {keep: rt.Tape(keep=keep) for keep in ("needed", "all", "leaves")}
    with tapes["needed"], tapes["all"], tapes["leaves"]:
        loss = tf.reduce_sum(head(net(data, training=True)) ** 2)
    sources = [*net.trainable_variables, data]
    found = {keep: tape.gradient(loss, sources) for keep, tape in tapes.items()}
    second = {keep: tape.gradient(found[keep][-1], data) for keep, tape in tapes.items()}
    for keep in ("all", "leaves"):
        for one, other in zip([*found["needed"], second["needed"]], [*found[keep], second[keep]], strict=True):
            np.testing.assert_array_equal(one, other)


def test_less_is_held_where_less_is_kept():
    held = {}
    for keep in ("needed", "all", "leaves"):
        with rt.Tape(keep=keep) as tape:
            y = batch(100)
            for _ in range(5):
                y = tf.sin(y) + 1.0
        held[keep] = tape.memory().bytes
    assert held["leaves"] < held["needed"] < held["all"]


def test_recompute_grad_uses_the_recorded_draw():
    @tf.recompute_grad
    def block(a):
        return tf.nn.dropout(a, 0.5) * 2.0

    a = tf.ones(50) * 3.0
    with rt.Tape() as tape:
        y = block(a)
    g = tape.gradient(y, a)
    assert 0 < np.count_nonzero(y) < 50
    np.testing.assert_array_equal(g * a, y)


def test_recompute_grad_uses_the_recorded_value_of_a_variable():
    v = tf.Variable(2.0)

    @tf.recompute_grad
    def block(a):
        return a * a * v

    with rt.Tape() as tape:
        y = block(X)
    v.assign(10.0)
    assert_close(tape.gradient(y, [X, v]), [2 * X * 2.0, X * X])


def test_recompute_grad_holds_no_intermediate_values():
    def deep(a):
        for _ in range(20):
            a = tf.sin(a)
        return a

    def held(f):
        with rt.Tape() as tape:
            y = f(tf.ones(1000))
        return tape, y

    plain, _ = held(deep)
    recomputed, _ = held(tf.recompute_grad(deep))
    assert recomputed.memory().bytes < plain.memory().bytes / 4
    assert sum(eqn.op == "Sin" for eqn in recomputed.program.eqns) == 20


def test_recompute_grad_of_a_keras_block_is_that_of_the_stock_tape():
    net, data = dense_net(), batch()

    @tf.recompute_grad
    def block(a):
        return net(a)

    expected = stock_gradient(lambda: tf.reduce_sum(net(data) ** 2), net.trainable_variables)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(block(data) ** 2)
    assert_close(tape.gradient(loss, net.trainable_variables), expected)
