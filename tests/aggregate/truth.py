"""The same problems solved in other ways, with NumPy and SciPy only."""

from __future__ import annotations

from itertools import product

import numpy as np


def least_nonnegative(matrix: np.ndarray, linear: np.ndarray) -> float:
    """Return the least value of x H x / 2 + c x for x >= 0, by trying all sets of positive variables."""
    count, best = len(linear), 0.0
    for chosen in product([False, True], repeat=count):
        free = np.flatnonzero(chosen)
        if not len(free):
            continue
        part = matrix[np.ix_(free, free)]
        x = np.linalg.lstsq(part, -linear[free], rcond=1e-13)[0]
        if x.min() >= -1e-12 * max(1.0, np.abs(x).max()):
            x = np.maximum(x, 0.0)
            best = min(best, x @ part @ x / 2 + linear[free] @ x)
    return best


def value(matrix: np.ndarray, linear: np.ndarray, x: np.ndarray) -> float:
    return x @ matrix @ x / 2 + linear @ x


def violation(matrix: np.ndarray, linear: np.ndarray, x: np.ndarray) -> float:
    """Return how far x is from optimal, relative to rounding errors: the conditions are necessary and sufficient."""
    slope = matrix @ x + linear
    noise = np.maximum(1.0, np.abs(matrix) @ np.abs(x))
    gap = np.abs(x * slope).sum() / max(1.0, np.abs(linear) @ np.abs(x))
    return max(-x.min() / max(1.0, np.abs(x).max()), -(slope / noise).min(), gap)


def project_on_cone(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the point closest to a vector that has no negative product with any row, by Dykstra's method.

    It projects on one half space after the other, so it knows nothing of Gramians and active sets.
    """
    rows = matrix[np.linalg.norm(matrix, axis=1) > 0]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    point, corrections = vector.astype(float), np.zeros_like(rows)
    for _ in range(20000):
        before = point
        for number, row in enumerate(rows):
            moved = point + corrections[number]
            point = moved - min(row @ moved, 0.0) * row
            corrections[number] = moved - point
        if np.abs(point - before).max() < 1e-14 * max(1.0, np.abs(vector).max()):
            break
    return point


def upgrad(matrix: np.ndarray) -> np.ndarray:
    """Return the mean of the projected rows."""
    return np.mean([project_on_cone(matrix, row) for row in matrix], 0)


def fairness_gap(matrix: np.ndarray, weights: np.ndarray, alpha: float) -> float:
    """Return by how much G w = w^(-1/alpha) is missed, relative, for rows that are not zero."""
    rows = np.linalg.norm(matrix, axis=1) > 0
    gains = (matrix @ (weights @ matrix))[rows]
    return np.abs(gains * weights[rows] ** (1.0 / alpha) - 1.0).max()


def conflict_averse_gap(matrix: np.ndarray, direction: np.ndarray, c: float) -> tuple[float, float]:
    """Return by how much a direction misses the best least gain of CAGrad, and how far it is outside of the ball.

    The best one is bounded from above by g_w a + c |a| |g_w| for each convex combination g_w: by SciPy's least one.
    """
    from scipy.optimize import minimize

    rows = matrix[np.linalg.norm(matrix, axis=1) > 0]
    average, count = matrix.mean(0), len(rows)
    radius = c * np.linalg.norm(average)

    def bound(x: np.ndarray) -> float:
        combination = (x**2 / np.sum(x**2)) @ rows
        return combination @ average + radius * np.linalg.norm(combination)

    starts = [np.ones(count), *np.random.default_rng(0).uniform(0.1, 1.0, (5, count))]
    best = min(minimize(bound, start, tol=1e-14).fun for start in starts)
    outside = np.linalg.norm(direction - average) - radius
    return best - (rows @ direction).min(), outside
