"""Laws of Jacobians and of products with them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

import retrotape as rt
from laws.examples import MATRIX, close, few, matrices, record, tensors, vectors


def loop(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    step = tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, tf.tanh(c * y) + x), [0, x])
    return tf.reduce_sum(step[1] ** 2)


@few
@given(x=vectors, y=vectors, u=vectors, v=vectors, cotangent=matrices)
def test_jvp_and_vjp_are_adjoint(x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, v: tf.Tensor, cotangent: tf.Tensor):
    tape, z = record(tensors, x, y)
    moved = tape.jvp(z, [x, y], [u, v])
    back = tape.vjp(z, [x, y], cotangent)
    left = float(tf.reduce_sum(moved * cotangent))
    right = sum(float(tf.reduce_sum(a * b)) for a, b in zip([u, v], back, strict=True))
    close(left, right)
    by_x, by_y = (jacobian.numpy() for jacobian in tape.jacobian(z, [x, y]))
    close(moved, by_x @ u.numpy() + by_y @ v.numpy())


@few
@given(x=vectors, y=vectors)
def test_jacobian_is_a_loop_of_gradients(x: tf.Tensor, y: tf.Tensor):
    with rt.Tape() as tape:
        z = tensors(x, y)
        elements = [z[i, j] for i in range(3) for j in range(3)]
    looped = np.reshape([tape.gradient(element, x).numpy() for element in elements], [3, 3, 3])
    close(tape.jacobian(z, x), looped)
    close(tape.jacobian(z, x, experimental_use_pfor=False), looped)
    close(tape.jacobian(z, x, chunk=2), looped)


@few
@given(x=vectors, y=vectors)
def test_per_example_is_a_loop_of_gradients(x: tf.Tensor, y: tf.Tensor):
    kernel = tf.Variable(MATRIX)
    with rt.Tape() as tape:
        batch = tf.stack([x, y, x * y, x - y])
        losses = tf.reduce_sum(tf.tanh(batch @ kernel) ** 2, 1)
        each = tf.unstack(losses)
    found = tape.per_example(losses, {"kernel": kernel})["kernel"]
    close(found, np.stack([tape.gradient(loss, kernel).numpy() for loss in each]))
    close(tape.per_example(losses, kernel, chunk=3), found)
    close(tf.reduce_sum(found, 0), tape.gradient(losses, kernel))


@pytest.mark.parametrize("chunk", [None, 2])
def test_jacobian_of_no_element_has_its_shape(chunk: int | None):
    x, apart = tf.Variable([1.0, 2.0, 3.0]), tf.constant(1.0)
    with tf.GradientTape() as stock, rt.Tape() as tape:
        nothing = tf.reshape((x * apart)[:0], [0, 2])
    rows, unconnected = tape.jacobian(nothing, [x, tf.Variable(1.0)], chunk=chunk)
    assert rows.shape == stock.jacobian(nothing, x).shape == (0, 2, 3)
    assert unconnected is None


def test_jvp_asks_no_more_of_a_pause_than_a_gradient_does():
    w, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape() as tape:
        y = w * x
        with tape.stop_recording():
            w.assign(5.0)
        z = w * x * y
    by_w, by_x = tape.gradient(z, [w, x])
    close(tape.jvp(z, [w, x], [tf.constant(1.0), tf.constant(0.5)]), by_w + 0.5 * by_x)


@few
@given(x=vectors, y=vectors)
def test_large_jacobian_is_vectorized_to_the_same(x: tf.Tensor, y: tf.Tensor):
    # More rows than are walked one by one.
    with rt.Tape() as tape:
        z = tf.reshape(tf.sin(x[:, None, None] * y[None, :, None] + MATRIX[None]), [27])
    close(tape.jacobian(z, [x, y])[0], tape.jacobian(z, [x, y], experimental_use_pfor=False)[0])


@few
@given(x=vectors, y=vectors)
def test_batch_jacobian_is_the_diagonal_of_the_jacobian(x: tf.Tensor, y: tf.Tensor):
    with rt.Tape() as tape:
        rows = tf.stack([x, y])
        z = tf.tanh(rows @ MATRIX) * rows
    full = tape.jacobian(z, rows).numpy()
    close(tape.batch_jacobian(z, rows), np.stack([full[0, :, 0], full[1, :, 1]]))


@pytest.mark.slow
@few
@given(x=vectors, y=vectors, v=vectors)
def test_laws_hold_through_a_loop(x: tf.Tensor, y: tf.Tensor, v: tf.Tensor):
    f = tf.function(loop, autograph=False)
    tape, z = record(f, x, y)
    hessian = tape.hessian(z, x).numpy()
    close(hessian, hessian.T)
    close(tape.hvp(z, x, v), hessian @ v.numpy())
