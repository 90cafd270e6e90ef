"""Laws that derivatives of every order obey, whatever is differentiated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import retrotape as rt
from retrotape import errors

# The same examples on every machine, and few: each one records and differentiates.
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # numbers in general position have no simpler form
    suppress_health_check=list(HealthCheck),
)
seeds = st.integers(0, 2**31)
vectors = seeds.map(lambda seed: tf.constant(np.random.default_rng(seed).normal(size=3), tf.float64))
matrices = seeds.map(lambda seed: tf.constant(np.random.default_rng(seed).normal(size=(3, 3)), tf.float64))
MATRIX = tf.constant([[0.6, -1.2, 0.3], [0.5, 0.8, -0.7], [-0.4, 0.9, 1.1]], tf.float64)


def product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.tanh(tf.linalg.matvec(MATRIX, x)) * y**2 * x)


def chain(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    hidden = tf.exp(-tf.square(x[0] * y)) + tf.sin(x) * y[1]
    return tf.math.log(1.0 + tf.reduce_sum(hidden**2))


def softmax(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.nn.log_softmax(x * y) * tf.cos(y)) + tf.reduce_logsumexp(x)


def sharing(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    outer = x[:, None] * y[None, :]
    return tf.reduce_sum(tf.sigmoid(outer @ MATRIX) * tf.transpose(outer)) + x[1] ** 3 * y[2]


def loop(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    step = tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, tf.tanh(c * y) + x), [0, x])
    return tf.reduce_sum(step[1] ** 2)


FUNCTIONS: dict[str, Callable] = {f.__name__: f for f in (product, chain, softmax, sharing)}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def record(f: Callable, *sources: tf.Tensor) -> tuple[rt.Tape, tf.Tensor]:
    with rt.Tape() as tape:
        target = f(*sources)
    return tape, target


def close(found: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


# ------------------------------------------------------------------ second order


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


# ------------------------------------------------------------------ products with Jacobians


def tensors(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.tanh(x[:, None] * y[None, :]) @ MATRIX + tf.cumsum(x * y)


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


# ------------------------------------------------------------------ closed forms of higher order


def derivatives(tape: rt.Tape, target: tf.Tensor, x: tf.Tensor, order: int) -> list[float]:
    found = []
    for _ in range(order):
        target = tape.gradient(target, x)
        found.append(float(target))
    return found


CLOSED: dict[str, tuple[Callable, Callable[[float], list[float]]]] = {
    "power": (lambda x: x**5, lambda x: [5 * x**4, 20 * x**3, 60 * x**2, 120 * x]),
    "sine": (tf.sin, lambda x: [math.cos(x), -math.sin(x), -math.cos(x), math.sin(x)]),
    "exponential": (
        lambda x: tf.exp(2.0 * x),
        lambda x: [factor * math.exp(2 * x) for factor in (2, 4, 8, 16)],
    ),
    "logarithm": (tf.math.log, lambda x: [1 / x, -1 / x**2, 2 / x**3, -6 / x**4]),
    "tangent": (
        tf.tanh,
        lambda x: [
            1 - math.tanh(x) ** 2,
            -2 * math.tanh(x) * (1 - math.tanh(x) ** 2),
            (1 - math.tanh(x) ** 2) * (6 * math.tanh(x) ** 2 - 2),
            (1 - math.tanh(x) ** 2) * math.tanh(x) * (16 - 24 * math.tanh(x) ** 2),
        ],
    ),
    "fraction": (lambda x: 1.0 / x, lambda x: [-1 / x**2, 2 / x**3, -6 / x**4, 24 / x**5]),
}


@pytest.mark.parametrize("name", CLOSED)
@few
@given(at=st.floats(0.3, 1.8).map(lambda number: round(number, 3)))
def test_four_orders_of_a_closed_form(name: str, at: float):
    f, wanted = CLOSED[name]
    x = tf.constant(at, tf.float64)
    tape, y = record(f, x)
    close(derivatives(tape, y, x, 4), wanted(at))


@pytest.mark.parametrize("name", CLOSED)
def test_four_orders_inside_a_function(name: str):
    f, wanted = CLOSED[name]

    @tf.function
    def ask(x: tf.Tensor) -> list[tf.Tensor]:
        with rt.Tape() as tape:
            target = f(x)
        found = []
        for _ in range(4):
            target = tape.gradient(target, x)
            found.append(target)
        return found

    close(ask(tf.constant(0.7, tf.float64)), wanted(0.7))


@pytest.mark.parametrize("name", CLOSED)
def test_four_orders_of_a_function_that_was_called(name: str):
    f, wanted = CLOSED[name]
    x = tf.constant(0.7, tf.float64)
    tape, y = record(tf.function(f), x)
    close(derivatives(tape, y, x, 4), wanted(0.7))


def test_jvp_of_a_jvp():
    # The stock ForwardAccumulator, nested, loses a term here.
    x, one = tf.constant(0.7, tf.float64), tf.constant(1.0, tf.float64)
    tape, y = record(lambda x: x**3, x)
    first = tape.jvp(y, x, one)
    close(first, 3 * 0.7**2)
    close(tape.jvp(first, x, one), 4.2)
    close(tape.jvp(tape.gradient(y, x), x, one), 4.2)
    close(tape.gradient(tape.jvp(y, x, one), x), 4.2)
    close(tape.jvp(tape.jvp(first, x, one), x, one), 6.0)


@few
@given(x=vectors, y=vectors, u=vectors, v=vectors)
def test_jvp_of_a_jvp_is_the_hessian_between_vectors(x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, v: tf.Tensor):
    tape, z = record(product, x, y)
    hessian = tape.hessian(z, x).numpy()
    close(tape.jvp(tape.jvp(z, x, u), x, v), u.numpy() @ hessian @ v.numpy())


@few
@given(x=vectors, y=vectors, u=vectors, v=vectors)
def test_third_derivative_is_symmetric(x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, v: tf.Tensor):
    tape, z = record(chain, x, y)
    third = tape.gradient(tape.hvp(z, x, u), x, output_gradients=v)
    other = tape.gradient(tape.hvp(z, x, v), x, output_gradients=u)
    close(third, other)


@pytest.mark.parametrize("ask", ["gradient", "hvp", "jvp"])
def test_an_answer_used_in_a_block_entered_again(ask: str):
    x, ones = tf.constant([0.3, -0.8], tf.float64), tf.ones([2], tf.float64)
    with rt.Tape() as tape:
        powers = x**4
        y = tf.reduce_sum(powers)
    answer = {
        "gradient": lambda: tape.gradient(y, x),
        "hvp": lambda: tape.hvp(y, x, ones),
        "jvp": lambda: tape.jvp(powers, x, ones),
    }[ask]
    value, slope = {"hvp": (12 * x**2, 24 * x)}.get(ask, (4 * x**3, 12 * x**2))
    outside = answer()
    close(outside, value)
    close(tape.gradient(outside, x), slope)
    with tape:
        constant, inside = tf.reduce_sum(outside * x), tf.reduce_sum(answer() * x)
    close(tape.gradient(constant, x), value)  # asked outside of the block, as on the stock tape
    close(tape.gradient(inside, x), slope * x + value)


def test_hessian_of_a_gradient_norm():
    x = tf.constant([0.3, -0.8, 1.1], tf.float64)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x**4)
        norm = tf.reduce_sum(tape.gradient(y, x) ** 2)  # 16 x⁶
    close(tape.gradient(norm, x), 96 * x.numpy() ** 5)
    close(tape.hessian(norm, x), np.diag(480 * x.numpy() ** 4))


# ------------------------------------------------------------------ none and zero


def test_constant_derivative_is_zero_and_no_path_is_none():
    x, other = tf.constant(2.0), tf.constant(3.0)
    tape, y = record(lambda x: 5.0 * x + other * 0.0, x)
    first = tape.gradient(y, x)
    second = tape.gradient(first, x)
    assert float(first) == 5.0
    assert second is not None
    assert float(second) == 0.0
    assert float(tape.gradient(second, x)) == 0.0
    assert tape.gradient(y, tf.constant(2.0)) is None
    assert tape.gradient(first, tf.constant(2.0)) is None
    assert float(tape.hvp(y, x, tf.constant(1.0))) == 0.0
    assert float(tape.hessian(y, x)) == 0.0
    assert tape.hvp(y, tf.constant(2.0), tf.constant(1.0)) is None
    assert tape.jvp(y, tf.constant(2.0), tf.constant(1.0)) is None


def test_constant_derivative_inside_a_function():
    @tf.function
    def ask(x: tf.Tensor, other: tf.Tensor) -> tuple:
        with rt.Tape() as tape:
            y = 5.0 * x
        first = tape.gradient(y, x)
        second = tape.gradient(first, x)
        assert tape.gradient(y, other) is None
        assert tape.gradient(first, other) is None
        return first, second

    assert [float(value) for value in ask(tf.constant(2.0), tf.constant(3.0))] == [5.0, 0.0]


def test_blocks_without_path_are_zero():
    x, y, z = tf.constant([1.0, 2.0]), tf.constant(3.0), tf.constant([[4.0]])
    with rt.Tape() as tape:
        target = tf.reduce_sum(x**2) + y**3
    blocks = tape.hessian(target, [x, y, z])
    close(blocks[0][0], 2 * np.eye(2))
    close(blocks[0][1], np.zeros(2))
    close(blocks[1][1], np.float64(18.0))
    close(blocks[2][0], np.zeros([1, 1, 2]))
    products = tape.hvp(target, [x, y, z], [x, y, z])
    close(products[0], [2.0, 4.0])
    assert products[2] is None
    assert tape.hessian(target, [x, y, z], whole=True).shape == (4, 4)


# ------------------------------------------------------------------ nested as on the stock tape


def nested(make: Callable, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    with make(persistent=True) as third:
        third.watch([x, y])
        with make(persistent=True) as second:
            second.watch([x, y])
            with make() as first:
                first.watch([x, y])
                z = product(x, y)
            by_x = first.gradient(z, x)
        by_xy = second.jacobian(by_x, y)
        scalar = tf.reduce_sum(by_xy**2)
    return [by_x, by_xy, *third.gradient(scalar, [x, y])]


X, Y = tf.constant([0.3, -0.8, 1.1], tf.float64), tf.constant([0.9, 0.4, -0.6], tf.float64)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_nested_tapes_give_the_stock_numbers(wrap: Callable):
    wanted = nested(tf.GradientTape, X, Y)
    found = wrap(lambda x, y: nested(rt.Tape, x, y))(X, Y)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


@pytest.mark.parametrize("outer", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize("inner", [tf.GradientTape, rt.Tape])
def test_either_tape_inside_either(outer: Callable, inner: Callable):
    with outer() as second:
        second.watch(X)
        with inner() as first:
            first.watch(X)
            z = product(X, Y)
        gradient = first.gradient(z, X)
    hessian = second.jacobian(gradient, X)
    tape, again = record(product, X, Y)
    close(hessian, tape.hessian(again, X))


@every_function
def test_everything_inside_a_function_is_as_in_eager_code(name: str):
    def ask(x: tf.Tensor, y: tf.Tensor) -> dict[str, Any]:
        with rt.Tape() as tape:
            z = FUNCTIONS[name](x, y)
            rows = tensors(x, y)
        return {
            "gradient": tape.gradient(z, [x, y]),
            "hvp": tape.hvp(z, [x, y], [y, x]),
            "hessian": tape.hessian(z, [x, y]),
            "whole": tape.hessian(z, [x, y], whole=True),
            "jvp": tape.jvp(rows, [x, y], [y, x]),
            "vjp": tape.vjp(rows, x, rows),
            "jacobian": tape.jacobian(rows, x),
        }

    for one, other in zip(tf.nest.flatten(tf.function(ask)(X, Y)), tf.nest.flatten(ask(X, Y)), strict=True):
        close(one, other)


def test_per_example_inside_a_function():
    @tf.function
    def ask(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            losses = tf.reduce_sum(tensors(x, y) ** 2, 1)
        return tape.per_example(losses, x)

    with rt.Tape() as tape:
        losses = tf.reduce_sum(tensors(X, Y) ** 2, 1)
    close(ask(X, Y), tape.per_example(losses, X))


# ------------------------------------------------------------------ what is refused


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
