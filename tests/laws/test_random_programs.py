"""Random programs with assignments: derivatives through updates against finite differences, on tapes of any origin."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.random_programs import Randomly, begin, same
from helpers.seeds import seeds

SEEDS = seeds(8, 24)


def with_each(choices: tuple[str, ...]) -> list[Any]:
    """Return each seed with each choice; in the fast tests, a seed has one of them, and every choice some seeds."""
    marks = ((), (pytest.mark.slow,))
    return [
        pytest.param(seed, choice, marks=marks[seed % len(choices) != number])
        for seed in SEEDS
        for number, choice in enumerate(choices)
    ]


def along(grads: list[Any], directions: list[np.ndarray]) -> float:
    return sum(float(np.sum(grad * way)) for grad, way in zip(grads, directions, strict=True) if grad is not None)


@pytest.mark.parametrize("seed", SEEDS)
def test_through_updates_to_second_order(seed: int):
    values, ways = begin(seed)
    program = Randomly(seed, values)
    with rt.Tape(keep=["needed", "leaves", "all"][seed % 3]) as tape:
        for _ in range(8):
            program.step()
        y = program.end()
    sources = program.sources
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


Queries = dict[str, Callable[[Any, Any, Any], Any]]


def recorded(seed: int, begins: list[np.ndarray], keep: str = "needed") -> tuple[rt.Tape, Any, list[Any]]:
    """Return a tape of a random program, what it ends with, and its sources."""
    program = Randomly(seed, begins)
    with rt.Tape(keep=keep) as tape:
        for _ in range(8):
            program.step()
        y = program.end()
    return tape, y, program.sources


def connected(tape: rt.Tape, y: Any, sources: list[Any]) -> int:
    """Return the number of the first source with a path to the end."""
    grads = tape.gradient(y, sources, through_updates=True)
    return next(number for number, grad in enumerate(grads) if grad is not None)


def queries_along(way: tf.Tensor) -> Queries:
    def twice(tape: Any, y: Any, x: Any) -> Any:
        first = tape.gradient(y, x, through_updates=True)
        return tape.gradient(first, x, through_updates=True, output_gradients=way)

    return {
        "first": lambda tape, y, x: tape.gradient(y, x, through_updates=True),
        "hvp": lambda tape, y, x: tape.hvp(y, x, way, through_updates=True),
        "twice": twice,
    }


@pytest.mark.parametrize(("seed", "values"), with_each(("leaves", "needed", "all")))
def test_a_loaded_tape_gives_the_same_in_any_order(tmp_path: Path, seed: int, values: str):
    """Whatever was saved, and whichever queries came before; the live tape is checked by differences above."""
    begins, ways = begin(seed)
    tape, y, sources = recorded(seed, begins)
    number = connected(tape, y, sources)
    x, queries = sources[number], queries_along(tf.constant(ways[number]))
    want = {name: query(tape, y, x) for name, query in queries.items()}
    tape.save(tmp_path / "a.tape", {"x": x, "y": y}, values=values)
    for order in permutations(queries):
        loaded = rt.load(tmp_path / "a.tape")
        for name in order:
            same([queries[name](loaded, "y", "x")], [want[name]])


@pytest.mark.parametrize(("seed", "keep"), with_each(("leaves", "segments", "disk")))
def test_a_tape_that_drops_values_gives_the_same_in_any_order(seed: int, keep: str):
    begins, ways = begin(seed)
    tape, y, sources = recorded(seed, begins, "all")
    number = connected(tape, y, sources)
    queries = queries_along(tf.constant(ways[number]))
    want = {name: query(tape, y, sources[number]) for name, query in queries.items()}
    for order in permutations(queries):
        other, end, its = recorded(seed, begins, keep)
        for name in order:
            same([queries[name](other, end, its[number])], [want[name]])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_gives_what_a_run_on_the_new_value_gives(seed: int):
    begins, ways = begin(seed)
    tape, y, sources = recorded(seed, begins)
    number = connected(tape, y, sources)
    moved = [
        value + 0.1 * way if here == number else value
        for here, (value, way) in enumerate(zip(begins, ways, strict=True))
    ]
    other, end, its = recorded(seed, moved, "all")
    queries = queries_along(tf.constant(ways[number]))
    again = tape.replay([(sources[number], tf.constant(moved[number]))])
    for query in queries.values():
        same([query(again, y, sources[number])], [query(other, end, its[number])])
