"""`rt.callbacks.GradientLog`: what it logs is the truth, and the training does not notice."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.tensorboard import Logs
from retrotape.errors import TapeUseError

KINDS = {
    "compiled": {},
    "eager": {"run_eagerly": True},
    "steps_per_execution": {"steps_per_execution": 4},
    "jit": {"jit_compile": True},
}


OUTSIDE = tf.Variable(0.0)  # which no layer tracks


class Noise(keras.layers.Layer):
    """Draws in every way that a layer may draw; counts how often it is traced."""

    def __init__(self) -> None:
        super().__init__(name="noise")
        self.own = tf.random.Generator.from_seed(3)
        self.traced = 0

    def call(self, x: Any) -> Any:
        self.traced += not tf.executing_eagerly()
        OUTSIDE.assign_add(1.0)
        drawn = (
            keras.random.normal([1])
            + tf.random.normal(tf.shape(x))
            + tf.random.normal(tf.shape(x), seed=5)
            + self.own.normal([1])
        )
        return x + 0.01 * drawn + 0.01 * tf.random.get_global_generator().normal([1])


def network(kind: dict[str, Any]) -> keras.Model:
    drawing = [] if kind.get("jit_compile") else [keras.layers.Dropout(0.3), Noise()]
    hidden = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input([4]), *hidden, *drawing, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **kind)
    return model


def data(rows: int = 36) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    return numbers.normal(size=(rows, 4)).astype("f"), numbers.normal(size=(rows, 1)).astype("f")


def state(model: keras.Model) -> list[bytes]:
    variables = [*model.variables, *model.optimizer.variables, *(v for one in model.metrics for v in one.variables)]
    return [variable.numpy().tobytes() for variable in variables]


def draws() -> list[float]:
    found = [tf.random.uniform([]), tf.random.uniform([], seed=9), tf.random.get_global_generator().normal([])]
    return [*map(float, found), float(keras.random.uniform([])), random.random(), float(np.random.rand())]


def begin(seed: int) -> None:
    """Let everything be drawn from the beginning; older versions of Keras keep their generator over a new seed."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    tf.random.get_global_generator().reset_from_seed(1)
    OUTSIDE.assign(0.0)


def trained(kind: dict[str, Any], callbacks: list[Any]) -> tuple[Any, ...]:
    """Train, and return everything that could have changed."""
    begin(3)
    model = network(kind)
    history = model.fit(*data(), batch_size=8, epochs=2, verbose=0, callbacks=callbacks).history
    traced = [layer.traced for layer in model.layers if isinstance(layer, Noise)]
    return state(model), history, traced, draws(), float(OUTSIDE)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()])
def test_the_training_is_the_same_to_the_bit(kind, tmp_path):
    logged: list[int] = []
    callbacks = [
        rt.callbacks.GradientLog(tmp_path, every=3),
        rt.callbacks.GradientLog(lambda _, step: logged.append(step), 4),
    ]
    expected = trained(kind, [])
    assert trained(kind, callbacks) == expected
    assert Logs(tmp_path).steps("loss") == ([0, 4, 9] if "steps_per_execution" in kind else [0, 3, 6, 9])
    assert logged == ([0, 4, 9] if "steps_per_execution" in kind else [0, 4, 8])


