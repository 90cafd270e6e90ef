"""The table of tensors that no rule looks at leaves out nothing that one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]
OURS = json.loads((ROOT / "src/retrotape/record/exclusions.json").read_text())
Row = list  # [unused inputs, unused outputs], each "all" or positions


@pytest.fixture(scope="module")
def installed() -> dict[str, Row]:
    """Return the table of the TensorFlow that is installed."""
    tool = ROOT / "tools/exclusions.py"
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def too_much(ours: dict[str, Row], theirs: dict[str, Row], known: set[str]) -> list[str]:
    """Return the ops of which `ours` leaves out a tensor that `theirs` needs."""
    found = []
    for op in sorted(ours.keys() & known):
        for mine, other in zip(ours[op], theirs.get(op, [[], []]), strict=True):
            if other == "all":
                continue
            if mine == "all" or not set(mine) <= set(other):
                found.append(op)
    return found


def registered() -> set[str]:
    from tensorflow.python.framework import ops

    return set(ops.gradient_registry.list())


def test_nothing_is_left_out_that_a_rule_looks_at(installed):
    assert too_much(OURS, installed, registered()) == []


@pytest.mark.skipif(not tf.__version__.startswith("2.21."), reason="the table was made with TensorFlow 2.21")
def test_the_table_is_that_of_the_version_it_was_made_with(installed):
    assert installed == OURS


def test_most_ops_are_in_the_table(installed):
    assert len(installed) > 250
    assert installed["MatMul"] == [[], "all"]
    assert installed["Tanh"] == ["all", []]


@pytest.mark.parametrize(
    ("ours", "theirs", "bad"),
    [
        ({"A": [[], "all"]}, {"A": [[], "all"]}, []),
        ({"A": [[], "all"]}, {"A": ["all", "all"]}, []),
        ({"A": [[0], []]}, {"A": [[0, 1], []]}, []),
        ({"A": ["all", []]}, {"A": [[0], []]}, ["A"]),
        ({"A": [[0, 1], []]}, {"A": [[0], []]}, ["A"]),
        ({"A": [[], [2]]}, {}, ["A"]),
    ],
)
def test_the_comparison_itself(ours, theirs, bad):
    assert too_much(ours, theirs, {"A"}) == bad
