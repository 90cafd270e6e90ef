"""The programs that the product is made from, one test each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import EmptyTapeError

# ------------------------------------------------------------------ 0: one variable, several tapes


def test_0_1_gradients_of_two_tapes_add_up():
    x = tf.Variable(2.0)
    with rt.Tape() as left:
        square = tf.square(x + 1.0)
    with rt.Tape() as right:
        wave = tf.sin(x) + x
    total = left.gradient(square, x) + right.gradient(wave, x)
    assert float(total) == pytest.approx(6.583853, abs=1e-6)
    keras.optimizers.SGD(0.1).apply_gradients([(total, x)])
    assert float(x) == pytest.approx(1.3416147, abs=1e-6)


def test_0_2_straight_lines_on_two_tapes():
    shared = tf.Variable(1.0)
    with rt.Tape() as left:
        double = shared * 2.0
    with rt.Tape() as right:
        shifted = shared + 5.0
    total = left.gradient(double, shared) + right.gradient(shifted, shared)
    assert float(total) == 3.0
    shared.assign_sub(0.1 * total)
    assert float(shared) == pytest.approx(0.7, abs=1e-6)


# ------------------------------------------------------------------ 1: tapes in a row, tapes within tapes


def test_1_1_each_tape_answers_for_its_half():
    x = tf.Variable(1.0)
    with rt.Tape() as first:
        y = tf.square(x)
    with rt.Tape() as second:
        z = tf.sin(y)
    dz_dy, dy_dx = second.gradient(z, y), first.gradient(y, x)
    assert float(dz_dy) == pytest.approx(0.5403023, abs=1e-6)
    assert float(dy_dx) == 2.0
    assert float(dz_dy * dy_dx) == pytest.approx(1.0806046, abs=1e-6)
    assert second.gradient(z, x) is None  # x never met the second tape


TAPES = [rt.Tape, tf.GradientTape]
PAIRS = [(outer, inner) for outer in TAPES for inner in TAPES if rt.Tape in (outer, inner)]


@pytest.mark.parametrize(("outer_kind", "inner_kind"), PAIRS, ids=lambda kind: kind.__module__.split(".")[0])
def test_1_2_a_tape_within_a_persistent_tape(outer_kind, inner_kind):
    x = tf.Variable(1.0)
    with outer_kind(persistent=True) as outer:
        with inner_kind() as inner:
            y = tf.square(x)
        z = tf.sin(y)
        dy_dx = inner.gradient(y, x)
    assert float(dy_dx) == 2.0
    assert float(outer.gradient(z, x)) == pytest.approx(1.0806046, abs=1e-6)
    assert float(outer.gradient(dy_dx, x)) == 2.0


def test_1_3_one_tape_is_asked_for_two_sources():
    x, y = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as first:
        product = x * y
    with rt.Tape() as second:
        power = tf.exp(product)
    by_product = second.gradient(power, product)
    by_x, by_y = by_product * first.gradient(product, x), by_product * first.gradient(product, y)
    assert float(by_x) == pytest.approx(14.7781122, rel=1e-6)
    assert float(by_y) == pytest.approx(7.3890561, rel=1e-6)
    assert float(second.gradient(power, product)) == float(by_product)  # and once more


# ------------------------------------------------------------------ 2: second order, and through updates


def test_2_1_product_of_hessian_and_vector():
    x = tf.Variable(2.0)
    with rt.Tape() as tape:
        cube = tf.pow(x, 3.0)
    assert float(tape.hvp(cube, x, tf.constant(1.0))) == pytest.approx(12.0)
    assert float(tape.hvp(cube, x, tf.constant(-0.5))) == pytest.approx(-6.0)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Make what Keras makes, the learning rate too, of type float64: differences need the digits."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


def bowl(pair: list[Any]) -> tf.Tensor:
    return tf.square(pair[0]) + tf.square(pair[1])


def descend(optimizer: Any, steps: int, start: tuple[float, float] = (1.0, 2.0)) -> tuple[rt.Tape, Any, list[Any]]:
    """Record stock steps down a² + b²; return the tape, the loss after them and the variables."""
    pair = [tf.Variable(value, dtype=keras.config.floatx()) for value in start]
    with rt.Tape() as tape:
        for _ in range(steps):
            grads = tape.gradient(bowl(pair), pair)
            optimizer.apply_gradients(zip(grads, pair, strict=True))
        after = bowl(pair)
    return tape, after, pair


def difference(function: Callable[[float], float], at: float, gap: float = 1e-5) -> float:
    return (function(at + gap) - function(at - gap)) / (2.0 * gap)


def test_2_2_loss_after_a_step_by_the_learning_rate():
    sgd = keras.optimizers.SGD(0.1)
    tape, after, pair = descend(sgd, steps=1)
    assert float(after) == pytest.approx(3.2)
    assert float(tape.gradient(after, sgd.learning_rate, through_updates=True)) == pytest.approx(-16.0, abs=1e-5)
    # Without going through the step, the rate has no part in the loss, as on the stock tape.
    assert tape.gradient(after, sgd.learning_rate) is None
    np.testing.assert_allclose(tape.gradient(after, pair), [1.6, 3.2], rtol=1e-6)


OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "nesterov": lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    "adam": keras.optimizers.Adam,
    "rmsprop": keras.optimizers.RMSprop,
    "centered rmsprop": lambda rate: keras.optimizers.RMSprop(rate, momentum=0.5, centered=True),
}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_2_2_through_every_optimizer(name, steps):
    make = OPTIMIZERS[name]
    optimizer = make(0.1)
    tape, after, (a, b) = descend(optimizer, steps)
    by_rate, by_a, by_b = tape.gradient(after, [optimizer.learning_rate, a, b], through_updates=True)
    expected = [
        difference(lambda rate: float(descend(make(rate), steps)[1]), 0.1),
        difference(lambda value: float(descend(make(0.1), steps, (value, 2.0))[1]), 1.0),
        difference(lambda value: float(descend(make(0.1), steps, (1.0, value))[1]), 2.0),
    ]
    np.testing.assert_allclose([by_rate, by_a, by_b], expected, rtol=1e-6, atol=1e-8)


def test_2_3_a_variable_that_changes_on_the_tape():
    x = tf.Variable(0.0)
    tape = rt.Tape(persistent=True)
    squares = []
    with tape:
        for _ in range(3):
            squares.append(tf.square(x))
            x.assign_add(1.0)
    assert float(tape.gradient(squares[-1], x, through_updates=True)) == 4.0
    assert [float(tape.gradient(square, tape.at(x, k))) for k, square in enumerate(squares)] == [0.0, 2.0, 4.0]
    assert [float(version.value) for version in tape.versions(x)] == [0.0, 1.0, 2.0, 3.0]

    tape.reset()
    with pytest.raises(EmptyTapeError, match="reset"):
        tape.gradient(squares[-1], x)
    with tape:
        again = 5.0 * x
    assert float(tape.gradient(again, x)) == 5.0


# ------------------------------------------------------------------ 3: several losses


class Parts:
    """A shared matrix and two that follow it, each with a loss of its own."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        shapes = {"shared": (4, 3), "left": (3, 1), "right": (3, 2)}
        made = {
            name: tf.Variable(rng.normal(size=shape).astype("float32"), name=name) for name, shape in shapes.items()
        }
        self.shared, self.left, self.right = made.values()
        self.all = list(made.values())
        self.x = tf.constant(rng.normal(size=(6, 4)), tf.float32)

    def losses(self) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.tanh(self.x @ self.shared)
        return (
            tf.reduce_mean(tf.square(features @ self.left - 1.0)),
            tf.reduce_mean(tf.math.softplus(features @ self.right)),
        )


