"""What leads code of a step to state that is not compared, and state that was overlooked easily."""

from __future__ import annotations

import importlib
from collections import defaultdict

import keras
import pytest
import tensorflow as tf

import retrotape as rt

X = tf.constant(1.5)


def other():
    return FACTORS[0]


FACTORS = [2.0]
USES = {
    "__globals__": lambda x: x * other.__globals__["FACTORS"][0],
    "__closure__": lambda x: x * (len(other.__closure__ or ()) + 1.0),
    "import_module": lambda x: x * importlib.import_module(__name__).FACTORS[0],
}


@pytest.mark.parametrize("name", USES)
def test_what_is_not_compared_is_refused(name):
    step = rt.compile(USES[name])
    with pytest.warns(rt.errors.PlaybackWarning, match=f"it uses `{name}` at .*; do that outside the step"):
        step(X)


def test_settings_of_losses_of_keras():
    loss = keras.losses.Huber(delta=1.0)
    step = rt.compile(lambda x: loss(tf.zeros([1]), tf.reshape(x, [1])), audit=False)
    before = [float(step(tf.constant(3.0))) for _ in range(3)]
    loss._fn_kwargs["delta"] = 0.5
    assert [*before, float(step(tf.constant(3.0)))] == [2.5, 2.5, 2.5, 1.375]


def test_the_factory_of_a_default():
    held = defaultdict(lambda: 2.0)
    step = rt.compile(lambda x: x * held.default_factory(), audit=False)
    before = [float(step(X)) for _ in range(3)]
    held.default_factory = lambda: 3.0
    assert [*before, float(step(X))] == [3.0, 3.0, 3.0, 4.5]
