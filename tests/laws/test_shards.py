"""Random programs on several workers: the joined shards give what plain functions of the variables give."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.seeds import seeds
from helpers.workers_in_turn import Sent, Side, combine, record, save_all

NAMES = ("u", "v")


@tf.custom_gradient
def bent(x: Any) -> Any:
    return tf.sin(x), lambda grad: grad * tf.cos(x) * 1.5


UNARY = (tf.sin, tf.tanh, tf.nn.silu, bent, lambda a: a * a, tf.function(lambda a: tf.exp(-a * a)))


def program(seed: int, side: Side) -> Generator[Sent, Any, Mapping[str, Any]]:
    """Run the program of a seed; every worker makes the same choices, on data of its own."""
    draw = random.Random(seed)
    data = np.random.default_rng([seed, side.worker])
    local = [tf.constant(data.normal(size=3)) for _ in range(2)]
    common: list[Any] = []
    for _ in range(draw.randint(5, 12)):
        kind, known = draw.random(), [*local, *common]
        one, other = draw.choice(known), draw.choice(known)
        if kind < 0.25:
            local.append(draw.choice(UNARY)(one) * side.read(draw.choice(NAMES)))
        elif kind < 0.4:
            local.append(one * other + 0.3 * one)
        elif kind < 0.55:
            sent = [one * 0.5, tf.sin(other)] if draw.random() < 0.3 else one * 0.5  # two replicas, or one
            common.append((yield Sent(draw.choice(("SUM", "MEAN")), sent)))
        elif kind < 0.65:
            rows = yield Sent("gather", tf.tanh(one))
            common.append(tf.reduce_sum(tf.reshape(rows, [-1, 3]) ** 2, 0))
        elif kind < 0.8 and common:
            name = draw.choice(NAMES)
            side.update(name, tf.tanh(side.read(name) + 0.3 * draw.choice(common)))
        elif common:
            common.append(draw.choice(UNARY)(draw.choice(common)) * side.read(draw.choice(NAMES)))
    mine = tf.reduce_sum(tf.add_n(local)) + sum(tf.reduce_sum(one) for one in common)
    return {"loss": (yield Sent("SUM", mine)), "mine": mine}


class Pure(Side):
    """A worker whose variables are tensors, which all workers share."""

    def __init__(self, worker: int, workers: int, values: dict[str, Any]) -> None:
        self.worker, self.workers, self._values = worker, workers, dict(values)

    def read(self, name: str) -> Any:
        return self._values[name] * 1.0

    def update(self, name: str, value: Any) -> None:
        self._values[name] = value


def loss_of(seed: int, workers: int, values: dict[str, Any]) -> Any:
    """Return the loss of all workers as a function of what the variables begin with."""
    running = [program(seed, Pure(worker, workers, values)) for worker in range(workers)]
    results: list[Any] = [None] * workers
    while True:
        sent = []
        for worker, one in enumerate(running):
            try:
                sent.append(one.send(results[worker]))
            except StopIteration as end:
                loss = end.value["loss"]
        if not sent:
            return loss
        results = [combine(sent)] * workers


def truth(seed: int, workers: int, values: dict[str, np.ndarray], name: str) -> tuple[Any, Any]:
    """Return the gradient, and the Hessian times ones, on nested stock tapes."""
    given = {key: tf.constant(value) for key, value in values.items()}
    with tf.GradientTape() as outer:
        outer.watch(given[name])
        with tf.GradientTape() as inner:
            inner.watch(given[name])
            loss = loss_of(seed, workers, given)
        grad = inner.gradient(loss, given[name])
    return grad, None if grad is None else outer.gradient(grad, given[name])


def close(ours: Any, theirs: Any) -> None:
    zero = np.zeros(3)
    ours, theirs = (zero if one is None else np.asarray(one) for one in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def check(folder: Path, seed: int) -> None:
    draw = random.Random(-seed)
    workers, options = draw.choice((2, 3)), {"values": draw.choice(("leaves", "needed", "all"))}
    values = {name: np.random.default_rng([seed, at]).normal(size=3) for at, name in enumerate(NAMES)}
    save_all(folder / "job", record(lambda side: program(seed, side), workers, values), **options)
    whole = rt.load(folder / "job")
    want = loss_of(seed, workers, {key: tf.constant(value) for key, value in values.items()})
    np.testing.assert_allclose(whole["loss"], want, rtol=1e-9)
    for name in NAMES:
        if name not in whole:  # not read by this program
            continue
        grad, second = truth(seed, workers, values, name)
        close(whole.gradient("loss", name, through_updates=True), grad)
        close(whole.hvp("loss", name, tf.ones(3, tf.float64), through_updates=True), second)
    again = rt.load(folder / "job").replay({name: values[name] + 0.1 for name in NAMES if name in whole})
    moved = {name: tf.constant(value + 0.1) for name, value in values.items()}
    np.testing.assert_allclose(again["loss"], loss_of(seed, workers, moved), rtol=1e-9)


@pytest.mark.parametrize("seed", seeds(8, 24))
def test_random_programs(tmp_path: Path, seed: int):
    check(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25, 400))
def test_more_random_programs(tmp_path: Path, seed: int):
    check(tmp_path, seed)
