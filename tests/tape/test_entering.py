"""Ways to enter a tape: all of them are the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helpers.processes import PYTHON

# The first tape of a process, which finds the hooks; entered by code that AutoGraph converts.
STACKED = """
import contextlib
import tensorflow as tf
import retrotape as rt

v = tf.Variable(2.0)

def f(x):
    with contextlib.ExitStack() as stack:
        {also}
        tape = stack.enter_context(rt.Tape())
        y = x * x * v
    return tape.gradient(y, v)

print(float(tf.function(f)(tf.constant(3.0))))
"""


@pytest.mark.parametrize("also", ["", "stack.enter_context(rt.config(compile=False))"])
def test_on_a_stack_in_a_function(also: str, tmp_path: Path) -> None:
    script = tmp_path / "stacked.py"  # a file: AutoGraph reads it
    script.write_text(STACKED.format(also=also))
    done = subprocess.run([PYTHON, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "9.0\n", done.stderr
