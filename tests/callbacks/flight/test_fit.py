"""A `fit` that goes wrong leaves the very step, in every mode that Keras has."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from callbacks.flight.elsewhere import without_the_code
from callbacks.flight.programs import SIZE, state, training

MODES = {
    "compiled": {},
    "eager": {"run_eagerly": True},
    "eight steps at once": {"steps_per_execution": 8},
    "XLA": {"jit_compile": True},
}


def cases(fast, seeds):
    """Yield modes with seeds; all but the fast ones are slow."""
    for mode in MODES:
        for seed in seeds:
            yield pytest.param(mode, seed, marks=[] if (mode, seed) in fast else [pytest.mark.slow])


def before(tape: rt.LoadedTape, name: str) -> np.ndarray:
    return tape.versions(name)[0].value.numpy()


def crashed(folder, program, **options) -> tuple[rt.Crash, rt.FlightRecorder]:
    recorder = rt.FlightRecorder(folder, every=10)
    program.fit(program.make(**options), callbacks=[recorder])
    (crash,) = recorder.crashes
    return crash, recorder


@pytest.mark.parametrize(("mode", "seed"), [*cases([*((mode, 0) for mode in MODES), ("compiled", 2)], range(8))])
def test_the_very_step_is_found_and_its_op_named(tmp_path, mode, seed):
    program = training(seed)
    crash, _ = crashed(tmp_path, program, **MODES[mode])
    found = crash.nonfinite
    assert crash.step == program.bad
    draws = any(isinstance(layer, keras.layers.Dropout) for layer in program.make().layers)
    if mode == "XLA" and draws and program.kind.backward:  # a finite loss, which is another in eager code
        assert crash.tape is None
        assert "XLA draws other random numbers than eager code does" in crash.message
        return
    assert (found.op, found.backward, found.cause.name) == program.kind[2:]
    assert found.frame.file.endswith("programs.py")
    assert f"step {program.bad} " in crash.message
    assert f"{found.op} at {found.frame.file}:{found.frame.line}" in crash.message
    tape = rt.load(crash.tape)
    bad = slice(program.bad * SIZE, (program.bad + 1) * SIZE)
    np.testing.assert_array_equal(tape["x"], program.x[bad])
    np.testing.assert_array_equal(tape["y"], program.y[bad])
    assert np.isfinite(tape["loss"]) == program.kind.backward
    kernel = tape.gradient("loss", "out/kernel")
    assert kernel.shape == tape["out/kernel"].shape
    report = without_the_code(crash.tape)
    assert (report["op"], report["cause"]) == (program.kind.op, program.kind.cause)


@pytest.mark.parametrize(("mode", "seed"), [*cases([("compiled", 4), ("eager", 4)], range(5))])
def test_the_state_is_that_of_the_same_training_stopped_before_that_step(tmp_path, mode, seed):
    program = training(seed)
    crash, _ = crashed(tmp_path, program, **MODES[mode])
    plain = program.make(**MODES[mode])
    program.fit(plain, program.bad)
    tape, expected = rt.load(crash.tape), state(plain)
    compared = [name for name in expected if name in tape.names]
    assert len(compared) > len(plain.trainable_variables)
    for name in compared:
        np.testing.assert_array_equal(before(tape, name), expected[name], err_msg=name)


def test_a_training_that_went_wrong_stops_with_the_state_that_it_had(tmp_path):
    program = training(0)
    model, plain = program.make(), program.make()
    recorder = rt.FlightRecorder(tmp_path, every=10)
    program.fit(model, callbacks=[recorder])
    assert recorder.crashes[0].step == program.bad
    steps = int(model.optimizer.iterations.numpy())
    assert program.bad < steps <= program.bad + 11 < program.steps + 10
    program.fit(plain, steps)
    expected = state(plain)
    assert any(np.isnan(value).any() for value in expected.values())
    for name, value in state(model).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_it_goes_on_without_stop(tmp_path):
    program = training(0)
    model = program.make()
    program.fit(model, callbacks=[rt.FlightRecorder(tmp_path, every=10, stop=False)])
    assert int(model.optimizer.iterations.numpy()) == program.steps
    assert len(list(tmp_path.glob("*.tape"))) == 1


@pytest.mark.parametrize(
    ("mode", "seed"),
    [("compiled", 0), ("eager", 4), *(pytest.param(m, s, marks=pytest.mark.slow) for m in MODES for s in (1, 3, 8))],
)
def test_mixed_precision_skips_the_step_and_training_goes_on(tmp_path, mode, seed):
    program = training(seed)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = program.make(**MODES[mode])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    recorder = rt.FlightRecorder(tmp_path, every=10)
    program.fit(model, callbacks=[recorder])
    (crash,) = recorder.crashes
    assert (crash.step, crash.nonfinite.op) == (program.bad, program.kind.op)
    assert all(np.isfinite(variable.numpy()).all() for variable in model.trainable_variables)
    is_finite = all(np.isfinite(value).all() for value in state(model).values())  # not the moving mean of a bad batch
    assert model.stop_training == (not is_finite)


class Huge(keras.losses.Loss):
    """Finite, with a gradient that is not, from some step on."""

    def call(self, y, prediction):
        return tf.sqrt(tf.reduce_sum(prediction * y, axis=-1) ** 2)


def test_a_loss_scale_that_falls_again_and_again_is_reported(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0)), Huge())
    y = np.ones([200, 1], "f4")
    y[80:180] = 0.0  # the square root at zero
    recorder = rt.FlightRecorder(tmp_path, every=10)
    model.fit(np.ones([200, 3], "f4"), y, batch_size=4, shuffle=False, verbose=0, callbacks=[recorder])
    crash = recorder.crashes[0]
    assert "the loss scale fell from 32768 to " in crash.message
    assert 20 <= crash.step < 45
    assert (crash.nonfinite.cause.name, crash.nonfinite.backward) == ("SQRT_AT_ZERO", True)
    assert not model.stop_training


class Unseeded(keras.layers.Layer):
    def call(self, x):
        noise = tf.random.uniform([])
        return x * tf.math.log(tf.where(noise < 0.1, 0.0, noise))


def test_what_cannot_be_reproduced_is_said_and_no_step_is_named(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), Unseeded(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    recorder = rt.FlightRecorder(tmp_path, every=10)
    model.fit(np.ones([400, 3], "f4"), np.ones([400, 1], "f4"), batch_size=4, verbose=0, callbacks=[recorder])
    crash = recorder.crashes[0]
    assert (crash.step, crash.tape) == (None, None)
    assert "could not be reproduced from the snapshot before step" in crash.message
    assert "random numbers without a seed" in crash.message
    assert "There is no tape." in crash.message
    assert list(tmp_path.glob("*.tape")) == []


class Outside(keras.layers.Layer):
    """Goes wrong at certain calls, whatever the data and the variables are: something outside counts."""

    calls = 0

    def call(self, x):
        return x * tf.math.log(tf.ensure_shape(tf.numpy_function(self._count, [], tf.float32), []))

    def _count(self):
        self.calls += 1
        return np.float32(self.calls not in (15, 27))


def test_a_replay_that_goes_wrong_at_another_step_names_none(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), Outside(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data, losses = np.random.default_rng(0).normal(size=[400, 3]).astype("f4"), []
    plain = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: losses.append(logs["loss"]))
    recorder = rt.FlightRecorder(tmp_path, every=10)
    model.fit(data, data[:, :1], batch_size=4, shuffle=False, verbose=0, callbacks=[recorder, plain])
    crash, bad = recorder.crashes[0], int(np.argmin(np.isfinite(losses)))
    assert model.layers[0].calls > 27  # the replay went wrong too, later
    assert (crash.step, crash.tape) == (None, None)
    assert f"step {bad} (epoch 1" in crash.message  # the run itself shows it
    assert f"the replay of step {bad} gave loss" in crash.message


class Count(keras.metrics.Metric):
    """How many steps there were."""

    def __init__(self):
        super().__init__(name="count")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, prediction, sample_weight=None):
        self.total.assign_add(1.0)

    def result(self):
        return self.total


def test_the_first_step_can_be_the_one(tmp_path):
    """It makes the variables of metrics, which no snapshot has yet: without a reset a sum would go on."""
    program = training(0)
    model = program.make()
    model.compile("sgd", "mse", metrics=[Count()])
    recorder = rt.FlightRecorder(tmp_path, on=lambda logs: logs["loss"] > 0.0)
    program.fit(model, 3, callbacks=[recorder])
    (crash,) = recorder.crashes
    assert crash.step == 0, crash.message
    np.testing.assert_array_equal(rt.load(crash.tape)["x"], program.x[:SIZE])


def test_a_predicate_finds_the_first_step_for_which_it_is_true(tmp_path):
    program = training(0)
    model, losses = program.make(), []
    plain = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: losses.append(logs["loss"]))
    program.fit(program.make(), program.bad, callbacks=[plain])
    limit = sorted(losses)[-2]
    recorder = rt.FlightRecorder(tmp_path, on=lambda logs: logs["loss"] > limit, every=10)
    program.fit(model, program.bad, callbacks=[recorder])
    first = next(number for number, loss in enumerate(losses) if loss > limit)
    assert recorder.crashes[0].step == first
    assert "on= was true" in recorder.crashes[0].message
    assert recorder.crashes[0].nonfinite is None
    np.testing.assert_array_equal(rt.load(recorder.crashes[0].tape)["x"], program.x[first * SIZE : (first + 1) * SIZE])


@pytest.mark.parametrize("mode", ["compiled", "eager"])
@pytest.mark.parametrize("on", ["nonfinite", "exception"])
def test_a_step_that_raises_is_recorded_up_to_there(tmp_path, mode, on):
    model = keras.Sequential([keras.Input([], dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Dense(1)])
    if mode == "eager":
        model.compile("sgd", "mse", run_eagerly=True)
    else:
        model.compile("sgd", "mse")
    x = np.arange(40, dtype="i4") % 5
    x[26] = 7
    recorder = rt.FlightRecorder(tmp_path, on=on)
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(x, np.ones([40, 1], "f4"), batch_size=2, shuffle=False, verbose=0, callbacks=[recorder])
    (crash,) = recorder.crashes
    assert crash.step == 13
    assert "the step raised InvalidArgumentError: indices[0] = 7 is not in [0, 5). " in crash.message
    np.testing.assert_array_equal(rt.load(crash.tape)["x"], [7, 2])


def test_an_exception_is_all_that_counts_with_on_exception(tmp_path):
    program = training(0)
    recorder = rt.FlightRecorder(tmp_path, on="exception", every=10)
    program.fit(program.make(), callbacks=[recorder])
    assert recorder.crashes == []


def test_what_is_lost_is_reported_once(tmp_path):
    program = training(0)
    recorder = rt.FlightRecorder(tmp_path, every=5, stop=False)
    program.fit(program.make(), callbacks=[recorder], epochs=3)
    assert [crash.step for crash in recorder.crashes] == [program.bad]


def test_a_variable_that_was_infinite_at_first_is_no_crash(tmp_path):
    class Best(keras.layers.Layer):
        def build(self, shape):
            self.best = self.add_weight(shape=(), initializer=lambda *args, **options: np.inf, trainable=False)

        def call(self, x):
            self.best.assign(tf.minimum(self.best, tf.where(tf.reduce_sum(x) < 1e9, np.inf, 0.0)))
            return x

    model = keras.Sequential([keras.Input([3]), Best(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    recorder = rt.FlightRecorder(tmp_path, every=3)
    model.fit(np.ones([40, 3], "f4"), np.ones([40, 1], "f4"), batch_size=4, verbose=0, callbacks=[recorder])
    assert recorder.crashes == []


def test_a_step_whose_loss_is_finite_is_not_said_to_have_another(tmp_path):
    """The norm of a zero vector has no derivative; the loss shows that a step later."""
    w = keras.Variable(tf.zeros([3]), name="w")

    class Distance(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = w

        def call(self, x):
            return tf.sqrt(tf.reduce_sum((x - self.w) ** 2, -1, keepdims=True))

    x = np.ones((6, 3), np.float32)
    x[3] = 0.0
    model = Distance()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    recorder = rt.FlightRecorder(tmp_path)
    model.fit(x, np.ones((6, 1)), batch_size=1, shuffle=False, verbose=0, callbacks=[recorder])
    (crash,) = recorder.crashes
    assert crash.step == 3
    assert "step 3 (epoch 1, batch 3, counted from 0): a weight or a variable of the optimizer is no" in crash.message
    assert "the loss is not finite" not in crash.message
    assert np.isfinite(rt.load(crash.tape)["loss"])
