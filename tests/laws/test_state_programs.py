"""Laws of programs that assign, in every way, and read what they assigned, in every way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.seeds import seeds
from laws.state_programs import (
    RECORDED,
    SIZE,
    UNRECORDED,
    begin,
    record,
    record_in_turns,
    second_truth,
    truth,
    write,
)

KEEPS = ("needed", "leaves", "all", "segments", "disk")
SEEDS = seeds(8, 24)


def same(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Check gradients; no path and a path along which nothing arrives are the same here."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(_dense(one), _dense(other), rtol=1e-8, atol=1e-10)


def _dense(grad: Any) -> Any:
    return np.zeros(SIZE) if grad is None else tf.convert_to_tensor(grad).numpy()


def train_on(variables: Sequence[tf.Variable]) -> None:
    """Change variables, as training that goes on does: no answer may depend on it."""
    for number, variable in enumerate(variables):
        variable.assign(tf.fill(variable.shape, tf.constant(7.0 + number, variable.dtype)))


def check_recorded(seed: int) -> None:
    program, values = write(seed, RECORDED), begin(seed)
    tape, sources, y = record(program, values, KEEPS[seed % len(KEEPS)])
    train_on(sources[2:])
    plain, value, versions = truth(program, values, plain=True)
    np.testing.assert_allclose(y, value, rtol=1e-12)
    same(tape.gradient(y, sources), plain)
    same(tape.gradient(y, sources, through_updates=True), truth(program, values, plain=False)[0])
    for number, variable in enumerate(sources[2:]):
        found = tape.versions(variable)
        assert len(found) == versions[number] + 1
        for k, version in enumerate(found[1:], 1):
            wanted, _, _ = truth(program, values, plain=False, mark=(number, k))
            same([tape.gradient(y, version)], wanted)


def check_unrecorded(seed: int) -> None:
    program, values = write(seed, (*RECORDED, *UNRECORDED)), begin(seed)
    tape, sources, y = record(program, values, KEEPS[seed % len(KEEPS)])
    train_on(sources[2:])
    plain, value, _ = truth(program, values, plain=True)
    np.testing.assert_allclose(y, value, rtol=1e-12)
    same(tape.gradient(y, sources), plain)
    try:
        through = tape.gradient(y, sources, through_updates=True)
    except rt.errors.UnseenUpdateError:
        assert any(block.mode in UNRECORDED for block in program)
    else:
        same(through, truth(program, values, plain=False)[0])


def check_saved(seed: int, folder: Any) -> None:
    program, values = write(seed, RECORDED), begin(seed)
    tape, sources, y = record(program, values, KEEPS[seed % len(KEEPS)])
    train_on(sources[2:])
    names = {f"source_{number}": source for number, source in enumerate(sources)}
    tape.save(folder / "a.tape", {**names, "y": y})
    loaded = rt.load(folder / "a.tape")
    same(loaded.gradient("y", list(names)), truth(program, values, plain=True)[0])
    same(loaded.gradient("y", list(names), through_updates=True), truth(program, values, plain=False)[0])


def check_second(seed: int) -> None:
    program, values = write(seed, RECORDED, length=3), begin(seed)
    ways = [tf.constant(way) for way in begin(seed + 1)]
    tape, sources, y = record(program, values, KEEPS[seed % len(KEEPS)])
    train_on(sources[2:])
    for plain in (True, False):
        found = tape.hvp(y, sources, ways, through_updates=not plain)
        same(found, second_truth(program, values, ways, plain))


def check_joined(seed: int) -> None:
    program, values = write(seed, ("eager", "function", "nested")), begin(seed)
    tape, sources, y = record_in_turns(program, values)
    train_on(sources[2:])
    same(tape.gradient(y, sources), truth(program, values, plain=True)[0])
    same(tape.gradient(y, sources, through_updates=True), truth(program, values, plain=False)[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_recorded_is_right(seed: int):
    check_recorded(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_recorded_is_noticed(seed: int):
    check_unrecorded(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_saved_and_loaded(seed: int, tmp_path):
    check_saved(seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_second_derivatives(seed: int):
    check_second(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_joined(seed: int):
    check_joined(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_programs(seed: int, tmp_path):
    check_recorded(seed)
    check_unrecorded(seed)
    check_saved(seed, tmp_path)
    check_second(seed)
    check_joined(seed)
