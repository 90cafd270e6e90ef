"""A training that is recorded is the same to the bit, whatever its layers draw from; or else there is a warning."""

from __future__ import annotations

import random
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from callbacks.flight.programs import state, training

MODES = {"compiled": {}, "eager": {"run_eagerly": True}}
HIDDEN: list[tf.random.Generator] = []
OUTSIDE = tf.Variable(0.0)  # which no layer tracks


class Noise(keras.layers.Layer):
    """Adds what is drawn in some of the ways that a layer may draw."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self._draws = [getattr(self, f"_{kind}") for kind in kinds]
        self.generators = [tf.random.Generator.from_seed(3), np.random.default_rng(3), random.Random(3)]

    def call(self, x):
        OUTSIDE.assign_add(1.0)
        for draw in self._draws:
            x += 0.01 * tf.cast(draw(), tf.float32)
        return x

    def _unseeded(self):
        return tf.random.normal([])

    def _seeded_op(self):
        return tf.random.normal([], seed=3)

    def _numpy(self):
        return np.random.normal()

    def _python(self):
        return random.random()

    def _keras(self):
        return keras.random.normal([])

    def _global_generator(self):
        return tf.random.get_global_generator().normal([])

    def _own_generator(self):
        return self.generators[0].normal([])

    def _own_numpy_generator(self):
        return self.generators[1].normal()

    def _own_python_generator(self):
        return self.generators[2].random()

    def _hidden_generator(self):
        return HIDDEN[0].normal([])


KINDS = [name[1:] for name in vars(Noise) if name.startswith("_") and name.islower() and "__" not in name]
WARNED = ["global_generator", "own_generator"]
SAVED = [kind for kind in KINDS if kind not in ("hidden_generator", *WARNED)]


def draws() -> list[float]:
    found = [tf.random.uniform([]), tf.random.uniform([], seed=3), tf.random.get_global_generator().normal([])]
    return [*map(float, found), random.random(), float(np.random.random()), float(OUTSIDE)]


def begin(seed: int | None) -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    tf.random.set_seed(seed)
    tf.random.get_global_generator().reset_from_seed(1)
    HIDDEN[:] = [tf.random.Generator.from_seed(5)]
    OUTSIDE.assign(0.0)


def trained(kinds, callbacks, steps=6, **options):
    """Train, and return everything that could have changed."""
    begin(7)
    draw = np.random.default_rng(0)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), Noise(*kinds)]
    model = keras.Sequential([keras.Input([3]), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], **options)
    x, y = draw.normal(size=[4 * steps - 1, 3]), draw.normal(size=[4 * steps - 1, 1])  # two shapes of batches
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks).history
    found = {name: value.tobytes() for name, value in state(model).items()}
    return history, found, draws(), [float(generator.normal([])) for generator in (model.layers[3].generators[0],)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kinds",
    [SAVED, WARNED, *(pytest.param([kind], marks=pytest.mark.slow) for kind in [*SAVED, *WARNED])],
    ids=" ".join,
)
def test_training_without_trouble_is_the_same_and_leaves_nothing(tmp_path, mode, kinds):
    expected = trained(kinds, [], **MODES[mode])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = trained(kinds, [rt.FlightRecorder(tmp_path, every=4)], **MODES[mode])
    texts = {str(one.message).partition(":")[0] for one in warned}
    told = {"If this process is killed, its last steps cannot be recovered"}
    assert texts == (told if {*kinds} & {*WARNED} else set())
    for one, other in zip(found, expected, strict=True):
        assert one == other
    assert list(tmp_path.iterdir()) == []


def test_the_kinds_are_those_above():
    assert len(KINDS) == 10


@pytest.mark.filterwarnings("ignore:If this process is killed")
@pytest.mark.parametrize("mode", MODES)
def test_a_generator_that_cannot_be_put_back_is_warned_of_and_the_rest_is(tmp_path, mode):
    expected = trained(["hidden_generator"], [], **MODES[mode])
    text = r"FlightRecorder cannot put back 'StateVar:0', .*`tf.random.Generator`, make that an attribute of its layer"
    with pytest.warns(UserWarning, match=text) as warned:
        found = trained(["hidden_generator"], [rt.FlightRecorder(tmp_path, every=4)], **MODES[mode])
    assert not [one for one in warned if "has stopped" in str(one.message)]
    assert found[2] == expected[2]
    assert found[1] != expected[1]  # it is the state of that generator which differs


@pytest.mark.filterwarnings("ignore:If this process is killed")
@pytest.mark.parametrize("mode", MODES)
def test_a_generator_is_part_of_the_state_so_that_its_numbers_are_drawn_again(tmp_path, mode):
    """The step that went wrong draws what it drew in the run, so that it is found."""
    program = training(0)
    begin(7)
    model = keras.Sequential(
        [keras.Input([6]), *program.make().layers[:1], Noise("own_generator"), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", **MODES[mode])
    recorder = rt.FlightRecorder(tmp_path, every=4)
    program.fit(model, callbacks=[recorder])
    (crash,) = recorder.crashes
    assert crash.step == program.bad, crash.message
    assert rt.load(crash.tape).first_nonfinite("loss").op == program.kind.op


def test_with_deterministic_ops_there_may_be_no_global_generator(tmp_path, monkeypatch):
    def refuse():
        raise RuntimeError("cannot be called if determinism is enabled")

    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    monkeypatch.setattr(tf.random, "get_global_generator", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(np.ones([8, 3]), np.ones([8, 1]), verbose=0, callbacks=[rt.FlightRecorder(tmp_path)])
