"""Tapes that are joined answer like one tape."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_the_chain_rule_across_two_tapes_in_any_order():
    x = tf.constant(1.0)
    with rt.Tape() as first:
        y = x**2
    with rt.Tape() as second:
        z = tf.sin(y)
    assert float(second.gradient(z, y)) == pytest.approx(math.cos(1.0))
    assert float(first.gradient(y, x)) == 2.0
    for tapes in ((first, second), (second, first)):
        assert float(rt.join(*tapes).gradient(z, x)) == pytest.approx(2.0 * math.cos(1.0))


def test_two_sources_and_two_tapes():
    x, y = tf.constant(1.0), tf.constant(2.0)
    with rt.Tape() as first:
        product = x * y
    with rt.Tape() as second:
        z = tf.exp(product)
    dx, dy = rt.join(first, second).gradient(z, [x, y])
    assert (float(dx), float(dy)) == pytest.approx((2.0 * math.exp(2.0), math.exp(2.0)))


def three_tapes():
    rng = np.random.default_rng(0)
    x, w = tf.constant(rng.normal(size=(3, 4))), tf.Variable(rng.normal(size=(4, 2)))
    with rt.Tape() as whole:
        with rt.Tape() as first:
            hidden = tf.tanh(x @ w)
        with rt.Tape() as second:
            centered = hidden - tf.reduce_mean(hidden, 0)
        with rt.Tape() as third:
            loss = tf.reduce_sum(tf.nn.silu(centered) ** 2 + tf.exp(hidden))
    return whole, [first, second, third], loss, [x, w, hidden]


def test_matrices_between_and_a_tensor_that_feeds_two():
    whole, tapes, loss, sources = three_tapes()
    joined = rt.join(*reversed(tapes))
    for ours, theirs in zip(joined.gradient(loss, sources), whole.gradient(loss, sources), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    vector = tf.ones([4, 2], tf.float64)
    np.testing.assert_allclose(joined.hvp(loss, sources[1], vector), whole.hvp(loss, sources[1], vector), rtol=1e-10)
    assert rt.Program.parse(str(joined.program)) == joined.program


def test_join_is_associative_and_counts_an_op_once():
    whole, (first, second, third), loss, sources = three_tapes()
    expected = whole.gradient(loss, sources)
    for joined in (
        rt.join(rt.join(first, second), third),
        rt.join(first, rt.join(third, second)),
        rt.join(whole, first, second, third),
        rt.join(first, first, second, third),
    ):
        for ours, theirs in zip(joined.gradient(loss, sources), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert len(rt.join(whole, first).program.eqns) == len(whole.program.eqns)


def test_versions_line_up_across_tapes():
    v, rate = tf.Variable(3.0), tf.constant(0.1)
    with rt.Tape() as first:
        v.assign_sub(rate * 2.0 * v)
    with rt.Tape() as second:
        v.assign_sub(rate * 2.0 * v)
        loss = v * v
    joined = rt.join(first, second)
    assert len(joined.versions(v)) == 3
    # v = 3 (1 - 2r)², loss = v²: d/dr = 2 v · 3 · 2 (1 - 2r) · (-2)
    assert float(joined.gradient(loss, rate, through_updates=True)) == pytest.approx(
        2 * 1.92 * 3 * 2 * 0.8 * -2, rel=1e-5
    )
    assert float(joined.gradient(loss, v)) == float(second.gradient(loss, v))


def test_an_assignment_that_no_tape_saw_breaks_the_path():
    v = tf.Variable(3.0)
    with rt.Tape() as first:
        v.assign(v * v)
    v.assign(5.0)
    with rt.Tape() as second:
        loss = v * v
    joined = rt.join(first, second)
    assert float(joined.gradient(loss, v)) == 10.0
    with pytest.raises(rt.errors.UnseenUpdateError, match="assigned while this tape was not recording"):
        joined.gradient(loss, v, through_updates=True)


def test_functions_and_custom_gradients_across_tapes():
    v, x = tf.Variable([0.5, -1.0]), tf.constant([1.0, 2.0])
    function = tf.function(lambda a: tf.nn.silu(a * v))
    with rt.Tape() as whole:
        with rt.Tape() as first:
            y = function(x)
        with rt.Tape() as second:
            z = tf.reduce_sum(tf.nn.silu(y) * v)
    joined = rt.join(first, second)
    for ours, theirs in zip(joined.gradient(z, [x, v]), whole.gradient(z, [x, v]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(joined.hessian(z, v), whole.hessian(z, v), rtol=1e-5)


@pytest.mark.parametrize(("given", "message"), [((), "got none"), ((3,), "join takes tapes, got int")])
def test_wrong_use(given, message):
    with pytest.raises(rt.errors.TapeUseError, match=message):
        rt.join(*given)


def test_a_tape_of_a_function_is_refused():
    @tf.function
    def inside(x):
        with rt.Tape() as tape:
            _ = x * x
        return rt.join(tape)

    with pytest.raises(rt.errors.TapeUseError, match="use one tape for everything"):
        inside(tf.constant(1.0))
