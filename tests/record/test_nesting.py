"""Our tape within ours, within the stock tape and around it."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, batch, dense_net
from retrotape import errors


def test_ours_in_ours():
    with rt.Tape() as outer:
        with rt.Tape() as inner:
            y = X**3
        g = inner.gradient(y, X)
    assert_close(g, 3 * X**2)
    assert_close(outer.gradient(g, X), 6 * X)
    assert_close(outer.gradient(y, X), 3 * X**2)


def test_stock_in_ours():
    with rt.Tape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(X)
            y = X**3
        g = inner.gradient(y, X)
    assert_close(g, 3 * X**2)
    assert_close(outer.gradient(g, X), 6 * X)


def test_ours_in_stock():
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(X)
        with rt.Tape() as inner:
            y = X**3
        g = inner.gradient(y, X)
    assert_close(g, 3 * X**2)
    assert_close(outer.gradient(g, X), 6 * X)
    assert_close(outer.gradient(y, X), 3 * X**2)


@pytest.mark.parametrize("kinds", ["oos", "oso", "soo", "sso", "sos", "oss", "ooo"])
def test_three_deep(kinds):
    make = {"o": rt.Tape, "s": tf.GradientTape}
    tapes = [make[kind]() for kind in kinds]
    with tapes[0]:
        tapes[0].watch(X)
        with tapes[1]:
            tapes[1].watch(X)
            with tapes[2]:
                tapes[2].watch(X)
                y = tf.sin(X)
            first = tapes[2].gradient(y, X)
        second = tapes[1].gradient(first, X)
    assert_close([first, second], [tf.cos(X), -tf.sin(X)])
    assert_close(tapes[0].gradient(second, X), -tf.cos(X))


@pytest.mark.parametrize("outer", [rt.Tape, tf.GradientTape])
@pytest.mark.parametrize("inner", [rt.Tape, tf.GradientTape])
def test_second_order_by_variables_of_a_model(outer, inner):
    net, data = dense_net(), batch()

    def second(outer_kind, inner_kind):
        with outer_kind() as o:
            with inner_kind() as i:
                i.watch(data)
                out = tf.reduce_sum(net(data))
            penalty = tf.reduce_sum(tf.norm(i.gradient(out, data), axis=1))
        return o.gradient(penalty, net.trainable_variables)

    assert_close(second(outer, inner), second(tf.GradientTape, tf.GradientTape))


def test_a_question_to_the_inner_tape_outside_its_outer_block_is_the_same():
    with rt.Tape() as outer:
        with rt.Tape() as inner:
            y = tf.exp(X)
        z = y * X
    assert_close(inner.gradient(y, X), tf.exp(X))
    assert_close(outer.gradient(z, X), tf.exp(X) * (X + 1))
    with pytest.raises(errors.NotRecordedError, match="after recording ended"):
        inner.gradient(z, X)
