"""Random loops that record a few tapes in each step, and join them: the same way for some steps, then another one.

The ops of a loop are the same in all steps. What the tapes share changes after some steps: which variables one reads
and another assigns, which tensors they use (those of all, or what another tape made), updates that none recorded, which
tape runs first, how they are joined. Some loops have blocks within blocks, a tape that is opened twice, one of another
thread. The same seed gives the same loop however queries are computed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads

Tensor = Any
SIZE, VARIABLES, TENSORS = 2, 4, 3
WARM = 4  # steps of one kind


@tf.custom_gradient
def _scaled(x: Tensor) -> tuple[Tensor, Any]:
    return 2.0 * x, lambda grad: 3.0 * tf.convert_to_tensor(grad)


class Operands(NamedTuple):
    """What the ops of a block use: in each step the same number of variables and tensors, but others."""

    variables: list[tf.Variable]
    tensors: list[Tensor]


class Loop:
    """One loop: its variables, its constants, and what each of its steps does."""

    def __init__(self, seed: int, compile: Any) -> None:
        self._seed, self._compile = seed, compile
        self._data = np.random.default_rng(seed)
        self.variables = [tf.Variable(self._data.normal(size=(SIZE, SIZE)), dtype=tf.float32) for _ in range(VARIABLES)]
        self.tapes: list[rt.Tape] = []
        self.made: list[Tensor] = []
        self.pool: list[Tensor] = []
        self._now = random.Random()

    # ------------------------------------------------------------------ ops

    def _operate(self, x: Tensor, given: Operands, rng: random.Random) -> Tensor:
        variable, tensor, kind = rng.choice(given.variables), rng.choice(given.tensors), rng.randrange(13)
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
        if kind <= 10:
            return x * tensor
        if kind == 11:
            return tf.gather(x, tf.constant([1, 0])) if float(tf.reduce_sum(x)) > -1e9 else x
        return tf.nn.tanh(x) * rng.choice([2.0, 0.5])

    def _body(self, ops: random.Random, chosen: random.Random) -> None:
        tensors = chosen.sample(self.pool[-4:] + self.pool[:2], TENSORS)
        given = Operands(chosen.sample(self.variables, 3), tensors)
        x = given.tensors[0]
        for _ in range(ops.randrange(1, 5)):
            x = self._operate(x, given, ops)
            self.made.append(x)
        self.pool.append(x)

    # ------------------------------------------------------------------ blocks

    def _plain(self, ops: random.Random, chosen: random.Random) -> None:
        with rt.Tape() as tape:
            self._body(ops, chosen)
        self.tapes.append(tape)

    def _nested(self, ops: random.Random, chosen: random.Random) -> None:
        with rt.Tape() as outer:
            self._body(ops, chosen)
            with rt.Tape() as inner:
                self._body(ops, chosen)
        self.tapes += [outer, inner]

    def _twice(self, ops: random.Random, chosen: random.Random) -> None:
        with rt.Tape() as tape:
            self._body(ops, chosen)
        self._between(chosen)
        with tape:
            self._body(ops, chosen)
        self.tapes.append(tape)

    def _paused(self, ops: random.Random, chosen: random.Random) -> None:
        with rt.Tape() as tape:
            self._body(ops, chosen)
            with tape.stop_recording():
                self._between(chosen)
            self._body(ops, chosen)
        self.tapes.append(tape)

    def _in_thread(self, ops: random.Random, chosen: random.Random) -> None:
        def record() -> None:
            with rt.config(compile=self._compile):  # a setting of the thread
                self._plain(ops, chosen)

        in_threads(record)

    def _between(self, chosen: random.Random) -> None:
        """Run something that no tape records."""
        if self._now.random() < 0.1:
            self._now.choice(self.variables).assign_add(tf.ones([SIZE, SIZE]))
        if chosen.random() < 0.15 and self.made:
            self.pool.append(self.made[-1] * 0.5)

    # ------------------------------------------------------------------ joins

    def _joined(self, chosen: random.Random) -> Any:
        tapes = self.tapes if chosen.random() < 0.6 else chosen.sample(self.tapes, len(self.tapes))
        kind = chosen.randrange(8)
        if kind == 0:
            return reduce(rt.join, tapes, rt.join(tapes[0]))
        if kind == 1:
            middle = chosen.randrange(len(tapes))
            return rt.join(rt.join(*tapes[: middle + 1]), *tapes[middle:])
        if kind == 2:
            return rt.join(*tapes, tapes[0])
        if kind == 3:
            return rt.join(*tapes[:-1], rt.join(tapes[-1]))
        return rt.join(*tapes)

    def step(self, number: int) -> list[Any]:
        """Record and join; return what queries on the join return."""
        ops, chosen = random.Random(self._seed), random.Random(f"{self._seed} {number // WARM}")
        self._now = random.Random(f"{self._seed} {number} now")  # differs between steps that are otherwise the same
        self.tapes, self.made = [], []
        shared = [tf.constant(self._data.normal(size=(SIZE, SIZE)), tf.float32) for _ in range(TENSORS)]
        self.pool = [*shared]
        kinds = [self._plain] * 6
        if self._seed % 3 == 0:
            kinds += [self._nested, self._twice, self._paused, self._in_thread]
        blocks = [(ops.choice(kinds), ops.random()) for _ in range(ops.randrange(1, 6))]
        for block, own in chosen.sample(blocks, len(blocks)):
            block(random.Random(own), chosen)
            self._between(chosen)
        return self._ask(self._joined(chosen), [*self.variables, *shared], chosen)

    def _ask(self, joined: Any, sources: list[Any], chosen: random.Random) -> list[Any]:
        targets, variables = chosen.sample(self.made, min(len(self.made), 3)), self.variables
        found: list[Any] = [len(joined.program.eqns)] if chosen.random() < 0.2 else []
        for _ in range(2):
            kind = chosen.randrange(5)
            if kind == 0:
                found.append(_answer(lambda: joined.gradient(targets[0], [*sources, chosen.choice(self.made)])))
            elif kind == 1:
                found.append(_answer(lambda: joined.gradient(targets, dict(enumerate(variables)))))
            elif kind == 2:
                found.append(_answer(lambda: joined.gradient(targets, variables, through_updates=True)))
            elif kind == 3:
                found.append(_answer(lambda: joined.backward_each(targets, variables)))
            else:
                found.append(_answer(lambda: joined.backward(targets[0], variables).norm()))
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
    if isinstance(found, (list, tuple, rt.Rows)):
        return [_arrays(value) for value in found]
    return None if found is None else tf.convert_to_tensor(found).numpy().tobytes()


def run(seed: int, steps: int, compile: Any) -> list[list[Any]]:
    """Return the results of all steps of a loop."""
    loop = Loop(seed, compile)
    with rt.config(compile=compile):
        return [loop.step(number) for number in range(steps)]
