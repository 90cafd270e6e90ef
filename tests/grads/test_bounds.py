"""Gradients clipped, normalized and with noise."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from grads.vectors import Case, array, one


def test_clip_takes_one_bound(case: Case) -> None:
    every = "clip takes one of norm=, global_norm=, value=, adaptive=, got "
    with pytest.raises(TypeError, match=every + r"\['norm', 'value'\]\."):
        case.grads.clip(norm=1.0, value=1.0)
    with pytest.raises(TypeError, match=every + r"none\."):
        case.grads.clip()


@pytest.mark.parametrize("bound", [0.5, 4.0, 100.0])
def test_clip_each_norm(case: Case, bound: float) -> None:
    clipped = case.grads.clip(norm=bound)
    for name, grad in case.dense.items():
        expected = tf.clip_by_norm(tf.constant(grad), bound)
        np.testing.assert_allclose(array(clipped[getattr(case, name)]), expected, rtol=1e-6)
    assert clipped.missing == (case.b,)


@pytest.mark.parametrize("bound", [0.5, 5.5, 100.0])
def test_clip_the_norm_of_all(case: Case, bound: float) -> None:
    clipped = case.grads.clip(global_norm=bound)
    expected, _ = tf.clip_by_global_norm([tf.constant(grad) for grad in case.dense.values()], bound)
    for name, grad in zip(case.dense, expected, strict=True):
        np.testing.assert_allclose(array(clipped[getattr(case, name)]), grad, rtol=1e-6)


@pytest.mark.parametrize("bound", [0.5, 1.5, 100.0])
def test_clip_each_element(case: Case, bound: float) -> None:
    clipped = case.grads.clip(value=bound)
    for name, grad in case.dense.items():
        np.testing.assert_allclose(array(clipped[getattr(case, name)]), np.clip(grad, -bound, bound))


def agc(grad: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """Adaptive clipping as published, for kernels: a unit is an entry of the last axis."""
    axes = tuple(range(grad.ndim - 1))
    bound = share * np.maximum(np.sqrt((weights**2).sum(axes, keepdims=True)), 1e-3)
    size = np.sqrt((grad**2).sum(axes, keepdims=True))
    return np.where(size > bound, grad * bound / np.maximum(size, 1e-6), grad)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3, 3, 2, 4)])
def test_clip_by_the_size_of_the_weights(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    weights, grad = random.normal(size=shape), random.normal(size=shape) * np.array([0.01, 1.0, 5.0, 0.0])
    weights[..., 1] = 0.0  # units without weights are held by epsilon
    variable = tf.Variable(weights, dtype=tf.float32)
    clipped = rt.Gradients([(variable, tf.constant(grad, tf.float32))]).clip(adaptive=0.1)
    np.testing.assert_allclose(clipped[variable], agc(grad, weights, 0.1), rtol=1e-5, atol=1e-8)


def test_clip_by_the_size_of_the_weights_takes_sparse_and_missing_ones(case: Case) -> None:
    clipped = case.grads.only(case.table, case.b).clip(adaptive=0.1)
    np.testing.assert_allclose(array(clipped[case.table]), agc(case.dense["table"], np.ones([4, 2]), 0.1), rtol=1e-5)
    assert clipped.missing == (case.b,)


@pytest.mark.parametrize("kind", ["norm", "global_norm"])
def test_a_bound_of_zero_leaves_zeros(kind: str) -> None:
    for value in ([0.0, 0.0], [3.0, 4.0]):
        variable, grads = one(value)
        np.testing.assert_array_equal(grads.clip(**{kind: 0.0})[variable], [0.0, 0.0])


def test_normalized(case: Case) -> None:
    assert float(case.grads.normalized().norm()) == pytest.approx(1.0)
    assert (case.grads.normalized() * case.grads.norm()).is_close(case.grads)
    zero = 0.0 * case.grads
    assert zero.normalized() == zero


def test_noise_is_the_same_for_the_same_seed(case: Case) -> None:
    first, again, other = (case.grads.with_noise(0.1, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.missing == ()
    assert 0.0 < float((first - case.grads).norm()) < 2.0
    assert case.grads.with_noise(0.1) != case.grads.with_noise(0.1)


def test_noise_differs_by_key_and_has_the_deviation() -> None:
    a, b = (tf.Variable(tf.zeros([2000])) for _ in range(2))
    noise = rt.Gradients([(a, None), (b, None)]).with_noise(0.5, seed=3)
    assert not np.allclose(noise[a], noise[b])
    assert np.std(noise[a]) == pytest.approx(0.5, rel=0.1)
    assert abs(np.mean(noise[a])) < 0.05
