"""Programs that end in NaN or infinity. Each takes what is given and returns the loss.

The line that is to blame ends in `# here`, so that a test can find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf


class Program(NamedTuple):
    """A program, what it is given, and what a person who knows would say of it."""

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    op: str
    backward: bool
    cause: str
    witness: str  # in the text
    remedy: str  # in the text

    @property
    def name(self) -> str:
        """What it is called."""
        return self.run.__name__


PROGRAMS: list[Program] = []


def program(*inputs: Any, op: str, cause: str, witness: str, remedy: str, backward: bool = False) -> Callable:
    """Put a function on the list."""

    def put(run: Callable) -> Callable:
        given = tuple(tf.constant(values, dtype) for values, dtype in inputs)
        PROGRAMS.append(Program(run, given, op, backward, cause, witness, remedy))
        return run

    return put


F32, F16 = tf.float32, tf.float16


# ------------------------------------------------------------------ forward


@program(
    ([0.0, 0.3, 0.7], F32),
    op="Log",
    cause="LOG_OF_ZERO",
    witness="The input is exactly 0 at 1 of 3 positions.",
    remedy="tf.maximum(x, 1e-7)",
)
def log_of_zero(p):
    information = -tf.math.log(p)  # here
    return tf.reduce_mean(tf.tanh(information) * information)


@program(
    ([0.0, 0.4, 0.6], F32),
    ([0.0, 1.0, 1.0], F32),
    op="Log",
    cause="ZERO_TIMES_LOG",
    witness="The factor is 0 there",
    remedy="tf.math.xlogy(y, x)",
)
def entropy_of_a_sure_thing(p, y):
    logs = tf.math.log(p)  # here
    return -tf.reduce_sum(y * logs)


@program(
    ([[40.0], [-2.0]], F32),
    ([[1.0], [0.0]], F32),
    op="Log",
    cause="SIGMOID_CROSS_ENTROPY",
    witness="The input is exactly 0 at 1 of 2 positions.",
    remedy="from_logits=True",
)
def cross_entropy_by_hand(logits, y):
    p = tf.sigmoid(logits)
    one = tf.math.log(p)
    other = tf.math.log(1.0 - p)  # here
    return -tf.reduce_mean(y * one + (1.0 - y) * other)


@program(
    ([[1.0, 95.0, 3.0]], F32),
    op="Exp",
    cause="SOFTMAX_BY_HAND",
    witness="beyond 88.72",
    remedy="tf.nn.softmax(x)",
)
def softmax_by_hand(logits):
    powers = tf.exp(logits)  # here
    shares = powers / tf.reduce_sum(powers, axis=-1, keepdims=True)
    return tf.reduce_sum(shares**2)


@program(
    ([[0.0, 0.0], [1.0, 3.0]], F32),
    op="RealDiv",
    cause="ZERO_OVER_ZERO",
    witness="The divisor is exactly 0 at 2 of 4 positions.",
    remedy="tf.math.divide_no_nan(x, y)",
)
def rows_as_shares(counts):
    shares = counts / tf.reduce_sum(counts, axis=-1, keepdims=True)  # here
    return tf.reduce_sum(shares * shares)


@program(
    ([3.0, 5.0, 1.0], F32),
    ([0.0, 2.0, 4.0], F32),
    op="RealDiv",
    cause="DIVISION_BY_ZERO",
    witness="The divisor is exactly 0 at 1 of 3 positions.",
    remedy="tf.math.divide_no_nan(x, y)",
)
def relative_error(error, truth):
    relative = error / truth  # here
    return tf.reduce_mean(tf.abs(relative))


@program(
    ([300.0, 2.0], F16),
    op="Mul",
    cause="HALF_OVERFLOW",
    witness="In float64 the largest value is 9e+04; the maximum of float16 is 6.55e+04",
    remedy="tf.cast(x, tf.float32)",
)
def square_in_half_precision(x):
    squares = x * x  # here
    return tf.reduce_sum(squares)


@program(
    ([-0.5, 2.0], F32),
    op="Pow",
    cause="POW_OF_NEGATIVE",
    witness="The base is negative and the power is not an integer at 1 of 2 positions.",
    remedy="tf.maximum(x, 0.0) ** p",
)
def power_of_a_difference(x):
    curve = tf.pow(x, 1.5)  # here
    return tf.reduce_sum(curve)


@program(
    ([1.0000001, 0.5], F32),
    op="Acos",
    cause="OUTSIDE_DOMAIN",
    witness="The input is outside [-1, 1] at 1 of 2 positions.",
    remedy="tf.clip_by_value",
)
def angle_between(cosine):
    angle = tf.acos(cosine)  # here
    return tf.reduce_sum(angle)


@program(
    ([0.1, -2.0, 4.0], F32),
    op="Log",
    cause="LOG_OF_NEGATIVE",
    witness="The input is below 0 at 1 of 3 positions.",
    remedy="Check the sign",
)
def log_of_a_return(change):
    growth = tf.math.log(change)  # here
    return tf.reduce_mean(growth)


@program(
    ([[1.0, 2.0], [0.5, 0.5]], F32),
    ([[0.0, 0.0], [float("-inf"), float("-inf")]], F32),
    op="Softmax",
    cause="ALL_MASKED",
    witness="1 of 2 rows have no other value",
    remedy="-1e9",
)
def attention_to_nobody(scores, mask):
    weights = tf.nn.softmax(scores + mask)  # here
    return tf.reduce_sum(weights * scores)


@program(
    ([50.0, 100.0], F32),
    op="Exp",
    cause="SOFTPLUS_BY_HAND",
    witness="The input is beyond 88.72, where Exp overflows in float32, at 1 of 2 positions.",
    remedy="tf.math.softplus(x)",
)
def softplus_by_hand(x):
    grown = tf.exp(x)  # here
    return tf.reduce_mean(tf.math.log(1.0 + grown))


@program(
    ([1.0, float("nan"), 3.0], F32),
    op="Mul",
    cause="GIVEN",
    witness="An input: float32[3] from 1 to 3 and 1 NaN",
    remedy="check_numerics",
)
def a_hole_in_the_data(x):
    scaled = x * 2.0  # here
    return tf.reduce_sum(tf.sin(scaled))


# ------------------------------------------------------------------ backward


@program(
    ([0.0, 4.0], F32),
    op="Pow",
    cause="WHERE",
    witness="so the incoming gradient is 0: 0 · inf is NaN",
    remedy="tf.where(ok, x, 1.0)",
    backward=True,
)
def where_does_not_guard(x):
    roots = tf.pow(x, 0.5)  # here
    return tf.reduce_sum(tf.where(x > 0.0, roots, 0.0))


@program(
    ([0.0, 4.0], F32),
    op="Log",
    cause="WHERE",
    witness="selects the other branch there",
    remedy="tf.where(ok, x, 1.0)",
    backward=True,
)
def where_hides_an_infinity(x):
    logs = tf.math.log(x) * 2.0  # here
    return tf.reduce_sum(tf.where(x > 0.0, logs, tf.zeros_like(x)))


@program(
    ([0.0, 9.0], F32),
    op="Sqrt",
    cause="SQRT_AT_ZERO",
    witness="The input is exactly 0 at 1 of 2 positions.",
    remedy="tf.sqrt(x + 1e-12)",
    backward=True,
)
def root_at_zero(x):
    roots = tf.sqrt(x)  # here
    return tf.reduce_sum(roots)


@program(
    ([[0.0, 0.0], [3.0, 4.0]], F32),
    op="Sqrt",
    cause="NORM_AT_ZERO",
    witness="The input is exactly 0 at 1 of 2 positions.",
    remedy="tf.reduce_sum(x * x, axis) + 1e-12",
    backward=True,
)
def distance_to_oneself(difference):
    distances = tf.norm(difference, axis=-1)  # here
    return tf.reduce_sum(distances)


@program(
    ([[2.0, 2.0], [1.0, 3.0]], F32),
    op="Sqrt",
    cause="DEVIATION_AT_ZERO",
    witness="The input is exactly 0 at 1 of 2 positions.",
    remedy="tf.math.reduce_variance(x, axis) + 1e-12",
    backward=True,
)
def spread_of_equals(x):
    spread = tf.math.reduce_std(x, axis=-1)  # here
    return tf.reduce_sum(spread)


@program(
    ([0.0, 4.0], F32),
    op="Pow",
    cause="POW_AT_ZERO",
    witness="The base is exactly 0 at 1 of 2 positions.",
    remedy="(x + 1e-7) ** p",
    backward=True,
)
def gamma_correction(x):
    brighter = tf.pow(x, 0.45)  # here
    return tf.reduce_sum(brighter)


@program(
    ([1.0, 0.5], F32),
    op="Acos",
    cause="EDGE_OF_DOMAIN",
    witness="The input is at the boundary, 1 or -1, at 1 of 2 positions.",
    remedy="tf.clip_by_value",
    backward=True,
)
def angle_of_zero(cosine):
    angle = tf.acos(cosine)  # here
    return tf.reduce_sum(angle)


@program(
    ([0.001, 0.002], F16),
    op="Mul",
    cause="HALF_OVERFLOW",
    witness="the maximum of float16 is 6.55e+04",
    remedy="scale it down",
    backward=True,
)
def scaled_loss(w):
    small = w * tf.constant(30000.0, tf.float16)  # here
    return tf.reduce_sum(tf.cast(small, tf.float32)) * 4.0


@program(
    ([95.0, 1.0], F32),
    op="Exp",
    cause="SIGMOID_BY_HAND",
    witness="The input is beyond 88.72, where Exp overflows in float32, at 1 of 2 positions.",
    remedy="tf.sigmoid(x)",
)
def sigmoid_by_hand(x):
    grown = tf.exp(x)  # here
    return tf.reduce_sum(1.0 / (1.0 + grown))