@pytest.mark.parametrize("kind", [{}, {"run_eagerly": True}, {"steps_per_execution": 3}], ids=str)
def test_what_is_logged_is_the_gradient_that_the_step_applies(kind):
    """A step of SGD with rate 1 changes each weight by its gradient: dropout masks and moving means included."""
    logged: dict[int, dict[str, float]] = {}
    weights: list[list[np.ndarray]] = []
    layers = [keras.layers.Dense(5, name="a"), keras.layers.BatchNormalization(name="n"), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input([4]), *layers, keras.layers.Dense(1, name="b")], name="net")
    model.compile(keras.optimizers.SGD(1e-2), "mse", **kind)

    class Weights(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            weights.append([variable.numpy() for variable in model.trainable_variables])

    callback = rt.callbacks.GradientLog(lambda metrics, step: logged.update({step: metrics}), every=1)
    model.fit(*data(24), batch_size=4, verbose=0, shuffle=False, callbacks=[callback, Weights()])
    assert list(logged) == ([0, 3] if "steps_per_execution" in kind else list(range(6)))
    if "steps_per_execution" in kind:
        return
    for step in range(5):
        for number, variable in enumerate(model.trainable_variables):
            change = np.linalg.norm((weights[step][number] - weights[step + 1][number]).astype(np.float64)) / 1e-2
            assert logged[step][f"gradients/{variable.path}/norm"] == pytest.approx(change, rel=1e-3, abs=1e-4)


def test_the_logged_loss_is_the_loss_of_the_step(tmp_path):
    """Keras reports the mean over the epoch, which for the first batch is its loss."""
    losses = []
    plain = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    plain.compile("sgd", "mse")
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    plain.fit(*data(), batch_size=8, verbose=0, callbacks=[rt.callbacks.GradientLog(tmp_path, 100), seen])
    assert Logs(tmp_path).number("loss") == pytest.approx(losses[0], rel=1e-5)


def test_mixed_precision_logs_the_gradient_of_the_loss_itself(tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [keras.Input([4]), keras.layers.Dense(3, name="a"), keras.layers.Dense(1, dtype="float32")]
        )
        model.compile("adam", "mse")
        model.fit(*data(), batch_size=8, verbose=0, callbacks=[rt.callbacks.GradientLog(tmp_path, 100)])
    finally:
        keras.config.set_dtype_policy(before)
    assert Logs(tmp_path).number("gradients/norm") < 1000.0  # not times the scale, 2**15
    assert Logs(tmp_path).number("gradients/nonfinite") == 0.0


# ------------------------------------------------------------------ batches of every kind


def fitted(model: keras.Model, *arguments: Any, **options: Any) -> list[int]:
    logged: list[int] = []
    callback = rt.callbacks.GradientLog(lambda metrics, step: logged.append(step), every=2)
    model.fit(*arguments, verbose=0, callbacks=[callback], **options)
    return logged


def test_dictionaries_weights_and_a_part_of_a_batch():
    inputs = {name: keras.Input([2], name=name) for name in ("a", "b")}
    joined = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    model = keras.Model(
        inputs, {"y": keras.layers.Dense(1, name="y")(joined), "z": keras.layers.Dense(2, name="z")(joined)}
    )
    model.compile("adam", {"y": "mse", "z": "mae"}, metrics={"y": ["mae"]})
    x, targets = {"a": np.ones((9, 2), "f"), "b": np.ones((9, 2), "f")}, {"y": np.ones((9, 1)), "z": np.ones((9, 2))}
    assert fitted(model, x, targets, batch_size=2) == [0, 2, 4]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras finds the size by running out
def test_class_weights_and_datasets_without_known_sizes():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    spec = tf.TensorSpec(None, tf.float32), tf.TensorSpec([None], tf.int32)
    rows = [(np.ones((size, 4), "f"), np.zeros(size, "i")) for size in (3, 2, 5)]
    dataset = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec)
    assert fitted(model, dataset.map(lambda x, y: (tf.ensure_shape(x, [None, 4]), y)), shuffle=False) == [0, 2]
    assert fitted(model, np.ones((8, 4), "f"), np.zeros(8), batch_size=2, class_weight={0: 2.0, 1: 1.0}) == [4, 6]


def test_a_python_generator_and_inputs_without_targets():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):  # without `training`
            found = self.dense(x)
            self.add_loss(tf.reduce_mean(found**2))
            return found

    model = Own()
    model.compile("sgd")
    assert fitted(model, ((np.ones((3, 4), "f"),) for _ in range(5)), steps_per_epoch=5, shuffle=False) == [
        1,
        2,
        4,
    ]  # built by the first batch


def test_a_padded_batch():
    inputs = keras.Input([None], dtype="int32")
    model = keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 3)(inputs)))
    )
    model.compile("sgd", "mse")
    words = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]]).to_tensor()
    assert fitted(model, words, np.ones((4, 1), "f"), batch_size=2) == [0]


def test_validation_and_several_fits():
    model = network({})
    logged: list[int] = []
    callback = rt.callbacks.GradientLog(lambda metrics, step: logged.append(step), every=3)
    for _ in range(2):
        model.fit(*data(), batch_size=9, validation_data=data(9), verbose=0, callbacks=[callback])
    assert logged == [0, 3, 6]
    model.fit(*data(), batch_size=9, verbose=0)  # without it
    assert logged == [0, 3, 6]


@pytest.mark.parametrize("interrupted", ["on_train_batch_begin", "train_step"])
def test_nothing_is_left_behind_after_an_exception(interrupted):
    model, logged = network({"run_eagerly": True}), []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if interrupted == "on_train_batch_begin":
                raise KeyboardInterrupt

    class Broken(keras.losses.Loss):
        def call(self, y_true, y_pred):
            raise KeyboardInterrupt

    if interrupted == "train_step":
        model.compile("sgd", Broken(), run_eagerly=True)
    callback = rt.callbacks.GradientLog(lambda metrics, step: logged.append(step), every=1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data(), batch_size=9, verbose=0, callbacks=[callback, Stop()])
    model.compile("sgd", "mse")
    model.fit(*data(), batch_size=9, verbose=0)
    assert logged == []


