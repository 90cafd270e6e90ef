"""Methods of user code that only Keras calls: what they refer to counts, as in code that names them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.playback import _updates as updates

pytestmark = pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
FACTOR, LISTED, BY_NAME = 1.0, [1.0], {"factor": 1.0}


def factor() -> float:
    return FACTOR


def settings(kind: str) -> tuple[Callable[[Any], float], Callable[[type, Any], None]]:
    """Return how a method finds a number, and what changes it; given the object, and its class."""
    kept, number = [1.0], 1.0

    def rebind(*_: Any) -> None:
        nonlocal number
        number = 0.5

    def assign(*_: Any) -> None:
        globals()["FACTOR"] = 0.5

    globals()["FACTOR"], LISTED[0], BY_NAME["factor"] = 1.0, 1.0, 1.0
    return {
        "a global": (lambda own: FACTOR, assign),
        "a list": (lambda own: LISTED[0], lambda *_: LISTED.__setitem__(0, 0.5)),
        "a dictionary": (lambda own: BY_NAME["factor"], lambda *_: BY_NAME.update(factor=0.5)),
        "another function": (lambda own: factor(), assign),
        "a closure": (lambda own: number, rebind),
        "a list in a closure": (lambda own: kept[0], lambda *_: kept.__setitem__(0, 0.5)),
        "the class": (lambda own: own.of_class, lambda kind, _: setattr(kind, "of_class", 0.5)),
        "a derived class": (lambda own: own.of_base, lambda kind, _: setattr(kind, "of_base", 0.5)),
        "the object": (lambda own: own.of_object, lambda _, own: setattr(own, "of_object", 0.5)),
    }[kind]


KINDS = (
    "a global",
    "a list",
    "a dictionary",
    "another function",
    "a closure",
    "a list in a closure",
    "the class",
    "a derived class",
    "the object",
)


def made(base: type, method: str, function: Callable[..., Any]) -> Any:
    """Return a class with a method of user code, derived from one of Keras'."""
    parent = types.new_class("Parent", (base,), {}, lambda space: space.update({"of_base": 1.0, method: function}))
    return types.new_class("Derived", (parent,), {}, lambda space: space.update({"of_class": 1.0}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True], ids=["layer", "model"])
def test_the_call_of_a_layer(kind: str, inside: bool):
    read, change = settings(kind)
    layer = made(keras.layers.Layer, "call", lambda self, x: x * read(self))()
    layer.of_object = 1.0
    model = keras.Sequential([keras.Input([2]), layer]) if inside else layer
    step = rt.compile(lambda x: tf.reduce_sum(model(x)))
    x = tf.ones([1, 2])
    for _ in range(4):
        assert float(step(x)) == 2.0
    change(type(layer), layer)
    for _ in range(3):
        assert float(step(x)) == 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["Gradients.apply", "rt.compile"])
def test_the_update_of_an_optimizer(kind: str, way: str):
    read, change = settings(kind)

    def update_step(self, grad, variable, rate):
        variable.assign_sub(grad * tf.cast(rate, grad.dtype) * read(self))

    optimizer = made(keras.optimizers.SGD, "update_step", update_step)(0.125)
    optimizer.of_object = 1.0
    w, grad = keras.Variable([1.0]), tf.ones([1])
    optimizer.build([w])

    def apply(grad):
        optimizer.apply([grad], [w])

    step = rt.compile(apply) if way == "rt.compile" else lambda grad: rt.Gradients([(w, grad)]).apply(optimizer)
    for _ in range(12):
        step(grad)
    assert float(w.numpy()[0]) == 1.0 - 12 * 0.125
    change(type(optimizer), optimizer)
    for _ in range(4):
        step(grad)
    assert float(w.numpy()[0]) == 1.0 - 12 * 0.125 - 4 * 0.0625


def sgd(**options: Any) -> keras.optimizers.SGD:
    return type("Mine", (keras.optimizers.SGD,), {})(0.1, **options)


def doubled(self, grad, variable, rate):
    variable.assign_sub(2.0 * grad * tf.cast(rate, grad.dtype))


CHANGES = {
    "a method of Keras": (
        lambda: keras.optimizers.SGD(0.1),
        lambda patch, _: patch.setattr(keras.optimizers.SGD, "update_step", doubled),
    ),
    "a new method": (sgd, lambda patch, own: patch.setattr(type(own), "update_step", doubled, raising=False)),
    "a schedule of tensors": (
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.PiecewiseConstantDecay([100], [tf.constant(0.1), tf.constant(0.2)])
        ),
        lambda _, own: setattr(own._learning_rate, "values", [tf.constant(0.01), tf.constant(0.2)]),
    ),
    "a method of a schedule": (
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)),
        lambda patch, _: patch.setattr(
            keras.optimizers.schedules.ExponentialDecay, "__call__", lambda self, step: tf.constant(0.01)
        ),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_nobody_asked_to_be_played_back_notices(name: str, monkeypatch: pytest.MonkeyPatch):
    make, change = CHANGES[name]
    both = [(make(), keras.Variable([1.0, 2.0])) for _ in range(2)]
    for optimizer, w in both:
        optimizer.build([w])

    def steps(count: int) -> None:
        for _ in range(count):
            (ours, mine), (plain, theirs) = both
            rt.Gradients([(mine, tf.ones([2]))]).apply(ours)
            plain.apply([tf.ones([2])], [theirs])
        np.testing.assert_array_equal(mine, theirs)

    steps(14)
    for optimizer, _ in both:
        change(monkeypatch, optimizer)
    steps(6)


def test_a_scope_without_state():
    found = []
    for ours in (True, False):
        w, optimizer = keras.Variable([1.0]), keras.optimizers.SGD(0.5, momentum=0.5)
        optimizer.build([w])

        def apply(w=w, optimizer=optimizer, ours=ours) -> None:
            grad = tf.ones([1])
            rt.Gradients([(w, grad)]).apply(optimizer) if ours else optimizer.apply([grad], [w])

        for _ in range(updates.AFTER + 4):
            apply()
        with keras.StatelessScope() as scope:
            apply()
        inside = [scope.get_current_value(one) for one in optimizer.variables]
        outside = [one.numpy() for one in (w, *optimizer.variables)]
        found.append((outside, [None if one is None else np.asarray(one) for one in inside]))
    np.testing.assert_equal(*found)
