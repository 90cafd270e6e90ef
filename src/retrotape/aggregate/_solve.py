"""Non-negative quadratic problems: by pivoting inside graphs, by SciPy's NNLS in eager code."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._functions import is_recorded
from retrotape.aggregate._pivoting import by_pivoting
from retrotape.tf.core import tf

_SMALLEST_TRACE = 1e-4
_ENOUGH = 1e-9  # how negative a gradient may be, for rounding errors


class Solution(NamedTuple):
    """The solutions of a batch of problems, and whether each was found.

    Attributes:
      values: The weights.
      converged: Whether they were found.
      state: The new state of the method, if it has any.
    """

    values: Tensor
    converged: Tensor
    state: tuple[Tensor, ...] = ()


class Problem(NamedTuple):
    """What weights are computed from.

    Attributes:
      gramian: The inner products of the gradients of all losses, as float64.
      precision: The relative size of rounding errors in it.
      losses: The values of the losses, as float64; None if the method does not need them.
      seed: Two integers to draw random numbers from; None if the method draws none.
      state: The state of the method, if it has any.
    """

    gramian: Tensor
    precision: float
    losses: Tensor | None = None
    seed: Tensor | None = None
    state: tuple[Tensor, ...] = ()

    @property
    def size(self) -> int:
        """How many losses there are."""
        return self.gramian.shape[-1]


def regularized(problem: Problem, share: float) -> Problem:
    """Return the problem with its Gramian divided by its trace, plus a share of the identity, as TorchJD has it.

    A trace below 1e-4 counts as zero, as there. A share of zero changes nothing.
    """
    if share == 0.0:
        return problem
    trace = tf.linalg.trace(problem.gramian)
    scaled = tf.where(trace < _SMALLEST_TRACE, tf.zeros_like(problem.gramian), problem.gramian / trace)
    return problem._replace(gramian=scaled + share * tf.eye(problem.size, dtype=tf.float64))


def scaled_to_unit(gramian: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Return the Gramian of the rows scaled to norm one, without noise, and their norms; a zero row has norm one."""
    squares = tf.maximum(tf.linalg.diag_part(gramian), _of(0.0))
    norms = tf.where(squares > 0, tf.sqrt(squares), tf.ones_like(squares))
    unit = gramian / norms[..., :, None] / norms[..., None, :]
    return without_noise((unit + tf.linalg.matrix_transpose(unit)) / 2.0, precision), norms


def without_noise(matrix: Tensor, precision: float) -> Tensor:
    """Return a positive semidefinite matrix without the eigenvalues that rounding alone may have made."""
    values, vectors = _eigen(matrix, precision)
    return tf.matmul(vectors * values[..., None, :], vectors, transpose_b=True)


