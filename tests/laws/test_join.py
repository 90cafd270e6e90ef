"""A program that is cut into tapes, anyhow, and joined is the program on one tape."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import reduce
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.random_programs import Randomly, begin, same
from helpers.recording import in_threads
from retrotape.errors import EmptyTapeError

STEPS = 9
DEFAULT = [pytest.param(seed, id=str(seed)) for seed in range(8)]
SLOW = [pytest.param(seed, id=str(seed), marks=pytest.mark.slow) for seed in range(8, 24)]
every_seed = pytest.mark.parametrize("seed", DEFAULT + SLOW)


class Cuts:
    """Tapes that are opened and closed at random while a program runs, so that one or more hear every step.

    Blocks lie side by side, within each other and across each other. Some tapes are reset on the way; they are never
    the only ones that hear something.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"cuts {seed}")
        self._open: list[rt.Tape] = []
        self._resettable: list[rt.Tape] = []
        self.tapes: list[rt.Tape] = []
        self.most_open = self.resets = 0

    def before_a_step(self) -> None:
        rng = self._rng
        if self._open and rng.random() < 0.4:
            self._close(rng.choice(self._open))
        if not self._open or rng.random() < 0.3:
            self._begin(self._open)
        if rng.random() < 0.25:
            self._begin(self._resettable)
        if self._resettable and rng.random() < 0.4:
            rng.choice(self._resettable).reset()
            self.resets += 1
        self.most_open = max(self.most_open, len(self._open) + len(self._resettable))

    def _begin(self, group: list[rt.Tape]) -> None:
        tape = rt.Tape(keep=self._rng.choice(["needed", "needed", "leaves", "all"]))
        tape.__enter__()
        group.append(tape)
        self.tapes.append(tape)

    def _close(self, tape: rt.Tape) -> None:
        tape.__exit__(None, None, None)
        self._open = [other for other in self._open if other is not tape]

    def end(self) -> None:
        for tape in [*self._open, *self._resettable]:
            tape.__exit__(None, None, None)

    def filled(self) -> list[rt.Tape]:
        """Return the tapes that hold something, in any order."""
        found = []
        for tape in self.tapes:
            with suppress(EmptyTapeError):
                found.append((tape.program, tape))
        return [tape for _, tape in self._rng.sample(found, k=len(found))]


def recorded(seed: int) -> tuple[Cuts, rt.Tape, Any, Randomly, tf.Tensor]:
    """Run a program with cuts in it, under one tape of each kind that hears everything."""
    program, cuts = Randomly(seed, begin(seed)[0]), Cuts(seed)
    with tf.GradientTape(persistent=True) as stock, rt.Tape() as whole:
        stock.watch(program.tensors)
        for _ in range(STEPS):
            cuts.before_a_step()
            program.step()
        cuts.before_a_step()
        y = program.end()
        cuts.end()
    return cuts, whole, stock, program, y


def vectors(seed: int) -> list[tf.Tensor]:
    return [tf.constant(way) for way in begin(seed)[1]]


@every_seed
def test_any_cuts(seed: int):
    cuts, whole, stock, program, y = recorded(seed)
    joined, sources = rt.join(*cuts.filled()), program.sources
    same(joined.gradient(y, sources), stock.gradient(y, sources))
    ways = vectors(seed)
    same(joined.hvp(y, sources, ways), whole.hvp(y, sources, ways))
    same(joined.gradient(y, sources, through_updates=True), whole.gradient(y, sources, through_updates=True))
    same(joined.hvp(y, sources, ways, through_updates=True), whole.hvp(y, sources, ways, through_updates=True))


def test_the_cuts_are_of_all_kinds():
    found = [recorded(seed)[0] for seed in range(4)]
    assert max(cuts.most_open for cuts in found) >= 3
    assert sum(cuts.resets for cuts in found) >= 2
    assert max(len(cuts.tapes) for cuts in found) >= 4