def train_apart(make_tape: Callable[[], Any]) -> list[np.ndarray]:
    """3.1: two losses, two optimizers, two parts."""
    parts = Parts()
    adam, sgd = keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1)
    for _ in range(15):
        with make_tape() as tape:
            first, second = parts.losses()
        mine = [parts.shared, parts.left]
        by_first, by_second = tape.gradient(first, mine), tape.gradient(second, parts.right)
        adam.apply_gradients(zip(by_first, mine, strict=True))
        sgd.apply_gradients([(by_second, parts.right)])
    return [variable.numpy() for variable in parts.all]


def train_jointly(make_tape: Callable[[], Any]) -> list[np.ndarray]:
    """3.2: one step on everything, then a second one on a part, by the same optimizer."""
    parts = Parts()
    adam = keras.optimizers.Adam(0.02)
    for _ in range(15):
        with make_tape() as tape:
            first, second = parts.losses()
            both = first + second
        by_both, by_second = tape.gradient(both, parts.all), tape.gradient(second, parts.right)
        adam.apply_gradients(zip(by_both, parts.all, strict=True))
        adam.apply_gradients([(by_second, parts.right)])
    return [variable.numpy() for variable in parts.all]


@pytest.mark.parametrize("train", [train_apart, train_jointly], ids=["3_1", "3_2"])
def test_3_weights_are_those_of_the_stock_tape(train):
    ours, stock = train(rt.Tape), train(lambda: tf.GradientTape(persistent=True))
    for got, want, before in zip(ours, stock, Parts().all, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        assert not np.allclose(got, before.numpy(), atol=1e-2)
