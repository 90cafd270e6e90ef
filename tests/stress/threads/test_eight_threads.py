"""Eight threads at once: tapes, files and plain TensorFlow beside each other, and every number right."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.untouched import is_untouched
from stress.threads.programs import OURS, PLAIN, Shared, chain, slope, variable

NUMBERS = (0.25, 0.5, 1.0, 1.25, 2.0)
THREADS = 8


def numbers(found: Any) -> list[np.ndarray]:
    return [np.asarray(part) for part in tf.nest.flatten(found)]


class Stress:
    """Runs programs on many threads, and counts what goes wrong.

    Attributes:
      rounds: How often each program was run.
      errors: How often each thing went wrong.
    """

    def __init__(self, seconds: float) -> None:
        self.shared = Shared()
        self.truth = {name: {k: numbers(PLAIN[name](self.shared, k)) for k in NUMBERS} for name in OURS}
        self.rounds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._end = time.monotonic() + seconds

    def run(self) -> None:
        """Run one thread of plain TensorFlow, and the programs on all the others."""
        workers = [threading.Thread(target=self._programs, args=(seed,)) for seed in range(1, THREADS)]
        workers.append(threading.Thread(target=self._plain_tensorflow))
        with contextlib.ExitStack() as stack:  # also if one cannot be started: they write to a folder that is deleted
            for worker in workers:
                worker.start()
                stack.callback(worker.join)

    def _programs(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        while time.monotonic() < self._end:
            for name in random.permutation(list(OURS)):
                self._once(str(name), NUMBERS[random.integers(len(NUMBERS))])

    def _once(self, name: str, k: float) -> None:
        try:
            for found, expected in zip(numbers(OURS[name](self.shared, k)), self.truth[name][k], strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
            self.rounds[name] += 1
        except BaseException:
            self.errors[f"{name}: {traceback.format_exc()}"] += 1

    def _plain_tensorflow(self) -> None:
        """Use TensorFlow as somebody does who has never heard of this library."""
        expected = slope(chain, variable(1.25)).numpy()
        block = tf.ones([2, 3, 4])
        while time.monotonic() < self._end:
            try:
                assert block.shape == (2, 3, 4)
                assert block._shape_tuple() == (2, 3, 4)
                np.testing.assert_array_equal(slope(chain, variable(1.25)), expected)
                traced = tf.function(lambda x: x * 2.0)
                assert float(traced(tf.constant(4.0))) == 8.0
                self.rounds["plain TensorFlow"] += 1
            except BaseException:
                self.errors[f"plain TensorFlow: {traceback.format_exc()}"] += 1


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def run(seconds: float) -> Stress:
    stress = Stress(seconds)
    try:
        stress.run()
    finally:
        shutil.rmtree(stress.shared.folder)
    return stress


def check(stress: Stress, rounds: int) -> None:
    assert not stress.errors, "\n".join(f"{times} x {what}" for what, times in stress.errors.most_common(5))
    assert set(stress.rounds) == {*OURS, "plain TensorFlow"}
    assert min(stress.rounds.values()) >= rounds
    assert is_untouched()
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        y = x * x
    assert float(tape.gradient(y, x)) == 6.0


@pytest.mark.usefixtures("switching_often")
def test_eight_threads_for_some_seconds():
    check(run(8.0), rounds=1)


@pytest.mark.slow
@pytest.mark.usefixtures("switching_often")
def test_eight_threads_for_five_minutes():
    check(run(300.0), rounds=100)
