"""What flows into targets: which forms are taken, and that each means what it means to the stock tape."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors

NUMBERS = [3.0, -1.0, 0.5]
X = tf.constant([1.0, 2.0, 3.0])


def recorded(make, function):
    with make(persistent=True) as tape:
        tape.watch(X)
        y = function(X)
    return tape, y


FUNCTIONS = {
    "square": lambda x: x * x,
    "matvec": lambda x: tf.linalg.matvec(tf.reshape(tf.range(9.0), [3, 3]), x),
    "rows": lambda x: tf.exp(tf.stack([x, 2.0 * x])),
    "sum": tf.reduce_sum,
}


@pytest.mark.parametrize(
    ("function", "given"),
    [
        ("square", tf.constant(NUMBERS)),
        ("square", tf.constant([NUMBERS])),
        ("square", tf.constant([[NUMBERS]])),
        ("square", tf.constant(2.0)),
        ("square", tf.constant([2.0])),
        ("square", np.array(NUMBERS, np.float32)),
        ("square", [np.array([NUMBERS], np.float32)]),
        ("square", 2.0),
        ("square", [np.float32(2.0)]),
        ("matvec", tf.constant([NUMBERS])),
        ("rows", tf.constant(NUMBERS)),
        ("rows", tf.constant([[2.0], [-3.0]])),
        ("sum", tf.constant([2.0])),
        ("sum", 2.0),
    ],
)
def test_what_the_stock_tape_takes(function, given):
    (stock, theirs), (tape, ours) = (recorded(make, FUNCTIONS[function]) for make in (tf.GradientTape, rt.Tape))
    expected = stock.gradient(theirs, X, output_gradients=given)
    np.testing.assert_allclose(tape.gradient(ours, X, output_gradients=given), expected, rtol=1e-6)
    np.testing.assert_allclose(tape.vjp(ours, X, given), expected, rtol=1e-6)
    np.testing.assert_allclose(tape.backward(ours, [X], output_gradients=given)[X], expected, rtol=1e-6)
    (row,) = tape.backward_each([ours], [X], output_gradients=given)
    np.testing.assert_allclose(row[X], expected, rtol=1e-6)


@pytest.mark.parametrize("given", [2, np.array([3, -1, 2]), np.array(NUMBERS), (2,)])
def test_numbers_of_another_type_are_converted(given):
    """The stock tape fails here, in a kernel."""
    tape, y = recorded(rt.Tape, FUNCTIONS["square"])
    weights = tf.cast(given if not isinstance(given, tuple) else given[0], tf.float32)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=given), 2.0 * X * weights, rtol=1e-6)


def test_a_gradient_has_the_shape_of_its_source_though_what_flows_in_has_another():
    tape, y = recorded(rt.Tape, tf.exp)
    assert tape.gradient(y, X, output_gradients=tf.ones([1, 3])).shape == [3]
    assert tape.gradient(y, y, output_gradients=tf.ones([1, 3])).shape == [3]


@pytest.mark.parametrize("shape", [[1, 3], [3], [1], []])
def test_derivatives_with_respect_to_what_flowed_in(shape):
    """The gradient is linear in it: its derivative is the first derivative, summed as it was spread."""
    weight = tf.fill(shape, 0.7)
    tape, y = recorded(rt.Tape, lambda x: x**3)
    found = tape.gradient(tape.gradient(y, X, output_gradients=weight), weight)
    whole = 3.0 * X**2
    expected = tf.reshape(whole if weight.shape.num_elements() == 3 else tf.reduce_sum(whole), shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("place", [0, 1])
def test_none_among_them_is_refused_on_every_route(place):
    tape, y = recorded(rt.Tape, lambda x: [x * x, 3.0 * x])
    given = [tf.ones_like(X)] * 2
    given[place] = None
    refused = pytest.raises(
        ValueError, match=rf"output_gradients number {place} is None; give a tensor for each target: `tf\.zeros_like"
    )
    with refused:
        tape.gradient(y, X, output_gradients=given)
    with refused:
        tape.backward(y, [X], output_gradients=given)
    with refused:
        tape.backward_each([y, y], [X], output_gradients=given)
    with refused:
        tape.vjp(y, X, given)
    stock, theirs = recorded(tf.GradientTape, lambda x: [x * x, 3.0 * x])
    with pytest.raises(ValueError, match="None"):
        stock.gradient(theirs, X, output_gradients=given)


def test_none_is_refused_inside_a_function_and_on_a_loaded_tape(tmp_path):
    @tf.function
    def inside(x):
        with rt.Tape() as tape:
            y = [x * x, 3.0 * x]
        return tape.gradient(y, x, output_gradients=[None, tf.ones_like(x)])

    refused = pytest.raises(errors.ShapeMismatchError, match="output_gradients number 0 is None")
    with refused:
        inside(X)
    tape, (y, z) = recorded(rt.Tape, lambda x: [x * x, 3.0 * x])
    tape.save(tmp_path / "a.tape", {"x": X, "y": y, "z": z})
    with refused:
        rt.load(tmp_path / "a.tape").gradient(["y", "z"], "x", output_gradients=[None, tf.ones_like(X)])
    with refused:
        rt.join(tape).gradient([y, z], X, output_gradients=[None, tf.ones_like(X)])


def test_shapes_are_brought_together_inside_a_function_of_unknown_sizes():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def inside(x):
        with rt.Tape() as tape:
            y = x * x
        return tape.gradient(y, x, output_gradients=tf.constant(2.0))

    np.testing.assert_allclose(inside(X), 4.0 * X)


def test_a_list_of_numbers_for_one_target():
    """The stock tape takes the first of them for all elements, without a word."""
    tape, y = recorded(rt.Tape, FUNCTIONS["square"])
    text = r"Got 3 output_gradients for 1 targets; .* Give numbers .* as one tensor: `tf\.constant"
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.gradient(y, X, output_gradients=NUMBERS)
