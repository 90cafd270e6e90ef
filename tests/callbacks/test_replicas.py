"""`GradientLog` where two replicas train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_two_replicas_train_the_same_and_their_sum_is_logged():
    script = Path(__file__).parent / "replicated.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"]
    assert found["steps"] == [0, 1, 2]
    for norms, changes in zip(found["norms"], found["changes"], strict=True):  # of a step of SGD, which is the gradient
        assert norms == pytest.approx(changes, rel=1e-3, abs=1e-4)
