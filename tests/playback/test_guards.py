"""A step is recorded again when something differs that it depends on, and only then."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import alike, plays

ONE, TWO = tf.constant(1.0), tf.constant(2.0)
PAIR, OTHER = tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])
SCALE: Any = 2.0
SETTINGS = types.SimpleNamespace(scale=2.0)
ARRAY = np.array([1.0, 2.0], np.float32)


# ------------------------------------------------------------------ arguments


def test_other_values_of_tensors_are_played_back():
    step = alike(lambda: (lambda x, y: x * y + x, {}), [(PAIR, OTHER), (OTHER, PAIR), (PAIR, OTHER)])
    assert plays(step) == [2]


@pytest.mark.parametrize(
    "other",
    [
        (tf.constant([1.0, 2.0, 3.0]), 1.0),
        (tf.constant([1.0, 2.0], tf.float64), 1.0),
        (PAIR, 2.0),
        (PAIR, 1),
        (PAIR, -0.0),
        (PAIR, np.float32(1.0)),
        ([PAIR, PAIR], 1.0),
        ({"a": PAIR}, 1.0),
    ],
)
def test_other_kinds_of_arguments_are_recorded(other: Any):
    def make():
        return lambda x, k: (tf.nest.map_structure(lambda one: one * 2 / tf.cast(k, one.dtype), x), k), {}

    step = alike(make, [(PAIR, 1.0), other, (PAIR, 1.0), other, (PAIR, 0.0), (PAIR, 0.0)])
    assert plays(step) == [1, 1, 1]


def test_one_tensor_passed_twice_and_two_tensors():
    def make():
        def step(x, y):
            with rt.Tape() as tape:
                z = tf.reduce_sum(x * x * y)
            return tape.gradient(z, [x, y])

        return step, {}

    alike(make, [(PAIR, PAIR), (PAIR, PAIR), (PAIR, OTHER), (OTHER, PAIR), (OTHER, OTHER)])


def test_an_argument_that_the_step_also_refers_to():
    def make():
        def step(x):
            with rt.Tape() as tape:
                z = tf.reduce_sum(x**3)
            return tape.gradient(z, PAIR)

        return step, {}

    alike(make, [(PAIR,), (PAIR,), (OTHER,), (PAIR,), (OTHER,)])


def test_arrays_are_converted():
    step = alike(lambda: (lambda x: x * 2.0, {}), [(tf.constant(ARRAY),)])
    assert float(step(ARRAY)[1]) == 4.0
    assert float(step(ARRAY * 2)[1]) == 8.0
    assert plays(step) == [2]


# ------------------------------------------------------------------ values that Python reads


def test_a_branch_has_a_path_for_each_side():
    def make():
        w = tf.Variable(1.0)

        def step(x):
            w.assign_add(x)
            if w > 3.0:
                w.assign(w * 0.5)
                return w * 2.0
            return w + 1.0

        return step, {"vars": [w]}

    step = alike(make, [(ONE,)] * 12)
    assert len(plays(step)) == 2
    assert "a value differs, at " in step.recordings()[1].why


def test_paths_that_begin_alike_share_what_they_have_in_common():
    def make():
        def step(x, n):
            y = x * 3.0
            if tf.reduce_sum(y) > 0:
                y = y - 1.0
            for _ in range(int(n)):
                y = y * 2.0
                if y[0] > 50.0:
                    break
            return y, x * 3.0

        return step, {}

    counts = [tf.constant(n) for n in (1, 2, 3, 2, 1, 3, 0)]
    alike(make, [(x, n) for x in (PAIR, -PAIR, OTHER, PAIR * 10) for n in counts], limit=30)


def test_a_size_that_depends_on_values():
    def make():
        def step(x):
            positive = tf.boolean_mask(x, x > 0)
            return tf.reduce_sum(positive) * len(positive)

        return step, {}

    step = alike(make, [(tf.constant(x),) for x in ([1.0, -1, 2], [1.0, -1, 3], [1.0, 1, 3], [2.0, -3, 4], [1.0, 4, 3])])
    assert plays(step) == [2, 1]
    assert "a shape differs" in step.recordings()[1].why


READS = {
    "float": lambda t: float(t[0]),
    "numpy": lambda t: t.numpy()[0],
    "asarray": lambda t: np.asarray(t)[0],
    "array": lambda t: np.array(t).sum(),
    "numpy function": lambda t: np.sum(t),
    "numpy scalar": lambda t: np.float32(t[0]),
    "static value": lambda t: tf.get_static_value(t)[0],
    "proto": lambda t: tf.make_ndarray(tf.make_tensor_proto(t))[0],
    "dlpack": lambda t: np.from_dlpack(t)[0],
    "text": lambda t: float(f"{t[0]:.3f}"),
    "index": lambda t: [3.0, 5.0, 7.0, 9.0][tf.cast(t[0], tf.int32)],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_to_read_a_value(read: Any):
    alike(lambda: (lambda x: x + read(x * 1.5), {}), [(PAIR,), (PAIR,), (PAIR * 0.5,), (PAIR,), (PAIR * 2,)])


def test_a_value_that_differs_each_time_makes_the_step_stay_eager():
    def make():
        w = tf.Variable(1.0)

        def step(x):
            return x * float(w.assign_add(x))

        return step, {"vars": [w]}

    with pytest.warns(rt.errors.PlaybackWarning, match=r"recorded 3 times already, and again since a value differs"):
        step = alike(make, [(ONE,)] * 6, limit=3)
    assert "pass what changes as a tensor" in (step.why_not_compiled() or "")


# ------------------------------------------------------------------ Python state


@dataclass
class Config:
    scale: float = 2.0
    unused: int = 0


class Owner:
    rate = 2.0

    def __init__(self) -> None:
        self.w = tf.Variable(1.0)
        self.scale, self.config, self.epoch = 2.0, Config(), 0
        self.weights = {"a": 2.0}
        self.array = np.array([1.0, 2.0])
        self.chain = [lambda x: x * 2.0]
        self.parts = functools.partial(tf.multiply, 2.0)

    def scaled(self, x):
        return self.w.assign_add(x * self.scale) * 1.0

    def configured(self, x):
        return self.w.assign_add(x * self.config.scale) * 1.0

    def rated(self, x):
        return x * self.rate

    def weighted(self, x):
        return x * self.weights["a"]

    def from_array(self, x):
        return x * self.array[0]

    def chained(self, x):
        for one in self.chain:
            x = one(x)
        return x

    def optional(self, x):
        return x * (self.more if hasattr(self, "more") else 1.0)

    def partial(self, x):
        return self.parts(x)


CHANGES = {
    "scaled": lambda owner: setattr(owner, "scale", 3.0),
    "configured": lambda owner: setattr(owner.config, "scale", 3.0),
    "rated": lambda owner: setattr(owner, "rate", 3.0),
    "weighted": lambda owner: owner.weights.update(a=3.0),
    "from_array": lambda owner: owner.array.__setitem__(0, 3.0),
    "chained": lambda owner: owner.chain.append(lambda x: x + 1.0),
    "optional": lambda owner: setattr(owner, "more", 3.0),
    "partial": lambda owner: setattr(owner, "parts", functools.partial(tf.multiply, 3.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_object_has(name: str):
    def make():
        owner = Owner()
        return getattr(owner, name), {"vars": [owner.w], "owner": owner}

    def change(state: dict[str, Any]) -> None:
        CHANGES[name](state["owner"])

    def unimportant(state: dict[str, Any]) -> None:
        state["owner"].epoch += 1
        state["owner"].config.unused += 1

    step = alike(make, [(ONE,), (TWO,), unimportant, (TWO,), change, (ONE,), (TWO,), unimportant, (TWO,)])
    assert plays(step) == [2, 2]
    assert step.recordings()[1].why.endswith("has changed")


def test_numbers_that_are_equal_are_not_recorded_again():
    def make():
        owner = Owner()
        return owner.scaled, {"vars": [owner.w], "owner": owner}

    step = alike(make, [(ONE,), (ONE,), lambda s: setattr(s["owner"], "scale", float("2.0")), (ONE,), (ONE,)])
    assert plays(step) == [3]


@pytest.mark.parametrize("value", [2, True, np.float32(2.0), -2.0])
def test_numbers_of_another_type_are(value: Any):
    def make():
        owner = Owner()
        return owner.scaled, {"vars": [owner.w], "owner": owner}

    step = alike(make, [(ONE,), (ONE,), lambda s: setattr(s["owner"], "scale", value), (ONE,), (ONE,)])
    assert plays(step) == [1, 1]


def test_globals_closures_defaults_and_modules(monkeypatch: pytest.MonkeyPatch):
    def make():
        factor, table = 2.0, {"k": [1.0, 2.0]}

        def change(value: float) -> None:
            nonlocal factor
            factor = value

        def step(x, more=[1.0]):  # noqa: B006 - it is changed below
            return x * factor * SCALE * SETTINGS.scale * sum(table["k"]) * more[0]

        return step, {"change": change, "table": table, "step": step}

    def change_global(state: dict[str, Any]) -> None:
        monkeypatch.setitem(globals(), "SCALE", 5.0)

    def change_namespace(state: dict[str, Any]) -> None:
        monkeypatch.setattr(SETTINGS, "scale", 7.0)

    changes = [
        lambda state: state["change"](3.0),
        lambda state: state["table"]["k"].append(4.0),
        lambda state: state["step"].__defaults__[0].__setitem__(0, 2.0),
        change_global,
        change_namespace,
    ]
    step = alike(make, [(ONE,), (TWO,), *(one for change in changes for one in (change, (ONE,), (TWO,)))])
    assert plays(step) == [1] * 6


def test_a_function_that_is_replaced(monkeypatch: pytest.MonkeyPatch):
    def change(state: dict[str, Any]) -> None:
        monkeypatch.setattr(tf.nn, "relu", tf.nn.elu)

    step = alike(lambda: (lambda x: tf.nn.relu(-x), {}), [(PAIR,), (PAIR,), change, (PAIR,), (PAIR,)])
    assert plays(step) == [1, 1]


# ------------------------------------------------------------------ Keras


def dense() -> tuple[Any, dict[str, Any]]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, {"vars": [*model.variables], "model": model, "optimizer": optimizer}


KERAS_CHANGES = {
    "trainable": (lambda state: setattr(state["model"].layers[0], "trainable", False), True),
    "rate of dropout": (lambda state: setattr(state["model"].layers[1], "rate", 0.1), True),
    "activation": (lambda state: setattr(state["model"].layers[0], "activation", keras.activations.tanh), True),
    "clipnorm": (lambda state: setattr(state["optimizer"], "clipnorm", 0.1), True),
    "epsilon": (lambda state: setattr(state["optimizer"], "epsilon", 1e-3), True),
    "learning rate": (lambda state: setattr(state["optimizer"], "learning_rate", 0.01), False),
    "weights": (lambda state: state["model"].set_weights([w * 2 for w in state["model"].get_weights()]), False),
}


@pytest.mark.parametrize("name", KERAS_CHANGES)
def test_what_keras_objects_have(name: str):
    x = tf.constant([[1.0, 2.0]])
    change, is_recorded = KERAS_CHANGES[name]
    step = alike(dense, [*[(x,)] * 4, change, *[(x,)] * 3])
    assert len(plays(step)) == 1 + is_recorded


def test_settings_of_keras():
    def make():
        return lambda x: keras.ops.mean(keras.losses.kl_divergence(x, x * 0.0)), {}

    def change(state: dict[str, Any]) -> None:
        keras.config.set_epsilon(1e-3)

    before = keras.config.epsilon()
    try:
        step = alike(make, [(PAIR,), (PAIR,), change, (PAIR,), (PAIR,)])
    finally:
        keras.config.set_epsilon(before)
    assert plays(step) == [1, 1]


def test_random_numbers_are_those_of_eager_code():
    def make():
        keras.utils.set_random_seed(5)
        seeds = keras.random.SeedGenerator(7)
        return lambda x: x + keras.random.normal([2], seed=seeds) * keras.random.uniform([2]), {"vars": [seeds.state]}

    (plain, _), draws = make(), []
    draws = [plain(PAIR) for _ in range(5)]
    step, _ = make()
    compiled = rt.compile(step, strict=True)
    for expected in draws:
        np.testing.assert_array_equal(compiled(PAIR), expected)
    assert sum(plays(compiled)) >= 3


def test_a_new_global_seed_is_noticed():
    compiled = rt.compile(lambda x: x + keras.random.normal([2]), strict=True)
    keras.utils.set_random_seed(1)
    first = [compiled(PAIR) for _ in range(4)]
    keras.utils.set_random_seed(1)
    for expected in first:
        np.testing.assert_array_equal(compiled(PAIR), expected)
