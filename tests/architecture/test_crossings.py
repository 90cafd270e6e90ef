"""A query reaches its result through few files, without going back and forth between folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

from helpers.processes import PYTHON

TOOL = Path(__file__).resolve().parents[2] / "tools" / "crossings.py"


def test_no_query_is_above_its_limits() -> None:
    done = subprocess.run([PYTHON, TOOL, "--limits"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
