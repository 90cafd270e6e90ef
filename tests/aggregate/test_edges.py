"""One loss; gradients that are zero, equal, opposite or of very different size: the answers that docstrings promise."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from retrotape import aggregate as ag
from retrotape.errors import AggregationWarning

ROW = np.array([3.0, 0.0, -4.0])
METHODS: dict[str, Callable[[], ag.Weighting]] = {
    name: getattr(ag, name)
    for name in [
        *("Sum", "Mean", "UPGrad", "DualProj", "MGDA", "PCGrad", "CAGrad", "IMTLG", "AlignedMTL", "ConFIG"),
        *("NashMTL", "FairGrad", "Random", "GradVac"),
    ]
}


@pytest.fixture(params=["op by op", "function"])
def combine(request) -> Callable[[ag.Weighting, np.ndarray], np.ndarray]:
    """Return what makes one gradient of the rows of a matrix."""

    def by_weights(method: ag.Weighting, matrix: np.ndarray) -> np.ndarray:
        gramian = tf.constant(matrix @ matrix.T)
        if request.param == "function":
            weights = method.weights(gramian).numpy()
        else:
            more = method._given(None, range(len(matrix)))
            weights = method.solve(ag.Problem(gramian, 2.3e-16, **more)).values.numpy()
        assert np.all(np.isfinite(weights))
        return weights @ matrix

    return by_weights


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("CAGrad", "NashMTL", "FairGrad")])
def test_the_gradient_of_one_loss_is_itself(name: str, combine):
    np.testing.assert_allclose(combine(METHODS[name](), ROW[None]), ROW, rtol=1e-12)


def test_one_loss_in_methods_that_choose_the_length(combine):
    np.testing.assert_allclose(combine(ag.CAGrad(0.3), ROW[None]), 1.3 * ROW, rtol=1e-10)
    np.testing.assert_allclose(combine(ag.NashMTL(), ROW[None]), ROW / 5.0, rtol=1e-10)
    np.testing.assert_allclose(combine(ag.NashMTL(max_norm=0.1), ROW[None]), 0.02 * ROW, rtol=1e-10)
    np.testing.assert_allclose(combine(ag.FairGrad(2.0), ROW[None]), ROW / 25.0 ** (2 / 3), rtol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_if_all_gradients_are_zero_so_is_the_result(name: str, combine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(combine(METHODS[name](), np.zeros([3, 2])), np.zeros(2))


@pytest.mark.parametrize("name", ["UPGrad", "DualProj", "AlignedMTL", "Mean"])
def test_if_all_gradients_are_zero_weights_are_preferences(name: str):
    np.testing.assert_allclose(METHODS[name]().weights(tf.zeros([4, 4], tf.float64)), [0.25] * 4)


@pytest.mark.parametrize("name", ["Sum", "PCGrad", "IMTLG", "ConFIG", "NashMTL", "FairGrad", "GradVac"])
def test_a_gradient_that_is_zero_changes_nothing(name: str, combine):
    rows = np.array([[1.0, 0.5, 0.0], [-1.0, 0.25, 0.3]])
    with_zero = np.stack([rows[0], np.zeros(3), rows[1]])
    np.testing.assert_allclose(combine(METHODS[name](), with_zero), combine(METHODS[name](), rows), rtol=1e-9)


@pytest.mark.parametrize(("name", "share"), [("UPGrad", 2 / 3), ("DualProj", 2 / 3), ("Mean", 2 / 3)])
def test_a_gradient_that_is_zero_counts_in_a_mean(name: str, share: float, combine):
    rows = np.array([[1.0, 0.5, 0.0], [-1.0, 0.25, 0.3]])
    with_zero = np.stack([rows[0], np.zeros(3), rows[1]])
    np.testing.assert_allclose(combine(METHODS[name](), with_zero), share * combine(METHODS[name](), rows), rtol=1e-9)


def test_a_gradient_that_is_zero_is_the_shortest(combine):
    np.testing.assert_array_equal(combine(ag.MGDA(), np.array([[1.0, 2.0], [0.0, 0.0]])), [0.0, 0.0])
    np.testing.assert_array_equal(ag.MGDA().weights([[4.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), [0, 0.5, 0.5])


def test_a_gradient_that_is_zero_does_not_limit_conflict_averse_descent(combine):
    rows = np.array([[1.0, 0.5, 0.0], [-1.0, 0.25, 0.3], [0.0, 0.0, 0.0]])
    found = combine(ag.CAGrad(0.5), rows)
    average = rows.mean(0)
    assert np.linalg.norm(found - average) == pytest.approx(0.5 * np.linalg.norm(average))
    assert (rows[:2] @ found).min() > (rows[:2] @ average).min()


@pytest.mark.parametrize("name", ["UPGrad", "DualProj", "MGDA", "CAGrad", "IMTLG", "AlignedMTL", "ConFIG", "Mean"])
def test_opposite_gradients_cancel(name: str, combine):
    np.testing.assert_allclose(combine(METHODS[name](), np.stack([ROW, -ROW])), np.zeros(3), atol=1e-14)


@pytest.mark.parametrize("method", [ag.NashMTL(), ag.FairGrad(2.0)], ids=str)
@pytest.mark.parametrize("rows", [np.stack([ROW, -ROW]), np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])])
def test_nothing_is_fair_if_nothing_can_be_gained(method, rows):
    with pytest.warns(AggregationWarning, match="its result is zero: some convex combination of the gradients is"):
        weights = method.weights(tf.constant(rows @ rows.T))
    np.testing.assert_array_equal(weights, np.zeros(len(rows)))
    assert not method.solve(ag.Problem(tf.constant(rows @ rows.T), 2.3e-16)).converged


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("Sum", "Random", "PCGrad", "GradVac")])
def test_equal_gradients_have_the_direction_of_one(name: str, combine):
    found = combine(METHODS[name](), np.stack([ROW, ROW, ROW]))
    np.testing.assert_allclose(found / np.linalg.norm(found), ROW / 5.0, atol=1e-9)


@pytest.mark.parametrize("name", ["UPGrad", "DualProj"])
def test_gradients_of_very_different_size_do_not_conflict(name: str, combine):
    draw = np.random.default_rng(3)
    matrix = draw.normal(size=(5, 8)) * np.array([1e-6, 1e-3, 1.0, 1e3, -1e6])[:, None]
    assert (matrix @ matrix.mean(0)).min() < 0.0
    found = combine(METHODS[name](), matrix)
    cosines = matrix @ found / np.linalg.norm(matrix, axis=1) / np.linalg.norm(found)
    assert cosines.min() > -1e-12
    assert cosines.min() < 1e-4  # it would, if there were nothing to avoid


@pytest.mark.parametrize("name", ["IMTLG", "ConFIG"])
def test_projections_are_equal_for_gradients_of_very_different_size(name: str, combine):
    draw = np.random.default_rng(3)
    matrix = draw.normal(size=(5, 8)) * np.array([1e-6, 1e-3, 1.0, 1e3, 1e6])[:, None]
    found = combine(METHODS[name](), matrix)
    products = matrix @ found / np.linalg.norm(matrix, axis=1)
    np.testing.assert_allclose(products, products[0], rtol=1e-6)


def test_a_float32_gramian_of_nearly_opposite_gradients_is_no_trap():
    draw = np.random.default_rng(0)
    for _ in range(20):
        base = draw.normal(size=30)
        matrix = np.stack([base, -base + 1e-5 * draw.normal(size=30), base + 1e-5 * draw.normal(size=30)])
        matrix = matrix.astype(np.float32)
        for method in (ag.UPGrad(), ag.DualProj(), ag.MGDA(), ag.CAGrad()):
            weights = method.weights(tf.constant(matrix @ matrix.T)).numpy()
            assert np.all(weights >= 0.0)
            assert weights.max() < 1e3
