"""Gradients that users make themselves, and code that leaves TensorFlow and comes back."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from conform.table import Ask, Case, Random, case, normal, positive, simple, variable

CASES: list[Case] = []


@tf.custom_gradient
def wrong(x):
    """Square, with a gradient that is nothing like it, so that it shows which one was used."""
    return x**2, lambda upstream: 7.0 * upstream


@tf.custom_gradient
def straight_through(x):
    """Round forward, pass backward."""
    return tf.round(x), lambda upstream: upstream


@tf.custom_gradient
def log1pexp(x):
    """The example that needs the forward pass's values."""
    e = tf.exp(x)
    return tf.math.log(1.0 + e), lambda upstream: upstream * (1.0 - 1.0 / (1.0 + e))


@tf.custom_gradient
def pair(x, y):
    """Two in, two out."""

    def back(one, two):
        return one * 3.0 + two, two * x

    return (x * y, x + y), back


@tf.custom_gradient
def stopped(x, y):
    """No gradient by the second argument."""
    return x * y, lambda upstream: (upstream * 5.0, None)


@tf.custom_gradient
def clipped(x):
    """Clip what comes back."""
    return tf.identity(x), lambda upstream: tf.clip_by_norm(upstream, 0.1)


CASES += [
    simple("custom_wrong_on_purpose", lambda x: wrong(tf.sin(x)) * x, normal(3)),
    simple("custom_straight_through", lambda x: straight_through(x * 3.0) ** 2, normal(3)),
    simple("custom_log1pexp", log1pexp, normal(3)),
    simple("custom_two_by_two", lambda x, y: pair(x, y)[0] * pair(x, y)[1], normal(3), normal(3)),
    simple("custom_one_output_unused", lambda x, y: pair(x, y)[1] ** 2, normal(3), normal(3)),
    simple("custom_none_for_an_argument", stopped, normal(3), normal(3)),
    simple("custom_clip_backward", lambda x: clipped(x**2) * 10.0, normal(3)),
    simple("custom_twice", lambda x: wrong(wrong(x)) + wrong(x), normal(3)),
    simple("custom_given_a_variable", lambda v: wrong(v) * v, variable(3)),
    simple("custom_given_numpy", lambda x: pair(x, np.float32(2.0))[0], normal(3)),
    simple("custom_in_map_fn", lambda x: tf.map_fn(wrong, x), normal(3, 2)),
    simple(
        "custom_in_while",
        lambda x: tf.while_loop(lambda i, c: i < 2, lambda i, c: (i + 1, wrong(c)), [0, x])[1],
        normal(3),
    ),
    simple("stop_gradient", lambda x: tf.stop_gradient(x**2) * x, normal(3)),
    simple("stop_gradient_of_all", lambda x: tf.stop_gradient(x**2), normal(3)),
    simple("grad_pass_through", lambda x: tf.grad_pass_through(tf.round)(x * 2.0) ** 2, normal(3)),
    simple("prevent_gradient_beside", lambda x: x * tf.raw_ops.Identity(input=x), normal(3)),
    simple("custom_over_float64", lambda x: wrong(tf.cast(x, tf.float64)) * 2.0, normal(3)),
]


@case(CASES)
def _custom_in_a_function(rng: Random):
    inner = tf.function(lambda x: wrong(tf.sin(x)) + straight_through(x))
    return lambda x: inner(x) * x, [normal(3)(rng)]


@case(CASES)
def _custom_over_a_function(rng: Random):
    cube = tf.function(lambda x: x**3)

    @tf.custom_gradient
    def outer(x):
        return cube(x), lambda upstream: upstream * 11.0 * cube(x)

    return lambda x: outer(x) * x, [normal(3)(rng)]


def _linear_with_variables(v):
    @tf.custom_gradient
    def linear(x):
        y = x * v

        def back(upstream, variables=None):
            assert len(variables) == 1
            return upstream * 2.0, [upstream * x * 5.0]

        return y, back

    return linear


@case(CASES)
def _custom_over_a_variable(rng: Random):
    v = variable(3)(rng)
    linear = _linear_with_variables(v)
    return lambda x, w: linear(x) + w * x, [normal(3)(rng), v]


