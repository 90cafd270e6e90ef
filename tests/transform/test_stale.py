"""Ops that a file cannot run: what they gave may stand for them only where no replay and no redaction is concerned."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import NotPersistableError, TapeUseError

X = tf.constant([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture(scope="module")
def recorded():
    with rt.Tape() as tape:
        y = tf.reduce_sum(X) * tf.reduce_sum(tf.io.parse_tensor(tf.io.serialize_tensor(X), tf.float32))
    return tape, y


def test_a_replay_would_be_stale(recorded, tmp_path):
    tape, y = recorded
    message = (
        r"ParseTensor at .*test_stale\.py:\d+, cannot be saved: a file cannot run it, and a replay with another 'x'"
    )
    with pytest.raises(NotPersistableError, match=message + r" would use .*freeze=\['ParseTensor'\]"):
        tape.save(tmp_path / "a.tape", {"x": X, "y": y})
    assert float(tape.replay([(X, X * 1.5)]).value(y)) == 225.0


def test_nothing_that_is_named_leads_there(recorded, tmp_path):
    tape, y = recorded
    tape.save(tmp_path / "a.tape", {"y": y})
    assert float(rt.load(tmp_path / "a.tape").value("y")) == 100.0


def test_frozen_by_the_user(recorded, tmp_path):
    tape, y = recorded
    frozen = ["ParseTensor", "SerializeTensor"]
    tape.save(tmp_path / "a.tape", {"x": X, "y": y}, freeze=frozen)
    np.testing.assert_array_equal(rt.load(tmp_path / "a.tape").gradient("y", "x"), np.full((2, 2), 10.0))


def test_what_was_left_out_is_not_in_the_file_in_another_form(tmp_path):
    with rt.Tape() as tape:
        text = tf.io.serialize_tensor(X)
        y = tf.reduce_sum(X) * tf.cast(tf.strings.length(text), tf.float32)
    for freeze in ([], ["SerializeTensor"]):
        with pytest.raises(
            TapeUseError, match=r"redact= leaves out 'x', and the file would hold what SerializeTensor at"
        ):
            tape.save(tmp_path / "a.tape", {"x": X, "y": y}, redact=["x"], freeze=freeze)


@pytest.mark.parametrize("of", [lambda x: tf.linalg.svd(x, compute_uv=False), tf.linalg.eigvals, tf.linalg.eigvalsh])
def test_decompositions_without_vectors(of, tmp_path):
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.math.real(of(X)))
    tape.save(tmp_path / "a.tape", {"x": X, "y": y})
    np.testing.assert_array_equal(rt.load(tmp_path / "a.tape").replay({"x": X})["y"], y)
