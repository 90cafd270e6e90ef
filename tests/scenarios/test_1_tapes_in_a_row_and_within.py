"""Tapes in a row and tapes within tapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_1_1_each_tape_answers_for_its_half():
    x = tf.Variable(1.0)
    with rt.Tape() as first:
        y = tf.square(x)
    with rt.Tape() as second:
        z = tf.sin(y)
    dz_dy, dy_dx = second.gradient(z, y), first.gradient(y, x)
    assert float(dz_dy) == pytest.approx(math.cos(1.0), abs=1e-6)
    assert float(dy_dx) == 2.0
    assert float(dz_dy * dy_dx) == pytest.approx(2.0 * math.cos(1.0), abs=1e-6)
    assert second.gradient(z, x) is None  # x never met the second tape
    assert float(rt.join(first, second).gradient(z, x)) == pytest.approx(2.0 * math.cos(1.0), abs=1e-6)


TAPES = [rt.Tape, tf.GradientTape]
PAIRS = [(outer, inner) for outer in TAPES for inner in TAPES if rt.Tape in (outer, inner)]


@pytest.mark.parametrize(("outer_kind", "inner_kind"), PAIRS, ids=lambda kind: kind.__module__.split(".")[0])
def test_1_2_a_tape_within_a_persistent_tape(outer_kind, inner_kind):
    x = tf.Variable(1.0)
    with outer_kind(persistent=True) as outer:
        with inner_kind() as inner:
            y = tf.square(x)
        z = tf.sin(y)
        dy_dx = inner.gradient(y, x)
    assert float(dy_dx) == 2.0
    assert float(outer.gradient(z, x)) == pytest.approx(2.0 * math.cos(1.0), abs=1e-6)
    assert float(outer.gradient(dy_dx, x)) == 2.0


def test_1_3_one_tape_is_asked_for_two_sources():
    x, y = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as first:
        product = x * y
    with rt.Tape() as second:
        power = tf.exp(product)
    by_product = second.gradient(power, product)
    by_x, by_y = by_product * first.gradient(product, x), by_product * first.gradient(product, y)
    assert float(by_x) == pytest.approx(2.0 * math.exp(2.0), rel=1e-6)
    assert float(by_y) == pytest.approx(math.exp(2.0), rel=1e-6)
    assert float(second.gradient(power, product)) == float(by_product)  # and once more
    joined = rt.join(second, first).gradient(power, {"x": x, "y": y})
    assert float(joined["x"]) == pytest.approx(2.0 * math.exp(2.0), rel=1e-6)
    assert float(joined["y"]) == pytest.approx(math.exp(2.0), rel=1e-6)


def matrices() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    return {
        "x": tf.constant(rng.normal(size=(4, 3))),
        "w": tf.Variable(rng.normal(size=(3, 5))),
        "bias": tf.Variable(rng.normal(size=5)),
        "mix": tf.Variable(rng.normal(size=(5, 4))),
    }


def test_1_4_matrices_between_the_tapes():
    given = matrices()
    x, w, bias, mix = given.values()
    with tf.GradientTape() as stock:
        stock.watch(x)
        with rt.Tape() as first:
            product = x @ w  # feeds two tapes below
        with rt.Tape() as second:
            shifted = tf.tanh(product + bias)  # one row for all
            centred = shifted - tf.reduce_mean(shifted, axis=0, keepdims=True)
        with rt.Tape() as third:
            weights = tf.nn.softmax(product)
        with rt.Tape() as fourth:
            loss = tf.reduce_sum(tf.square((centred * weights) @ mix)) + tf.reduce_max(weights)
    expected = dict(zip(given, stock.gradient(loss, list(given.values())), strict=True))

    for tapes in ((first, second, third, fourth), (third, fourth, second, first)):
        found = rt.join(*tapes).gradient(loss, given)
        for name, want in expected.items():
            np.testing.assert_allclose(found[name], want, rtol=1e-12, err_msg=name)

    # Tape by tape it takes products with Jacobians, and the sum over both ways from `product`.
    by_centred, by_weights = fourth.gradient(loss, [centred, weights])
    by_product = second.vjp(centred, product, by_centred) + third.vjp(weights, product, by_weights)
    np.testing.assert_allclose(first.vjp(product, w, by_product), expected["w"], rtol=1e-12)


def test_1_4_a_product_element_by_element_is_not_the_chain_rule():
    rng = np.random.default_rng(12)
    x, w = tf.constant(rng.normal(size=(3, 3))), tf.Variable(rng.normal(size=(3, 3)))
    with tf.GradientTape() as stock:
        with rt.Tape() as first:
            hidden = x @ w
        with rt.Tape() as second:
            loss = tf.reduce_sum(tf.sin(hidden))
    expected = stock.gradient(loss, w)
    multiplied = second.gradient(loss, hidden) * first.gradient(hidden, w)  # the shapes fit, which makes it tempting
    assert not np.allclose(multiplied, expected, rtol=0.1)
    np.testing.assert_allclose(rt.join(first, second).gradient(loss, w), expected, rtol=1e-12)
