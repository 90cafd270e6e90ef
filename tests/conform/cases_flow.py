"""Loops, branches, arrays of tensors, and tf.function in its forms."""

from __future__ import annotations

import tensorflow as tf

from conform.table import Case, Random, case, inside, normal, positive, simple, variable

CASES: list[Case] = []

CASES += [
    simple(
        "while_loop",
        lambda x: tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, tf.sin(c) * x), [0, x])[1],
        normal(3),
    ),
    simple(
        "while_loop_bounded",
        lambda x: tf.while_loop(
            lambda c: tf.reduce_sum(c) < 20.0, lambda c: [c * 2.0], [x], maximum_iterations=4
        )[0],
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


# ------------------------------------------------------------------ tf.function


@case(CASES)
def _function(rng: Random):
    inner = tf.function(lambda x, y: tf.sin(x) * y)
    return lambda x, y: inner(x, y) + inner(y, x), [normal(3)(rng), normal(3)(rng)]


@case(CASES)
def _function_over_captured_variable(rng: Random):
    v = variable(3)(rng)
    inner = tf.function(lambda x: tf.sin(x) * v)
    return lambda x, w: inner(x) * w, [normal(3)(rng), v]


@case(CASES)
def _function_over_captured_tensor(rng: Random):
    k = normal(20, 10)(rng)
    inner = tf.function(lambda x: tf.sin(x) * k)
    return lambda x: inner(x), [normal(10)(rng)]


@case(CASES)
def _function_given_a_variable(rng: Random):
    inner = tf.function(lambda v, x: v * x + v**2)
    return inner, [variable(3)(rng), normal(3)(rng)]


@case(CASES)
def _function_in_a_function(rng: Random):
    v = variable(3)(rng)
    innermost = tf.function(lambda x: tf.sin(x) * v)
    inner = tf.function(lambda x: innermost(x) + innermost(x * 2.0))
    return lambda x, w: inner(x), [normal(3)(rng), v]


@case(CASES, tolerance=1e-5)
def _function_compiled(rng: Random):
    v = variable(3)(rng)
    inner = tf.function(lambda x: tf.sin(x) * v + tf.reduce_sum(x), jit_compile=True)
    return lambda x, w: inner(x) * 2.0, [normal(3)(rng), v]


@case(CASES)
def _function_with_python_flow(rng: Random):
    @tf.function
    def inner(x, n):
        total = tf.zeros_like(x)
        for i in tf.range(n):
            if tf.reduce_sum(x) > tf.cast(i, tf.float32):
                total += x**2
            else:
                total += tf.sin(x)
        return total

    return lambda x: inner(x, tf.constant(4)), [normal(3)(rng)]


@case(CASES)
def _function_with_while_over_a_variable(rng: Random):
    v = variable(3)(rng)

    @tf.function
    def inner(x):
        i = 0
        while i < 3 and tf.reduce_sum(tf.abs(x)) > 0.0:
            x = tf.sin(x) * v
            i += 1
        return x

    return lambda x, w: inner(x), [normal(3)(rng), v]


@case(CASES)
def _function_with_dropout(rng: Random):
    inner = tf.function(lambda x: tf.nn.dropout(x**2, 0.5))
    return lambda x: inner(x) * x, [normal(6, 4)(rng)]


@case(CASES)
def _function_that_assigns(rng: Random):
    v = variable(3)(rng)

    @tf.function
    def inner(x):
        before = v * x
        v.assign_add(x)
        return before + v**2

    return lambda x, w: inner(x) + w * x, [normal(3)(rng), v]


@case(CASES)
def _function_that_only_assigns(rng: Random):
    v = variable(3)(rng)

    @tf.function
    def inner(x):
        v.assign(x * 2.0)

    def run(x, w):
        before = w * x
        inner(x)
        return before + w**2

    return run, [normal(3)(rng), v]


@case(CASES)
def _function_returning_a_nest(rng: Random):
    @tf.function
    def inner(x):
        return {"a": x**2, "b": [tf.sin(x), (tf.shape(x)[0], None)], "word": tf.constant("w")}

    def run(x):
        result = inner(x)
        return [result["b"][0], result["a"] * tf.cast(result["b"][1][0], tf.float32)]

    return run, [normal(3)(rng)]


@case(CASES)
def _function_returning_its_input(rng: Random):
    inner = tf.function(lambda x: (x, x**2))

    def run(x):
        same, square = inner(x)
        return same * square

    return run, [normal(3)(rng)]


@case(CASES)
def _function_with_gather(rng: Random):
    v = variable(4, 2)(rng)
    inner = tf.function(lambda ids: tf.gather(v, ids) ** 2)
    return lambda w: inner(tf.constant([0, 2, 0])), [v]


@case(CASES)
def _function_with_unused_output(rng: Random):
    inner = tf.function(lambda x, y: (x**2, tf.sin(y), x * y))
    return lambda x, y: inner(x, y)[0], [normal(3)(rng), normal(3)(rng)]


@case(CASES)
def _function_with_ragged_and_sparse(rng: Random):
    @tf.function
    def inner(x):
        return tf.RaggedTensor.from_row_lengths(x**2, [1, 2]), tf.SparseTensor([[0, 0]], x[:1], [1, 1])

    def run(x):
        ragged, sparse = inner(x)
        return tf.reduce_sum(ragged.to_tensor(), 1) * tf.sparse.to_dense(sparse)[0]

    return run, [normal(3)(rng)]


@case(CASES)
def _function_with_a_tape_inside(rng: Random):
    @tf.function
    def inner(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(x) ** 2)
        return tape.gradient(y, x)

    return lambda x: inner(x) * x, [normal(3)(rng)]


@case(CASES)
def _function_with_signature(rng: Random):
    inner = tf.function(
        lambda x: tf.reduce_sum(x**3, 0), input_signature=[tf.TensorSpec([None, 2])], reduce_retracing=True
    )
    return lambda x: inner(x) * inner(x[:1]), [normal(3, 2)(rng)]


@case(CASES)
def _concrete_function(rng: Random):
    inner = tf.function(lambda x: tf.sin(x) * x).get_concrete_function(tf.TensorSpec([3]))
    return lambda x: inner(x) ** 2, [normal(3)(rng)]


@case(CASES)
def _function_of_a_module(rng: Random):
    class Affine(tf.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = variable(3, 2)(rng), variable(2)(rng)

        @tf.function
        def __call__(self, x):
            return tf.tanh(x @ self.w + self.b)

    affine = Affine()
    return lambda x, *_: affine(x), [normal(4, 3)(rng), *affine.trainable_variables]


@case(CASES)
def _function_with_random_generator(rng: Random):
    generator = tf.random.Generator.from_seed(3)
    inner = tf.function(lambda x: x * generator.normal([3]))
    return lambda x: inner(x) * inner(x), [normal(3)(rng)]


@case(CASES)
def _function_called_in_a_loop(rng: Random):
    v = variable(3)(rng)
    inner = tf.function(lambda x: tf.tanh(x * v))

    def run(x, w):
        for _ in range(5):
            x = inner(x)
        return x

    return run, [normal(3)(rng), v]


@case(CASES)
def _function_with_map_fn(rng: Random):
    inner = tf.function(lambda x: tf.map_fn(lambda row: tf.cumsum(row) ** 2, x))
    return inner, [normal(3, 2)(rng)]


@case(CASES)
def _function_of_narrow_types(rng: Random):
    inner = tf.function(lambda x: tf.cast(tf.sin(tf.cast(x, tf.float64)), tf.float32) * x)
    return inner, [inside(3)(rng)]


@case(CASES)
def _function_with_integer_and_bool_outputs(rng: Random):
    inner = tf.function(lambda x: (tf.argmax(x), x > 0.0, x**2))

    def run(x):
        best, positives, square = inner(x)
        return tf.where(positives, square, -x) * tf.cast(best, tf.float32)

    return run, [normal(5)(rng)]
