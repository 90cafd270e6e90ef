"""Random loops that record a few tapes in each step, and join them: the same way for some steps, then another one.

What the tapes share is chosen at random: variables that one reads and another assigns, tensors that all of them use or
that one made and the next one takes, updates that none recorded, blocks within blocks, a tape that is opened twice,
one of another thread. The same seed gives the same loop however queries are computed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads

Tensor = Any
SIZE, VARIABLES, TENSORS = 2, 4, 2
WARM = 4  # steps of one kind


@tf.custom_gradient
def _scaled(x: Tensor) -> tuple[Tensor, Any]:
    return 2.0 * x, lambda grad: 3.0 * tf.convert_to_tensor(grad)


class Loop:
    """One loop: its variables, its constants, and what each of its steps does."""

    def __init__(self, seed: int, compile: Any) -> None:
        self._compile = compile
        data = np.random.default_rng(seed)
        self._seed, self._data = seed, data
        self.variables = [tf.Variable(data.normal(size=(SIZE, SIZE)), dtype=tf.float32) for _ in range(VARIABLES)]
        self.tapes: list[rt.Tape] = []
        self.made: list[Tensor] = []
        self.shared: list[Tensor] = []

    # ------------------------------------------------------------------ ops

    def _operate(self, x: Tensor, rng: random.Random) -> Tensor:
        variable, kind = rng.choice(self.variables), rng.randrange(12)
        if kind <= 3:
            return tf.matmul(x, variable) * 0.5
        if kind == 4:
            return x + variable
        if kind == 5:
            variable.assign_add(0.1 * x)
            return x
        if kind == 6:
            variable.assign(tf.sin(x))
            return tf.cos(x)
        if kind == 7:
            return _scaled(x)
        if kind == 8:
            return x + rng.choice(self.shared)
        if kind == 9 and self.made:
            return x * rng.choice(self.made)
        if kind == 10:
            return tf.gather(x, tf.constant([1, 0])) if float(tf.reduce_sum(x)) > -1e9 else x
        return tf.nn.tanh(x) * rng.choice([2.0, 0.5])

    def _body(self, rng: random.Random) -> None:
        x = rng.choice([*self.shared, *self.made[-2:]])
        for _ in range(rng.randrange(1, 5)):
            x = self._operate(x, rng)
            self.made.append(x)

    # ------------------------------------------------------------------ blocks

    def _plain(self, rng: random.Random) -> None:
        with rt.Tape() as tape:
            self._body(rng)
        self.tapes.append(tape)

    def _nested(self, rng: random.Random) -> None:
        with rt.Tape() as outer:
            self._body(rng)
            with rt.Tape() as inner:
                self._body(rng)
        self.tapes += [outer, inner]

    def _twice(self, rng: random.Random) -> None:
        with rt.Tape() as tape:
            self._body(rng)
        self._between(rng)
        with tape:
            self._body(rng)
        self.tapes.append(tape)

    def _paused(self, rng: random.Random) -> None:
        with rt.Tape() as tape:
            self._body(rng)
            with tape.stop_recording():
                self._between(rng)
            self._body(rng)
        self.tapes.append(tape)

    def _in_thread(self, rng: random.Random) -> None:
        def record() -> None:
            with rt.config(compile=self._compile):  # a setting of the thread
                self._plain(rng)

        in_threads(record)

    def _between(self, rng: random.Random) -> None:
        """Run something that no tape records."""
        if rng.random() < 0.2:
            rng.choice(self.variables).assign_add(tf.ones([SIZE, SIZE]))
        if rng.random() < 0.2:
            self.made.append(self.made[-1] * 0.5)

    # ------------------------------------------------------------------ joins

    def _joined(self, rng: random.Random) -> Any:
        tapes = self.tapes if rng.random() < 0.6 else rng.sample(self.tapes, len(self.tapes))
        kind = rng.randrange(8)
        if kind == 0:
            return reduce(rt.join, tapes, rt.join(tapes[0]))
        if kind == 1:
            middle = rng.randrange(len(tapes))
            return rt.join(rt.join(*tapes[: middle + 1]), *tapes[middle:])
        if kind == 2:
            return rt.join(*tapes, tapes[0])
        if kind == 3:
            return rt.join(*tapes[:-1], rt.join(tapes[-1]))
        return rt.join(*tapes)

    def step(self, number: int) -> list[Any]:
        """Record and join; return what queries on the join return."""
        seed = f"{self._seed} {number // WARM}"  # the same steps, a few times, then others
        rng = random.Random(seed)
        self.tapes, self.made = [], []
        self.shared = [tf.constant(self._data.normal(size=(SIZE, SIZE)), tf.float32) for _ in range(TENSORS)]
        plain: list[Callable[[random.Random], None]] = [self._plain] * 6
        others = [self._nested, self._twice, self._paused, self._in_thread]
        for _ in range(rng.randrange(1, 6)):
            (rng.choice(plain + others) if self._seed % 2 else self._plain)(rng)
            self._between(rng)
        joined = self._joined(rng)
        return self._ask(joined, rng)

    def _ask(self, joined: Any, rng: random.Random) -> list[Any]:
        targets = rng.sample(self.made, min(len(self.made), 3))
        sources: list[Any] = [*self.variables, *self.shared, rng.choice(self.made)]
        found: list[Any] = [len(joined.program.eqns)] if rng.random() < 0.2 else []
        for _ in range(2):
            kind = rng.randrange(5)
            if kind == 0:
                found.append(_answer(lambda: joined.gradient(targets[0], sources)))
            elif kind == 1:
                found.append(_answer(lambda: joined.gradient(targets, dict(enumerate(self.variables)))))
            elif kind == 2:
                found.append(_answer(lambda: joined.gradient(targets, self.variables, through_updates=True)))
            elif kind == 3:
                found.append(_answer(lambda: joined.backward_each(targets, self.variables)))
            else:
                found.append(_answer(lambda: joined.backward(targets[0], self.variables).norm()))
        return found


def _answer(compute: Callable[[], Any]) -> Any:
    try:
        return _arrays(compute())
    except rt.errors.RetrotapeError as error:
        return type(error).__name__


def _arrays(found: Any) -> Any:
    if isinstance(found, rt.Gradients):
        return [(_arrays(grad), found.why(key)) for grad, key in found.pairs()]
    if isinstance(found, dict):
        return {key: _arrays(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_arrays(value) for value in found]
    return None if found is None else tf.convert_to_tensor(found).numpy().tobytes()


def run(seed: int, steps: int, compile: Any) -> list[list[Any]]:
    """Return the results of all steps of a loop."""
    loop = Loop(seed, compile)
    with rt.config(compile=compile):
        return [loop.step(number) for number in range(steps)]
