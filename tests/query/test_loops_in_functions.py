"""Second derivatives over loops inside a `tf.function`: TensorFlow changes a loop when it differentiates it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

X = tf.constant(np.random.default_rng(0).normal(size=(2, 3, 2)), tf.float32)


def looping():
    """A loop with variables before, in and behind it."""
    before, inside, behind = (tf.Variable([value, 0.5]) for value in (0.3, 0.7, 1.1))

    def loss():
        state = tf.sin(before) * X[0, 0, 0]
        _, state = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.tanh(a * inside) + a), (0, state))
        return tf.reduce_sum(state * behind * behind)

    return loss, [before, inside, behind]


def recurrent(layer):
    def made():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3, 2)), layer(1), keras.layers.Dense(1)])
        return (lambda: tf.reduce_mean(model(X) ** 2)), model.trainable_variables

    return made


PROGRAMS = {
    "while_loop": looping,
    "GRU": recurrent(keras.layers.GRU),
    "LSTM": recurrent(keras.layers.LSTM),
    "SimpleRNN": recurrent(keras.layers.SimpleRNN),
}


SLOW = ("LSTM", "SimpleRNN")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PROGRAMS], scope="module"
)
def program(request):
    """A loss, its variables, and its Hessian by the stock tape in a function."""
    loss, variables = PROGRAMS[request.param]()

    @tf.function
    def truth():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = loss()
            flat = tf.concat([tf.reshape(grad, [-1]) for grad in inner.gradient(value, variables)], 0)
        rows = outer.jacobian(flat, variables, experimental_use_pfor=False)
        return tf.concat([tf.reshape(row, [flat.shape[0], -1]) for row in rows], 1)

    return loss, variables, truth().numpy()


def flat(parts):
    return np.concatenate([np.reshape(part, -1) for part in parts])


def vectors_for(variables):
    draw = np.random.default_rng(2)
    return [tf.constant(draw.normal(size=variable.shape), tf.float32) for variable in variables]


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_products_with_vectors_one_after_the_other(program):
    loss, variables, hessian = program
    vectors = vectors_for(variables)

    @tf.function
    def ours():
        with rt.Tape() as tape:
            value = loss()
        first = tape.hvp(value, variables, vectors)
        grads = tape.gradient(value, variables)
        return first, grads, tape.hvp(value, variables, vectors), tape.jvp(value, variables, vectors)

    first, grads, second, slope = ours()
    for found in (first, second):
        near(flat(found), hessian @ flat(vectors))
    near(slope, flat(grads) @ flat(vectors))


def test_whole(program):
    loss, variables, hessian = program

    @tf.function
    def ours():
        with rt.Tape() as tape:
            value = loss()
        return tape.hessian(value, variables, whole=True)

    near(ours(), hessian)


def test_a_gradient_that_is_part_of_the_loss(program):
    loss, variables, hessian = program

    @tf.function
    def ours():
        with rt.Tape() as tape:
            grads = tape.gradient(loss(), variables)
            penalty = tf.add_n([tf.reduce_sum(grad * grad) for grad in grads]) / 2.0
        return grads, tape.gradient(penalty, variables)

    grads, found = ours()
    near(flat(found), hessian @ flat(grads))


def test_a_constant_gradient_is_known_after_the_loop_has_changed(program):
    loss, variables, _ = program

    @tf.function
    def ours():
        with rt.Tape() as tape:
            value = loss()
            linear = 3.0 * tf.reduce_sum(variables[-1])
        slope = tape.gradient(linear, variables[-1])
        tape.gradient(value, variables)
        return tape.gradient(slope, variables[-1])

    near(ours(), np.zeros(variables[-1].shape))


INNER = tf.function(lambda x: tf.sin(x) * tf.exp(x))
CHANGED = {
    "a loop": lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.sin(a) + a * x), [0, x])[1],
    "map_fn": lambda x: tf.map_fn(lambda row: tf.exp(row) * tf.reduce_sum(row), x),
    "a call": INNER,
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_stock_tape_around_refuses_the_second_derivative_and_has_the_first(name):
    def both(outer, inner, second):
        @tf.function
        def run(x):
            with outer() as around:
                around.watch(x)
                with inner() as tape:
                    tape.watch(x)
                    loss = tf.reduce_sum(CHANGED[name](x) ** 2)
                slope = tape.gradient(loss, x)
            return slope, around.gradient(slope if second else loss, x)

        return run(tf.constant([[0.5, 0.2], [0.7, -0.1]]))

    expected = both(tf.GradientTape, tf.GradientTape, False)
    for found, truth in zip(both(tf.GradientTape, rt.Tape, False), expected, strict=True):
        near(found, truth)
    near(both(rt.Tape, rt.Tape, True)[1], both(tf.GradientTape, tf.GradientTape, True)[1])
    with pytest.raises(rt.errors.UnseenByStockTapeError, match=r"Use rt\.Tape for the outer tape too, or query one rt"):
        both(tf.GradientTape, rt.Tape, True)
