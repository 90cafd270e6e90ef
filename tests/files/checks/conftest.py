"""A tape that is as it should be, whole and taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import retrotape as rt
from files.mutations import Parts, take_apart
from files.recorded import bent


@pytest.fixture(scope="module")
def honest_file(tmp_path_factory) -> Path:
    """Return a small tape that has something of everything that a file can have."""
    path = tmp_path_factory.mktemp("honest") / "a.tape"
    x, w = tf.constant([0.3, -1.2, 2.0]), tf.Variable([1.0, 2.0, 3.0], name="w")
    words = tf.constant(["a", "bc"])
    with rt.Tape() as tape:
        h = bent(x) * tf.fill([3], 2.0)
        if tf.reduce_sum(h) > -100.0:
            h = h * w
        w.assign_sub(0.1 * h)
        letters = tf.cast(tf.strings.length(words)[0], tf.float32)
        y = tf.reduce_sum(w * tf.random.uniform([3])) + letters * tf.reduce_sum(tf.range(3.0) * x)
    tape.save(path, {"x": x, "y": y, "words": words})
    return path


@pytest.fixture
def honest(honest_file: Path) -> Parts:
    return take_apart(honest_file)
