"""Queries that come again are compiled: when, with which results, and why not."""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import batch, dense_net
from helpers.warm import FIRST, assert_same, reasons, refused
from retrotape.lower import _queries
from retrotape.record import NO_QUERY
from retrotape.tf.core import context

W = tf.Variable([1.0, -2.0, 3.0], name="w")
M = tf.Variable(tf.reshape(tf.range(12.0), (3, 4)) / 7.0, name="m")
SCALES = [0.5, 1.0, 1.5, 2.0, 2.5]


def step(scale: float):
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sin(W * scale) ** 2)
    return tape, tape.gradient(loss, [W])


EARLIER: set[str] = set()


@pytest.fixture(autouse=True)
def _other_tests_may_hold_functions() -> None:
    EARLIER.clear()
    EARLIER.update(functions())


def functions() -> set[str]:
    """Return the names of the functions that were compiled in this test and that TensorFlow knows."""
    names = context.context().list_function_names()
    return {name for name in names if name.startswith("__retrotape_")} - EARLIER


def test_the_third_step_is_compiled():
    assert reasons(step, *SCALES) == [FIRST, FIRST, None, None, None]


def test_a_query_on_a_tape_that_was_not_queried_has_its_own_text():
    with rt.Tape() as tape:
        pass
    assert tape.why_not_compiled() == NO_QUERY == "no query has run on this tape"


def test_a_second_query_of_the_same_step_is_compiled_too():
    def two(scale):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(W**3 * scale)
            other = tf.reduce_prod(W)
        return tape, [tape.gradient(loss, [W]), tape.gradient(other, [W])]

    assert reasons(two, *SCALES) == [FIRST, FIRST, None, None, None]
    assert len(functions()) == 2


def test_the_same_query_on_one_tape_is_compiled():
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sin(W))
    found = []
    for _ in range(4):
        np.testing.assert_array_equal(tape.gradient(loss, [W])[0], tf.cos(W))
        found.append(tape.why_not_compiled())
    assert found == [FIRST, FIRST, None, None]


def test_a_block_that_is_written_twice_shares_its_function():
    """The key is what was recorded, not where; only following is by line."""

    def one(scale):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(W * scale))
        return tape, tape.gradient(loss, [W])

    def other(scale):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(W * scale))
        return tape, tape.gradient(loss, [W])

    assert reasons(one, 1.0, 2.0) == [FIRST, FIRST]
    assert len(functions()) == 1
    reasons(other, 1.0, 2.0)
    assert len(functions()) == 1


def test_training_gives_the_bits_of_training_op_by_op():
    def train() -> list[np.ndarray]:
        net, data = dense_net(), batch(8)
        optimizer = keras.optimizers.Adam(0.1)
        for _ in range(6):
            with rt.Tape() as tape:
                loss = tf.reduce_mean(net(data) ** 2)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True)
            )
        assert (tape.why_not_compiled() is None) == compiled
        return [variable.numpy() for variable in net.variables]

    compiled = True
    ours = train()
    compiled = False
    with rt.config(compile=False):
        theirs = train()
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_with_always_the_first_step_is_compiled():
    with rt.config(compile="always"):
        _, found = step(1.0)
        assert len(functions()) == 1
        step(2.0)
        assert step(3.0)[0].why_not_compiled() is None
    assert_same(found, [2.0 * tf.sin(W) * tf.cos(W)])
    assert len(functions()) == 1


# ------------------------------------------------------------------ values that decide


@pytest.mark.parametrize("make", [lambda axis: axis, lambda axis: tf.constant(axis)], ids=["Python", "a tensor"])
def test_an_axis_may_change_between_steps(make):
    def reduced(axis):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.reduce_prod(tf.matmul(M, M, transpose_b=True), make(axis)) ** 2)
        return tape, tape.gradient(loss, [M])

    found = reasons(reduced, 0, 0, 0, 1, 1, 1, 0, 1)
    assert found == [FIRST, FIRST, None, FIRST, FIRST, None, None, None]


def test_a_permutation_may_change_between_steps():
    cube = tf.Variable(tf.reshape(tf.range(27.0), (3, 3, 3)))

    def permuted(axes):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.transpose(cube, axes) * tf.reshape(tf.range(27.0) ** 2, (3, 3, 3)))
        return tape, tape.gradient(loss, [cube])

    some = [(0, 1, 2), (2, 1, 0), (1, 2, 0)]
    reasons(permuted, *(some[number] for number in (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2)))
    assert reasons(permuted, *some) == [None, None, None]


def test_indices_of_a_gather_may_change_between_steps():
    def gathered(rows):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.gather(M, rows) ** 2)
        return tape, tape.gradient(loss, [M])

    assert reasons(gathered, [0, 1], [2, 1], [2, 2], [0, 0], [1, 2])[2:] == [None, None, None]


def test_a_mask_may_select_another_number_each_time():
    def masked(bound):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.boolean_mask(W, bound < W) ** 2)
        return tape, tape.gradient(loss, [W])

    reasons(masked, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, -5.0, -5.0, -5.0, 0.0, 2.0)


@pytest.mark.parametrize("first", [2.0, 3.0])
def test_an_exponent_may_change_between_steps(first: float):
    """The gradient of a cube has a square in it, which is special."""

    def power(exponent):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(W**exponent)
        return tape, tape.gradient(loss, [W])

    found = reasons(power, *[first] * 3, 4.0, 4.0, 4.0, 3.0, 2.0, 1.0, 0.0)
    assert found[2] is None
    assert found[5:] == [None] * 5


