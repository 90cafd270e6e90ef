"""The programs that the product is made from, one test each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
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


class Pair:
    """Two Keras models and data for them; every one that is made begins with the same weights."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.x = tf.constant(rng.normal(size=(10, 32)), tf.float32)
        self.left, self.right = self._model(16, 1), self._model(8, 2)
        self.weights = [*self.left.trainable_variables, *self.right.trainable_variables]

    @staticmethod
    def _model(width: int, seed: int) -> keras.Model:
        layers = [keras.layers.Dense(size, "relu", kernel_initializer="zeros") for size in (width, 32)]
        model = keras.Sequential([keras.Input((32,)), *layers])
        rng = np.random.default_rng(seed)
        model.set_weights([rng.normal(scale=0.3, size=weight.shape) for weight in model.get_weights()])
        return model

    def train(self, step: Callable[[Any], None]) -> list[np.ndarray]:
        adam = keras.optimizers.Adam(0.02)
        for _ in range(12):
            step(adam)
        return [weight.numpy() for weight in self.weights]


def check_trained(ours: list[np.ndarray], stock: list[np.ndarray]) -> None:
    before = [weight.numpy() for weight in Pair().weights]
    for got, want, start in zip(ours, stock, before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        assert np.abs(got - start).max() > 0.05


def test_0_3_two_models_one_tape_each_one_adam():
    ours, stock = Pair(), Pair()

    def step(adam: Any) -> None:
        with rt.Tape() as left_tape:
            left = tf.reduce_mean(ours.left(ours.x) ** 2)
        with rt.Tape() as right_tape:
            right = tf.reduce_mean((ours.right(ours.x) - 1.0) ** 2)
        total = left_tape.backward(left) + right_tape.backward(right)
        assert len(total) == 8
        total.apply(adam)

    def stock_step(adam: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(stock.left(stock.x) ** 2) + tf.reduce_mean((stock.right(stock.x) - 1.0) ** 2)
        adam.apply(tape.gradient(loss, [weight.value for weight in stock.weights]), stock.weights)

    check_trained(ours.train(step), stock.train(stock_step))


def test_0_3_one_model_feeds_the_other():
    ours, stock = Pair(), Pair()

    def step(adam: Any) -> None:
        with rt.Tape() as left_tape:
            features = ours.left(ours.x)
        with rt.Tape() as right_tape:
            loss = tf.reduce_mean((ours.right(features) - 1.0) ** 2)
        assert right_tape.backward(loss, ours.weights).missing == tuple(ours.left.trainable_variables)
        rt.join(left_tape, right_tape).backward(loss).apply(adam)

    def stock_step(adam: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((stock.right(stock.left(stock.x)) - 1.0) ** 2)
        adam.apply(tape.gradient(loss, [weight.value for weight in stock.weights]), stock.weights)

    check_trained(ours.train(step), stock.train(stock_step))


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
    assert float(rt.join(first, second).gradient(z, x)) == pytest.approx(1.0806046, abs=1e-6)


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
    joined = rt.join(second, first).gradient(power, {"x": x, "y": y})
    assert float(joined["x"]) == pytest.approx(14.7781122, rel=1e-6)
    assert float(joined["y"]) == pytest.approx(7.3890561, rel=1e-6)


def matrices() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    return {
        "x": tf.constant(rng.normal(size=(4, 3))),
        "w": tf.Variable(rng.normal(size=(3, 5))),
        "bias": tf.Variable(rng.normal(size=5)),
        "mix": tf.Variable(rng.normal(size=(5, 4))),
    }


def test_1_4_matrices_between_the_tapes():
    given = matrices()
    x, w, bias, mix = given.values()
    with tf.GradientTape() as stock:
        stock.watch(x)
        with rt.Tape() as first:
            product = x @ w  # feeds two tapes below
        with rt.Tape() as second:
            shifted = tf.tanh(product + bias)  # one row for all
            centred = shifted - tf.reduce_mean(shifted, axis=0, keepdims=True)
        with rt.Tape() as third:
            weights = tf.nn.softmax(product)
        with rt.Tape() as fourth:
            loss = tf.reduce_sum(tf.square((centred * weights) @ mix)) + tf.reduce_max(weights)
    expected = dict(zip(given, stock.gradient(loss, list(given.values())), strict=True))

    for tapes in ((first, second, third, fourth), (third, fourth, second, first)):
        found = rt.join(*tapes).gradient(loss, given)
        for name, want in expected.items():
            np.testing.assert_allclose(found[name], want, rtol=1e-12, err_msg=name)

    # Tape by tape it takes products with Jacobians, and the sum over both ways from `product`.
    by_centred, by_weights = fourth.gradient(loss, [centred, weights])
    by_product = second.vjp(centred, product, by_centred) + third.vjp(weights, product, by_weights)
    np.testing.assert_allclose(first.vjp(product, w, by_product), expected["w"], rtol=1e-12)


def test_1_4_a_product_element_by_element_is_not_the_chain_rule():
    rng = np.random.default_rng(12)
    x, w = tf.constant(rng.normal(size=(3, 3))), tf.Variable(rng.normal(size=(3, 3)))
    with tf.GradientTape() as stock:
        with rt.Tape() as first:
            hidden = x @ w
        with rt.Tape() as second:
            loss = tf.reduce_sum(tf.sin(hidden))
    expected = stock.gradient(loss, w)
    multiplied = second.gradient(loss, hidden) * first.gradient(hidden, w)  # the shapes fit, which makes it tempting
    assert not np.allclose(multiplied, expected, rtol=0.1)
    np.testing.assert_allclose(rt.join(first, second).gradient(loss, w), expected, rtol=1e-12)


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


CLIPS: dict[str, tuple[dict[str, float], Callable[[list[np.ndarray]], list[np.ndarray]]]] = {
    "each": ({"norm": 0.3}, lambda grads: [grad * min(1.0, 0.3 / size(grad)) for grad in grads]),
    "all": ({"global_norm": 0.6}, lambda grads: [grad * min(1.0, 0.6 / size(*grads)) for grad in grads]),
    "none": ({"global_norm": 1e9}, lambda grads: grads),
}


def size(*grads: np.ndarray) -> float:
    return float(np.sqrt(sum(np.sum(np.square(grad)) for grad in grads)))


@pytest.mark.parametrize("name", CLIPS)
def test_3_3_gradients_of_two_losses_summed_clipped_applied(name):
    bound, clip = CLIPS[name]
    parts = Parts()
    stepped = [variable.numpy().astype("float64") for variable in parts.all]
    sgd = keras.optimizers.SGD(0.5)
    for _ in range(8):
        with rt.Tape() as tape:
            first, second = parts.losses()
        by_first, by_second = tape.backward(first, parts.all), tape.backward(second, parts.all)
        assert by_first.missing == (parts.right,)  # where adding lists fails
        assert by_second.missing == (parts.left,)
        total = (by_first + by_second).clip(**bound)
        assert total.missing == ()
        total.apply(sgd)
        stepped = by_hand(parts.x.numpy().astype("float64"), stepped, clip)
    for variable, want in zip(parts.all, stepped, strict=True):
        np.testing.assert_allclose(variable, want, rtol=1e-4, atol=1e-5)


def by_hand(x: np.ndarray, weights: list[np.ndarray], clip: Callable) -> list[np.ndarray]:
    """Make the same step in NumPy, with the derivatives written out."""
    shared, left, right = weights
    features = np.tanh(x @ shared)
    by_left_out = 2.0 * (features @ left - 1.0) / len(x)
    by_right_out = 1.0 / (1.0 + np.exp(-(features @ right))) / (len(x) * right.shape[1])
    by_features = by_left_out @ left.T + by_right_out @ right.T
    grads = [x.T @ (by_features * (1.0 - features**2)), features.T @ by_left_out, features.T @ by_right_out]
    return [weight - 0.5 * grad for weight, grad in zip(weights, clip(grads), strict=True)]


# ------------------------------------------------------------------ 4: a tape as a file


class Doubling(keras.layers.Layer):
    """A layer of the user's own: what it is given, twice, by a weight."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")

    def call(self, x):
        return 2.0 * x * self.w


def save_regression(path: Path) -> tuple[rt.Tape, Any, Any]:
    """4.1: a line through three points, seen from zero."""
    x, y = tf.constant([1.0, 2.0, 3.0]), tf.constant([2.0, 4.0, 6.0])
    w, b = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="b")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(tf.square(x * w + b - y))
    tape.save(path, {"loss": loss, "x": x})
    return tape, loss, w


def save_layer(path: Path) -> tuple[rt.Tape, Any, Any]:
    """4.2: a layer whose class is known here and nowhere else."""
    layer = Doubling(name="doubling")
    layer.build((None, 1))
    x = tf.constant([[1.0], [2.0]])  # 2·(1 + 2) = 6 by the weight
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(x))
        curved = tf.reduce_sum(tf.nn.silu(layer(x)) ** 2)
    tape.save(path, {"loss": loss, "curved": curved, "x": x})
    return tape, curved, layer.w


LOADING_SIDE = """
import json, sys
import retrotape as rt

def orders(tape, target, source):
    found = []
    for _ in range(3):
        target = tape.gradient(target, source)
        found.append(target.numpy().reshape(-1).tolist())
    return found

regression, layer = map(rt.load, sys.argv[1:])
known = [name for name in sys.modules if "scenarios" in name]
grads = regression.backward("loss")
print(json.dumps({
    "known": known,
    "loss": float(regression["loss"]),
    "by w": float(regression.gradient("loss", "w")),
    "by b": float(regression.gradient("loss", "b")),
    "of w": orders(regression, "loss", "w"),
    "norm": float(grads.norm()),
    "layer w": layer.gradient("loss", "doubling/w").numpy().tolist(),
    "of the layer": orders(layer, "curved", "doubling/w"),
    "on another input": layer.replay({"x": [[3.0], [5.0]]}).gradient("loss", "w").numpy().tolist(),
}))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> dict[str, Any]:
    """Save both tapes, load them in a process that has never seen this file, and return what that process says."""
    folder = tmp_path_factory.mktemp("elsewhere")
    regression, layer = folder / "regression.tape", folder / "layer.tape"
    live = {"regression": save_regression(regression), "layer": save_layer(layer), "file": layer}
    (folder / "load.py").write_text(LOADING_SIDE)
    arguments = [sys.executable, str(folder / "load.py"), str(regression), str(layer)]
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=folder, timeout=300)
    assert run.returncode == 0, run.stderr
    return {**live, **json.loads(run.stdout.splitlines()[-1])}


def check_orders(found: list[list[float]], tape: rt.Tape, target: tf.Tensor, source: Any) -> None:
    """Compare the first three derivatives with those of the tape that was recorded."""
    assert len(found) == 3
    for order in found:
        target = tape.gradient(target, source)
        np.testing.assert_allclose(order, np.reshape(target, -1), rtol=1e-6)


def test_4_1_a_regression_is_differentiated_in_another_process(elsewhere):
    tape, loss, w = elsewhere["regression"]
    assert elsewhere["known"] == []
    assert elsewhere["by w"] == pytest.approx(-18.6666667, abs=2e-6)
    assert elsewhere["by b"] == -8.0
    assert elsewhere["loss"] == float(loss)
    assert elsewhere["norm"] == pytest.approx(float(tape.backward(loss).norm()), rel=1e-6)
    check_orders(elsewhere["of w"], tape, loss, w)
    assert elsewhere["of w"][1:] == [[pytest.approx(28.0 / 3.0)], [0.0]]


def test_4_2_a_layer_is_differentiated_where_its_class_does_not_exist(elsewhere):
    tape, curved, w = elsewhere["layer"]
    assert elsewhere["layer w"] == [6.0]
    assert elsewhere["on another input"] == [16.0]
    assert b"Doubling" not in elsewhere["file"].read_bytes()
    check_orders(elsewhere["of the layer"], tape, curved, w)