def check_order(seed: int, through_updates: bool, join: Callable[[random.Random, list[Any]], Any]) -> None:
    cuts, _, _, program, y = recorded(seed)
    rng, tapes, sources = random.Random(seed), cuts.filled(), program.sources
    flat = rt.join(*tapes)
    length, expected = len(flat.program.eqns), flat.gradient(y, sources, through_updates=through_updates)
    for _ in range(3):
        rng.shuffle(tapes)
        joined = join(rng, tapes)
        assert len(joined.program.eqns) == length
        # Where a join sees a gap, a variable has one more value, and the sum over its values another order.
        same(joined.gradient(y, sources, through_updates=through_updates), expected)


@every_seed
def test_the_order_of_joining_does_not_matter(seed: int):
    cuts, _, _, program, y = recorded(seed)
    tapes = cuts.filled()
    flat = rt.join(*tapes)
    length, expected = len(flat.program.eqns), flat.gradient(y, program.sources, through_updates=True)
    for _ in range(3):
        tapes = cuts.filled()  # in another order
        joined = rt.join(*tapes)
        assert len(joined.program.eqns) == length
        same_bits(joined.gradient(y, program.sources, through_updates=True), expected)


@every_seed
def test_joining_is_associative(seed: int):
    check_order(seed, False, bracketed)
    check_order(seed, False, lambda _, tapes: reduce(rt.join, tapes, rt.join(tapes[0])))  # counts the first one twice


def test_joining_is_associative_through_updates():
    for seed in range(8):
        check_order(seed, True, bracketed)


def test_an_assignment_between_two_tapes_is_found_on_a_third():
    v = tf.Variable(1.0)
    with rt.Tape() as first:
        _ = v * 2.0
    with rt.Tape() as second:
        v.assign(v * 3.0)
    with rt.Tape() as third:
        loss = v * v
    assert float(rt.join(first, second, third).gradient(loss, v, through_updates=True)) == 18.0
    assert float(rt.join(rt.join(first, third), second).gradient(loss, v, through_updates=True)) == 18.0


def test_an_assignment_between_two_blocks_of_a_tape_is_found_on_another():
    v, tape = tf.Variable(1.0), rt.Tape()
    with tape:
        _ = v * 2.0
    with rt.Tape() as other:
        v.assign(v * 3.0)
    with tape:
        loss = v * v
    assert float(rt.join(tape, other).gradient(loss, v, through_updates=True)) == 18.0


def bracketed(rng: random.Random, tapes: list[Any]) -> Any:
    """Join tapes two groups at a time, split anywhere."""
    if len(tapes) == 1:
        return tapes[0]
    where = rng.randint(1, len(tapes) - 1)
    return rt.join(bracketed(rng, tapes[:where]), bracketed(rng, tapes[where:]))


def same_bits(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert tf.convert_to_tensor(one).numpy().tobytes() == tf.convert_to_tensor(other).numpy().tobytes()


# ------------------------------------------------------------------ on other threads


@every_seed
def test_cuts_on_other_threads(seed: int):
    """One after another, on threads of their own, some with a tape within the tape."""
    values, rng = begin(seed)[0], random.Random(f"threads {seed}")
    program, alone = Randomly(seed, values), Randomly(seed, values)
    tapes: list[rt.Tape] = []
    made: list[tf.Tensor] = []

    def cut(run: Callable[[], Any]) -> None:
        with ExitStack() as stack:
            tapes.extend(stack.enter_context(rt.Tape()) for _ in range(rng.choice([1, 1, 2])))
            run()

    left = STEPS
    while left:
        count = rng.randint(1, min(3, left))
        left -= count
        steps = lambda count=count: [program.step() for _ in range(count)]  # noqa: E731
        rng.choice([in_threads, lambda run: run()])(lambda steps=steps: cut(steps))
    in_threads(lambda: cut(lambda: made.append(program.end())))

    with rt.Tape() as whole:
        for _ in range(STEPS):
            alone.step()
        expected = alone.end()
    rng.shuffle(tapes)
    joined, ways = rt.join(*tapes), vectors(seed)
    ours, theirs = program.sources, alone.sources
    for options in ({}, {"through_updates": True}):
        same(joined.gradient(made[0], ours, **options), whole.gradient(expected, theirs, **options))
        same(joined.hvp(made[0], ours, ways, **options), whole.hvp(expected, theirs, ways, **options))
