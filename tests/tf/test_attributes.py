"""A garbage collection at the moment at which Python makes the dictionary of a tensor."""

from __future__ import annotations

import subprocess
import sys
from signal import SIGSEGV

import pytest
import tensorflow as tf

from helpers.processes import PYTHON
from retrotape.tf.core import attributes_of

# The program of docs/limits.md, with another way to ask for the attributes.
PROGRAM = """
import gc
import tensorflow as tf
from retrotape.tf.core import attributes_of

gc.disable()
tensor = tf.constant(1.0)
tensor.note = []
others = [{{"key": []}} for _ in range(500)]  # no dictionary is left that Python could take up again
gc.set_threshold(1)
gc.enable()
{asked}
gc.disable()
assert attributes_of(tensor) == {{"note": []}}
del tensor
reused = [tuple(range(number % 40)) for number in range(100_000)]
gc.collect()
"""


def run(asked: str) -> int:
    done = subprocess.run([PYTHON, "-c", PROGRAM.format(asked=asked)], stderr=subprocess.PIPE, check=False)
    return done.returncode


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python collect at other moments")
def test_tensorflow_itself_crashes_when_it_is_asked_directly():
    assert run("vars(tensor)") == -SIGSEGV


def test_our_way_to_ask_is_safe():
    assert run("attributes_of(tensor)") == 0


def test_attributes_of_other_things():
    tensor = tf.constant(1.0)
    assert attributes_of(tensor) == {}
    tensor.note = 3
    assert attributes_of(tensor) == {"note": 3}
    assert attributes_of(7) == {}
