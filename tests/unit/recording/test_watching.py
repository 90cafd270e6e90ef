"""What is watched, and what may be a source."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from recording_tools import X, assert_close, batch, dense_net


def test_watch_takes_tensors_variables_keras_variables_and_nests():
    v, k, t = tf.Variable(1.0), keras.Variable(2.0), tf.constant(3.0)
    with rt.Tape(watch_accessed_variables=False) as tape:
        tape.watch({"a": [v, k], "b": t})
        y = v * k * t
    assert [id(w) for w in tape.watched_variables()] == [id(v), id(k.value)]
    assert_close(tape.gradient(y, [v, k, t]), [6.0, 3.0, 2.0])


def test_a_watched_tensor_that_took_no_part_is_none():
    other = tf.constant(1.0)
    with rt.Tape() as tape:
        tape.watch(other)
        y = X * X
    assert tape.gradient(y, other) is None
    assert_close(tape.gradient(y, other, unconnected_gradients="zero"), 0.0)
    assert_close(tape.gradient(other, other), 1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("accessed", [True, False])
def test_watched_variables_are_those_of_the_stock_tape(accessed, compiled):
    net, data = dense_net(), batch()
    fixed, free, unread = tf.Variable(1.0, trainable=False), tf.Variable(2.0), tf.Variable(3.0)

    def forward():
        return tf.reduce_sum(net(data)) * fixed * free

    if compiled:
        forward = tf.function(forward)

    def watched(kind):
        with kind(watch_accessed_variables=accessed) as tape:
            tape.watch(unread)
            tape.watch(fixed)
            forward()
        return {id(variable) for variable in tape.watched_variables()}

    theirs = watched(tf.GradientTape)
    assert watched(rt.Tape) == theirs
    assert len(theirs) == (9 if accessed else 2)


def test_keras_variables_are_sources_and_targets():
    k = keras.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(k.value**2)
    assert_close(tape.gradient(y, {"k": k}), {"k": tf.constant([2.0, 4.0])})
    assert_close(tape.gradient(k, k), tf.ones(2))
