"""Arithmetic on gradients, also in half precision, and what has no meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from grads.vectors import Case, array, one
from retrotape import errors

# ------------------------------------------------------------------ arithmetic


def test_mean_with_and_without_weights(case: Case) -> None:
    other = rt.Gradients([(case.w, tf.ones([2, 2])), (case.b, tf.constant(6.0))])
    plain = rt.Gradients.mean([case.grads, other])
    np.testing.assert_allclose(plain[case.w], (case.dense["w"] + 1.0) / 2.0)
    np.testing.assert_allclose(array(plain[case.table]), case.dense["table"] / 2.0)
    weighted = rt.Gradients.mean([case.grads, other], weights=[1, 3])
    np.testing.assert_allclose(weighted[case.w], (case.dense["w"] + 3.0) / 4.0)
    assert float(weighted[case.b]) == pytest.approx(4.5)


def test_mean_wants_one_weight_for_each(case: Case) -> None:
    with pytest.raises(errors.ShapeMismatchError, match="Got 1 weights for 2 gradients; give one for each"):
        rt.Gradients.mean([case.grads, case.grads], weights=[1.0])
    with pytest.raises(errors.ShapeMismatchError, match="Got no gradients to take the mean of"):
        rt.Gradients.mean([])


def test_sum_of_elements_and_builtin_sum(case: Case) -> None:
    assert float(case.grads.sum()) == -1.0 + 6.0
    assert float(rt.Gradients([]).sum()) == 0.0
    assert sum([case.grads, case.grads]) == 2.0 * case.grads


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_is_finite(case: Case, bad: float) -> None:
    assert case.grads.is_finite()
    assert not one([1.0, bad])[1].is_finite()
    rows = tf.IndexedSlices(tf.constant([[1.0, bad]]), tf.constant([0]), tf.constant([4, 2]))
    assert not rt.Gradients([(case.table, rows)]).is_finite()


def test_equality(case: Case) -> None:
    assert case.grads == rt.Gradients(zip(case.grads.keys(), [grad for grad, _ in case.grads.pairs()], strict=True))
    assert case.grads == case.grads.map(tf.convert_to_tensor)  # sparse or dense
    assert case.grads == case.grads.without(case.b)  # missing is zero
    assert case.grads != 2.0 * case.grads
    assert case.grads != "gradients"
    assert (1.0 + 1e-7) * case.grads != 1.1 * case.grads
    assert case.grads.is_close((1.0 + 1e-6) * case.grads)
    assert not case.grads.is_close(1.1 * case.grads)
    with pytest.raises(TypeError, match="unhashable"):
        hash(case.grads)


def test_equality_sees_differences_whose_squares_vanish() -> None:
    _, grads = one([1e-30, 0.0])
    assert grads != 2.0 * grads


# ------------------------------------------------------------------ wrong use


def test_two_gradients_have_no_product(case: Case) -> None:
    with pytest.raises(TypeError, match="Two Gradients have an inner product, `a @ b`, but no product; scale by a num"):
        case.grads * case.grads


@pytest.mark.parametrize(
    "use", [lambda g: g + 1.0, lambda g: 1.0 + g, lambda g: g - 1.0, lambda g: 1.0 / g, lambda g: g @ 1.0]
)
def test_numbers_are_not_vectors(case: Case, use: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        use(case.grads)


@pytest.mark.parametrize("factor", [np.float32(2.0), np.float64(2.0), np.int64(2), tf.constant(2.0), tf.constant(2)])
def test_any_kind_of_number_scales(case: Case, factor: Any) -> None:
    doubled = case.grads + case.grads
    assert case.grads * factor == doubled
    assert isinstance(factor * case.grads, rt.Gradients)
    assert factor * case.grads == doubled
    assert doubled / factor == case.grads


def test_unflatten_wants_the_size_that_flatten_makes(case: Case) -> None:
    text = "Got a vector of 3 elements for 13; give one of the size that `flatten` makes"
    for vector in (tf.ones(3), np.ones(3)):
        with pytest.raises(errors.ShapeMismatchError, match=text):
            case.grads.unflatten(vector)


def test_flatten_and_back(case: Case) -> None:
    flat = case.grads.flatten()
    np.testing.assert_array_equal(flat, [*case.dense["w"].ravel(), *case.dense["table"].ravel(), 0.0])
    assert case.grads.unflatten(flat.numpy()) == case.grads
    assert rt.Gradients([]).flatten().shape == [0]


# ------------------------------------------------------------------ half precision


def test_half_precision_is_summed_and_measured_in_single() -> None:
    _, grads = one([60000.0, 60000.0], tf.float16)
    assert float(grads.sum()) == pytest.approx(120000.0, rel=1e-3)
    assert float(grads @ grads) == pytest.approx(2 * 60000.0**2, rel=1e-3)
    assert float(grads.norm()) == pytest.approx(60000.0 * 2**0.5, rel=1e-3)


@pytest.mark.parametrize("kind", ["norm", "global_norm"])
def test_half_precision_is_clipped_not_wiped_out(kind: str) -> None:
    variable, grads = one([300.0, 400.0], tf.float16)
    np.testing.assert_allclose(grads.clip(**{kind: 1.0})[variable], [0.6, 0.8], rtol=1e-2)


def test_half_precision_is_scaled_by_numbers_that_it_cannot_hold() -> None:
    variable, grads = one([2.0**-10, 2.0**-12], tf.float16)
    np.testing.assert_array_equal((grads * 2.0**17)[variable], [128.0, 32.0])
    np.testing.assert_array_equal((grads / 2.0**-17)[variable], [128.0, 32.0])


def test_half_precision_has_a_mean_where_weighted_sums_overflow() -> None:
    variable, grads = one([300.0, 1.0], tf.float16)
    np.testing.assert_allclose(rt.Gradients.mean([grads, grads], weights=[256, 256])[variable], [300.0, 1.0])


# ------------------------------------------------------------------ double precision


def test_numbers_of_python_are_taken_in_double_precision():
    v = tf.Variable(1.0, dtype=tf.float64)
    grads = rt.Gradients([(v, tf.constant(1.0, tf.float64))])
    scaled = [0.1 * grads, grads / 10.0, grads.clip(norm=0.1), grads.clip(value=0.1), grads.clip(global_norm=0.1)]
    assert [float(found[v]) for found in scaled] == [0.1] * 5
    assert float(rt.Gradients.mean([grads] * 3)[v]) == 1.0
