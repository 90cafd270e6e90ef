"""Random programs of two replicas: eagerly, in a function and with a tape in the function, against one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import PYTHON


def problems(first: int, last: int) -> dict[str, list[str]]:
    """Return what was wrong with the programs of these seeds."""
    command = [PYTHON, str(Path(__file__).with_name("replica_programs.py")), str(first), str(last)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("problems:")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("problems:"))


def test_replicas_compute_what_one_process_does():
    assert problems(0, 6) == {}


@pytest.mark.slow
def test_replicas_compute_what_one_process_does_at_length():
    assert problems(6, 200) == {}
