"""Tapes of earlier releases are still read, and give the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

TAPES = sorted(Path(__file__).parent.glob("*.tape"))


def test_there_are_some():
    assert len(TAPES) >= 2


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_an_old_tape_gives_the_same_gradients(path):
    want = json.loads(path.with_suffix(".json").read_text())
    tape = rt.load(path)
    for name, grad in want["gradients"].items():
        found = tape.gradient(want["target"], name, through_updates=True)
        np.testing.assert_allclose(tf.convert_to_tensor(found), grad, rtol=1e-5, atol=1e-7)
