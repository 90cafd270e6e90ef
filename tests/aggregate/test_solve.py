"""Non-negative quadratic problems: by pivoting, by SciPy, and by trying all sets of positive variables."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from aggregate import truth
from aggregate.problems import KINDS, many, rows_of
from retrotape.aggregate import _pivoting, _solve

PRECISION = {np.dtype(kind): float(np.finfo(kind).eps) for kind in (np.float32, np.float64)}


@functools.cache  # tests share what is traced for problems of one shape
def in_function(function):
    return tf.function(function, autograph=False)


def gramians(rows: list[np.ndarray]) -> tf.Tensor:
    """Return Gramians as they are computed from gradients of this dtype."""
    return tf.constant(np.stack([(one @ one.T).astype(np.float64) for one in rows]))


def cone_problems(kind: str, size: int, dtype: type, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the problems of projecting each row on the dual cone, scaled as solvers get them."""
    draw = np.random.default_rng(seed)
    rows = [rows_of(kind, size, draw).astype(dtype) for _ in range(number)]
    unit, norms = _solve.scaled_to_unit(gramians(rows), PRECISION[np.dtype(dtype)])
    matrices = np.repeat(unit.numpy(), size, 0)
    linear = (np.eye(size) * norms.numpy()[:, None, :]).reshape(-1, 1, size) @ matrices
    sizes = np.abs(linear).max(-1, keepdims=True)
    return matrices, (linear / np.where(sizes > 0, sizes, 1.0))[:, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 4, 7, 16])
def test_pivoting_finds_solutions_and_says_where_it_does_not(size: int, dtype: type):
    matrices, linear = map(
        np.concatenate, zip(*(cone_problems(kind, size, dtype, 12, size) for kind in KINDS), strict=True)
    )
    found, converged = in_function(_pivoting.by_pivoting)(tf.constant(matrices), tf.constant(linear))
    assert np.mean(converged) > 0.995
    for matrix, vector, x, is_there in zip(matrices, linear, found.numpy(), converged.numpy(), strict=True):
        assert not is_there or truth.violation(matrix, vector, x) < 1e-9
        if is_there and size <= 4:
            best = truth.least_nonnegative(matrix, vector)
            assert truth.value(matrix, vector, x) == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_scipy_finds_the_same(kind: str):
    matrices, linear = cone_problems(kind, 5, np.float64, 8, 1)
    ours, converged = in_function(_pivoting.by_pivoting)(tf.constant(matrices), tf.constant(linear))
    theirs, others = _solve._by_nnls(tf.constant(matrices), tf.constant(linear))
    assert np.all(converged)
    assert np.all(others)
    assert max(map(truth.violation, matrices, linear, theirs.numpy())) < 1e-9
    for matrix, left, right in zip(matrices, ours.numpy(), theirs.numpy(), strict=True):
        # Where rows depend on each other, x is not unique, and what it makes of them is.
        assert (left - right) @ matrix @ (left - right) == pytest.approx(0.0, abs=1e-9)


def test_descent_alone_finds_solutions():
    matrices, linear = map(
        np.concatenate, zip(*(cone_problems(kind, 6, np.float64, 6, 3) for kind in KINDS), strict=True)
    )
    count = len(linear)
    _, found = in_function(_pivoting._by_descent)(
        tf.constant(matrices),
        tf.constant(linear),
        tf.zeros(linear.shape, tf.bool),
        tf.zeros(linear.shape, tf.float64),
        tf.ones([count], tf.bool),
    )
    right = [truth.violation(*one) < 1e-9 for one in zip(matrices, linear, found.numpy(), strict=True)]
    assert np.mean(right) > 0.995


def test_descent_leaves_what_is_solved():
    matrices, linear = cone_problems("conflicting", 4, np.float64, 2, 1)
    free, x = tf.ones(linear.shape, tf.bool), tf.constant(np.arange(linear.size, dtype=float).reshape(linear.shape))
    is_open = tf.constant([place % 2 == 0 for place in range(len(linear))])
    same, found = _pivoting._by_descent(tf.constant(matrices), tf.constant(linear), free, x, is_open)
    np.testing.assert_array_equal(found[1::2], x[1::2])
    assert np.all(same[1::2])
    assert truth.violation(matrices[0], linear[0], found[0].numpy()) < 1e-9


def test_a_solution_that_was_not_found_is_told(monkeypatch):
    """Without steps, pivoting finds only what has no conflict."""
    monkeypatch.setattr(_pivoting, "_steps", lambda size: 0)
    matrices, linear = cone_problems("conflicting", 4, np.float64, 4, 2)
    _, converged = _pivoting.by_pivoting(tf.constant(matrices), tf.constant(linear))
    np.testing.assert_array_equal(converged, linear.min(1) >= -1e-11)
    assert not np.all(converged)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scaled"])
def test_projections_are_those_of_half_spaces_in_turn(kind: str):
    draw = np.random.default_rng(7)
    for _ in range(3):
        matrix = rows_of(kind, 3, draw)
        problem = _solve.Problem(tf.constant(matrix @ matrix.T), PRECISION[np.dtype(np.float64)])
        found = in_function(_solve.project)(problem, tf.eye(3, dtype=tf.float64))
        assert np.all(found.converged)
        for row, weights in zip(matrix, found.values.numpy(), strict=True):
            wanted = truth.project_on_cone(matrix, row)
            if kind != "nearly opposite":  # half spaces that are almost opposite take turns for ever
                np.testing.assert_allclose(weights @ matrix, wanted, atol=1e-6)
            assert (matrix @ (weights @ matrix)).min() > -1e-7 * np.abs(matrix).max() ** 2


@pytest.mark.parametrize("is_eager", [True, False])
def test_shortest_combinations_fulfil_their_conditions(is_eager: bool):
    for kind, matrix in many(11, 35):
        gramian = gramians([matrix])
        precision = PRECISION[matrix.dtype]
        solve = _solve.shortest if is_eager else in_function(_solve.shortest)
        found = solve(gramian, precision)
        weights = found.values[0].numpy()
        assert np.all(found.converged), kind
        assert weights.min() >= 0.0
        assert weights.sum() == pytest.approx(1.0)
        vector = weights @ matrix
        # No row has a smaller product with the shortest one than it has with itself.
        norms = np.linalg.norm(matrix, axis=1)
        noise = 1e3 * precision * (weights @ norms) * norms
        assert np.all(matrix @ vector >= vector @ vector - noise), kind


def test_noise_is_removed_and_nothing_else():
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(5, 2))
    clean = matrix @ matrix.T
    noisy = clean + 1e-16 * draw.normal(size=(5, 5))
    found = _solve.without_noise(tf.constant((noisy + noisy.T) / 2), 2.2e-16)
    assert np.linalg.matrix_rank(found.numpy(), tol=1e-14) == 2
    np.testing.assert_allclose(found, clean, atol=1e-14)
    np.testing.assert_allclose(_solve.without_noise(tf.eye(3, dtype=tf.float64), 2.2e-16), np.eye(3), atol=1e-15)


def test_without_scipy_eager_code_pivots(monkeypatch):
    matrices, linear = cone_problems("conflicting", 4, np.float64, 2, 4)
    wanted = _solve.minimize(tf.constant(matrices), tf.constant(linear))
    monkeypatch.setattr(_solve, "nnls", lambda: None)
    found = _solve.minimize(tf.constant(matrices), tf.constant(linear))
    assert np.all(found.converged)
    np.testing.assert_allclose(found.values, wanted.values, atol=1e-9)
