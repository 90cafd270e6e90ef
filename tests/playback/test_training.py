"""Training programs played back: what comes out is what the same loop gives in eager mode, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import playback.programs_of_several  # noqa: F401  # it enters its programs into the table
import retrotape as rt
from playback.programs import PROGRAMS, Program
from playback.twins import assert_same, build, plays, state_of

# How far played-back values may be from eager ones, and why; 0.0 where nothing is said.
TOLERANCES: dict[str, tuple[float, str]] = {
    "function_inside": (1e-6, "under two tapes TensorFlow makes other functions of the passes of a `tf.function`"),
}
STEPS = [pytest.param(8, id="8 steps"), pytest.param(50, id="50 steps", marks=pytest.mark.slow)]


def arrays(nest: Any) -> list[np.ndarray]:
    return [array for part in nest for array in arrays(part)] if isinstance(nest, list) else [nest]


def run(program: Program, step: Any, steps: int) -> list[Any]:
    """Return what each step returned, as arrays, and the state after it."""
    found = []
    for number in range(steps):
        outputs = step(*program.batches(number))
        found.append((state_of(outputs), state_of(program.state)))
    return found


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_played_back_steps_are_eager_steps(name: str, steps: int) -> None:
    tolerance, _ = TOLERANCES.get(name, (0.0, ""))
    eager = build(PROGRAMS[name])
    expected = run(eager, eager.step, steps)
    first, last = arrays(expected[0][1]), arrays(expected[-1][1])
    changed = [not np.array_equal(one, other) for one, other in zip(first, last, strict=True)]
    assert sum(changed) >= 0.5 * len(changed), "nothing was learnt"
    played = build(PROGRAMS[name])
    compiled = rt.compile(played.step)
    found = run(played, compiled, steps)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same(ours, theirs, tolerance, f"{name}, step {number}")
    assert compiled.why_not_compiled() is None
    assert plays(compiled) >= steps // 2
