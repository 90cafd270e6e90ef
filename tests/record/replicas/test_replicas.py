"""Tapes and `tf.distribute`: no wrong number, and no None where there is a path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from record.replicas import cases


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return what came of all cases, with two replicas."""
    command = [sys.executable, str(Path(__file__).with_name("cases.py")), "2"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("outcomes:")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("outcomes:"))


@pytest.mark.parametrize("name", cases.CASES)
def test_right_or_raises(outcomes: dict[str, str], name: str):
    _, expected = cases.CASES[name]
    assert outcomes[name].startswith(expected), outcomes[name]
    if expected != "right":
        assert "`" in outcomes[name], "the error says what to type"
