"""Programs that run on two workers with half of a batch each, and in one process with all of it.

As a script it is one of the workers: it records every program, and saves its shards.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt

ROWS, WORKERS = 8, 2
_draw = np.random.default_rng(5)
X = _draw.normal(size=(ROWS, 3)).astype("float32")
Y = _draw.normal(size=(ROWS, 2)).astype("float32")
K = (np.arange(ROWS) % 5).astype("int32")  # rows of an embedding
Names = dict[str, Any]
CASES: dict[str, Callable[..., Names]] = {}


class Job:
    """One process with the whole batch."""

    w: tf.Variable

    def scope(self) -> Any:
        return tf.init_scope()

    def batch(self, rows: np.ndarray) -> Any:
        return tf.constant(rows)

    def run(self, body: Callable, *args: Any) -> Any:
        return body(*args)

    def total(self, value: Any, reduction: str = "SUM") -> Any:
        """Return the values of all replicas, reduced."""
        return value / WORKERS if reduction == "MEAN" else tf.identity(value)

    def all_reduce(self, value: Any, reduction: str = "SUM") -> Any:
        """As `total`, called by a replica."""
        return self.total(value, reduction)

    def all_gather(self, value: Any, axis: int) -> Any:
        return tf.identity(value)


class Worker(Job):
    """One of several processes, with a part of the batch."""

    def __init__(self) -> None:
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=30.0)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def scope(self) -> Any:
        return self.strategy.scope()

    def batch(self, rows: np.ndarray) -> Any:
        count = len(rows) // self.strategy.num_replicas_in_sync
        parts = lambda context: tf.constant(rows[context.replica_id_in_sync_group * count :][:count])  # noqa: E731
        return self.strategy.experimental_distribute_values_from_function(parts)

    def run(self, body: Callable, *args: Any) -> Any:
        return self.strategy.run(body, args)

    def total(self, value: Any, reduction: str = "SUM") -> Any:
        return self.strategy.reduce(reduction, value, axis=None)

    def all_reduce(self, value: Any, reduction: str = "SUM") -> Any:
        return tf.distribute.get_replica_context().all_reduce(reduction, value)

    def all_gather(self, value: Any, axis: int) -> Any:
        return tf.distribute.get_replica_context().all_gather(value, axis)


def case(function: Callable[..., Names]) -> Callable[..., Names]:
    CASES[function.__name__] = function
    return function


def record(name: str, job: Job) -> tuple[rt.Tape, Names]:
    """Record a program; its variable `w` exists before."""
    with job.scope():
        job.w = tf.Variable([-0.4, 0.1, 0.5], name="w")
    with rt.Tape() as tape:
        return tape, CASES[name](job)


# ---------------------------------------------------------------------- without a model


@case
def reduced_sum(job: Job) -> Names:
    x, w = job.batch(X), job.w
    return {"loss": job.total(job.run(lambda x: tf.reduce_sum(tf.tanh(x * w) ** 2), x))}


@case
def reduced_mean(job: Job) -> Names:
    x, w = job.batch(X), job.w
    return {"loss": job.total(job.run(lambda x: tf.reduce_sum(tf.tanh(x * w) ** 2), x), "MEAN")}


@case
def all_reduced(job: Job) -> Names:
    """The sum is used on every replica, and what becomes of it is summed again."""
    x, w = job.batch(X), job.w

    def body(x: Any) -> Any:
        both = job.all_reduce(tf.reduce_sum(tf.sin(x * w), 0))
        mean = job.all_reduce(tf.reduce_sum(x * w), "MEAN")
        return tf.reduce_sum(tf.exp(0.1 * both) * tf.reduce_sum(x, 1, keepdims=True)) * mean

    return {"loss": job.total(job.run(body, x))}


@case
def all_gathered(job: Job) -> Names:
    x, w = job.batch(X), job.w

    def body(x: Any) -> Any:
        rows = job.all_gather(tf.tanh(x * w), 0)
        columns = job.all_gather(tf.transpose(tf.sin(x * w)), 1)
        return tf.reduce_sum(tf.matmul(columns, rows)[:, :1] * tf.transpose(tf.reduce_sum(x, 0, keepdims=True)))

    return {"loss": job.total(job.run(body, x))}


@case
def custom_gradient(job: Job) -> Names:
    x, w = job.batch(X), job.w

    @tf.custom_gradient
    def double(value: Any) -> Any:
        return tf.identity(value), lambda grad: 2.0 * grad

    return {"loss": job.total(job.run(lambda x: tf.reduce_sum(double(x * w * w)), x))}


@case
def updated(job: Job) -> Names:
    """Updates by hand, from what all replicas have computed."""
    x, w = job.batch(X), job.w

    def body(x: Any) -> Any:
        for _ in range(2):
            step = job.all_reduce(tf.reduce_sum(tf.sin(x * w), 0), "MEAN")
            w.assign_sub(0.1 * step)
        return tf.reduce_sum((x * w) ** 2)

    return {"loss": job.total(job.run(body, x))}


@case
def several_names(job: Job) -> Names:
    """What depends on the data of a worker has a name for each; what does not has one name."""
    x, w = job.batch(X), job.w
    mine = job.run(lambda x: tf.reduce_sum(x * w), x)
    loss = job.total(mine)
    return {"loss": tf.exp(loss) * 2.0, "total": loss, "mine": mine, "x": x}


@case
def created_inside(job: Job) -> Names:
    """A variable whose first value depends on another one, and is sent to all workers."""
    x, w = job.batch(X), job.w
    with job.scope():
        v = tf.Variable(tf.sin(w) * 2.0, name="v")
    return {"loss": job.total(job.run(lambda x: tf.reduce_sum((x * v) ** 2), x))}


@case
def random_draws(job: Job) -> Names:
    """Every replica draws for itself: the loss in one process is another one."""
    x, w = job.batch(X), job.w
    body = lambda x: tf.reduce_sum(x * w * tf.random.uniform([3]))  # noqa: E731
    return {"loss": job.total(job.run(body, x))}


# ---------------------------------------------------------------------- training


def trained(job: Job, optimizer: Any, layers: Callable[[], list], data: Any = X, wrap: Callable = lambda f: f) -> Names:
    import keras

    keras.utils.set_random_seed(3)
    x, y = job.batch(data), job.batch(Y)
    with job.scope():
        model = keras.Sequential([*layers(), keras.layers.Dense(2, name="head")], name="model")
        model.build((None, *data.shape[1:]))
    loss_of = lambda x, y: tf.reduce_sum((model(x, training=True) - y) ** 2) / ROWS  # noqa: E731

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    steps = wrap(lambda: job.run(step, x, y))
    for _ in range(2):
        steps()
    return {"loss": job.total(job.run(loss_of, x, y)), "rate": optimizer.learning_rate}


def _optimizer(job: Job, name: str, rate: float = 0.05, **options: Any) -> Any:
    import keras

    with job.scope():
        return getattr(keras.optimizers, name)(rate, **options)


def _dense(activation: str = "tanh") -> list:
    import keras

    return [keras.layers.Dense(4, activation=activation, name="hidden")]


@case
def sgd(job: Job, rate: float = 0.05) -> Names:
    return trained(job, _optimizer(job, "SGD", rate), _dense)


@case
def momentum(job: Job) -> Names:
    return trained(job, _optimizer(job, "SGD", momentum=0.9, nesterov=True), _dense)


@case
def adam(job: Job, rate: float = 0.05) -> Names:
    """Its slots are created in the block, and sent to all workers."""
    return trained(job, _optimizer(job, "Adam", rate), lambda: _dense("silu"))


@case
def synchronized_normalization(job: Job) -> Names:
    import keras

    alone = not isinstance(job, Worker)
    layers = lambda: [*_dense(), keras.layers.BatchNormalization(synchronized=not alone, name="bn")]  # noqa: E731
    return trained(job, _optimizer(job, "SGD"), layers)


@case
def embedding(job: Job) -> Names:
    """Its gradient is sparse."""
    import keras

    layers = lambda: [keras.layers.Embedding(5, 3, name="rows")]  # noqa: E731
    return trained(job, _optimizer(job, "SGD"), layers, K)


@case
def adam_in_a_function(job: Job) -> Names:
    return trained(job, _optimizer(job, "Adam"), lambda: _dense("silu"), wrap=tf.function)


@case
def embedding_in_a_function(job: Job) -> Names:
    import keras

    layers = lambda: [keras.layers.Embedding(5, 3, name="rows")]  # noqa: E731
    return trained(job, _optimizer(job, "SGD"), layers, K, wrap=tf.function)


@case
def normalization_in_a_function(job: Job) -> Names:
    import keras

    alone = not isinstance(job, Worker)
    layers = lambda: [*_dense(), keras.layers.BatchNormalization(synchronized=not alone, name="bn")]  # noqa: E731
    return trained(job, _optimizer(job, "SGD", momentum=0.9), layers, wrap=tf.function)


@case
def reductions_in_a_function(job: Job) -> Names:
    x, w = job.batch(X), job.w

    @tf.function
    def whole() -> Any:
        def body(x: Any) -> Any:
            both = job.all_reduce(tf.reduce_sum(tf.sin(x * w), 0))
            rows = job.all_gather(tf.tanh(x * w), 0)
            return tf.reduce_sum(tf.exp(0.1 * both) * tf.reduce_sum(rows, 0)) * tf.reduce_sum(x)

        return job.total(job.run(body, x))

    return {"loss": whole()}


@case
def in_the_background(job: Job) -> Names:
    """Saved while training goes on."""
    return trained(job, _optimizer(job, "SGD"), _dense)


def save_in_background(tape: rt.Tape, path: Path, names: Names, job: Job) -> None:
    """Save, and meanwhile communicate, change variables and forget the tape."""
    future = tape.save(path, names, wait=False)
    for variable in tape.watched_variables():
        variable.assign(tf.zeros_like(variable))
    tape.reset()
    for _ in range(3):
        reduced_sum(job)
    assert future.result(60) > 0


def main(folder: Path, names: list[str]) -> None:
    """Run as a worker."""
    job = Worker()
    found = {}
    for name in names:
        try:
            tape, named = record(name, job)
            if name == "in_the_background":
                save_in_background(tape, folder / name, named, job)
            else:
                with job.scope():
                    tape.save(folder / name, named)
            found[name] = "saved"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print("outcome:" + json.dumps(found), flush=True)
    os._exit(0)  # TensorFlow would wait for the others


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
