"""An exception at any line of retrotape leaves TensorFlow as it was, and no wrong gradient."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import PYTHON

HERE = Path(__file__).parent
NAMES = "ops,variables,layers,functions,custom,python,nested"


def program(name: str, *arguments: str) -> dict[str, Any]:
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [PYTHON, HERE / name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_some_lines():
    found = program("every_line.py", NAMES, "KeyboardInterrupt", "40")
    assert found["places"] == 7 * 2 * 40
    assert found["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit", "MemoryError"])
@pytest.mark.parametrize("name", NAMES.split(","))
def test_every_line(name, kind):
    found = program("every_line.py", name, kind, "1000000")
    assert found["places"] > 500
    assert found["wrong"] == []


@pytest.mark.parametrize(("times", "seed"), [(50, 0), pytest.param(500, 1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["signal", "thread"])
def test_at_random(how, times, seed):
    found = program("at_random.py", how, str(times), str(seed))
    assert found["interrupted"] > times // 6  # others come after the end, or while another exception is handled
    assert found["wrong"] == []
