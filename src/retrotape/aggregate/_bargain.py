"""Weights w with G w = w^-p: those of Nash bargaining, and of other notions of fairness."""

from __future__ import annotations

from typing import NamedTuple

from retrotape._types import Tensor
from retrotape.aggregate._solve import Problem, Solution, scaled_to_unit
from retrotape.tf.core import tf

_STEPS = 60
_SMALL = 0.2  # a step, relative to where it starts, that needs no search
_DONE = 1e-13
_ENOUGH = 1e-8
_HOLDS = 1e-6
_RIDGE = 1e-14
_NOISE = 1e-3  # the largest share of rounding errors in a result
_HALVINGS = 14


class _Equation(NamedTuple):
    """The equation for rows of norm one: (unit y)_i = right_i y_i^-power; convex, as a problem of least y."""

    unit: Tensor
    right: Tensor
    power: float

    def start(self) -> Tensor:
        """Return what solves it if the rows are orthogonal, scaled."""
        alone = self.right ** (1.0 / (1.0 + self.power))
        square = tf.reduce_sum(alone * tf.linalg.matvec(self.unit, alone))
        total = tf.reduce_sum(alone**2)
        return alone * (total / tf.maximum(square, 1e-6 * total)) ** (1.0 / (1.0 + self.power))

    def step(self, y: Tensor) -> Tensor:
        """Return a step of Newton's method."""
        pull = self.right * y**-self.power
        slope = tf.linalg.matvec(self.unit, y) - pull
        matrix = self.unit + tf.linalg.diag(self.power * pull / y)
        scale = 1.0 / tf.sqrt(tf.linalg.diag_part(matrix))
        scaled = matrix * scale[:, None] * scale[None, :] + _RIDGE * tf.eye(y.shape[0], dtype=tf.float64)
        return -scale * tf.linalg.cholesky_solve(tf.linalg.cholesky(scaled), (scale * slope)[:, None])[:, 0]

    def value(self, many: Tensor) -> Tensor:
        """Return what is least at the solution, for many points at once."""
        pull = tf.math.log(many) if self.power == 1.0 else many ** (1.0 - self.power) / (1.0 - self.power)
        square = tf.reduce_sum(many * tf.matmul(many, self.unit), 1)
        return square / 2.0 - tf.reduce_sum(self.right * pull, 1)

    def follow(self, y: Tensor, step: Tensor) -> Tensor:
        """Return where to go along a step: all the way if it is short, otherwise to the best of some points."""
        farthest = tf.reduce_max(-step / y)
        longest = tf.where(farthest > 0.99, 0.99 / farthest, tf.ones_like(farthest))
        shares = longest * 0.5 ** tf.range(_HALVINGS, dtype=tf.float64)
        points = y + shares[:, None] * step
        best = tf.gather(points, tf.argmin(self.value(points)))
        return tf.where(tf.reduce_max(tf.abs(step / y)) < _SMALL, y + step, best)


def bargain(problem: Problem, power: float) -> Solution:
    """Return the weights w > 0 with G w = w^-power; zero for rows that are zero.

    There are none if a convex combination of the rows is zero. Then all weights are zero, and not found.
    """
    unit, norms = scaled_to_unit(problem.gramian, problem.precision)
    is_row = tf.linalg.diag_part(problem.gramian) > 0.0
    unit = tf.linalg.set_diag(unit, tf.where(is_row, tf.linalg.diag_part(unit), tf.ones_like(norms)))
    right = norms ** (power - 1.0)
    size = tf.reduce_max(right)
    equation = _Equation(unit, right / size, power)

    def go_on(count: Tensor, y: Tensor, step: Tensor) -> Tensor:
        return (count < _STEPS) & (tf.reduce_max(tf.abs(step / y)) > _DONE)

    def improve(count: Tensor, y: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = equation.follow(y, step)
        return count + 1, y, equation.step(y)

    start = equation.start()
    _, y, step = tf.while_loop(go_on, improve, (tf.constant(0), start, equation.step(start)))
    noise = problem.precision * tf.reduce_sum(y) ** 2 / tf.reduce_sum(equation.right * y ** (1.0 - power))
    sides = tf.linalg.matvec(unit, y) * y**power / equation.right  # one, where the equation holds
    holds = tf.reduce_max(tf.abs(sides - 1.0)) < _HOLDS
    converged = (tf.reduce_max(tf.abs(step / y)) < _ENOUGH) & (noise < _NOISE) & holds
    weights = y * size ** (1.0 / (1.0 + power)) / norms
    return Solution(tf.where(is_row & converged, weights, tf.zeros_like(weights)), converged)
