"""TensorFlow breaks under an interrupt without retrotape too, at the moments that `of_tensorflow` gets past."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from signal import SIGSEGV

import pytest

from helpers.processes import PYTHON

INTERRUPTED_CONSTANT = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context

tf.constant(1)
{before}
code = context.Context.__dict__["_handle"].fget

def interrupt(frame, event, arg):
    if frame.f_code is getattr(code, "__code__", None):
        raise KeyboardInterrupt

sys.settrace(interrupt)
tf.constant([1])
"""
INTERRUPTED_GRAPHS = """
import sys
import tensorflow as tf

def interrupt(frame, event, arg):
    if frame.f_code.co_name == "__exit__" and frame.f_back.f_code.co_name == "get_controller":
        sys.settrace(None)
        raise KeyboardInterrupt

def nested():
    with tf.Graph().as_default(), tf.Graph().as_default():
        sys.settrace(interrupt)

try:
    nested()
except KeyboardInterrupt:
    pass  # with the traceback goes the inner block, which then ends
{after}
sys.exit(0 if tf.executing_eagerly() else 7)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([PYTHON, "-c", program], env=environment, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize(
    ("before", "code"),
    [("", -SIGSEGV), ("from stress.interrupts import of_tensorflow; of_tensorflow.read_context_in_c()", 0)],
)
def test_an_interrupt_where_a_value_becomes_a_tensor(before, code):
    done = run(INTERRUPTED_CONSTANT.format(before=before))
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("after", "code"),
    [("", 7), ("from stress.interrupts import of_tensorflow; of_tensorflow.leave_graph_mode()", 0)],
)
def test_an_interrupt_where_one_of_two_graphs_ends(after, code):
    done = run(INTERRUPTED_GRAPHS.format(after=after))
    assert done.returncode == code, done.stderr
