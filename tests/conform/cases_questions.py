"""The same few programs, asked about in all the ways that the stock tape can be asked."""

from __future__ import annotations

import tensorflow as tf

from conform.table import Ask, Case, Random, case, normal, simple, variable

CASES: list[Case] = []
ZERO = tf.UnconnectedGradients.ZERO


def _two(x, y):
    return tf.sin(x) * y, tf.exp(x) + y


CASES += [
    simple("targets_in_a_list", lambda x, y: list(_two(x, y)), normal(3), normal(3)),
    simple("targets_in_a_dict", lambda x, y: dict(zip("ab", _two(x, y), strict=True)), normal(3), normal(3)),
    simple(
        "targets_in_deep_nests",
        lambda x, y: {"a": [(_two(x, y)[0],)], "b": {"c": _two(x, y)[1]}},
        normal(3),
        normal(3),
    ),
    simple("one_target_twice", lambda x: Ask([y := tf.sin(x), y]), normal(3)),
    simple("target_and_what_it_is_made_of", lambda x: Ask([y := tf.sin(x), y**2]), normal(3)),
    simple("targets_of_several_types", lambda x: [tf.cast(x, tf.float64) ** 2, tf.sin(x)], normal(3)),
    simple("sources_in_a_dict", lambda x, y: Ask(x * y, {"x": x, "more": (y, [x])}), normal(3), normal(3)),
    simple("one_source_alone", lambda x, y: Ask(x * y, x), normal(3), normal(3)),
    simple("source_twice", lambda x: Ask(tf.sin(x), [x, x]), normal(3)),
    simple("variable_source_twice", lambda v: Ask(tf.sin(v) * v, [v, v]), variable(3)),
    simple("variable_source_twice_sparse", lambda v: Ask(tf.gather(v, [0, 0]), [v, v]), variable(3)),
    simple("target_as_source", lambda x: Ask(y := tf.sin(x), [y, x]), normal(3)),
    simple("source_as_one_of_targets", lambda x: Ask([x * 1.0, x], [x]), normal(3)),
    simple("intermediate_as_source", lambda x: Ask(tf.exp(y := tf.sin(x)) * y, [y, x]), normal(3)),
    simple("intermediates_on_one_path", lambda x: Ask(tf.exp(z := tf.cos(y := tf.sin(x))), [z, y, x]), normal(3)),
    simple("intermediate_beside_the_path", lambda x: Ask(tf.exp(x), [tf.sin(x), x]), normal(3)),
    simple("intermediate_of_a_custom_gradient", lambda x: Ask(y := tf.nn.silu(x), [y]), normal(3)),
    simple("no_path_gives_none", lambda x, y: Ask(x**2, [x, y]), normal(3), normal(3)),
    simple("no_path_gives_zero", lambda x, y: Ask(x**2, [x, y], None, ZERO), normal(3), normal(2)),
    simple("no_path_to_a_variable_gives_zero", lambda x, v: Ask(x**2, [v], None, ZERO), normal(3), variable(2, 2)),
    simple(
        "zero_and_sparse",
        lambda v, w: Ask(tf.gather(v, [0, 0]), [v, w], None, ZERO),
        variable(3),
        variable(2),
    ),
    simple("output_gradients", lambda x, g: Ask(tf.sin(x), [x], tf.cos(g)), normal(3), normal(3)),
    simple(
        "output_gradients_of_some",
        lambda x, y: Ask(list(_two(x, y)), [x, y], [tf.constant([1.0, 2.0, 3.0]), tf.zeros([3])]),
        normal(3),
        normal(3),
    ),
    simple("output_gradients_of_zero", lambda x: Ask(tf.sin(x), [x], tf.zeros([3])), normal(3)),
    simple(
        "stopped_path_is_none_not_zero",
        lambda x, y: Ask(tf.stop_gradient(x) * y, [x, y]),
        normal(3),
        normal(3),
    ),
    simple("times_zero_is_zero_not_none", lambda x, y: Ask(x * 0.0 * y, [x, y]), normal(3), normal(3)),
    simple("empty_tensors", lambda x: tf.reduce_sum(x[:0] ** 2, 0), normal(3, 2)),
    simple("nan_and_inf", lambda x: tf.sqrt(x * 0.0) * x + 1.0 / (x * 0.0), normal(3)),
    simple("large_and_small", lambda x: tf.exp(x * 60.0), normal(3)),
    simple("unused_integer_target_beside", lambda x: Ask((tf.argmax(x), x**2)[1], [x]), normal(3)),
]


@case(CASES)
def _stock_tape_inside(rng: Random):
    def run(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(x**3)
        return inner.gradient(y, x) * x

    return run, [normal(3)(rng)]


@case(CASES)
def _stock_tape_inside_over_a_variable(rng: Random):
    def run(x, v):
        with tf.GradientTape() as inner:
            y = tf.reduce_sum(tf.sin(v * x))
        return inner.gradient(y, v) * x

    return run, [normal(3)(rng), variable(3)(rng)]


@case(CASES)
def _stock_jacobian_inside(rng: Random):
    def run(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.sin(x) * tf.reduce_sum(x)
        return inner.jacobian(y, x)

    return run, [normal(3)(rng)]


@case(CASES)
def _third_order_by_stock_tapes_inside(rng: Random):
    def run(x):
        with tf.GradientTape() as two:
            two.watch(x)
            with tf.GradientTape() as one:
                one.watch(x)
                y = tf.reduce_sum(tf.sin(x) * x**2)
            first = one.gradient(y, x)
        return two.gradient(first, x)

    return run, [normal(3)(rng)]


@case(CASES)
def _forward_accumulator_inside(rng: Random):
    def run(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            y = tf.sin(x) * x
        return forward.jvp(y)

    return run, [normal(3)(rng)]


@case(CASES)
def _stock_gradient_of_a_function_inside(rng: Random):
    inner_call = tf.function(lambda x: tf.sin(x) * x**2)

    def run(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = inner_call(x)
        return inner.gradient(y, x)

    return run, [normal(3)(rng)]


@case(CASES)
def _stock_gradient_of_a_custom_gradient_inside(rng: Random):
    @tf.custom_gradient
    def cube(x):
        return x**3, lambda upstream: upstream * 5.0 * x**2

    def run(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        return inner.gradient(y, x)

    return run, [normal(3)(rng)]


@case(CASES)
def _paused_stock_tape_inside(rng: Random):
    def run(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = x**2
            with inner.stop_recording():
                factor = tf.sin(x)
            z = y * factor
        return inner.gradient(z, x)

    return run, [normal(3)(rng)]
