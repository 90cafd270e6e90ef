"""Tapes and `tf.distribute`: no wrong number, and no None where there is a path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

from record.replicas.cases import CASES

# Training takes long. What is special about it is that the variables are mirrored.
_TRAINING = ("fit", "optimizers", "save_training", "tape_around_training_steps", "tape_in_the_training_step")
SLOW = [name for name in CASES if name.split()[0] in _TRAINING and name.split()[1] != "mirrored"]
FAST = [name for name in CASES if name not in SLOW]
# With four replicas, whose order is not that of the devices: whatever has to do with their number or order.
_COUNTED = ("all_gathered", "all_reduce_slices", "gather", "gather_in_a_graph", "reduce_slices", "slices_in_a_graph")
_COUNTED += ("all_reduce_mean", "all_reduced_update", "second_derivatives", "synchronized_normalization", "save")
FOUR = [name for name in CASES if name.split()[0] in _COUNTED and name.split()[1] == "mirrored"]


@cache
def outcomes(replicas: int, slow: bool) -> dict[str, str]:
    """Return what came of cases, all run by one process."""
    names: Collection[str] = (SLOW if slow else FAST) if replicas == 2 else (CASES if slow else FOUR)
    command = [sys.executable, str(Path(__file__).with_name("cases.py")), str(replicas), *names]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("outcomes:")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("outcomes:"))


def check(replicas: int, slow: bool, name: str) -> None:
    """Raise unless a case is right, or raises what it should."""
    _, expected = CASES[name]
    outcome = outcomes(replicas, slow)[name]
    assert outcome.startswith(expected), outcome
    if expected != "right":
        assert "`" in outcome, "the error says what to type"


@pytest.mark.parametrize("name", FAST)
def test_two_replicas(name: str):
    check(2, False, name)


@pytest.mark.parametrize("name", FOUR)
def test_four_replicas(name: str):
    check(4, False, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_training_with_two_replicas(name: str):
    check(2, True, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_everything_with_four_replicas(name: str):
    check(4, True, name)
