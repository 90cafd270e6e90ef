"""Gradients at the limits: what cannot be squared, is not finite, or is no gradient at all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


def grads_of(values):
    v = tf.Variable(tf.zeros_like(values))
    return v, rt.Gradients([(v, values)])


@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_norms_of_what_cannot_be_squared(size):
    v, grads = grads_of(tf.constant([3.0, 4.0]) * size)
    assert float(grads.norm()) == pytest.approx(5.0 * size)
    np.testing.assert_allclose(grads.normalized()[v], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(grads.clip(global_norm=size)[v], np.array([0.6, 0.8]) * size, rtol=1e-6)
    np.testing.assert_allclose(grads.clip(norm=size)[v], np.array([0.6, 0.8]) * size, rtol=1e-6)


def test_what_is_not_finite_is_not_clipped_to_zero():
    v, grads = grads_of(tf.constant([np.inf, 1.0]))
    assert np.isnan(grads.clip(global_norm=1.0)[v]).all()
    assert np.isnan(grads.clip(norm=1.0)[v]).all()


def test_factors_are_numbers():
    _, grads = grads_of(tf.constant([1.0, 2.0]))
    with pytest.raises(errors.ShapeMismatchError, match=r"scaled by a number, got a factor of shape \(2,\)"):
        grads * tf.constant([1.0, 2.0])
    with pytest.raises(TypeError, match="Got the complex factor 1j for a gradient of dtype float32"):
        grads * 1j
    v, complex_grads = grads_of(tf.constant(2.0 + 0.0j, tf.complex64))
    assert complex((complex_grads / (1.0 + 1.0j))[v].numpy()) == pytest.approx(1.0 - 1.0j)


def test_pairs_that_are_none():
    v = tf.Variable([1.0, 2.0], name="v")
    with pytest.raises(TypeError, match="got them the other way round"):
        rt.Gradients([(tf.constant([1.0, 2.0]), v)])
    with pytest.raises(errors.ShapeMismatchError, match=r"shape \(3,\) for v of shape \(2,\)"):
        rt.Gradients([(v, tf.zeros(3))])
    with pytest.raises(TypeError, match="Got list as the gradient of v; give a tensor"):
        rt.Gradients([(v, [0.0, 0.0])])
    with pytest.raises(errors.ShapeMismatchError, match=r"shape \(3,\) for v of shape \(2,\)"):
        rt.Gradients([(v, np.zeros(3))])
    assert rt.Gradients([(v, np.array([3.0, 4.0]))])[v].dtype == tf.float32
    with pytest.raises(TypeError, match=r"got a mapping: `rt.Gradients\(mapping.items\(\)\)`"):
        rt.Gradients({"v": None})


def test_a_value_of_the_past_is_one_key():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        v.assign(v * v)
        loss = v * 3.0
    first, second = (tape.backward(loss, [tape.at(v, 0)]) for _ in range(2))
    assert tape.at(v, 0) in first
    assert len(first + second) == 1
    assert first == second


def test_means_that_cannot_be():
    _, grads = grads_of(tf.constant(1.0))
    with pytest.raises(errors.ShapeMismatchError, match="Got no gradients to take the mean of"):
        rt.Gradients.mean([])
    with pytest.raises(ValueError, match="which add up to zero"):
        rt.Gradients.mean([grads], weights=[0])


def test_another_kind_of_optimizer():
    _, grads = grads_of(tf.constant(1.0))
    with pytest.raises(TypeError, match=r"Got object as optimizer; expected one of Keras 3"):
        grads.apply(object())


def test_a_bound_that_is_a_tensor_inside_a_function():
    v = tf.Variable([3.0, 4.0])

    @tf.function
    def clipped(bound):
        return rt.Gradients([(v, tf.constant([3.0, 4.0]))]).clip(global_norm=bound)[v]

    np.testing.assert_allclose(clipped(tf.constant(1.0)), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(ValueError, match="not negative, got global_norm=nan"):
        rt.Gradients([(v, tf.constant([3.0, 4.0]))]).clip(global_norm=float("nan"))


def test_adaptive_clipping_leaves_sparse_gradients_sparse():
    table = tf.Variable(tf.ones((4, 2)))
    rows = tf.IndexedSlices(tf.constant([[3.0, 0.1], [4.0, 0.1]]), tf.constant([1, 1]), tf.constant([4, 2]))
    sparse = rt.Gradients([(table, rows)]).clip(adaptive=0.1)[table]
    dense = rt.Gradients([(table, tf.convert_to_tensor(rows))]).clip(adaptive=0.1)[table]
    assert isinstance(sparse, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(sparse), dense, rtol=1e-6)