def _eigen(matrix: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, zero where rounding alone may have made them, and eigenvectors."""
    values, vectors = tf.linalg.eigh(matrix)
    bound = 4.0 * matrix.shape[-1] * precision  # of a matrix whose entries are one at most
    return tf.where(values > bound, values, tf.zeros_like(values)), vectors


def project(problem: Problem, preferences: Tensor) -> Solution:
    """Return, for each row `u` of preferences, the weights `v >= u` whose combination is shortest.

    They are the weights of the projection of `u` on the dual cone of the rows: a vector that conflicts with none.
    """
    unit, norms = scaled_to_unit(problem.gramian, problem.precision)
    wanted = tf.cast(preferences, tf.float64) * norms
    found = minimize(tf.broadcast_to(unit, [*wanted.shape[:-1], *unit.shape[-2:]]), tf.matmul(wanted, unit))
    more = tf.where(found.converged[:, None], found.values, tf.zeros_like(found.values))
    return Solution((wanted + more) / norms, found.converged)


def shortest(gramian: Tensor, precision: float) -> Solution:
    """Return the weights, on the simplex, of the shortest convex combination of the rows.

    A batch of Gramians is solved at once. With x >= 0 minimizing |xJ|² + (sum(x) - 1)², they are x / sum(x). If some
    rows are zero, only those have weights.
    """
    diagonal = tf.maximum(tf.linalg.diag_part(gramian), _of(0.0))
    is_zero = tf.cast(diagonal == 0.0, tf.float64)
    zeros = tf.reduce_sum(is_zero, -1, keepdims=True)
    size = tf.reduce_min(diagonal, -1)
    gramian = gramian / tf.where(size > 0.0, size, _of(1.0))[..., None, None]
    gramian = tf.where(zeros[..., None] > 0.0, tf.eye(gramian.shape[-1], dtype=tf.float64), gramian)
    whole = gramian + 1.0
    norms = tf.sqrt(tf.linalg.diag_part(whole))  # one at least
    values, vectors = _eigen(whole / norms[..., :, None] / norms[..., None, :], precision)
    unit = tf.matmul(vectors * values[..., None, :], vectors, transpose_b=True)
    parts = tf.linalg.matvec(vectors, 1.0 / norms, transpose_a=True)
    inside = tf.linalg.matvec(vectors, tf.where(values > 0.0, parts, tf.zeros_like(parts)))  # the range of the matrix
    found = minimize(unit, -inside)
    values = found.values / norms
    total = tf.reduce_sum(values, -1, keepdims=True)
    weights = tf.where(zeros > 0.0, is_zero / tf.maximum(zeros, _of(1.0)), tf.math.divide_no_nan(values, total))
    return Solution(weights, found.converged & (total[..., 0] > 0.0))


def minimize(matrices: Tensor, linear: Tensor) -> Solution:
    """Return, for each problem of a batch, the `x >= 0` that minimizes `x @ H @ x / 2 + c @ x`.

    Args:
      matrices: The positive semidefinite matrices H, of shape `[batch, m, m]`, with diagonals of one or zero.
      linear: The vectors c, of shape `[batch, m]`, each in the range of its matrix.
    """
    size = tf.reduce_max(tf.abs(linear), -1, keepdims=True)
    size = tf.where(size > 0, size, tf.ones_like(size))
    # What SciPy returns is constant for a tape.
    is_numpy = tf.executing_eagerly() and nnls() is not None and not is_recorded()
    solve = _by_nnls if is_numpy else by_pivoting
    values, converged = solve(matrices, linear / size)
    return Solution(values * size, converged)


def on_simplex(vector: Tensor) -> Tensor:
    """Return the vector of weights, not negative and with the sum one, that is closest to a vector."""
    vector -= tf.reduce_max(vector)  # a sum of one must not get lost in large numbers
    largest = tf.sort(vector, direction="DESCENDING")
    counts = tf.range(1, vector.shape[0] + 1, dtype=tf.float64)
    excess = (tf.cumsum(largest) - 1.0) / counts
    place = tf.maximum(tf.reduce_sum(tf.cast(largest > excess, tf.int32)) - 1, 0)
    return tf.maximum(vector - tf.gather(excess, place), tf.zeros_like(vector))


@cache
def nnls() -> Any:
    """Return SciPy's solver; None if SciPy is not installed."""
    try:
        from scipy.optimize import nnls as solver
    except ImportError:
        return None
    return solver


class _Factors(NamedTuple):
    """A matrix, its square root as SciPy's solver takes it, and what right-hand sides are made of."""

    matrix: np.ndarray
    root: np.ndarray
    scaled: np.ndarray  # eigenvectors over the roots of eigenvalues; zero where those are

    @classmethod
    def of(cls, matrix: np.ndarray) -> _Factors:
        values, vectors = np.linalg.eigh(matrix)
        roots = np.sqrt(np.maximum(values, 0.0))
        kept = roots > 1e-7 * roots.max(initial=0.0)
        # A row of zeros changes nothing. The diagonal is one or zero, but for what rounding makes of either.
        root = np.where(np.diag(matrix) > 0.5, roots[:, None] * vectors.T, 0.0)
        return cls(matrix, root, np.where(kept, vectors / np.where(kept, roots, 1.0), 0.0))


def _by_nnls(matrices: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    found, factors = [], None
    for matrix, vector in zip(matrices.numpy(), linear.numpy(), strict=True):
        if factors is None or not np.array_equal(matrix, factors.matrix):  # often all are the same
            factors = _Factors.of(matrix)
        found.append(_one_by_nnls(factors, vector))
    return tf.constant(np.stack([values for values, _ in found])), tf.constant([there for _, there in found])


def _one_by_nnls(factors: _Factors, linear: np.ndarray) -> tuple[np.ndarray, bool]:
    nothing, matrix = np.zeros_like(linear), factors.matrix
    if linear.min() >= 0.0:
        return nothing, True
    try:
        x = nnls()(factors.root, -(linear @ factors.scaled))[0]
    except RuntimeError:  # too many iterations
        return nothing, False
    slope, sizes = matrix @ x + linear, np.maximum(1.0, np.abs(matrix) @ x)
    is_slack = abs(x @ slope) <= _ENOUGH * max(1.0, float(np.abs(linear) @ x))
    return x, bool((slope >= -_ENOUGH * sizes).all()) and is_slack


def _of(value: float) -> Tensor:
    return tf.constant(value, tf.float64)
