"""Loops, branches and arrays of tensors."""

from __future__ import annotations

import tensorflow as tf

from conform.table import Case, Random, case, normal, positive, simple, variable

CASES: list[Case] = []

CASES += [
    simple(
        "while_loop",
        lambda x: tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, tf.sin(c) * x), [0, x])[1],
        normal(3),
    ),
    simple(
        "while_loop_bounded",
        lambda x: tf.while_loop(lambda c: tf.reduce_sum(c) < 20.0, lambda c: [c * 2.0], [x], maximum_iterations=4)[0],
        positive(3),
    ),
    simple(
        "while_loop_of_no_steps",
        lambda x: tf.while_loop(lambda c: False, lambda c: (c * 2.0,), [x * 3.0])[0],
        positive(3),
    ),
    simple("cond_true", lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x**2, lambda: -x), positive(3)),
    simple(
        "cond_false_with_variable",
        lambda x, v: tf.cond(tf.reduce_sum(x) < 0.0, lambda: x * v, lambda: v**2),
        positive(3),
        variable(3),
    ),
    simple(
        "switch_case",
        lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: x**2, lambda: x**3]),
        normal(3),
    ),
    simple(
        "case_op",
        lambda x: tf.case([(x[0] > 9.0, lambda: x), (x[0] > 0.0, lambda: x**2)], default=lambda: -x),
        positive(3),
    ),
    simple("map_fn", lambda x: tf.map_fn(lambda row: tf.reduce_prod(row) * row, x), normal(3, 2)),
    simple(
        "map_fn_of_two",
        lambda x, y: tf.map_fn(lambda r: r[0] * r[1], (x, y), fn_output_signature=tf.float32),
        normal(3, 2),
        normal(3, 2),
    ),
    simple("map_fn_with_variable", lambda x, v: tf.map_fn(lambda row: row * v, x), normal(3, 2), variable(2)),
    simple("scan", lambda x: tf.scan(lambda a, e: tf.sin(a) * e, x), normal(4, 2)),
    simple(
        "scan_from_start_reversed",
        lambda x, s: tf.scan(lambda a, e: a * e + s, x, initializer=s, reverse=True),
        normal(4, 2),
        normal(2),
    ),
    simple(
        "foldl_foldr",
        lambda x: tf.foldl(lambda a, e: a * e, x) + tf.foldr(lambda a, e: a - e * a, x),
        normal(4, 2),
    ),
    simple(
        "vectorized_map",
        lambda x, w: tf.vectorized_map(lambda row: tf.reduce_sum(tf.sin(row) * w), x),
        normal(4, 2),
        normal(2),
    ),
    simple(
        "vectorized_map_matmul",
        lambda x, w: tf.vectorized_map(lambda m: m @ w, x),
        normal(3, 2, 2),
        variable(2, 2),
    ),
    simple(
        "recompute_of_nothing",
        lambda x: tf.nest.map_structure(lambda t: t**2, {"a": x, "b": (x, x * 2.0)}),
        normal(3),
    ),
]


@case(CASES)
def _tensor_array(rng: Random):
    def run(x):
        array = tf.TensorArray(tf.float32, size=3, clear_after_read=False)
        for i in range(3):
            array = array.write(i, x[i] ** (i + 1))
        return array.stack() * array.read(1)

    return run, [normal(3, 2)(rng)]


@case(CASES)
def _tensor_array_unstack_concat(rng: Random):
    def run(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True).unstack(x * 2.0)
        return array.gather([2, 0]) ** 2

    return run, [normal(3, 2)(rng)]


@case(CASES)
def _tensor_array_in_a_loop(rng: Random):
    def run(x):
        array = tf.TensorArray(tf.float32, size=4)
        _, array, _ = tf.while_loop(
            lambda i, a, c: i < 4,
            lambda i, a, c: (i + 1, a.write(i, tf.reduce_sum(c)), tf.sin(c)),
            [0, array, x],
        )
        return array.stack() ** 2

    return run, [normal(3)(rng)]


@case(CASES)
def _tensor_list(rng: Random):
    def run(x):
        handle = tf.raw_ops.TensorListFromTensor(tensor=x * 2.0, element_shape=[2])
        handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=1, item=x[0] * x[1])
        return tf.raw_ops.TensorListStack(input_handle=handle, element_shape=[2], element_dtype=tf.float32)

    return run, [normal(3, 2)(rng)]
