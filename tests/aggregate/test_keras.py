"""Every method in a `train_step`: compiled `fit` is `fit` in eager code, and one device is two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from aggregate.heads import HEADS, METHODS, X, Y, fit, make, net
from helpers.processes import PYTHON

RNG = np.random.default_rng(1)


def assert_same_weights(one: keras.Model, other: keras.Model, rtol: float = 1e-3) -> None:
    for got, want in zip(one.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


ONE_OF_A_KIND = {"PCGrad", "GradDrop", "GradNorm", "MoCo", "UncertaintyWeighting"}


@pytest.mark.parametrize(
    "name", [name if name in ONE_OF_A_KIND else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_compiled_fit_is_that_of_eager_code(name):
    compiled, eager = net(name), net(name)
    start = compiled.get_weights()
    history = fit(compiled)
    assert history == pytest.approx(fit(eager, run_eagerly=True), rel=1e-3)
    assert_same_weights(compiled, eager)
    assert history[-1] < history[0]
    assert all(np.any(now != before) for now, before in zip(compiled.get_weights(), start, strict=True))


@pytest.mark.parametrize("name", ["Sum", "Mean"])
def test_what_is_known_without_the_library(name):
    ours, other = net(name), net(name)
    fit(ours)
    factor = {"Sum": 1.0, "Mean": 0.2}[name]
    for _ in range(3):
        for part in (slice(0, 32), slice(32, 64)):
            with tf.GradientTape(persistent=True) as tape:
                made = other(X[part])
                losses = [tf.reduce_mean((made[one][:, 0] - Y[part, k]) ** 2) for k, one in enumerate(HEADS)]
                total = tf.add_n(losses)
            for variable in other.trainable_variables:
                # Heads have a loss of their own.
                share = factor if any(variable is one for one in other.trunk.trainable_variables) else 1.0
                variable.assign_sub(0.05 * share * tape.gradient(total, variable))
    assert_same_weights(ours, other)


@pytest.mark.parametrize("name", ["UPGrad", *(pytest.param(name, marks=pytest.mark.slow) for name in ("MGDA", "MoCo"))])
def test_with_xla_it_is_the_same(name):
    plain, jitted = net(name), net(name)
    assert fit(jitted, jit_compile=True) == pytest.approx(fit(plain, jit_compile=False), rel=1e-3)
    assert_same_weights(jitted, plain)


# ------------------------------------------------------------------ strategies


@pytest.mark.parametrize("names", [("GradNorm",), pytest.param(tuple(METHODS), marks=pytest.mark.slow)], ids=len)
def test_two_devices_are_one_with_the_whole_batch(names):
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [PYTHON, str(tests / "aggregate" / "two_devices.py"), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    apart = json.loads(done.stdout.partition("apart:")[2])
    assert set(apart) == set(names)
    assert max(apart.values()) < 1e-3, apart


# ------------------------------------------------------------------ mixed precision


@pytest.fixture
def half_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize(
    "name", ["NashMTL", *(pytest.param(one, marks=pytest.mark.slow) for one in ("UPGrad", "GradNorm"))]
)
def test_mixed_precision_skips_steps_that_overflow(name):
    """Losses are scaled in `multi_task`; the first scale is far too large, so that some steps have to be skipped."""
    keras.utils.set_random_seed(1)
    x = keras.Input([4])
    features = keras.layers.Dense(6, "tanh")(x)
    outputs = {one: keras.layers.Dense(1, name=one, dtype="float32")(features) for one in HEADS}
    model = keras.Model(x, outputs)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**24)
    model.compile(optimizer, dict.fromkeys(HEADS, "mse"), auto_scale_loss=False)
    rt.keras.multi_task(model, make(name))
    y = {one: Y[:, [k]] for k, one in enumerate(HEADS)}
    history = model.fit(X, y, batch_size=32, epochs=12, verbose=0, shuffle=False).history["loss"]
    assert float(optimizer.dynamic_scale) < 2.0**24
    assert 0 < int(optimizer.inner_optimizer.iterations) < 24
    assert np.isfinite(np.concatenate([np.ravel(value) for value in model.get_weights()])).all()
    assert history[-1] < 0.95 * history[0]


@pytest.mark.parametrize("name", ["NashMTL", pytest.param("UPGrad", marks=pytest.mark.slow)])
def test_a_scaled_loss_changes_nothing(name):
    """NashMTL is not linear: rows that are scaled give the same direction, and the optimizer would divide it."""
    models = []
    for scale in (None, 512.0):
        keras.utils.set_random_seed(1)
        x = keras.Input([4])
        features = keras.layers.Dense(6, "tanh")(x)
        model = keras.Model(x, {one: keras.layers.Dense(1, name=one)(features) for one in HEADS})
        model.compile(keras.optimizers.SGD(0.05, loss_scale_factor=scale), dict.fromkeys(HEADS, "mse"))
        rt.keras.multi_task(model, make(name))
        y = {one: Y[:, [k]] for k, one in enumerate(HEADS)}
        model.fit(X, y, batch_size=32, epochs=2, verbose=0, shuffle=False)
        models.append(model)
    assert_same_weights(*models)


# ------------------------------------------------------------------ sparse gradients, and what `fit` shows


class Words(keras.Model):
    """Two losses of one embedding."""

    def __init__(self, method: rt.aggregate.Aggregator) -> None:
        super().__init__()
        self.table, self.near, self.far = keras.layers.Embedding(9, 3), keras.layers.Dense(1), keras.layers.Dense(1)
        self.method = method
        self.kinds: set[str] = set()

    def call(self, words):
        meaning = tf.reduce_mean(self.table(words), 1)
        return self.near(meaning), self.far(meaning)

    def train_step(self, data):
        words, y = data
        with rt.Tape() as tape:
            near, far = self(words)
            losses = [tf.reduce_mean((near - y) ** 2), tf.reduce_mean((far + y) ** 2)]
        combined = self.method(tape.backward_each(losses, self.trainable_variables))
        self.kinds.add(type(combined[self.table.embeddings]).__name__)
        combined.apply(self.optimizer)
        return {"loss": losses[0] + losses[1]}


def test_embeddings():
    words, y = RNG.integers(0, 9, (16, 4)), RNG.normal(size=(16, 1)).astype("float32")
    models = []
    for eager in (False, True):
        keras.utils.set_random_seed(1)
        model = Words(rt.aggregate.UPGrad())
        model(words)
        model.compile(keras.optimizers.SGD(0.5), run_eagerly=eager)
        model.fit(words, y, epochs=3, verbose=0, shuffle=False)
        assert model.kinds == {"IndexedSlices"}
        models.append(model)
    assert_same_weights(*models)


def test_a_step_without_tracker_shows_nothing():
    """As the documentation says: Keras shows its own tracker of this name, and nobody has updated it."""
    words, y = RNG.integers(0, 9, (16, 4)), RNG.normal(size=(16, 1)).astype("float32")
    model = Words(rt.aggregate.UPGrad())
    model.compile("sgd")
    assert model.fit(words, y, verbose=0).history["loss"] == [0.0]


def test_a_step_with_tracker_shows_the_mean():
    model = net("UPGrad")
    model.compile(keras.optimizers.SGD(0.0))
    shown = model.fit(X, Y, batch_size=32, verbose=0, shuffle=False).history["loss"][0]
    made = model(X)
    whole = sum(float(tf.reduce_mean((made[one][:, 0] - Y[:, k]) ** 2)) for k, one in enumerate(HEADS))
    assert shown == pytest.approx(whole, rel=1e-4)
