"""XLA draws other random numbers than eager code: what a step in eager code gives is then not what ran."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.callbacks._draws import drawing_op, is_compiled_by_xla

X, Y = np.random.default_rng(0).normal(size=(2, 32, 4)).astype("f")


@tf.function
def drawing(x):
    while tf.reduce_sum(x) < 10.0:
        x = x + tf.random.stateless_uniform([3], [1, 2])
    return x


@tf.function
def caller(x):
    return drawing(x) + 1.0


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: keras.layers.Dropout(0.5)(x, training=True), "StatelessRandomUniformV2"),
        (lambda x: keras.layers.Dropout(0.5)(x, training=False), None),
        (lambda x: x + tf.random.normal([3]), "RandomStandardNormal"),
        (drawing, "StatelessRandomUniformV2"),
        (caller, "StatelessRandomUniformV2"),
        (tf.function(lambda x: x + 1.0), None),
        (tf.custom_gradient(lambda x: (x + 1.0, lambda dy: dy)), None),
    ],
    ids=["dropout", "inactive", "normal", "loop", "function in function", "function", "custom gradient"],
)
def test_an_op_that_draws_is_found_also_within_functions(step, expected):
    with rt.Tape() as tape:
        step(tf.ones(3))
    found = drawing_op(tape.program)
    assert (found and found.partition(" at ")[0]) == expected


def model(*layers, **options):
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), *layers, keras.layers.Dense(4, name="out")])
    made.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return made


def logged(made):
    found = []
    callback = rt.callbacks.GradientLog(lambda metrics, step: found.append(step), every=1)
    made.fit(X, Y, batch_size=8, verbose=0, shuffle=False, callbacks=[callback])
    return found


def test_gradients_of_other_draws_are_not_logged():
    plain, made = (model(keras.layers.GaussianNoise(0.5, seed=3), jit_compile=True) for _ in range(2))
    with pytest.warns(RuntimeWarning, match="GradientLog logs nothing of steps that draw random numbers") as caught:
        assert logged(made) == []
    (text,) = [str(one.message) for one in caught]
    assert "StatelessRandomNormalV2 at " in text
    assert text.endswith("To log them: `model.compile(..., jit_compile=False)`.")
    plain.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    for one, other in zip(plain.variables, made.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_xla_may_also_be_switched_on_for_everything(monkeypatch):
    made = model(keras.layers.GaussianNoise(0.5, seed=3))
    assert not is_compiled_by_xla(made)
    monkeypatch.setattr(tf.config.optimizer, "get_jit", lambda: "autoclustering")
    assert is_compiled_by_xla(made)
    made.run_eagerly = True
    assert not is_compiled_by_xla(made)


@pytest.mark.parametrize(
    "made",
    [
        lambda: model(jit_compile=True),
        lambda: model(keras.layers.GaussianNoise(0.5, seed=3)),
        lambda: model(keras.layers.GaussianNoise(0.5, seed=3), run_eagerly=True),
    ],
    ids=["XLA without draws", "draws without XLA", "eager"],
)
def test_all_others_are_logged(made):
    assert logged(made()) == [0, 1, 2, 3]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_steps_are_batches_also_where_gradients_are_accumulated(every, policy):
    keras.mixed_precision.set_global_policy(policy)
    try:
        made = model()
    finally:
        keras.mixed_precision.set_global_policy("float32")
    made.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    found = []
    callback = rt.callbacks.GradientLog(lambda metrics, step: found.append(step), every=every)
    made.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[callback])
    assert found == list(range(0, 16, every))