@case(CASES)
def _custom_over_a_variable_in_a_function(rng: Random):
    v = variable(3)(rng)
    linear = _linear_with_variables(v)
    inner = tf.function(lambda x: linear(x))
    return lambda x, w: inner(x) + w * x, [normal(3)(rng), v]


@case(CASES, eager_only="a custom gradient takes keywords in eager code only")
def _custom_with_keywords(rng: Random):
    @tf.custom_gradient
    def scaled(x, scale=1.0):
        return x * scale, lambda upstream: upstream * scale * 3.0

    return lambda x: scaled(x, scale=2.0) * scaled(x), [normal(3)(rng)]


@case(CASES)
def _custom_nested(rng: Random):
    @tf.custom_gradient
    def outer(x):
        y = wrong(x) * 2.0

        @tf.custom_gradient
        def back(upstream):
            return upstream * 13.0 * x, lambda second: second * 17.0

        return y, back

    return lambda x: outer(tf.sin(x)), [normal(3)(rng)]


@case(CASES)
def _custom_with_a_tape_in_its_gradient(rng: Random):
    @tf.custom_gradient
    def reversed_sign(x):
        y = tf.sin(x)

        def back(upstream):
            with tf.GradientTape() as tape:
                tape.watch(x)
                z = tf.sin(x)
            return -tape.gradient(z, x, output_gradients=upstream)

        return y, back

    return lambda x: reversed_sign(x * 2.0), [normal(3)(rng)]


@case(CASES)
def _custom_returning_a_nest(rng: Random):
    @tf.custom_gradient
    def nest(x):
        return {"a": x * 2.0, "b": x**2}, lambda a, b: a * 19.0 + b

    def run(x):
        result = nest(x)
        return result["a"] * result["b"]

    return run, [normal(3)(rng)]


@case(CASES)
def _custom_over_many_arguments(rng: Random):
    @tf.custom_gradient
    def many(*xs):
        return tf.add_n(list(xs)), lambda upstream: [upstream * float(i) for i in range(len(xs))]

    return lambda x, y, z: many(x, y, z) * x, [normal(3)(rng) for _ in range(3)]


@case(CASES)
def _recompute_grad(rng: Random):
    block = tf.recompute_grad(lambda x: tf.sin(tf.tanh(x) ** 2))
    return lambda x: block(block(x * 2.0)), [normal(3)(rng)]


@case(CASES)
def _recompute_grad_over_variables(rng: Random):
    v, w = variable(3)(rng), variable(3)(rng)
    block = tf.recompute_grad(lambda x: tf.sin(x * v) * w)
    return lambda x, *_: block(x) * w, [normal(3)(rng), v, w]


def _once(target):
    """Ask one question only: the stock tape forgets what a `tf.py_function` did once it was asked."""
    return Ask(target, None, tf.constant([1.0, -2.0, 3.0]))


@case(CASES, apart=True)
def _py_function(rng: Random):
    def run(x, y):
        return _once(tf.py_function(lambda a, b: a * tf.sin(b), [x, y], tf.float32) * x)

    return run, [normal(3)(rng), normal(3)(rng)]


@case(CASES, apart=True)
def _py_function_of_two_outputs(rng: Random):
    def run(x):
        one, two = tf.py_function(lambda a: (a**2, tf.exp(a)), [x], [tf.float32, tf.float32])
        return _once(one * two)

    return run, [normal(3)(rng)]


@case(CASES, apart=True)
def _py_function_over_a_variable(rng: Random):
    def run(x, v):
        return _once(tf.py_function(lambda a, b: a * b, [x, v], tf.float32) * x)

    return run, [normal(3)(rng), variable(3)(rng)]


CASES += [
    simple("numpy_function", lambda x: tf.numpy_function(np.sin, [x], tf.float32), normal(3)),
    simple(
        "numpy_function_beside",
        lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [3]) * x,
        normal(3),
    ),
    simple(
        "through_numpy_by_hand",
        lambda x: x * tf.constant(np.sin(x.numpy())),
        normal(3),
        eager_only="numpy() of a symbolic tensor",
    ),
    simple("numpy_takes_over", lambda x: x * np.arange(3, dtype=np.float32) + np.float32(2.0) * x, normal(3)),
    simple("tf_numpy", lambda x: tf.experimental.numpy.sum(tf.experimental.numpy.multiply(x, x)), positive(3)),
]
