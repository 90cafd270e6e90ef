"""Training programs as people write them, each built from nothing: a step, its arguments, all state that it changes.

A program is made twice from one seed: one of the twins runs as it is, the other is played back. Half of them use
`rt.Tape`, the others the stock tape. Programs with several models or tapes are in `programs_of_several.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

L, O = keras.layers, keras.optimizers  # noqa: E741  # as short as `L`
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SIZE, WIDTH, CLASSES = 6, 4, 3


class Program(NamedTuple):
    """What is trained."""

    step: Callable[..., Any]
    batches: Callable[[int], tuple[Any, ...]]  # the arguments of a step, by its number
    state: list[Any]  # variables, and what has variables: models, optimizers, metrics, seed generators


Make = Callable[[], Program]
PROGRAMS: dict[str, Make] = {}


def program(make: Make) -> Make:
    """Enter a program into the table under the name of its function."""
    PROGRAMS[make.__name__] = make
    return make


def normal(step: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.RandomState(step).normal(size=shape), tf.float32)


def labels(step: int, count: int = SIZE, classes: int = CLASSES) -> tf.Tensor:
    return tf.constant(np.random.RandomState(1000 + step).randint(classes, size=count))


def supervised(
    model: Any, optimizer: Any, tape_type: Any, shape: tuple[int, ...] = (SIZE, WIDTH), built: bool = True
) -> Program:
    """Return the training of a classifier; the optimizer makes its variables in the first step unless it is `built`."""
    model(normal(0, *shape))
    if built:
        optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> dict[str, Any]:
        with tape_type() as tape:
            logits = model(x, training=True)
            loss = CROSS_ENTROPY(y, logits) + sum(model.losses)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return {"loss": loss, "logits": logits}

    return Program(step, lambda number: (normal(number, *shape), labels(number, shape[0])), [model, optimizer])


def dense() -> Any:
    return keras.Sequential([L.Dense(8, activation="gelu", kernel_regularizer="l2"), L.Dense(CLASSES)])


# ------------------------------------------------------------------ variables and no Keras


@program
def mlp_by_hand() -> Program:
    rng = np.random.default_rng(3)
    shapes = [(WIDTH, 8), (8,), (8, CLASSES), (CLASSES,)]
    weights = [tf.Variable(rng.normal(size=shape) * 0.5, dtype=tf.float32) for shape in shapes]

    def step(x: Any, y: Any) -> Any:
        with rt.Tape() as tape:
            hidden = tf.tanh(x @ weights[0] + weights[1])
            logits = hidden @ weights[2] + weights[3]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        for weight, grad in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * grad)
        return loss

    return Program(step, lambda number: (normal(number, SIZE, WIDTH), labels(number)), weights)


@program
def accumulation_by_hand() -> Program:
    """Every third step applies the sum of gradients: Python branches on a variable."""
    model, optimizer = dense(), O.SGD(0.1, momentum=0.9)
    model(normal(0, SIZE, WIDTH))
    optimizer.build(model.trainable_variables)
    count = tf.Variable(0)
    sums = [tf.Variable(tf.zeros(weight.shape)) for weight in model.trainable_variables]

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = CROSS_ENTROPY(y, model(x, training=True))
        for total, grad in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(grad)
        count.assign_add(1)
        if count % 3 == 0:
            optimizer.apply([total / 3.0 for total in sums], model.trainable_variables)
            for total in sums:
                total.assign(tf.zeros_like(total))
        return loss, count

    batches = lambda number: (normal(number, SIZE, WIDTH), labels(number))  # noqa: E731
    return Program(step, batches, [model, optimizer, count, *sums])


@program
def accumulation_in_the_graph() -> Program:
    """The same with `tf.where` in place of `if`."""
    weight, total, count = tf.Variable(normal(1, WIDTH, 2)), tf.Variable(tf.zeros([WIDTH, 2])), tf.Variable(0)

    def step(x: Any) -> Any:
        with rt.Tape() as tape:
            loss = tf.reduce_mean((x @ weight - 1.0) ** 2)
        total.assign_add(tape.gradient(loss, weight))
        due = tf.equal(count.assign_add(1) % 4, 0)
        weight.assign_sub(tf.where(due, 0.1 * total, 0.0))
        total.assign(tf.where(due, tf.zeros_like(total), total))
        return {"loss": loss, "due": due}

    return Program(step, lambda number: (normal(number, SIZE, WIDTH),), [weight, total, count])


# ------------------------------------------------------------------ optimizers of Keras

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: O.SGD(0.1),
    "momentum": lambda: O.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: O.Adam(0.01),
    "amsgrad": lambda: O.Adam(0.01, amsgrad=True),
    "adamw": lambda: O.AdamW(0.01, weight_decay=0.02),
    "rmsprop": lambda: O.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: O.Adagrad(0.1),
    "nadam": lambda: O.Nadam(0.01),
    "lion": lambda: O.Lion(0.003),
    "accumulation_by_keras": lambda: O.Adam(0.01, gradient_accumulation_steps=3),
    "cosine_schedule": lambda: O.SGD(O.schedules.CosineDecay(0.0, 40, warmup_target=0.2, warmup_steps=4)),
    "piecewise_schedule": lambda: O.Adam(O.schedules.PiecewiseConstantDecay([3, 10], [0.1, 0.01, 0.001])),
    "moving_average": lambda: O.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5),
    "clip_each_norm": lambda: O.SGD(0.1, clipnorm=0.1),
    "clip_global_norm": lambda: O.Adam(0.01, global_clipnorm=0.2),
    "clip_values": lambda: O.SGD(0.1, momentum=0.5, clipvalue=0.02),
}


def _with_optimizer(number: int, make: Callable[[], Any]) -> Make:
    return lambda: supervised(dense(), make(), [rt.Tape, tf.GradientTape][number % 2])


PROGRAMS |= {name: _with_optimizer(number, make) for number, (name, make) in enumerate(OPTIMIZERS.items())}


@program
def built_in_the_first_step() -> Program:
    return supervised(dense(), O.Adam(0.01), rt.Tape, built=False)


@program
def rate_set_between_steps() -> Program:
    made = supervised(dense(), O.Adam(0.05), rt.Tape)
    optimizer = made.state[1]

    def batches(number: int) -> tuple[Any, ...]:
        if number % 4 == 3:
            optimizer.learning_rate = 0.05 / number
        return made.batches(number)

    return made._replace(batches=batches)


@program
def mixed_precision() -> Program:
    """The loss scale grows every third step; in the seventh a gradient overflows."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([L.Dense(8, activation="relu"), L.Dense(CLASSES, dtype="float32")])
        model(normal(0, SIZE, WIDTH))
    finally:
        keras.config.set_dtype_policy(before)
    optimizer = O.LossScaleOptimizer(O.Adam(0.01), initial_scale=1024.0, dynamic_growth_steps=3)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = CROSS_ENTROPY(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    def batches(number: int) -> tuple[Any, ...]:
        return normal(number, SIZE, WIDTH) * (1e38 if number == 6 else 1.0), labels(number)

    return Program(step, batches, [model, optimizer])


# ------------------------------------------------------------------ layers of Keras


@program
def dropout() -> Program:
    model = keras.Sequential([L.Dense(8, activation="relu"), L.Dropout(0.4), L.GaussianNoise(0.1), L.Dense(CLASSES)])
    return supervised(model, O.SGD(0.1), tf.GradientTape)


@program
def batch_normalization() -> Program:
    model = keras.Sequential([L.Dense(8), L.BatchNormalization(momentum=0.8), L.ReLU(), L.Dense(CLASSES)])
    return supervised(model, O.Adam(0.01), rt.Tape)


@program
def transformer() -> Program:
    x = keras.Input((5, WIDTH))
    attended = L.MultiHeadAttention(2, 3, dropout=0.1)(x, x, use_causal_mask=True)
    y = L.LayerNormalization()(L.Add()([x, attended]))
    z = L.Dense(WIDTH)(L.Dropout(0.1)(L.Dense(12, activation="gelu")(y)))
    y = L.LayerNormalization()(L.Add()([y, z]))
    model = keras.Model(x, L.Dense(CLASSES)(L.GlobalAveragePooling1D()(y)))
    return supervised(model, O.AdamW(0.01, epsilon=1e-3), tf.GradientTape, (SIZE, 5, WIDTH))


@program
def convolutions() -> Program:
    layers = [
        L.Conv2D(4, 3, padding="same"),
        L.BatchNormalization(),
        L.ReLU(),
        L.MaxPooling2D(),
        L.SpatialDropout2D(0.2),
    ]
    model = keras.Sequential([*layers, L.DepthwiseConv2D(2), L.Flatten(), L.Dense(CLASSES)])
    return supervised(model, O.SGD(0.05, momentum=0.9), rt.Tape, (SIZE, 6, 6, 2))


@program
def lstm() -> Program:
    model = keras.Sequential([L.LSTM(4, return_sequences=True), L.LSTM(3, dropout=0.2), L.Dense(CLASSES)])
    return supervised(model, O.Adam(0.01), tf.GradientTape, (SIZE, 5, 2))


@program
def gru() -> Program:
    model = keras.Sequential([L.Bidirectional(L.GRU(3)), L.Dense(CLASSES)])
    return supervised(model, O.RMSprop(0.01), rt.Tape, (SIZE, 4, 2))


@program
def stateful_rnn() -> Program:
    model = keras.Sequential([keras.Input(batch_shape=(SIZE, 3, 2)), L.SimpleRNN(3, stateful=True), L.Dense(CLASSES)])
    return supervised(model, O.SGD(0.1), tf.GradientTape, (SIZE, 3, 2))


@program
def embedding() -> Program:
    """The gradient of the table is sparse."""
    model = keras.Sequential([L.Embedding(5, 3), L.GlobalAveragePooling1D(), L.Dense(1)])
    model(tf.zeros([2, 3], tf.int32))
    optimizer = O.Adam(0.1)
    optimizer.build(model.trainable_variables)

    def step(ids: Any) -> Any:
        with rt.Tape() as tape:
            loss = tf.reduce_mean((model(ids, training=True) - 1.0) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss, grads[0]

    return Program(step, lambda number: (tf.reshape(labels(number, 6, 5), [2, 3]),), [model, optimizer])


@program
def last_batch_smaller() -> Program:
    made = supervised(dense(), O.SGD(0.1), tf.GradientTape)

    def batches(number: int) -> tuple[Any, ...]:
        size = 2 if number % 4 == 3 else SIZE
        return tuple(array[:size] for array in made.batches(number))

    return made._replace(batches=batches)


@program
def numpy_batches() -> Program:
    made = supervised(dense(), O.Adam(0.01), rt.Tape)
    return made._replace(batches=lambda number: tuple(array.numpy() for array in made.batches(number)))


@program
def metrics() -> Program:
    model, optimizer = dense(), O.SGD(0.1)
    model(normal(0, SIZE, WIDTH))
    optimizer.build(model.trainable_variables)
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    top = keras.metrics.SparseTopKCategoricalAccuracy(2)

    def step(x: Any, y: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = CROSS_ENTROPY(y, logits)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        mean.update_state(loss, sample_weight=tf.cast(tf.shape(x)[0], tf.float32))
        for metric in (accuracy, top):
            metric.update_state(y, logits)
        return {"loss": mean.result(), "accuracy": accuracy.result(), "top": top.result()}

    def batches(number: int) -> tuple[Any, ...]:
        if number % 5 == 4:
            for metric in (mean, accuracy, top):
                metric.reset_state()
        return normal(number, SIZE, WIDTH), labels(number)

    return Program(step, batches, [model, optimizer, mean, accuracy, top])
