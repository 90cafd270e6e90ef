"""A recording that exists, or was loaded, as a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def recorded():
    x, w = tf.constant([1.0, 2.0]), tf.Variable([3.0, 4.0], name="w")
    with rt.Tape() as tape:
        y = tf.reduce_sum(w * x)
        g = tape.gradient(y, w)
        w.assign_sub(0.1 * g)
    return tape, x, w, y


def test_a_live_tape_reads_and_assigns_variables():
    tape, x, w, y = recorded()
    before = w.numpy()
    step = tape.compile(inputs=[x], outputs={"y": y, "w": w})
    found = step([10.0, 20.0])
    np.testing.assert_allclose(found["y"], before @ [10.0, 20.0], rtol=1e-6)
    np.testing.assert_allclose(w, before - [1.0, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(found["w"], w)
    assert list(step.variables) == ["w"]


def test_a_loaded_tape_has_variables_of_its_own(tmp_path: Path):
    tape, x, w, y = recorded()
    tape.save(tmp_path / "step.tape", {"x": x, "y": y, "w": w})
    loaded = rt.load(tmp_path / "step.tape")
    step = loaded.compile(["x"], ["y", "w"])
    first, after = step(np.array([1.0, 2.0], np.float32))
    assert float(first) == 11.0
    np.testing.assert_allclose(step.variables["w"], after)
    second, _ = step(x)
    np.testing.assert_allclose(second, np.dot(after, [1.0, 2.0]), rtol=1e-6)
    with_weights = loaded.compile(["x", "w"], "y")
    assert float(with_weights(x, [1.0, 1.0])) == 3.0


def test_a_value_that_python_read_is_checked():
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        y = x * 3.0 if x > 1.0 else x * 5.0
    step = tape.compile([x], y)
    assert float(step(4.0)) == 12.0
    with pytest.raises(rt.errors.ReplayError, match=r"test_of_tape\.py"):
        step(0.5)


def test_errors(tmp_path: Path):
    tape, x, _, y = recorded()
    with pytest.raises(rt.errors.TapeUseError, match=r"was computed on this tape, so it cannot be passed in"):
        tape.compile([y], y)
    with pytest.raises(rt.errors.NotRecordedError, match=r"it was not used in what was recorded"):
        tape.compile([tf.constant(1.0)], y)
    step = tape.compile([x], y)
    with pytest.raises(rt.errors.TapeUseError, match=r"compiled for 1 inputs, got 2"):
        step(x, x)
    with pytest.raises(rt.errors.ShapeMismatchError, match=r"Got a value of shape \(3,\) for tensor float32\[2\]"):
        step([1.0, 2.0, 3.0])
    with pytest.raises(rt.errors.ShapeMismatchError, match=r"Got str for tensor float32\[2\]"):
        step("text")
    generator = tf.random.Generator.from_seed(1)
    with rt.Tape() as random:
        z = x * generator.normal([2])
    with pytest.raises(rt.errors.PlaybackError, match=r"This tape cannot be played back: it updates"):
        random.compile([x], z)
