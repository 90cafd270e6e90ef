"""tf.function in its forms, called from the program that is differentiated."""

from __future__ import annotations

import tensorflow as tf

from conform.table import Case, Random, case, inside, normal, variable

CASES: list[Case] = []


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
