"""Tapes that go to a file and come back, and how their answers are compared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from helpers.processes import PYTHON

TESTS = Path(__file__).parents[1]


class Trip(NamedTuple):
    """A tape, what it was loaded as, and the file between."""

    tape: rt.Tape
    loaded: rt.LoadedTape
    path: Path
    size: int


def trip(tape: Any, names: Mapping[str, Any], folder: Path, **options: Any) -> Trip:
    path = folder / "a.tape"
    size = tape.save(path, names, **options)
    return Trip(tape, rt.load(path), path, size)


def dense(value: Any) -> np.ndarray:
    """Return a gradient as an array in which differences can be taken."""
    tensor = tf.convert_to_tensor(value)
    return tf.cast(tensor, tf.float32 if tensor.dtype in (tf.float16, tf.bfloat16) else tensor.dtype).numpy()


def assert_same(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """Compare two gradients, to a part of the largest element; sparse ones stay sparse."""
    __tracebackhide__ = True
    assert (got is None) == (wanted is None), f"{got!r} where {wanted!r} is right"
    if wanted is None:
        return
    assert type(got) is type(wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    one, other = dense(got), dense(wanted)
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max(initial=0.0))


def assert_answers(
    made: Trip, target: Any, sources: Mapping[str, Any], order: int = 2, tolerance: float = 1e-6
) -> None:
    """Compare a result to the bit, and its derivatives by each source, those of those and so on, with the live tape's.

    The trip must have been made with the names of the sources and the name "target".
    """
    __tracebackhide__ = True
    assert made.loaded["target"].numpy().tobytes() == target.numpy().tobytes()
    ours, theirs = made.loaded.gradient("target", list(sources)), made.tape.gradient(target, list(sources.values()))
    for depth in range(1, order + 1):
        for got, wanted in zip(ours, theirs, strict=True):
            assert_same(got, wanted, tolerance)
        if depth < order:
            ours = [
                None if grad is None else made.loaded.gradient(grad, name)
                for grad, name in zip(ours, sources, strict=True)
            ]
            theirs = [
                None if grad is None else made.tape.gradient(grad, source)
                for grad, source in zip(theirs, sources.values(), strict=True)
            ]


def check(tape: Any, target: Any, sources: Mapping[str, Any], folder: Path, order: int = 2, **options: Any) -> Trip:
    """Save, load and compare."""
    __tracebackhide__ = True
    made = trip(tape, {"target": target, **sources}, folder, **options)
    assert_answers(made, target, sources, order)
    return made


def start(code: str, *args: object, python: str | Path = PYTHON) -> subprocess.Popen:
    """Start Python in a process of its own, which sees the tests' modules but none that this process has made."""
    paths = os.pathsep.join([str(TESTS), str(Path(rt.__file__).parents[1])])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": paths}
    return subprocess.Popen(
        [str(python), "-c", code, *map(str, args)],
        env={**os.environ, **quiet},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    """Return what a process has printed, or raise with what it has complained about."""
    printed, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    return printed


def differences(function: Any, at: np.ndarray, gap: float = 1e-5) -> np.ndarray:
    """Return the derivative of a number by an array, by differences of fourth order."""
    found = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = gap
        near, far = function(at + step) - function(at - step), function(at + 2 * step) - function(at - 2 * step)
        found[index] = (8 * near - far) / (12 * gap)
    return found


def bytes_of(*values: Sequence[float] | np.ndarray, dtype: str = "float32") -> list[bytes]:
    return [np.asarray(value, dtype).tobytes() for value in values]