def test_a_shape_may_change_between_steps():
    def shaped(rows):
        with rt.Tape() as tape:
            loss = tf.reduce_mean(tf.ones([rows, 3]) * W)
        return tape, tape.gradient(loss, [W])

    assert reasons(shaped, 2, 2, 2, 5, 5, 5, 2, 5) == [FIRST, FIRST, None, FIRST, FIRST, None, None, None]


def test_at_most_four_variants_are_compiled():
    @tf.custom_gradient
    def scaled(a, number):
        return a * 1.0, lambda dy: (dy * float(number), None)

    def by_value(number):
        given = tf.constant(number)
        with rt.Tape() as tape:
            loss = tf.reduce_sum(scaled(W, given))
        return tape, tape.gradient(loss, [W])

    for number in range(_queries.VARIANTS):
        assert reasons(by_value, *[float(number)] * 3)[2] is None
    assert refused(by_value, 9.0) == "gradient functions read values in Python that change each time"
    assert reasons(by_value, 0.0, 3.0) == [None, None]


def test_after_four_different_computations_no_more_are_observed():
    @tf.custom_gradient
    def scaled(a, number):
        return a * 1.0, lambda dy: (dy * float(number), None)

    def by_value(number):
        given = tf.constant(number)
        with rt.Tape() as tape:
            loss = tf.reduce_sum(scaled(W, given))
        return tape, tape.gradient(loss, [W])

    found = reasons(by_value, *map(float, range(6)))
    text = "gradient functions run other ops, or use other constants, each time"
    assert found == [FIRST] * (_queries.ATTEMPTS - 1) + [text] * 3


# ------------------------------------------------------------------ when it is not compiled


@pytest.mark.parametrize("keep", ["leaves", "segments", "disk"])
def test_tapes_that_recompute_values_are_not_compiled(keep: str):
    def kept(_):
        with rt.Tape(keep=keep) as tape:
            loss = tf.reduce_sum(tf.sin(W))
        return tape, tape.gradient(loss, [W])

    assert refused(kept) == f"keep={keep!r}: values are recomputed part by part"


def test_switched_off_nothing_is_compiled():
    with rt.config(compile=False):
        for _ in range(4):
            tape, _ = step(1.0)
            assert tape.why_not_compiled() == "compilation is off: `rt.config(compile=True)` switches it on"
    assert not functions()


def test_a_query_that_another_tape_records_is_not_compiled():
    def nested(scale):
        with rt.Tape() as outer:
            tape, found = step(scale)
        return tape, [*found, *outer.gradient(found[0], [W])]

    assert refused(nested, 1.0) == "a tape, or a forward accumulator, records the query itself"


def test_a_query_that_a_stock_tape_records_is_not_compiled():
    def nested(scale):
        with tf.GradientTape() as outer:
            tape, found = step(scale)
        return tape, [*found, *outer.gradient(found[0], [W])]

    assert refused(nested, 1.0) == "a tape, or a forward accumulator, records the query itself"


def test_a_query_that_an_accumulator_follows_is_not_compiled():
    def nested(scale):
        with tf.autodiff.ForwardAccumulator(W, tf.ones(3)) as outer:
            tape, found = step(scale)
        return tape, [*found, outer.jvp(found[0])]

    assert refused(nested, 1.0) == "a tape, or a forward accumulator, records the query itself"


def test_inside_a_function_the_gradient_is_part_of_its_graph():
    texts = []

    @tf.function
    def inside():
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(W))
        found = tape.gradient(loss, [W])
        texts.append(tape.why_not_compiled())
        return found

    assert_same(inside(), [tf.cos(W)])
    assert texts[-1] == "inside a tf.function, the gradient is part of the function's graph"


def test_a_gradient_that_is_differentiated_again_has_the_second_derivative():
    def twice(scale):
        tape, (first,) = step(scale)
        return tape, [first, tape.gradient(first, W)]

    reasons(twice, *SCALES)


# ------------------------------------------------------------------ errors


@tf.custom_gradient
def inverted(a):
    return a * 1.0, tf.linalg.inv


def test_an_error_in_a_compiled_function_is_that_of_the_op():
    x = tf.ones([2, 2])

    def step(seed):
        with rt.Tape() as tape:
            y = inverted(x)
        return tape, [tape.gradient(y, x, output_gradients=seed)]

    assert reasons(step, tf.eye(2), tf.eye(2) * 2.0, tf.eye(2) * 3.0) == [FIRST, FIRST, None]
    texts = []
    for compile in (True, False):
        with rt.config(compile=compile), pytest.raises(tf.errors.InvalidArgumentError) as caught:
            step(tf.zeros([2, 2]))
        texts.append(caught.value.message)
    assert "Input is not invertible" in texts[0]
    assert texts[0] == texts[1]
    assert reasons(step, tf.eye(2) * 4.0) == [None]


# ------------------------------------------------------------------ what stays alive


def test_what_a_query_computed_is_not_kept_alive():
    def once():
        given = tf.constant([1.0, 2.0, 3.0]) * 1.0
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(W * given))
        (found,) = tape.gradient(loss, [W])
        return [weakref.ref(tensor) for tensor in (given, loss, found)], weakref.ref(tape)

    refs = [once() for _ in range(5)]
    gc.collect()
    assert all(ref() is None for tensors, tape in refs for ref in (*tensors, tape))


def test_variables_are_not_kept_alive():
    def once():
        variable = tf.Variable([1.0, 2.0])
        for _ in range(4):
            with rt.Tape() as tape:
                loss = tf.reduce_sum(variable**2)
            tape.gradient(loss, [variable])
        assert tape.why_not_compiled() is None
        return weakref.ref(variable)

    found = once()
    gc.collect()
    assert found() is None
