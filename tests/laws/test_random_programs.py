"""Random programs with assignments: derivatives through updates against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.random_programs import Randomly, begin


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
