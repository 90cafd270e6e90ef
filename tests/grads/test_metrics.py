"""Gradients as a flat dictionary of Python numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import TapeUseError


def one(grad, name="v", shape=None, dtype=None):
    dtype = dtype or (grad.dtype if grad is not None else tf.float32)
    shape = grad.shape if shape is None else shape
    return rt.Gradients([(tf.Variable(tf.zeros(shape, dtype), name=name), grad)])


def test_names_norms_and_counts():
    a, b, c = tf.Variable([[0.0, 0.0]], name="dense/kernel"), tf.Variable(0.0, name="bias"), tf.Variable(0.0, name="z")
    found = rt.Gradients([(a, tf.constant([[3.0, 4.0]])), (b, None), (c, tf.constant(0.0))]).metrics()
    assert found == {
        "gradients/dense/kernel/norm": 5.0,
        "gradients/z/norm": 0.0,
        "gradients/norm": 5.0,
        "gradients/nonfinite": 0.0,
        "gradients/zero": 1.0,
        "gradients/missing": 1.0,
    }
    assert {type(value) for value in found.values()} == {float}
    assert json.loads(json.dumps(found)) == found


def test_the_whole_norm_is_that_of_the_gradients():
    values = [tf.random.stateless_normal([n, 3], [n, 1]) for n in range(1, 5)]
    grads = rt.Gradients([(tf.Variable(tf.zeros_like(value), name=f"v{n}"), value) for n, value in enumerate(values)])
    flat = np.concatenate([value.numpy().ravel() for value in values]).astype(np.float64)
    assert grads.metrics()["gradients/norm"] == pytest.approx(np.linalg.norm(flat), rel=1e-12)
    assert grads.metrics()["gradients/norm"] == pytest.approx(float(grads.norm()), rel=1e-6)


@pytest.mark.parametrize(("prefix", "head"), [("", ""), ("g", "g/"), ("train/gradients", "train/gradients/")])
def test_the_prefix(prefix, head):
    assert list(one(tf.constant([1.0])).metrics(prefix))[:2] == [f"{head}v/norm", f"{head}norm"]


def test_two_variables_of_the_same_name_stay_two():
    pairs = [
        (tf.Variable(0.0, name=name), tf.constant(value)) for name, value in [("w", 3.0), ("w", 4.0), ("w_2", 1.0)]
    ]
    found = rt.Gradients(pairs).metrics()
    assert [found[f"gradients/{name}/norm"] for name in ("w", "w_3", "w_2")] == [3.0, 4.0, 1.0]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_what_is_not_finite_is_counted(dtype):
    found = one(tf.constant([math.nan, math.inf, -math.inf, 1.0], dtype)).metrics()
    assert found["gradients/nonfinite"] == 3.0
    assert math.isnan(found["gradients/norm"])
    assert math.isnan(found["gradients/v/norm"])


def test_an_infinity_is_no_nan():
    assert one(tf.constant([math.inf, 1.0])).metrics()["gradients/norm"] == math.inf


def test_half_precision_does_not_overflow():
    found = one(tf.constant([60000.0] * 4, tf.float16)).metrics()
    assert found["gradients/v/norm"] == 2 * 59_999 + 2 or found["gradients/v/norm"] == pytest.approx(120_000, rel=1e-3)
    assert math.isfinite(found["gradients/v/norm"])


def test_complex_gradients():
    found = one(tf.constant([3.0 + 4.0j, complex(math.nan, 0.0)], tf.complex64)).metrics()
    assert found["gradients/nonfinite"] == 1.0
    assert one(tf.constant([3.0 + 4.0j], tf.complex64)).metrics()["gradients/norm"] == 5.0


def test_integers_are_finite():
    found = one(tf.constant([3, 4])).metrics()
    assert (found["gradients/norm"], found["gradients/nonfinite"]) == (5.0, 0.0)


def test_sparse_rows_count_as_their_sum():
    table = tf.Variable(tf.zeros([5, 1]), name="table")
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), tf.constant([5, 1]))
    found = rt.Gradients([(table, rows)]).metrics()
    assert found["gradients/table/norm"] == pytest.approx(math.hypot(5.0, 2.0))


def test_ragged_gradients():
    ragged = tf.ragged.constant([[3.0], [4.0, 0.0]])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(ragged**2)
    grads = tape.backward(loss, [ragged])
    assert grads.metrics()["gradients/RaggedTensor float32[2, None]/norm"] == 10.0


def test_no_gradients_at_all():
    found = rt.Gradients([]).metrics()
    assert found == {"gradients/norm": 0.0, "gradients/nonfinite": 0.0, "gradients/zero": 0.0, "gradients/missing": 0.0}


def test_inside_a_function_there_are_no_numbers():
    v = tf.Variable(2.0)

    @tf.function
    def step():
        with rt.Tape() as tape:
            loss = v * v
        return tape.backward(loss).metrics()

    with pytest.raises(
        TapeUseError, match=r"inside a tf.function gradients have no values\. Return the gradients .* `grads.norm\(\)`"
    ):
        step()
