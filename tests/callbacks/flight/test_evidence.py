"""A step is named, and has a tape, only if what runs again is what ran."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.callbacks.flight._losses import StepLoss, difference, measured
from retrotape.callbacks.flight._search import Call, Ran, search

X, Y = np.random.default_rng(0).normal(size=(2, 32, 4)).astype("f")


def model(*layers, loss="mse", **options):
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), *layers, keras.layers.Dense(4, name="out")])
    made.compile(keras.optimizers.SGD(0.1), loss, **options)
    return made


def crash_of(folder, made, y=Y, **options):
    recorder = rt.FlightRecorder(folder, **options)
    losses = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(logs["loss"]))
    made.fit(X, y, batch_size=8, verbose=0, shuffle=False, callbacks=[recorder, seen])
    return recorder.crashes[0], losses


def third():
    """Return a function of the logs that is true from the third step on, however it runs again."""
    return lambda logs: logs["steps"] > 2.5


class Steps(keras.metrics.Sum):
    """Counts steps."""

    def update_state(self, *_, **__):
        super().update_state(1.0)


# ------------------------------------------------------------------ XLA and random numbers


@pytest.mark.parametrize("layer", [keras.layers.Dropout, keras.layers.GaussianNoise])
def test_a_step_with_other_random_numbers_is_named_and_has_no_tape(tmp_path, layer):
    made = model(layer(0.5, seed=3), jit_compile=True, metrics=[Steps(name="steps")])
    crash, _ = crash_of(tmp_path, made, on=third())
    assert (crash.step, crash.tape) == (2, None)
    assert "step 2 (epoch 1, batch 2, counted from 0): on= was true. In eager code, op by op, its loss is " in (
        crash.message
    )
    assert "XLA draws other random numbers than eager code does, and StatelessRandom" in crash.message
    assert "For a tape of what ran: `model.compile(..., jit_compile=False)`. There is no tape." in crash.message


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}])
def test_otherwise_the_tape_has_the_loss_of_that_step(tmp_path, options):
    layers = [] if "jit_compile" in options else [keras.layers.Dropout(0.5, seed=3)]
    crash, losses = crash_of(tmp_path, model(*layers, metrics=[Steps(name="steps")], **options), on=third())
    assert crash.step == 2
    assert "other random numbers" not in crash.message
    if "steps_per_execution" not in options:
        expected = 3 * losses[2] - 2 * losses[1]
        assert float(rt.load(crash.tape)["loss"]) == pytest.approx(expected, rel=1e-4)


def test_a_loss_that_is_not_finite_either_way_leaves_a_tape_that_says_so(tmp_path):
    y = np.where(np.arange(32)[:, None] == 20, 0.0, np.abs(Y) + 0.1).astype("f")
    made = model(
        keras.layers.Dropout(0.5, seed=3),
        jit_compile=True,
        loss=lambda y, p: tf.reduce_mean((tf.math.log(y) - p) ** 2, -1),
    )
    crash, _ = crash_of(tmp_path, made, y)
    assert (crash.step, crash.nonfinite.op) == (2, "Log")
    assert "Its random numbers are not those of the run: XLA draws other random numbers" in crash.message


def test_recover_does_not_replay_other_random_numbers(tmp_path):
    made = model(keras.layers.Dropout(0.5, seed=3), jit_compile=True)
    found = []

    class Left(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                (path,) = tmp_path.glob("recording-*")
                found.extend(path.glob("batch-*.*"))
                found.extend(one.read_text() for one in path.glob("batch-*.txt"))

    made.fit(X, Y, batch_size=8, verbose=0, callbacks=[rt.FlightRecorder(tmp_path), Left()])
    *paths, text = found
    assert not [path for path in paths if path.suffix == ".tape"]
    assert "draws random numbers, and XLA draws other random numbers than eager code does" in text


@pytest.mark.parametrize(
    ("policy", "run", "eager", "expected"),
    [
        ("float32", StepLoss(2.0), StepLoss(2.001), ""),
        ("float32", StepLoss(2.0), StepLoss(2.01), "its loss is 2.01, and in the run it was 2"),
        ("float32", StepLoss(2.0, 0.1), StepLoss(2.01), ""),
        ("mixed_float16", StepLoss(2.0), StepLoss(2.01), ""),
        ("mixed_float16", StepLoss(2.0), StepLoss(2.5), "its loss is 2.5, and in the run it was 2"),
        ("float32", StepLoss(float("nan")), StepLoss(float("inf")), ""),
        ("float32", StepLoss(float("nan")), StepLoss(1.0), "its loss is 1, and in the run it was nan"),
        ("float32", StepLoss(None), StepLoss(1.0), ""),
    ],
)
def test_losses_differ_by_more_than_rounding(policy, run, eager, expected):
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, dtype=policy)])
    found = difference(made, run, eager)
    assert expected in found
    assert bool(found) == bool(expected)


def test_the_loss_of_one_step_is_taken_out_of_the_mean():
    made = model()
    made.train_on_batch(X[:8], Y[:8])
    (tracker,) = [one for one in made.metrics if one.name == "loss"]
    found = measured(made, lambda: tracker.update_state(5.0, 8))
    assert found.value == pytest.approx(5.0, rel=1e-5)
    assert 0.0 < found.rounding < 1e-4
    assert measured(made, lambda: {"loss": 7.0}) == StepLoss(7.0)


class EagerOnly(keras.layers.Layer):
    """Computes something else in eager code."""

    def call(self, x):
        return x * (2.0 if tf.executing_eagerly() else 1.0)


def test_a_step_that_eager_code_computes_otherwise_has_no_tape(tmp_path):
    crash, _ = crash_of(tmp_path, model(EagerOnly(), metrics=[Steps(name="steps")]), on=third())
    assert (crash.step, crash.tape) == (2, None)
    assert "In eager code, op by op, its loss is " in crash.message
    assert "A tape has what eager code computes, so it would not show what happened. There is no tape." in crash.message


# ------------------------------------------------------------------ the run's later calls


class Sum(keras.layers.Layer):
    """Adds a weight to the gradient only: the loss is not finite once the weight is not."""

    def build(self, _):
        self.u = self.add_weight(shape=[], initializer="zeros", name="u")

    def call(self, x):
        return x + (self.u - tf.stop_gradient(self.u))


def test_a_step_is_not_named_if_the_run_was_finite_after_it(tmp_path):
    class Rate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 3e37 if batch < 3 else 1e-3 if batch < 20 else 1e38

    def fitted(*callbacks):
        made = keras.Sequential([keras.Input([1]), Sum()])
        made.compile(keras.optimizers.SGD(3e37), lambda y, p: p[:, 0])
        made.fit(np.ones([40, 1], "f"), np.ones([40, 1], "f"), batch_size=1, verbose=0, callbacks=[Rate(), *callbacks])

    recorder = rt.FlightRecorder(tmp_path)
    fitted(recorder)
    (crash,) = recorder.crashes
    assert (crash.step, crash.tape) == (None, None)
    assert "It could not be reproduced from the snapshot before step 0: the replay of step 12 gave loss nan" in (
        crash.message
    )
    assert "TensorFlow itself, which need not compute the same twice" in crash.message


def searched(bad, losses, last=6):
    """Search a run in which the state is bad from a step on, with these losses of the run."""
    calls = [Call(step, step + 1, {"loss": loss}) for step, loss in enumerate(losses)]
    ran = []

    def run(step):
        ran.append(step)
        return Ran({"loss": float("nan") if step > bad else 1.0}, step < bad, False, None)

    return search(range(last), run, list, calls, lambda one: one.is_bad), ran


def test_a_state_that_is_not_finite_has_to_show_in_the_next_call():
    nan = float("nan")
    outcome, ran = searched(2, [1.0, 1.0, 1.0, nan, nan, nan])
    assert (outcome.step, outcome.difference, ran) == (2, "", [0, 1, 2, 3])
    outcome, ran = searched(2, [1.0, 1.0, 1.0, 1.0, nan, nan])
    assert outcome.difference == "the replay of step 3 gave loss nan where the run had 1"
    outcome, ran = searched(5, [1.0] * 6)
    assert (outcome.step, outcome.difference, ran[-1]) == (5, "", 5)


# ------------------------------------------------------------------ callbacks that begin later


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("event", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"])
def test_a_later_callback_may_freeze_and_unfreeze_layers(tmp_path, frozen, event):
    def set_trainable(made):
        made.layers[0].trainable = frozen

    def fitted(*callbacks):
        made = model()
        made.layers[0].trainable = not frozen
        made.compile("adam", "mse")
        later = keras.callbacks.Callback()
        setattr(later, event, lambda *_, **__: set_trainable(made))
        made.fit(X, Y, batch_size=8, verbose=0, shuffle=False, callbacks=[*callbacks, later])
        return made

    plain, made = fitted(), fitted(rt.FlightRecorder(tmp_path))
    assert len(plain.optimizer.variables) == len(made.optimizer.variables)
    for one, other in zip(plain.variables, made.variables, strict=True):
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------ several bad steps


def several(folder, bad_losses, bad_inputs, epochs, **options):
    """Train eight steps in each epoch: some with a loss that is not finite, some with inputs that are not."""

    def loss(y, p):
        return tf.reduce_mean((y[:, :4] - p) ** 2, -1) + tf.stop_gradient(tf.math.log(y[:, 4]))

    def batches():
        for step in range(8 * epochs):
            x, y = X[:8].copy(), np.concatenate([Y[:8], np.ones([8, 1], "f")], 1)
            if step in bad_losses:
                y[0, 4] = 0.0
            if step in bad_inputs:
                x[0, 0] = np.nan
            yield x, y

    recorder = rt.FlightRecorder(folder, keep=10, **options)
    made = model(loss=loss)
    made.fit(batches(), steps_per_epoch=8, epochs=epochs, verbose=0, shuffle=False, callbacks=[recorder])
    return [crash.step for crash in recorder.crashes]


@pytest.mark.parametrize(
    ("bad_losses", "bad_inputs", "epochs", "expected"),
    [
        ([4, 12, 20], [], 3, [4, 12, 20]),
        ([4], [13], 2, [4, 13]),
        ([4], [13], 3, [4, 13]),
        ([4], [13], 4, [4, 13]),
        ([], [5], 3, [5]),
        ([4, 5], [4], 3, [4]),
    ],
)
def test_each_bad_step_is_found_once(tmp_path, bad_losses, bad_inputs, epochs, expected):
    assert several(tmp_path, bad_losses, bad_inputs, epochs) == expected
    assert several(tmp_path, bad_losses, bad_inputs, epochs, stop=False) == expected


def test_weights_that_go_after_the_loss_of_the_same_epoch_are_found_too(tmp_path):
    assert several(tmp_path, [1], [5], 2, every=3) == [1, 5]
