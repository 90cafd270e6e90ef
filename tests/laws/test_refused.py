"""Questions of higher order that have no answer, and what is said about them."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from laws.examples import record
from retrotape import errors


@pytest.fixture
def square() -> tuple[rt.Tape, tf.Tensor, tf.Tensor]:
    x = tf.constant([1.0, 2.0])
    tape, y = record(lambda x: x * x, x)
    return tape, y, x


@pytest.mark.parametrize("method", ["hvp", "hessian"])
def test_second_derivatives_take_a_scalar(square: tuple, method: str):
    tape, y, x = square
    arguments = [y, x] if method == "hessian" else [y, x, x]
    text = rf"{method} takes a scalar target, got shape \(2,\)\. Reduce it inside the block: `loss = tf\.reduce_sum"
    with pytest.raises(errors.ShapeMismatchError, match=text):
        getattr(tape, method)(*arguments)


def test_tangent_of_another_shape(square: tuple):
    tape, y, x = square
    text = r"Got a tangent float32\[3\] for a source float32\[2\]; each tangent must have the dtype and shape"
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.jvp(y, x, tf.ones([3]))


def test_tangent_of_another_dtype(square: tuple):
    tape, y, x = square
    with pytest.raises(errors.ShapeMismatchError, match=r"Got a tangent float64\[2\] for a source float32\[2\]"):
        tape.jvp(y, x, tf.ones([2], tf.float64))


def test_too_few_tangents(square: tuple):
    tape, y, x = square
    text = r"Got 1 tangents for 2 sources; give one tangent for each source\."
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.jvp(y, [x, x], [tf.ones([2])])


def test_vector_of_another_shape(square: tuple):
    tape, _, x = square
    with tape:
        z = tf.reduce_sum(x**3)
    with pytest.raises(errors.ShapeMismatchError, match=r"Got a vector float32\[\] for a source float32\[2\]"):
        tape.hvp(z, x, tf.constant(1.0))
    with pytest.raises(errors.ShapeMismatchError, match=r"Got 2 vectors for 1 sources"):
        tape.hvp(z, x, [x, x])


def test_per_example_takes_a_vector(square: tuple):
    tape, _, x = square
    with tape:
        matrix = x[:, None] * x
    text = r"per_example takes a vector of losses, one for each example, got shape \(2, 2\)"
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.per_example(matrix, x)


@pytest.mark.parametrize("method", ["hvp", "hessian", "jvp", "jacobian", "per_example"])
def test_one_target_is_taken(square: tuple, method: str):
    tape, y, x = square
    arguments = [[y, y], x, x] if method in ("hvp", "jvp") else [[y, y], x]
    with pytest.raises(errors.ShapeMismatchError, match=rf"{method} takes one target, got 2 in a list"):
        getattr(tape, method)(*arguments)


def test_cotangent_of_another_shape(square: tuple):
    tape, y, x = square
    with pytest.raises(errors.ShapeMismatchError, match=r"shape \(3,\) for a target of shape \(2,\)"):
        tape.vjp(y, x, tf.ones([3]))


def test_batches_of_different_length(square: tuple):
    tape, y, _ = square
    with pytest.raises(errors.ShapeMismatchError, match=r"same first dimension, got shapes \(2,\) and \(3,\)"):
        tape.batch_jacobian(y, tf.ones([3]))
