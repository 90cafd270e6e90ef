"""Loops that get warm and then change: compiled or not, the answers are the same, and those of the stock tape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from helpers.seeds import seeds
from laws.warm_programs import run
from laws.warm_queries import NO_ANSWER

STEPS = 12


def check(ours: Any, theirs: Any, tolerance: float, where: Any) -> None:
    """Check that two nests of arrays are the same but for rounding."""
    if isinstance(theirs, str) and theirs == NO_ANSWER:
        return
    assert type(ours) is type(theirs), (where, ours, theirs)
    if isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            check(one, other, tolerance, (*where, number))
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            check(ours[key], theirs[key], tolerance, (*where, key))
    elif isinstance(ours, np.ndarray):
        finite = np.abs(theirs[np.isfinite(theirs)])
        scale = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=str(where))
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance), where
    else:
        assert ours == theirs, where


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", seeds())
def test_a_warm_loop_gives_what_a_cold_one_gives(seed: int):
    cold = run(seed, STEPS)
    for mode in (True, "always"):
        for ours, theirs in zip(run(seed, STEPS, compile=mode), cold, strict=True):
            check(ours, theirs, 1e-6, (seed, f"compile={mode}", theirs[:2]))
    for ours, theirs in zip(cold, run(seed, STEPS, tape=tf.GradientTape), strict=True):
        check(ours, theirs, 1e-4, (seed, "stock", theirs[:2]))
