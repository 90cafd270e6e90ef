"""A tape may be asked again and later, when variables have changed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, batch, dense_net, stock_gradient


def test_asking_again_gives_the_same():
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        loss = tf.reduce_mean(net(data) ** 2)
    first = tape.gradient(loss, net.trainable_variables)
    for _ in range(3):
        for one, other in zip(first, tape.gradient(loss, net.trainable_variables), strict=True):
            np.testing.assert_array_equal(one, other)


def test_several_sources_are_each_on_its_own():
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        loss = tf.reduce_mean(net(data) ** 2)
    sources = [*net.trainable_variables, data]
    for one, source in zip(tape.gradient(loss, sources), sources, strict=True):
        np.testing.assert_array_equal(one, tape.gradient(loss, source))


@pytest.mark.parametrize("compiled", [False, True])
def test_training_on_does_not_change_the_answer(compiled):
    net, data = dense_net(), batch()

    def forward(a):
        return tf.reduce_mean(net(a) ** 2)

    forward = tf.function(forward) if compiled else forward
    expected = stock_gradient(lambda: forward(data), net.trainable_variables)
    with rt.Tape() as tape:
        loss = forward(data)
    for weight in net.trainable_variables:
        weight.assign(weight + 1.0)
    assert_close(tape.gradient(loss, net.trainable_variables), expected)
    assert_close(tape.gradient(loss, net.trainable_variables), expected)


def test_second_order_after_the_variables_changed():
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        y = w**3 * X
    w.assign(100.0)
    first = tape.gradient(y, w)
    assert_close(first, 12 * X)
    w.assign(50.0)
    assert_close(tape.gradient(first, w), 12 * X)
    assert_close(tape.gradient(first, X), 12.0)


def test_an_assignment_in_the_block_ends_the_path_as_in_tensorflow():
    def steps(w):
        y = w * w
        w.assign(y * X)
        return y + w * w

    w = tf.Variable(3.0)
    expected = stock_gradient(lambda: steps(w), [w, X])
    w.assign(3.0)
    with rt.Tape() as tape:
        out = steps(w)
    assert_close(tape.gradient(out, [w, X]), expected)


@pytest.mark.parametrize("update", ["assign", "assign_add", "assign_sub"])
def test_an_update_of_a_variable_that_was_not_read_before(update):
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        getattr(w, update)(1.0)
        y = w * w
    assert_close(tape.gradient(y, w), 2 * w.numpy())
