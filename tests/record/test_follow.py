"""A block that runs again is compared with its last program; what is recorded is what would be recorded without."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import batch, dense_net
from helpers.warm import forgetful
from record.following import assert_like, check, described, has_followed, trace_of

X = tf.constant([0.5, -1.5, 2.0])
W = tf.Variable([1.0, -2.0, 3.0], name="w")
E = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)) / 5.0, name="embedding")
CASES = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(autouse=True)
def _begins_without_programs() -> Iterator[None]:
    with forgetful():
        yield
    put_back()


def put_back() -> None:
    """Give the variables the values that they began with."""
    W.assign([1.0, -2.0, 3.0])
    E.assign(tf.reshape(tf.range(12.0), (4, 3)) / 5.0)


@tf.custom_gradient
def cubed(a):
    return a**3, lambda dy: dy * 3.0 * a**2


def branches(a):
    first, *rest = tf.split(a, 3)
    return tf.concat([*rest, first, first], 0)


def norms(a):
    mean, variance = tf.nn.moments(a, [0])
    return (a - mean) / tf.sqrt(variance + 0.1)


def read_in_python(a):
    total = float(tf.reduce_sum(a))
    y = a * total
    assert y.numpy().shape == (3,)
    return y + a


def assigned(a):
    W.assign(W * a)
    y = W * 2.0
    W.assign_add(y)
    W.assign_sub(tf.sin(W))
    return W * y


def scattered(a):
    E.scatter_nd_update([[0], [2]], tf.stack([a, a * 2.0]))
    rows = tf.gather(E, [0, 2, 2])
    E.scatter_add(tf.IndexedSlices(rows[:1], [3]))
    return tf.reduce_sum(E, 0) + rows[0] + E.sparse_read([1, 3])[1]


BODIES = {
    "ops": lambda a: tf.sin(a) * a + tf.cos(a),
    "constants of Python": lambda a: a * 3.0 + [1.0, 2.0, 3.0],
    "lists of inputs and outputs": branches,
    "variables": lambda a: a * W + tf.reduce_sum(W),
    "attributes": lambda a: tf.nn.leaky_relu(a, 0.3) + tf.cumsum(a, exclusive=True),
    "slices": lambda a: tf.tile(a[None, 1:, tf.newaxis], [1, 2, 1])[0, :3, 0],
    "a custom gradient": lambda a: cubed(a * 2.0) + a,
    "moments": norms,
    "reads in Python": read_in_python,
    "stopped gradients": lambda a: tf.stop_gradient(a * a) * a,
    "integers": lambda a: tf.gather(a, tf.argsort(a)) * tf.cast(tf.argmax(a), tf.float32),
    "random numbers": lambda a: a * tf.random.stateless_uniform([3], [1, 2]),
    "assignments": assigned,
    "scattered updates, gathered reads": scattered,
    "what nothing uses": lambda a: (tf.exp(a), a * 2.0)[1],
    "nothing but its input": lambda a: a,
}


@pytest.mark.parametrize("name", list(BODIES))
def test_a_warm_tape_has_recorded_what_a_cold_one_has(name: str):
    def block(scale):
        put_back()
        with rt.Tape() as tape:
            BODIES[name](X * scale)
        return tape

    check(block, *CASES)


@pytest.mark.parametrize("name", list(BODIES))
def test_it_is_so_after_queries_that_decide_what_is_kept(name: str):
    """Once a query is compiled, only what its function takes is kept; everything else is recomputed."""

    def block(scale):
        put_back()
        x = X * scale
        with rt.Tape() as tape:
            y = tf.reduce_sum(BODIES[name](x * 1.0))
        tape.gradient(y, [x, W, E])
        return tape

    check(block, *CASES, 5.0, followed=None)


def test_less_is_kept_once_a_query_is_compiled():
    def block():
        with rt.Tape() as tape:
            y = X
            for _ in range(10):
                y = tf.sin(y) * 2.0
            loss = tf.reduce_sum(y)
        tape.gradient(loss, X)
        return tape

    kept = [block().memory().bytes for _ in range(5)]
    assert kept[4] <= kept[0]
    values = [float(tape_value) for tape_value in block().tensors(op="Sin")[3]]
    with rt.config(compile=False):
        assert values == [float(tape_value) for tape_value in block().tensors(op="Sin")[3]]


def test_keras_layers_and_their_calls():
    net = dense_net()

    def block(rows):
        with rt.Tape() as tape:
            tf.reduce_sum(net(batch(rows)) ** 2)
        return tape

    check(block, 4, 4, 4)


def test_batch_normalization_updates_its_averages():
    keras.utils.set_random_seed(0)
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))
    initial = [weight.numpy() for weight in layer.weights]

    def block(rows):
        for weight, value in zip(layer.weights, initial, strict=True):
            weight.assign(value)
        with rt.Tape() as tape:
            tf.reduce_sum(layer(batch(rows), training=True) ** 2)
        return tape

    check(block, 4, 4, 4, followed=None)


@pytest.mark.parametrize("keep", ["all", "leaves", "segments"])
def test_only_the_default_way_of_keeping_follows(keep: str):
    def block(_):
        with rt.Tape(keep=keep) as tape:
            tf.sin(X) * 2.0
        return tape

    check(block, 1, 1, 1, followed=False)


def test_a_block_that_calls_a_function_is_recorded_each_time():
    function = tf.function(lambda a: tf.sin(a) * 2.0)

    def block(scale):
        with rt.Tape() as tape:
            function(X * scale)
        return tape

    check(block, *CASES, followed=False)


# ------------------------------------------------------------------ where it differs

ONE = [tf.sin, tf.cos, tf.tanh, tf.exp, tf.abs, tf.nn.relu, tf.nn.softplus, tf.negative]
OTHER = [tf.square, tf.sigmoid, tf.nn.elu, tf.atan, tf.sinh, tf.math.erf, tf.math.ceil, tf.floor]


def chain(functions):
    with rt.Tape() as tape:
        y = X * W
        for function in functions:
            y = function(y)
    return tape


@pytest.mark.parametrize("length", range(len(ONE) + 1))
def test_a_program_may_differ_at_any_op(length: int):
    mixed = [*ONE[:length], *OTHER[length:]]
    check(chain, ONE, ONE, mixed, followed=length == len(ONE))
    check(chain, ONE)
    check(chain, mixed)


@pytest.mark.parametrize("length", range(len(ONE)))
def test_a_program_may_end_at_any_op_or_go_on(length: int):
    check(chain, ONE, ONE, ONE[:length], followed=False)
    check(chain, ONE[:length])
    check(chain, [*ONE, *OTHER[:length]], followed=length == 0)


def twisted(kind: str | None):
    """Record a program that a word changes in one place."""
    other = {"constant": X * 1.0, "variable": W, "dtype": tf.cast(X, tf.float64)}
    with rt.Tape() as tape:
        y = X * W
        z = tf.sin(y)
        if kind == "input":
            z = z * y
        else:
            z = z * z
        shape = tf.reshape(z, [1, 3] if kind == "shape" else [3, 1])
        leaky = tf.nn.leaky_relu(shape, 0.1 if kind == "attribute" else 0.2)
        total = leaky + (other[kind][0] if kind in ("constant", "variable") else 1.0)
        if kind == "order":
            left, right = tf.cos(total), tf.exp(total)
        else:
            right, left = tf.exp(total), tf.cos(total)
        tf.concat([left, right], 0)
        if kind == "dtype":
            other[kind] * 2.0
    return tape


TWISTS = ["input", "shape", "attribute", "constant", "variable", "order", "dtype"]


@pytest.mark.parametrize("kind", TWISTS)
def test_a_difference_of_any_kind_is_noticed(kind: str):
    check(twisted, None, None, kind, followed=None)
    check(twisted, None, kind, None, followed=None)
    check(twisted, kind)


def test_programs_that_take_turns_are_all_followed():
    for _ in range(2):
        for kind in (None, *TWISTS[:4]):
            twisted(kind)
    for kind in (None, *TWISTS[:4], *TWISTS[3::-1]):
        check(twisted, kind)


def test_a_program_that_another_one_begins_with_is_followed_too():
    for _ in range(3):
        chain(ONE[:3])
        chain(ONE)
    assert has_followed(chain(ONE))
    assert has_followed(chain(ONE[:3]))


def test_another_shape_of_the_input_is_another_program():
    def block(rows):
        x = batch(rows)
        with rt.Tape() as tape:
            tf.reduce_sum(x * 2.0)
        return tape

    check(block, 3, 3, 3)
    check(block, 4, followed=False)
    check(block, 4)
    check(block, 3)


def test_a_tensor_that_is_used_twice_is_told_from_two():
    def block(same):
        one = X * 1.0
        other = one if same else X * 1.0
        with rt.Tape() as tape:
            one * other
        return tape

    check(block, True, True, True)
    check(block, False, followed=False)
    check(block, True, True, False, True)
    assert described(block(True))["program"] != described(block(False))["program"]


def test_another_variable_may_take_the_place_of_one():
    some = [tf.Variable([1.0, 2.0, 3.0], name="a"), tf.Variable([4.0, 5.0, 6.0], name="b")]

    def block(number):
        with rt.Tape() as tape:
            X * some[number]
        return tape

    check(block, 0, 0, 0)
    check(block, 1)
    check(block, 0)


def test_two_variables_are_told_from_one():
    some = [tf.Variable([1.0, 2.0, 3.0], name="a"), tf.Variable([4.0, 5.0, 6.0], name="b")]

    def block(numbers):
        with rt.Tape() as tape:
            for number in numbers:
                X * some[number]
        return tape

    check(block, (0, 0), (0, 0), (1, 1))
    check(block, (0, 1), followed=False)
    check(block, (1, 0))
    check(block, (0, 0))


def test_a_read_in_python_may_come_or_not():
    def block(reads):
        with rt.Tape() as tape:
            y = tf.sin(X)
            if reads:
                y.numpy()
            y * 2.0
        return tape

    check(block, True, True, False)
    check(block, True)


def test_a_read_in_python_that_does_not_come_leaves_no_line():
    def block(reads):
        with rt.Tape() as tape:
            y = tf.sin(X)
            if reads:
                y.numpy()
            y * 2.0
        return tape

    block(True)
    warm = block(False)
    with rt.config(compile=False):
        assert str(warm.program) == str(block(False).program)


def test_the_line_of_an_op_is_part_of_the_program():
    def block(upper):
        with rt.Tape() as tape:
            if upper:
                tf.sin(X)
            else:
                tf.sin(X)
        return tape

    check(block, True, True, True)
    check(block, False, followed=False)


def test_following_again_gives_the_same_gradients():
    tapes = []
    for _ in range(4):
        with rt.Tape() as tape:
            y = tf.reduce_sum(cubed(X * W))
        tapes.append((tape, y))
    for tape, y in tapes:
        np.testing.assert_array_equal(tape.gradient(y, W), 3.0 * (X * W) ** 2 * X)
    assert_like(tapes[-1][0], tapes[0][0])
    assert trace_of(tapes[-1][0]).followed() is trace_of(tapes[-2][0]).followed()
    assert has_followed(tapes[1][0])
