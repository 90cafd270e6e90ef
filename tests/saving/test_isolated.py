"""Tapes that are held by a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import _wire, errors


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x, w = tf.constant([[0.5, -0.2]]), tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w")
    table = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], name="table")
    with rt.Tape() as tape:
        h = tf.tanh(x @ w) + tf.nn.embedding_lookup(table, [1])
        loss = tf.reduce_sum(h**3)
    target = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(target, {"x": x, "h": h, "loss": loss})
    return target


@pytest.fixture(scope="module")
def both(path):
    with rt.load(path, isolate=True, seconds=120.0) as held:
        yield held, rt.load(path)


def dense(found: object) -> list[np.ndarray]:
    return [tf.convert_to_tensor(part).numpy() for part in tf.nest.flatten(found)]


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("gradient", ("loss", {"by": ["x", "w"], "rows": "table"})),
        ("vjp", ("h", "x", [tf.ones((1, 2))])),
        ("jacobian", ("h", "w")),
        ("batch_jacobian", ("h", "x")),
        ("jvp", ("h", "x", tf.ones((1, 2)))),
        ("hvp", ("loss", "x", tf.ones((1, 2)))),
        ("hessian", ("loss", "x")),
        ("value", ("loss",)),
    ],
)
def test_answers_are_those_of_a_loaded_tape(both, method, args):
    held, loaded = both
    got, want = getattr(held, method)(*args), getattr(loaded, method)(*args)
    tf.nest.assert_same_structure(got, want)
    for one, other in zip(dense(got), dense(want), strict=True):
        np.testing.assert_array_equal(one, other)


def test_sparse_gradients_stay_sparse(both):
    assert isinstance(both[0].gradient("loss", "table"), tf.IndexedSlices)


def test_names_and_values(both):
    held, loaded = both
    assert held.names == loaded.names
    np.testing.assert_array_equal(held["x"], loaded["x"])


def test_errors_come_out_as_they_are(both):
    with pytest.raises(
        errors.UnknownNameError, match="This tape has nothing named 'nobody'; its names are 'h', 'loss'"
    ):
        both[0].gradient("nobody", "x")
    with pytest.raises(errors.ShapeMismatchError, match="hessian takes a scalar target"):
        both[0].hessian("h", "x")
    assert float(both[0]["loss"]) == float(both[1]["loss"])  # and it goes on


def test_a_damaged_file_is_named_as_such(path, tmp_path):
    damaged = tmp_path / "damaged.tape"
    damaged.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(errors.CorruptTapeError, match=r"damaged\.tape"):
        rt.load(damaged, isolate=True)


def test_after_closing_nothing_is_answered(path):
    held = rt.load(path, isolate=True)
    child = held._child
    held.close()
    assert child.poll() is not None
    with pytest.raises(errors.IsolationError, match="it was closed"):
        held.gradient("loss", "x")


def test_too_long_and_killed(path):
    held = rt.load(path, isolate=True)
    held._seconds = 0.0
    with pytest.raises(errors.IsolationError, match=r"it took more than 0 seconds\. If you trust the file, allow more"):
        held.hessian("loss", "w")
    assert held._child.poll() is not None
    other = rt.load(path, isolate=True)
    os.kill(other._child.pid, 9)
    other._child.wait()
    with pytest.raises(errors.IsolationError, match="it ended with code -9"):
        other.gradient("loss", "x")


def test_more_memory_than_allowed(tmp_path):
    x = tf.constant([2.0**14, 2.0**14])
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.fill(tf.cast(x, tf.int32), 1.0)[0, :1] * x[0])
    path = tmp_path / "large.tape"
    tape.save(path, {"x": x, "y": y})
    with rt.load(path, isolate=True, memory=2**29) as held, pytest.raises(errors.RetrotapeError):
        held.gradient("y", "x")  # a gigabyte, computed again


def test_the_process_may_not_write(tmp_path):
    code = """
        import sys
        import retrotape._isolated_child as child
        child._limit({"memory": 2**31, "seconds": 60})
        with open(sys.argv[1], "w") as made:
            made.write("x")
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "made")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "File too large" in ran.stderr
    assert (tmp_path / "made").read_bytes() == b""


# ------------------------------------------------------------------ messages


def through_a_pipe(message):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        _wire.send(sink, message)
        return _wire.receive(source, 2**20)


def test_messages_are_data():
    message = {"a": [1, None, "text", True, 2.5], "b": {"c": tf.constant([[1, 2]], tf.int64)}, "d": tf.constant(3.0)}
    found = through_a_pipe(message)
    assert found["a"] == message["a"]
    np.testing.assert_array_equal(found["b"]["c"], [[1, 2]])
    assert found["d"].shape == ()


def test_messages_that_lie_are_refused(tmp_path):
    for raw, kind in [
        ((2**40).to_bytes(8, "little"), ValueError),
        (b"\x02", EOFError),
        (
            (44).to_bytes(8, "little")
            + b'{"tensor":"float32","shape":[2],"unused":12}'
            + (2**40).to_bytes(8, "little"),
            ValueError,
        ),
    ]:
        (tmp_path / "raw").write_bytes(raw)
        with open(tmp_path / "raw", "rb") as source, pytest.raises(kind):
            _wire.receive(source, 2**20)
