"""The backward pass as a program: run on the recorded values, or on others, it gives what the stock tape gives."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.execute import Query, Values, apply_function, run
from retrotape.transform import backward_program, flatten

ROWS = tf.constant([[0.3, -1.2, 0.7], [2.0, 0.1, -0.4]])


def of(function, *sources):
    """Record a function of tensors; return its trace and a query for the gradients of its result."""
    with rt.Tape() as tape:
        target = function(*sources)
    trace = tape._recorded().trace
    return trace, find(trace, target, *sources)


def find(trace, target, *sources):
    """Return the query for the gradients of a target."""
    return Query((trace.tensors.find(target),), (None,), tuple((trace.tensors.find(x),) for x in sources), False)


def gradients(backward, trace, changed=None, seed=1.0):
    """Run the program on the values of the trace, `changed` ones in the place of theirs."""
    changed, values = changed or {}, Values(trace)
    captured = backward.captured(lambda var: changed[var] if var in changed else values(var))
    feeds = dict(zip(backward.function.captures, captured, strict=True))
    for leaf in backward.function.cotangents:
        kind = backward.program.types[leaf]
        feeds[leaf] = tf.fill(kind.shape, tf.constant(seed, kind.dtype))
    found = run(backward.program, feeds)
    return [[found[var] for var in result] for result in backward.function.results]


def stock(function, *sources, seed=1.0):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        target = function(*sources)
    return tape.gradient(target, sources, tf.fill(target.shape, tf.constant(seed, target.dtype)))


FUNCTIONS = {
    "elementwise": lambda x: tf.exp(tf.sin(x)) * x / (1.0 + x * x),
    "sums and matmul": lambda x: tf.reduce_sum(tf.matmul(x, x, transpose_b=True) ** 2),
    "softmax": lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.one_hot([0, 2], 3), x),
    "concat and slices": lambda x: tf.reduce_sum(tf.concat([x[:, :2], x[:, 1:] * x[:, 1:]], 1), 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_gives_the_stock_gradient(name):
    function = FUNCTIONS[name]
    trace, query = of(function, ROWS)
    backward = backward_program(trace, query)
    ((found,),) = gradients(backward, trace, seed=0.5)
    np.testing.assert_array_equal(found, stock(function, ROWS, seed=0.5)[0])


def test_on_other_values_it_is_the_gradient_there():
    def function(x):
        return tf.reduce_sum(x * x * x)

    trace, query = of(function, ROWS)
    env = {leaf: trace.value(leaf) for leaf in range(len(trace.program.types)) if trace.program.producers[leaf] < 0}
    other = ROWS + 1.0
    env[query.sources[0][0]] = other
    changed = run(trace.program, env)
    ((found,),) = gradients(backward_program(trace, query), trace, changed)
    np.testing.assert_allclose(found, stock(function, other)[0], rtol=1e-6)


def test_nothing_is_recorded_on_the_trace():
    trace, query = of(tf.tanh, ROWS)
    before = len(trace.program.eqns), len(trace.program.types)
    backward_program(trace, query)
    assert (len(trace.program.eqns), len(trace.program.types)) == before


def test_a_source_that_is_not_reached_has_no_result():
    trace, query = of(lambda x, y: tf.reduce_sum(x * x) + 0.0 * tf.stop_gradient(tf.reduce_sum(y)), ROWS, ROWS + 1.0)
    assert [len(result) for result in backward_program(trace, query).function.results] == [1, 0]


def test_slices_of_a_table_are_three_results():
    trace, query = of(lambda table: tf.reduce_sum(tf.gather(table, [1, 1, 0]) ** 2), ROWS)
    ((values, indices, shape),) = gradients(backward_program(trace, query), trace)
    found = tf.convert_to_tensor(tf.IndexedSlices(values, indices, shape))
    np.testing.assert_array_equal(
        found, tf.convert_to_tensor(stock(lambda t: tf.reduce_sum(tf.gather(t, [1, 1, 0]) ** 2), ROWS)[0])
    )


def test_rows_without_the_shape_of_the_table():
    @tf.custom_gradient
    def lookup(table):
        return tf.gather(table, [1, 1]), lambda rows: tf.IndexedSlices(rows, tf.constant([1, 1]))

    trace, query = of(lambda table: tf.reduce_sum(lookup(table) ** 2), ROWS)
    ((values, indices, shape),) = gradients(backward_program(trace, query), trace)
    found = tf.convert_to_tensor(tf.IndexedSlices(values, indices, shape))
    np.testing.assert_allclose(found, [[0.0, 0.0, 0.0], 4.0 * ROWS[1]], rtol=1e-6)


def test_as_a_function_of_captures_and_cotangents():
    trace, query = of(FUNCTIONS["elementwise"], ROWS)
    backward = backward_program(trace, query)
    (found,) = apply_function(backward.function, backward.captured(Values(trace)), [tf.ones_like(ROWS)])
    np.testing.assert_array_equal(found, stock(FUNCTIONS["elementwise"], ROWS)[0])


def test_of_a_keras_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(2, "softmax")])
    trace, query = of(lambda x: tf.reduce_mean(model(x) ** 2), ROWS)
    ((found,),) = gradients(backward_program(trace, query), trace)
    np.testing.assert_array_equal(found, stock(lambda x: tf.reduce_mean(model(x) ** 2), ROWS)[0])


def test_a_call_of_a_function_is_refused_until_it_is_inlined():
    @tf.function
    def cube(x):
        return x * x * x

    with rt.Tape() as tape:
        target = tf.reduce_sum(cube(ROWS))
    trace = tape._recorded().trace
    with pytest.raises(rt.errors.TapeUseError, match=r"through function calls .* `flatten\(trace\)`"):
        backward_program(trace, find(trace, target, ROWS))
    flat = flatten(trace)
    ((found,),) = gradients(backward_program(flat, find(flat, target, ROWS)), flat)
    np.testing.assert_allclose(found, 3.0 * ROWS * ROWS, rtol=1e-6)


def test_a_backward_function_that_reads_a_value_in_python_is_refused():
    @tf.custom_gradient
    def clipped(x):
        def grad(dy):
            return dy if float(tf.norm(dy)) < 1.0 else dy / tf.norm(dy)

        return tf.identity(x), grad

    trace, query = of(lambda x: tf.reduce_sum(clipped(x) * 3.0), ROWS)
    message = r"reads a value in Python at .*test_backward_program.py:\d+.*other ops"
    with pytest.raises(rt.errors.TapeUseError, match=message):
        backward_program(trace, query)
