"""Gradients from a tape."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from grads.vectors import X, dense_model


def test_backward_is_gradient_by_the_trainable_variables_that_were_read() -> None:
    model, unread = dense_model(), tf.Variable(1.0)
    frozen = tf.Variable(2.0, trainable=False)
    with rt.Tape() as tape:
        loss = frozen * tf.reduce_sum(model(X) ** 2)
    grads = tape.backward(loss)
    assert len(grads) == 2
    assert frozen not in grads
    assert unread not in grads
    for variable, want in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True):
        np.testing.assert_allclose(grads[variable], want)


def test_backward_inside_a_function_finds_the_variables_that_were_read() -> None:
    w, table = tf.Variable([3.0, 4.0], name="w"), tf.Variable(tf.ones([4, 2]), name="table")
    found = []

    @tf.function
    def norm() -> tf.Tensor:
        with rt.Tape() as tape:
            loss = tf.reduce_sum(w**2) / 2.0 + tf.reduce_sum(tf.gather(table, [1, 1]) * 6.0)
        grads = tape.backward(loss)
        found.append(len(grads))
        return grads.norm()

    assert float(norm()) == pytest.approx((25.0 + 2 * 144.0) ** 0.5)
    assert set(found) == {2}


def test_backward_by_what_is_named() -> None:
    w, other, x = tf.Variable([3.0, 4.0]), tf.Variable(1.0), tf.constant(2.0)
    with rt.Tape() as tape:
        loss = x * tf.reduce_sum(w**2)
        unused = other * 1.0
    assert tape.backward(loss, w).keys() == [w]
    grads = tape.backward(loss, {"w": w, "rest": [other, x]})
    np.testing.assert_array_equal(grads[w], [12.0, 16.0])
    assert float(grads[x]) == 25.0
    assert grads.missing == (other,)
    assert tape.backward(loss).missing == (other,)
    zeros = tape.backward(loss, [other], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zeros.missing == ()
    assert float(tape.backward(unused)[other]) == 1.0


def test_backward_of_a_lookup_is_sparse() -> None:
    table = tf.Variable(tf.ones([4, 2]))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
    grads = tape.backward(loss)
    assert isinstance(grads[table], tf.IndexedSlices)
    assert float(grads.norm()) == pytest.approx(10**0.5)


def test_backward_each_adds_up_to_backward_of_the_sum() -> None:
    w, b = tf.Variable([3.0, 4.0]), tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(w**2), b * w[0], 5.0 * b]
        total = tf.add_n(losses)
    each = tape.backward_each(losses)
    assert [len(grads.missing) for grads in each] == [1, 0, 1]
    assert sum(each) == tape.backward(total)
    assert [float(grads[b]) for grads in tape.backward_each(losses, wrt=[b])] == [0.0, 3.0, 5.0]


def test_gradients_of_two_tapes_add_up_where_one_has_none() -> None:
    shared, first, second = tf.Variable(2.0), tf.Variable(3.0), tf.Variable(5.0)
    with rt.Tape() as one_tape:
        left = shared * first
    with rt.Tape() as other_tape:
        right = shared * second
    every = [shared, first, second]
    grads = one_tape.backward(left, every) + other_tape.backward(right, every)
    assert [float(grads[v]) for v in every] == [8.0, 2.0, 2.0]
    assert grads.missing == ()
    assert one_tape.backward(left) + other_tape.backward(right) == grads
