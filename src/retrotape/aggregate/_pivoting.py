"""Non-negative quadratic problems inside graphs: block principal pivoting, and descent where it does not end."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.tf.core import tf

_TOLERANCE = 1e-11  # of a sign, in problems that are scaled to one
_RIDGE = 1e-12  # keeps the factors of dependent rows positive
_TRIES = 3  # exchanges of whole blocks that may fail to improve, before single ones


def _steps(size: int) -> int:
    """Return after how many steps to give up."""
    return 5 * size + 20


def by_pivoting(matrices: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """Guess which variables are positive, solve for them, exchange those of the wrong sign; all problems at once.

    The few that do not end are solved by descent.
    """
    batch, m = linear.shape
    state = (
        tf.constant(0),
        tf.zeros([batch, m], tf.bool),  # which variables may be positive
        tf.zeros([batch, m], tf.float64),
        linear,  # the gradient
        tf.fill([batch], m + 1),  # the fewest wrong signs so far
        tf.fill([batch], _TRIES),
    )

    def go_on(step: Tensor, free: Tensor, x: Tensor, slope: Tensor, *_: Tensor) -> Tensor:
        return (step < _steps(m)) & tf.reduce_any(_wrong(free, x, slope))

    def pivot(step: Tensor, free: Tensor, x: Tensor, slope: Tensor, fewest: Tensor, tries: Tensor) -> Any:
        wrong = _wrong(free, x, slope)
        count = tf.reduce_sum(tf.cast(wrong, tf.int32), 1)
        better = count < fewest
        whole = better | (tries > 0)
        free = tf.math.logical_xor(free, tf.where(whole[:, None], wrong, wrong & _last(wrong)))
        x = _solve_free(matrices, linear, free)
        slope = tf.linalg.matvec(matrices, x) + linear
        return step + 1, free, x, slope, tf.where(better, count, fewest), tf.where(better, _TRIES, tries - 1)

    _, free, x, slope, _, _ = tf.while_loop(go_on, pivot, state)
    free, x = _by_descent(matrices, linear, free, x, tf.reduce_any(_wrong(free, x, slope), 1))
    slope = tf.linalg.matvec(matrices, x) + linear
    return tf.maximum(x, _of(0.0)), ~tf.reduce_any(_wrong(free, x, slope), 1)


def _by_descent(matrices: Tensor, linear: Tensor, free: Tensor, x: Tensor, is_open: Tensor) -> tuple[Tensor, Tensor]:
    """Solve those problems that are open: free one variable at a time, and stop where another one gets negative.

    Slower, but each step makes the value smaller, as in the method of Lawson and Hanson for least squares.
    """
    m = linear.shape[1]
    nothing = tf.zeros_like(free)

    def improve(step: Tensor, free: Tensor, x: Tensor, blocked: Tensor, is_open: Tensor) -> Any:
        there = _solve_free(matrices, linear, free)
        negative = free & (there <= 0.0)
        inside = ~tf.reduce_any(negative, 1, keepdims=True)
        # Inside: all the way, and free the variable along which the value falls most.
        slope = tf.linalg.matvec(matrices, there) + linear
        largest = tf.maximum(_of(1.0), tf.reduce_max(tf.abs(there), 1, keepdims=True))
        falls = ~free & ~blocked & (slope < -_TOLERANCE * largest / 4.0)
        entering = falls & tf.one_hot(tf.argmin(tf.where(falls, slope, _of(0.0)), 1), m, True, False)
        # Otherwise: until the first one is zero, which is not free any more.
        shares = tf.where(negative, tf.math.divide_no_nan(x, x - there), _of(np.inf))
        share = tf.reduce_min(shares, 1, keepdims=True)
        leaving = negative & (shares <= share)
        moved = tf.where(
            inside, there, tf.where(leaving, _of(0.0), x + tf.where(inside, _of(0.0), share) * (there - x))
        )
        stuck = ~inside & (share <= 0.0)  # a variable that was freed in vain
        blocked = tf.where(inside, nothing, blocked) | (leaving & stuck)
        changed = tf.where(inside, free | entering, free & ~leaving)
        goes_on = ~inside[:, 0] | tf.reduce_any(falls, 1)
        mine = is_open[:, None]
        return (
            step + 1,
            tf.where(mine, changed, free),
            tf.where(mine, moved, x),
            tf.where(mine, blocked, nothing),
            is_open & goes_on,
        )

    start = (
        tf.constant(0),
        free & ~is_open[:, None],
        tf.where(is_open[:, None], _of(0.0), x),
        nothing,
        is_open,
    )
    found = tf.while_loop(lambda step, *rest: (step < 2 * _steps(m)) & tf.reduce_any(rest[-1]), improve, start)
    return found[1], found[2]


def _wrong(free: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    largest = tf.maximum(_of(1.0), tf.reduce_max(tf.abs(x), 1, keepdims=True))
    finite = tf.math.is_finite(x)
    return ~finite | (free & (x < -_TOLERANCE * largest)) | (~free & (slope < -_TOLERANCE * largest))


def _last(wrong: Tensor) -> Tensor:
    """Return the last one of each row."""
    later = tf.cumsum(tf.cast(wrong, tf.int32), 1, exclusive=True, reverse=True)
    return wrong & (later == 0)


def _solve_free(matrices: Tensor, linear: Tensor, free: Tensor) -> Tensor:
    """Return where the gradient with respect to free variables is zero, and the others are."""
    m = linear.shape[-1]
    both = free[:, :, None] & free[:, None, :]
    ridge = _RIDGE * tf.eye(m, dtype=tf.float64)
    system = tf.where(both, matrices, tf.zeros_like(matrices)) + tf.linalg.diag(tf.cast(~free, tf.float64))
    right = tf.where(free, -linear, tf.zeros_like(linear))[:, :, None]
    factor = tf.linalg.cholesky(system + ridge)
    x = tf.linalg.cholesky_solve(factor, right)
    x += tf.linalg.cholesky_solve(factor, right - tf.matmul(system, x))  # corrects for the ridge
    return x[:, :, 0]


def _of(value: float) -> Tensor:
    return tf.constant(value, tf.float64)
