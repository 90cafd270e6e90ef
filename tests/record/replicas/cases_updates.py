"""Derivatives through updates of variables that all replicas make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from record.replicas.setting import Run, Setting, all_reduce, case, slope

OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "SGD": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "Adam": keras.optimizers.Adam,
}
FIRST = np.array([[1.0, 2.0], [3.0, 4.0], [0.5, 0.2]], np.float32)


class Training:
    """Two steps of an optimizer, with a sparse gradient or a dense one, and the loss after them."""

    def __init__(self, s: Setting, optimizer: str, rate: float, dense: bool, scale: float = 1.0) -> None:
        self._s, self._dense = s, dense
        with s.strategy.scope():
            self.v = tf.Variable(FIRST * scale)
            self.optimizer = OPTIMIZERS[optimizer](rate)
            self.optimizer.build([self.v])

    def _step(self, x: Any) -> None:
        with tf.GradientTape() as inner:
            rows = self.v if self._dense else tf.gather(self.v, tf.stack([tf.cast(x, tf.int32), 0]))
            loss = tf.reduce_sum((x * rows) ** 2) * 0.1
            if not self._dense:
                loss += tf.reduce_sum(self.v * 0.1)
        self.optimizer.apply([inner.gradient(loss, self.v)], [self.v])

    def run(self) -> Any:
        """Return the loss after two steps."""
        for _ in range(2):
            self._s.strategy.run(self._step, (self._s.x,))
        return self._s.total(lambda x: tf.reduce_sum((x * self.v) ** 2))


def _slopes(s: Setting, name: str, dense: bool) -> tuple[list[float], list[float]]:
    """Return the derivatives with respect to rate and first value, and by finite differences."""
    training = Training(s, name, 0.01, dense)
    with rt.Tape() as tape:
        loss = s.wrap(training.run)()
    rate = training.optimizer.learning_rate
    by_rate, by_first = tape.gradient(loss, [rate, training.v], through_updates=True)
    found = [float(by_rate), float(tf.reduce_sum(tf.convert_to_tensor(by_first) * FIRST))]
    return found, [
        slope(lambda rate: Training(s, name, rate, dense).run(), 0.01),
        slope(lambda scale: Training(s, name, 0.01, dense, scale).run(), 1.0),
    ]


@case(traced=True)
def optimizers(s: Setting) -> Any:
    pairs = [_slopes(s, name, dense) for name in OPTIMIZERS for dense in (False, True)]
    return np.concatenate([np.divide(found, want) for found, want in pairs]), np.ones(2 * len(pairs))


@case(traced=True)
def assigned_mean(s: Setting) -> Any:
    with s.strategy.scope():
        v = tf.Variable(2.0, aggregation=tf.VariableAggregation.MEAN)

    def body(x: Any) -> Any:
        v.assign(v * x)
        return v * s.w

    with rt.Tape() as tape:
        y = s.wrap(lambda: s.total(body))()
    ones = s.count == 1 or type(v).__name__ == "AggregatingVariable"
    assert ones or type(v).__name__ == "MirroredVariable"
    mean = s.sum / s.count
    return tape.gradient(y, v, through_updates=True), s.count * mean * 3.0


# ---------------------------------------------------------------------- fit

ROWS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
NUMBERS = np.arange(16).reshape(8, 2) % 5
WANTED = ROWS.sum(1, keepdims=True)


def _model(s: Setting, kind: str, rate: float, eager: bool, make: Run = keras.Sequential) -> Any:
    with s.strategy.scope():
        keras.utils.set_random_seed(0)
        first = [keras.layers.Dense(3, activation="silu"), keras.layers.BatchNormalization(synchronized=True)]
        if kind == "embedding":
            first = [keras.layers.Embedding(5, 3), keras.layers.Flatten()]
        data = NUMBERS if kind == "embedding" else ROWS
        model = make([keras.Input(data.shape[1:]), *first, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=eager)
    return model, data


def _fitted(s: Setting, kind: str, eager: bool, rate: float, tape: Any = None) -> float:
    model, data = _model(s, kind, rate, eager)

    def train() -> Any:
        model.fit(data, WANTED, epochs=1, verbose=0, batch_size=4, shuffle=False)
        return tf.reduce_mean((model(data, training=False) - WANTED) ** 2)

    if tape is None:
        return float(train())
    with tape:
        loss = train()
    return float(tape.gradient(loss, model.optimizer.learning_rate, through_updates=True))


@case("right", "one", "mirrored")
def fit(s: Setting) -> Any:
    found = []
    for kind in ("normalized", "embedding"):
        want = slope(lambda rate, kind=kind: _fitted(s, kind, False, rate), 0.05)
        # Without collectives, a compiled step is one call, which holds an iterator and cannot be recomputed.
        kinds = (True, False) if isinstance(s.strategy, tf.distribute.MirroredStrategy) else (True,)
        found += [_fitted(s, kind, eager, 0.05, rt.Tape()) / want for eager in kinds]
    return found, [1.0] * len(found)


class Stepped(keras.Sequential):
    """A model whose training step has a tape of its own."""

    tape: Any = rt.Tape

    def train_step(self, data: Any) -> Any:
        x, y = data
        with self.tape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@case("right", "one", "mirrored")
def tape_in_the_training_step(s: Setting) -> Any:
    weights = []
    for tape in (tf.GradientTape, rt.Tape):
        for eager in (True, False):
            model, data = _model(s, "normalized", 0.05, eager, Stepped)
            model.tape = tape
            model.fit(data, WANTED, epochs=1, verbose=0, batch_size=4, shuffle=False)
            weights.append(np.concatenate([value.ravel() for value in model.get_weights()]))
    return weights[1:], [weights[0]] * 3


@case("right", "one", "mirrored", traced=True)
def tape_around_training_steps(s: Setting) -> Any:
    def trained(rate: float, tape: Any = None) -> Any:
        model, data = _model(s, "normalized", rate, eager=True)
        model(data)
        pieces = [(data[2 * i : 2 * i + 2], WANTED[2 * i : 2 * i + 2]) for i in range(4)]
        x, y = (
            s.strategy.experimental_distribute_values_from_function(
                lambda context, which=which: tf.constant(pieces[context.replica_id_in_sync_group][which])
            )
            for which in (0, 1)
        )

        def steps() -> Any:
            for _ in range(2):
                s.strategy.run(lambda x, y: model.train_step((x, y)), (x, y))
            return tf.reduce_mean((model(data, training=False) - WANTED) ** 2)

        if tape is None:
            return steps()
        with tape:
            loss = s.wrap(steps)()
        return tape.gradient(loss, model.optimizer.learning_rate, through_updates=True)

    return trained(0.05, rt.Tape()) / slope(trained, 0.05), 1.0


@case("right", "one", "mirrored", traced=True)
def synchronized_normalization(s: Setting) -> Any:
    """The replicas, against one process on the whole batch."""
    kept = s.count * 2
    rows, per_replica = (
        ROWS[:kept],
        s.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(ROWS[2 * context.replica_id_in_sync_group :][:2])
        ),
    )

    def layer() -> Any:
        keras.utils.set_random_seed(1)
        made = keras.layers.BatchNormalization(synchronized=True)
        made.build((None, 4))
        return made

    with s.strategy.scope():
        norm = layer()
    with rt.Tape() as tape:
        y = s.wrap(
            lambda: s.strategy.reduce(
                "SUM",
                s.strategy.run(lambda x: tf.reduce_sum(norm(x * s.w, training=True) ** 3 * s.w), (per_replica,)),
                axis=None,
            )
        )()
    alone, w = layer(), tf.Variable(3.0)
    with tf.GradientTape() as stock:
        want = tf.reduce_sum(alone(rows * w, training=True) ** 3 * w)
    wanted = stock.gradient(want, [w, alone.gamma.value])
    return [*tape.gradient(y, [s.w, norm.gamma])], wanted


@case(traced=True)
def all_reduced_update(s: Setting) -> Any:
    with s.strategy.scope():
        v = tf.Variable(1.0)

    def body(x: Any) -> Any:
        def update(strategy: Any, change: Any) -> None:
            strategy.extended.update(v, lambda one, by: one.assign_sub(by), (change,))

        mean = all_reduce("MEAN", x * v * v)
        tf.distribute.get_replica_context().merge_call(update, (0.1 * mean,))
        return v * x

    def run() -> Any:
        s.total(body)
        return s.total(body)

    with rt.Tape() as tape:
        y = s.wrap(run)()
    mean, value, derivative = s.sum / s.count, 1.0, 1.0
    for _ in range(2):
        derivative *= 1 - 0.2 * mean * value
        value -= 0.1 * mean * value**2
    return [y, tape.gradient(y, v, through_updates=True)], [s.sum * value, s.sum * derivative]
