"""Python state that is reached in unusual ways: played back, or refused, but never forgotten."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable

import keras
import pytest
import tensorflow as tf

import retrotape as rt

pytestmark = pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
Case = tuple[Callable, Callable]


def arguments_of_a_partial_method() -> Case:
    options = [1.0]

    class Own:
        def _scaled(self, x, options):
            return x * options[0]

        scaled = functools.partialmethod(_scaled, options=options)

    own = Own()
    return lambda x: own.scaled(x), lambda: options.__setitem__(0, 2.0)


def positional_arguments_of_a_partial_method() -> Case:
    options = types.SimpleNamespace(scale=1.0)

    class Own:
        def _scaled(self, options, x):
            return x * options.scale

        scaled = functools.partialmethod(_scaled, options)

    own = Own()
    return lambda x: own.scaled(x), lambda: setattr(options, "scale", 2.0)


def a_class_attribute_that_is_new() -> Case:
    class Own:
        pass

    own = Own()
    return lambda x: x * getattr(own, "scale", 1.0), lambda: setattr(Own, "scale", 2.0)


def whether_a_class_has_an_attribute() -> Case:
    class Own:
        pass

    own = Own()
    return lambda x: x * (2.0 if hasattr(own, "scale") else 1.0), lambda: setattr(Own, "scale", None)


def a_module_attribute_that_is_new() -> Case:
    module = types.ModuleType("module_for_tests")
    return lambda x: x * getattr(module, "scale", 1.0), lambda: setattr(module, "scale", 2.0)


def a_global_that_is_new() -> Case:
    globals().pop("SCALE", None)

    def scaled(x):
        try:
            return x * SCALE
        except NameError:
            return x * 1.0

    return scaled, lambda: globals().__setitem__("SCALE", 2.0)


def an_attribute_of_a_metaclass() -> Case:
    class Meta(type):
        scale = 1.0

    class Own(metaclass=Meta):
        pass

    return lambda x: x * Own.scale, lambda: setattr(Meta, "scale", 2.0)


def an_implementation_that_is_registered() -> Case:
    @functools.singledispatch
    def scaled(x):
        return x * 1.0

    kind = type(tf.constant(1.0))
    return lambda x: scaled(x), lambda: scaled.register(kind, lambda x: x * 2.0)


def the_environment_in_a_closure() -> Case:
    own = os
    own.environ["SCALE_FOR_TESTS"] = "1"
    return lambda x: x * float(own.environ["SCALE_FOR_TESTS"]), lambda: os.environ.update(SCALE_FOR_TESTS="2")


def getenv_in_a_closure() -> Case:
    own = os
    own.environ["SCALE_FOR_TESTS"] = "1"
    return lambda x: x * float(own.getenv("SCALE_FOR_TESTS")), lambda: os.environ.update(SCALE_FOR_TESTS="2")


CASES = [
    arguments_of_a_partial_method,
    positional_arguments_of_a_partial_method,
    a_class_attribute_that_is_new,
    whether_a_class_has_an_attribute,
    a_module_attribute_that_is_new,
    a_global_that_is_new,
    an_attribute_of_a_metaclass,
    an_implementation_that_is_registered,
    the_environment_in_a_closure,
    getenv_in_a_closure,
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inside", [False, True], ids=["step", "layer"])
def test_it_counts(case: Callable[[], Case], inside: bool):
    function, change = case()
    layer = type("Own", (keras.layers.Layer,), {"call": lambda self, x: function(x)})()
    step = rt.compile((lambda x: layer(x)) if inside else (lambda x: function(x)))
    x = tf.constant([1.0])
    for _ in range(4):
        assert step(x).numpy().tolist() == [1.0]
    change()
    for _ in range(3):
        assert step(x).numpy().tolist() == [2.0]


def test_a_method_of_keras_that_is_replaced(monkeypatch: pytest.MonkeyPatch):
    layer, x = keras.layers.Rescaling(1.0), tf.constant([1.0])
    step = rt.compile(lambda x: layer(x))
    for _ in range(4):
        assert step(x).numpy().tolist() == [1.0]
    monkeypatch.setattr(keras.layers.Rescaling, "call", lambda self, x: x * 5.0)
    assert step(x).numpy().tolist() == [5.0]
