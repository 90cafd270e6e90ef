"""The problem of CAGrad: a root of shortest combinations of rows that are shifted along their average."""

from __future__ import annotations

import math
from typing import NamedTuple

from retrotape._types import Tensor
from retrotape.aggregate._solve import Problem, Solution, project, shortest
from retrotape.tf.core import tf

_ROUNDS = 40
_WIDTH = 1e-11  # of the bracket around the root, relative
_POINTS = 8  # inside the bracket, per round
_NEAR = (1e-2, 1e-4, 1e-8, 2e-12)  # and around the estimated root


class _Shifted(NamedTuple):
    """Rows g_i + s a, where a is the average of all rows, for any shift s.

    The weights of CAGrad are 1/m + w / s, if w makes the shortest combination of these rows, and |g_w| = radius * s:
    the conditions are the same. The combinations g_w are piecewise linear in s.
    """

    gramian: Tensor
    products: Tensor  # of each row with the average
    square: Tensor  # of the average
    radius: Tensor
    precision: float

    def solve(self, shifts: Tensor) -> Solution:
        """Return the weights w for some shifts."""
        s = shifts[:, None, None]
        both = self.products[:, None] + self.products[None, :]
        return shortest(self.gramian + s * both + s**2 * self.square, self.precision)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the inner products of some combinations."""
        return tf.reduce_sum(left * tf.matmul(right, self.gramian), -1)

    def excess(self, shifts: Tensor, weights: Tensor) -> Tensor:
        """Return what is positive below the root and negative above it."""
        return self.product(weights, weights) - (self.radius * shifts) ** 2


class _Bracket(NamedTuple):
    """Two shifts, one on each side of the root, their weights, and whether all weights so far were found."""

    low: Tensor
    high: Tensor
    low_weights: Tensor
    high_weights: Tensor
    converged: Tensor

    def estimate(self, rows: _Shifted) -> tuple[Tensor, Tensor]:
        """Return the root and its weights, if weights are linear in between."""
        change, width = self.high_weights - self.low_weights, self.high - self.low
        products = rows.product(
            tf.stack([self.low_weights, self.low_weights, change]), tf.stack([self.low_weights, change, change])
        )
        first = products[0] - (rows.radius * self.low) ** 2
        half = products[1] - rows.radius**2 * self.low * width
        last = products[2] - (rows.radius * width) ** 2
        root = tf.sqrt(tf.maximum(half**2 - last * first, tf.zeros_like(first)))
        share = tf.clip_by_value(tf.math.divide_no_nan(first, root - half), 0.0, 1.0)
        return self.low + share * width, self.low_weights + share * change

    def narrow(self, rows: _Shifted) -> _Bracket:
        """Return a bracket inside of this one."""
        guess, _ = self.estimate(rows)
        even = tf.range(1, _POINTS + 1, dtype=tf.float64) / (_POINTS + 1)
        near = [1.0 + sign * share for sign in (-1.0, 1.0) for share in _NEAR]
        points = tf.concat([self.low * (self.high / self.low) ** even, guess * tf.constant(near, tf.float64)], 0)
        points = tf.clip_by_value(tf.sort(points), self.low, self.high)
        found = rows.solve(points)
        above = tf.concat([rows.excess(points, found.values) <= 0.0, [True]], 0)
        place = tf.argmax(tf.cast(above, tf.int32))  # the first one above
        shifts = tf.concat([[self.low], points, [self.high]], 0)
        weights = tf.concat([[self.low_weights], found.values, [self.high_weights]], 0)
        return _Bracket(
            tf.gather(shifts, place),
            tf.gather(shifts, place + 1),
            tf.gather(weights, place),
            tf.gather(weights, place + 1),
            self.converged & tf.reduce_all(found.converged),
        )


def conflict_averse(problem: Problem, c: float) -> Solution:
    """Return the weights of CAGrad, for rows whose average is not zero."""
    size = problem.size
    gramian = problem.gramian / tf.reduce_max(tf.linalg.diag_part(problem.gramian))
    mean = tf.fill([size], tf.constant(1.0 / size, tf.float64))
    norms = tf.sqrt(tf.maximum(tf.linalg.diag_part(gramian), tf.zeros([], tf.float64)))
    products = tf.linalg.matvec(gramian, mean)
    square = tf.reduce_sum(products * mean)
    # Rows that are zero stand for another one: they limit nothing.
    stands_for = tf.where(norms > 0.0, tf.range(size), tf.argmax(norms, output_type=tf.int32))
    rows = _Shifted(
        tf.gather(tf.gather(gramian, stands_for), stands_for, axis=1),
        tf.gather(products, stands_for),
        square,
        c * tf.sqrt(square),
        problem.precision,
    )
    start, is_stationary = _start(rows, tf.gather(norms, stands_for))
    bracket = tf.while_loop(
        lambda step, bracket: (step < _ROUNDS) & (bracket.high > (1.0 + _WIDTH) * bracket.low),
        lambda step, bracket: (step + 1, bracket.narrow(rows)),
        (tf.constant(0), start),
    )[1]
    shift, weights = bracket.estimate(rows)
    weights = tf.linalg.matvec(tf.one_hot(stands_for, size, dtype=tf.float64), weights, transpose_a=True)
    # The conflict-free direction that is nearest to the average, if it is near enough, and the best there is.
    nearest = project(problem, mean[None, :])
    is_near = is_stationary & (rows.excess(start.low[None], start.low_weights[None])[0] <= 0.0)
    return Solution(
        tf.where(is_near, nearest.values[0], mean + weights / shift),
        tf.where(is_near, nearest.converged[0], bracket.converged),
    )


def _start(rows: _Shifted, norms: Tensor) -> tuple[_Bracket, Tensor]:
    """Return a bracket, and whether a convex combination of the rows is zero."""
    high = tf.reduce_max(norms) / rows.radius
    least = rows.solve(tf.stack([tf.zeros_like(high), high]))
    norm = tf.sqrt(tf.maximum(rows.product(least.values[:1], least.values[:1])[0], tf.zeros_like(high)))
    noise = math.sqrt(4.0 * norms.shape[0] * rows.precision) * tf.reduce_sum(least.values[0] * norms)
    is_stationary = norm <= noise
    low = tf.minimum(tf.where(is_stationary, 10.0 * noise, norm) / rows.radius, high)
    found = rows.solve(low[None])
    converged = tf.reduce_all(least.converged) & found.converged[0]
    return _Bracket(low, high, found.values[0], least.values[1], converged), is_stationary
