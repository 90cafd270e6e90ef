"""Many steps in one call, `fit` of Keras, and tapes that exist: the same as step by step in eager mode."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import playback.programs_of_several  # noqa: F401  # it enters its programs into the table
import retrotape as rt
from playback.programs import PROGRAMS, L, normal
from playback.twins import assert_same, build, plays, state_of

STEPS = 20
# Programs whose arguments are the same kind of tensors in each step, and whose state changes in no other way.
REGULAR = [
    *("mlp_by_hand", "accumulation_by_hand", "accumulation_in_the_graph", "adam", "moving_average", "dropout"),
    *("batch_normalization", "transformer", "gan", "variational_autoencoder", "stopping_at_a_value"),
    *("cosine_schedule", "mixed_precision", "built_in_the_first_step"),
]
# Their state is of the kinds that the others have; `test_training.py` plays them step by step.
LARGE = ("transformer", "gan", "variational_autoencoder")


def _arrays(outputs: list[Any]) -> list[Any]:
    return [state_of(tf.convert_to_tensor(one)) for one in tf.nest.flatten(outputs)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [4, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 7, 20))])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in REGULAR]
)
def test_many_steps_in_one_call_are_eager_steps(name: str, steps: int) -> None:
    eager = build(PROGRAMS[name])
    expected = [eager.step(*eager.batches(number)) for number in range(STEPS)]
    expected = [
        tf.stack([tf.convert_to_tensor(one) for one in column])
        for column in zip(*map(tf.nest.flatten, expected), strict=True)
    ]
    played = build(PROGRAMS[name])
    compiled = rt.compile(played.step)
    found = compiled.run([played.batches(number) for number in range(STEPS)], steps=steps, progress=False)
    assert compiled.why_not_compiled() is None
    assert_same(state_of(played.state), state_of(eager.state), 0.0, f"{name}: state")
    if name != "accumulation_by_hand":  # it returns a variable, which has one value afterwards
        assert_same(_arrays(found), _arrays(expected), 0.0, f"{name}: outputs")


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_ends_with_a_smaller_batch() -> None:
    def results(run: Any) -> Any:
        made = build(PROGRAMS["adam"])
        data = tf.data.Dataset.from_tensor_slices((normal(1, 26, 4), np.arange(26) % 3)).batch(4).repeat(3)
        losses = run(made.step, data)
        return losses, state_of(made.state)

    def eager(step: Any, data: Any) -> list[float]:
        return [float(step(*batch)["loss"]) for batch in data]

    def played(step: Any, data: Any) -> list[float]:
        return [float(loss) for loss in rt.compile(lambda x, y: step(x, y)["loss"]).run(data, steps=5, progress=False)]

    assert_same(results(played), results(eager), 0.0, "a data set")


class Fitted(keras.Model):
    """A model with a step of its own."""

    def __init__(self, tape_type: Any) -> None:
        super().__init__()
        layers = [L.Dense(6, activation="relu"), L.BatchNormalization(), L.Dropout(0.2, seed=3), L.Dense(1)]
        self.net, self.tape_type = keras.Sequential(layers), tape_type
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.net(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with self.tape_type() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.mean.update_state(loss)
        return {"mean": self.mean.result(), **self.compute_metrics(x, y, predicted)}


def _fitted(make: Any, played: bool) -> Any:
    def fit() -> Any:
        model = make()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=True)
        if played:
            rt.keras.playback(model)
        x = np.random.RandomState(0).normal(size=(42, 3)).astype("float32")
        y = x.sum(1, keepdims=True)
        slower = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
        history = model.fit(x, y, batch_size=8, epochs=4, verbose=0, validation_data=(x, y), callbacks=[slower])
        if played:
            assert model.train_step.why_not_compiled() is None
            assert plays(model.train_step) > 10
        return history.history, state_of([model, model.optimizer]), model.predict(x, verbose=0)

    return build(fit)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Fitted(rt.Tape),
        lambda: Fitted(tf.GradientTape),
        lambda: keras.Sequential([L.Dense(6, activation="relu"), L.Dropout(0.3), L.Dense(1)]),
    ],
    ids=["own step, our tape", "own step, stock tape", "no step of its own"],
)
def test_fit(make: Any) -> None:
    assert_same(_fitted(make, played=True), _fitted(make, played=False), 0.0, "fit")


def test_a_tape_that_exists() -> None:
    w = tf.Variable([[0.5], [-0.3]])
    x, y = normal(1, 4, 2), normal(2, 4, 1)

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)

    with rt.Tape() as tape:
        loss = loss_of(x, y)
        grad = tape.gradient(loss, w)
    compiled = tape.compile(inputs=[x, y], outputs=[loss, grad])
    for number in range(3, 6):
        w.assign_add([[0.1], [0.2]])
        other = normal(number, 4, 2), normal(10 + number, 4, 1)
        with rt.Tape() as again:
            expected = loss_of(*other)
        assert_same(state_of(list(compiled(*other))), state_of([expected, again.gradient(expected, w)]), 0.0, "a tape")


def test_a_method_in_a_class() -> None:
    class Counter:
        def __init__(self, start: float) -> None:
            self.total, self.by = tf.Variable(start), start

        @rt.compile
        def add(self, x: Any) -> Any:
            return self.total.assign_add(x * self.by) * 1.0

    one, other = Counter(1.0), Counter(2.0)
    found = [[float(counter.add(tf.constant(1.0))) for _ in range(3)] for counter in (one, other, one)]
    assert found == [[2.0, 3.0, 4.0], [4.0, 6.0, 8.0], [5.0, 6.0, 7.0]]


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1.0), "1", None, (1,), [1], np.int64(1)], ids=repr)
def test_python_arguments_that_are_equal_but_not_alike(value: Any) -> None:
    @rt.compile
    def step(x: Any, by: Any) -> Any:
        return x * 2.0, type(by).__name__, by if not tf.is_tensor(by) else None

    for other in (1, value, 1.0, value, True, value):
        x, name, back = step(tf.constant(1.0), other)
        assert float(x) == 2.0
        assert name == type(other).__name__ or isinstance(other, np.generic)
        assert (back == other and type(back) is type(other)) or isinstance(other, np.generic)