def test_a_failure_while_recording_leaves_the_training_where_it_was():
    def fail(metrics: Any, step: int) -> None:
        if step == 1:
            raise KeyError("no room")

    found = []
    for callbacks in ([], [rt.callbacks.GradientLog(fail, every=1)]):
        begin(8)
        model = network({})
        with pytest.raises(KeyError, match="no room") if callbacks else contextlib.nullcontext():
            model.fit(*data(18), batch_size=9, verbose=0, callbacks=callbacks)
        found.append((state(model), draws()))
        assert int(model.optimizer.iterations) == 2
    assert found[0] == found[1]


def test_a_tape_around_the_training_sees_through_it():
    """What is recorded beside the training, and put back, does not change a derivative through its updates."""
    found = []
    for callbacks in ([], [rt.callbacks.GradientLog(lambda metrics, step: None, every=1)]):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        x, y = data(8)
        with rt.Tape() as tape:
            model.fit(x, y, batch_size=4, verbose=0, shuffle=False, callbacks=callbacks)
            loss = tf.reduce_mean(model(x) ** 2)
        found.append(float(tape.gradient(loss, model.optimizer.learning_rate, through_updates=True)))
    assert found[0] == found[1] != 0.0


def test_a_generator_that_cannot_be_put_back_is_warned_of():
    hidden = [tf.random.Generator.from_seed(1)]
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Lambda(lambda x: x + hidden[0].normal([1])), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    with pytest.warns(
        UserWarning, match=r"cannot put back 'StateVar:0', .*`tf.random.Generator`, make that an attribute"
    ):
        fitted(model, *data(), batch_size=9)


# ------------------------------------------------------------------ models of every kind


def test_a_train_step_of_its_own_needs_a_loss(tmp_path):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            return x * self.scale

        def train_step(self, batch):
            with rt.Tape() as tape:
                loss = tf.reduce_sum(self(batch) ** 2)
            tape.backward(loss).apply(self.optimizer)
            return {"loss": loss}

    model = Own()
    model.compile("sgd")
    x = np.ones((4, 1), "f")
    with pytest.raises(
        TapeUseError,
        match=r"Own has a train_step of its own, .*`GradientLog\(\.\.\., loss=lambda model, batch: \.\.\.\)`",
    ):
        model.fit(x, verbose=0, callbacks=[rt.callbacks.GradientLog(tmp_path)])
    logged: list[float] = []
    callback = rt.callbacks.GradientLog(
        lambda metrics, step: logged.append(metrics["gradients/norm"]),
        every=1,
        loss=lambda model, batch: tf.reduce_sum(model(tf.nest.flatten(batch)[0]) ** 2),
    )
    model.build((None, 1))
    model.fit(x, verbose=0, batch_size=4, callbacks=[callback])
    assert logged == [8.0]


def test_with_steps_that_are_played_back():
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", run_eagerly=True)
    rt.keras.playback(model)
    assert fitted(model, *data(), batch_size=9) == [0, 2]


def test_a_writer_of_the_user_stays_open(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    network({}).fit(*data(), batch_size=9, verbose=0, callbacks=[rt.callbacks.GradientLog(writer)])
    with writer.as_default(step=9):
        tf.summary.scalar("mine", 1.0)
    writer.flush()
    logs = Logs(tmp_path)
    assert logs.number("mine") == 1.0
    assert logs.steps("loss") == [0]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (("logs", 0), ValueError, r"batches, at least 1; got 0: `rt\.callbacks\.GradientLog\('logs', every=100\)`"),
        (("logs", True), ValueError, "got True"),
        (("logs", 2.5), ValueError, r"got 2\.5"),
        (
            (3,),
            TypeError,
            r"a folder, a writer of `tf.summary`, or a function .*; got int: `rt.callbacks.GradientLog\('logs'",
        ),
    ],
)
def test_what_is_refused(arguments, kind, text):
    with pytest.raises(kind, match=text):
        rt.callbacks.GradientLog(*arguments)


def test_a_loss_that_is_no_function():
    text = (
        r"of the model and a batch, got str: `rt\.callbacks\.GradientLog\('logs', loss=lambda model, batch: \.\.\.\)`"
    )
    with pytest.raises(TypeError, match=text):
        rt.callbacks.GradientLog("logs", loss="mse")
