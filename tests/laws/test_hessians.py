"""Laws of second derivatives, whatever is differentiated."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given

from laws.examples import FUNCTIONS, close, every_function, few, record, vectors


@every_function
@few
@given(x=vectors, y=vectors)
def test_hessian_is_symmetric(name: str, x: tf.Tensor, y: tf.Tensor):
    tape, z = record(FUNCTIONS[name], x, y)
    hessian = tape.hessian(z, [x, y], whole=True).numpy()
    assert hessian.shape == (6, 6)
    close(hessian, hessian.T)


@every_function
@few
@given(x=vectors, y=vectors, u=vectors, v=vectors)
def test_hvp_is_the_hessian_times_the_vector(name: str, x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, v: tf.Tensor):
    tape, z = record(FUNCTIONS[name], x, y)
    hessian = tape.hessian(z, [x, y], whole=True).numpy()
    products = tape.hvp(z, [x, y], [u, v])
    close(np.concatenate(products), hessian @ np.concatenate([u, v]))


@every_function
@few
@given(x=vectors, y=vectors)
def test_blocks_are_the_parts_of_the_whole(name: str, x: tf.Tensor, y: tf.Tensor):
    tape, z = record(FUNCTIONS[name], x, y)
    whole = tape.hessian(z, {"x": x, "y": y}, whole=True).numpy()
    blocks = tape.hessian(z, {"x": x, "y": y})
    close(np.block([[blocks[a][b].numpy() for b in "xy"] for a in "xy"]), whole)
    close(tape.hessian(z, x), whole[:3, :3])


@every_function
@few
@given(x=vectors, y=vectors)
def test_mixed_partials_exchange(name: str, x: tf.Tensor, y: tf.Tensor):
    tape, z = record(FUNCTIONS[name], x, y)
    by_x, by_y = tape.gradient(z, [x, y])
    first, second = tape.jacobian(by_x, y), tape.jacobian(by_y, x)
    close(first, np.transpose(second))
    close(first, tape.hessian(z, [x, y])[0][1])


@every_function
@few
@given(x=vectors, y=vectors, v=vectors)
def test_hessian_is_the_slope_of_gradients(name: str, x: tf.Tensor, y: tf.Tensor, v: tf.Tensor):
    def gradient(at: tf.Tensor) -> np.ndarray:
        tape, z = record(FUNCTIONS[name], at, y)
        return tape.gradient(z, at).numpy()

    tape, z = record(FUNCTIONS[name], x, y)
    wanted = (gradient(x + 1e-6 * v) - gradient(x - 1e-6 * v)) / 2e-6
    close(tape.hvp(z, x, v), wanted, rtol=1e-6, atol=1e-7)
