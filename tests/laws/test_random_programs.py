"""Random programs with assignments: derivatives through updates against finite differences, and cut into tapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

UNARY: list[Callable] = [
    tf.sin,
    tf.tanh,
    tf.nn.silu,
    tf.nn.softmax,
    tf.cumsum,
    lambda a: a * a,
    lambda a: tf.gather(a, [0, 0, 2]),
    lambda a: tf.nn.moments(a, [0])[1] * a,
]
BINARY: list[Callable] = [
    lambda a, b: a * b,
    lambda a, b: a - b,
    lambda a, b: a / (b * b + 1.0),
    lambda a, b: tf.concat([a, b], 0)[1:4],
]
CALLED = tf.function(lambda a, b: tf.tanh(a) * b + tf.nn.silu(b))


class Randomly:
    """A program that a seed decides on, from the values that its tensors and variables begin with."""

    def __init__(self, seed: int, values: list[np.ndarray]) -> None:
        self._rng = random.Random(seed)
        self.tensors = [tf.constant(value) for value in values[:2]]
        self.variables = [tf.Variable(value) for value in values[2:]]
        first, second, *_ = self.variables
        self._update = tf.function(lambda d: first.assign(tf.tanh(first * d) + second))
        self._update.get_concrete_function(self.tensors[0])
        self._made: list[Any] = list(self.tensors)

    def _pick(self) -> tf.Tensor:
        return self._rng.choice([*self._made, *self.variables]) * 1.0

    def step(self) -> None:
        kind, rng = self._rng.random(), self._rng
        if kind < 0.4:
            self._made.append(rng.choice(UNARY)(self._pick()))
        elif kind < 0.7:
            self._made.append(rng.choice(BINARY)(self._pick(), self._pick()))
        elif kind < 0.78:
            self._made.append(CALLED(self._pick(), self._pick()))
        elif kind < 0.86:
            self._made.append(self._update(rng.choice(self._made)) * 1.0)
        else:
            variable = rng.choice(self.variables)
            rng.choice([variable.assign, variable.assign_add, variable.assign_sub])(tf.tanh(rng.choice(self._made)))

    def end(self) -> tf.Tensor:
        held = sum(tf.sin(variable) for variable in self.variables)
        return tf.reduce_sum(0.7 * self._made[-1] + tf.tanh(self._rng.choice(self._made)) + held)


def begin(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return list(rng.uniform(-1, 1, (5, 3))), list(rng.normal(size=(5, 3)))


def along(grads: list[Any], directions: list[np.ndarray]) -> float:
    return sum(float(np.sum(grad * way)) for grad, way in zip(grads, directions, strict=True) if grad is not None)


@pytest.mark.parametrize("seed", range(24))
def test_through_updates_to_second_order(seed: int):
    values, ways = begin(seed)
    program = Randomly(seed, values)
    with rt.Tape(keep=["needed", "leaves", "all"][seed % 3]) as tape:
        for _ in range(8):
            program.step()
        y = program.end()
    sources = [*program.tensors, *program.variables]
    first = tape.gradient(y, sources, through_updates=True)
    second = tape.hvp(y, sources, [tf.constant(way) for way in ways], through_updates=True)

    def value(gap: float) -> float:
        moved = Randomly(seed, [value + gap * way for value, way in zip(values, ways, strict=True)])
        for _ in range(8):
            moved.step()
        return float(moved.end())

    assert along(first, ways) == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, rel=1e-6, abs=1e-6)
    bend = (value(1e-4) - 2 * value(0.0) + value(-1e-4)) / 1e-8
    assert along(second, ways) == pytest.approx(bend, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("seed", range(24))
def test_cut_into_tapes_and_joined_it_is_one_tape(seed: int):
    program = Randomly(seed, begin(seed)[0])
    cuts = []
    with tf.GradientTape(persistent=True) as stock, rt.Tape() as whole:
        stock.watch(program.tensors)
        for _ in range(4):
            with rt.Tape() as cut:
                for _ in range(program._rng.randint(1, 3)):
                    program.step()
            cuts.append(cut)
        with rt.Tape() as cut:
            y = program.end()
        cuts.append(cut)
    random.Random(seed).shuffle(cuts)
    joined, sources = rt.join(*cuts), [*program.tensors, *program.variables]
    same(joined.gradient(y, sources), stock.gradient(y, sources))
    same(joined.gradient(y, sources, through_updates=True), whole.gradient(y, sources, through_updates=True))


def same(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), rtol=1e-9, atol=1e-12)
