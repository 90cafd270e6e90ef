"""Values of every kind survive, `values=` says how many of them are written, and `size` knows before."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.trips import assert_answers, assert_same, check, trip

X = np.array([0.3, -1.2, 2.0])
DIFFERENTIABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
VALUES = ("leaves", "needed", "all")


def _numbers(dtype: str, shape: tuple[int, ...] = (3,)) -> tf.Tensor:
    random = np.random.default_rng(4)
    values = random.normal(size=shape)
    return tf.cast(values + 1j * random.normal(size=shape) if dtype.startswith("complex") else values, dtype)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", DIFFERENTIABLE)
def test_dtypes_with_derivatives(dtype, values, tmp_path):
    x, w = _numbers(dtype), tf.Variable(_numbers(dtype, (2, 3)), name="w")
    with rt.Tape() as tape:
        target = tf.reduce_sum(x * w * w * x)
    check(tape, target, {"x": x, "w": w}, tmp_path, order=2, values=values)


@pytest.mark.parametrize("dtype", DIFFERENTIABLE)
def test_large_tensors_are_the_same_read_and_mapped(dtype, tmp_path):
    x = _numbers(dtype, (200, 100))
    with rt.Tape() as tape:
        target = tf.reduce_sum(x * x)
    for mmap in (True, False):
        path = tmp_path / f"{mmap}.tape"
        tape.save(path, {"x": x, "target": target})
        loaded = rt.load(path, mmap=mmap)
        assert loaded["x"].dtype == x.dtype
        assert loaded["x"].numpy().tobytes() == x.numpy().tobytes()
        assert_same(loaded.gradient("target", "x"), tape.gradient(target, x))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", WHOLE)
def test_dtypes_without_derivatives(dtype, large, tmp_path):
    shape = (40_000, 3) if large else (3,)
    numbers = tf.cast(np.random.default_rng(1).integers(0, 2, size=shape), dtype)
    x = tf.constant(X, tf.float32)
    with rt.Tape() as tape:
        target = tf.reduce_sum(tf.cast(numbers, tf.float32) * x * x)
    made = check(tape, target, {"x": x}, tmp_path)
    made = trip(tape, {"numbers": numbers}, tmp_path)
    assert made.loaded["numbers"].dtype == numbers.dtype
    np.testing.assert_array_equal(made.loaded["numbers"], numbers)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn"])
def test_eight_bits(dtype, tmp_path):
    """TensorFlow can only cast these and move them about."""
    x = tf.constant(X, tf.float32)
    small = tf.cast(x, dtype)
    with rt.Tape() as tape:
        target = tf.reduce_sum(tf.cast(tf.reshape(small, [3, 1]), tf.float32)[:, 0] * x)
    check(tape, target, {"x": x}, tmp_path)
    loaded = trip(tape, {"small": small}, tmp_path).loaded
    assert loaded["small"].dtype == small.dtype
    assert loaded["small"].numpy().tobytes() == small.numpy().tobytes()


@pytest.mark.parametrize("values", VALUES)
def test_strings(values, tmp_path):
    x = tf.constant(X, tf.float32)
    words = tf.constant([["a", "bé", ""], ["x\0y\0", "4.5", "zz"]])
    number = tf.constant("2.5")
    with rt.Tape() as tape:
        lengths = tf.cast(tf.strings.length(words), tf.float32)
        target = tf.reduce_sum(x**2 * lengths) * tf.strings.to_number(number)
    made = check(tape, target, {"x": x}, tmp_path, values=values)
    made = trip(tape, {"words": words, "number": number}, tmp_path, values=values)
    np.testing.assert_array_equal(made.loaded["words"].numpy(), words.numpy())
    assert made.loaded["words"].numpy()[1, 0] == b"x\0y\0"
    assert made.loaded["number"].numpy() == b"2.5"


@pytest.mark.parametrize("values", VALUES)
def test_nothing_and_scalars(values, tmp_path):
    x, nothing = tf.constant(1.5), tf.zeros([0, 3])
    no_words = tf.constant([], tf.string)
    with rt.Tape() as tape:
        counted = tf.reduce_sum(tf.cast(tf.strings.length(no_words), tf.float32))
        target = tf.reduce_sum(nothing @ tf.ones([3, 2])) + x**3 + counted
    made = check(tape, target, {"x": x, "nothing": nothing}, tmp_path, values=values)
    loaded = trip(tape, {"no_words": no_words}, tmp_path, values=values).loaded
    assert loaded["no_words"].shape == [0]
    assert made.loaded["nothing"].shape == [0, 3]


def test_ragged_and_sparse(tmp_path):
    v = tf.Variable([1.0, 2.0, 3.0], name="v")
    with rt.Tape() as tape:
        ragged = tf.RaggedTensor.from_row_lengths(v * 2.0, [1, 2])
        sparse = tf.SparseTensor([[0, 1], [1, 0], [2, 2]], tf.sin(v), [3, 3])
        product = tf.sparse.sparse_dense_matmul(sparse, tf.reshape(tf.range(9.0), [3, 3]))
        target = tf.reduce_sum(ragged * ragged) + tf.reduce_sum(tf.square(product))
    check(tape, target, {"v": v, "flat": ragged.flat_values}, tmp_path, order=3)


@pytest.mark.parametrize("gather", [tf.gather, lambda table, ids: tf.gather_nd(table, ids[:, None])])
def test_sparse_gradients_stay_sparse(gather, tmp_path):
    table = tf.Variable(_numbers("float32", (5, 2)), name="table")
    with rt.Tape() as tape:
        target = tf.reduce_sum(gather(table, tf.constant([0, 2, 2])) ** 3)
    made = trip(tape, {"target": target}, tmp_path)
    ours, theirs = made.loaded.gradient("target", "table"), tape.gradient(target, table)
    assert isinstance(ours, tf.IndexedSlices)
    assert_same(ours, theirs)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    assert_same(made.loaded.gradient(ours.values, "table"), tape.gradient(theirs.values, table))


@pytest.mark.parametrize("shape", [[None], None, [None, 2]])
def test_variable_of_unknown_shape(shape, tmp_path):
    v = tf.Variable([[1.0, 2.0]] if shape == [None, 2] else [1.0, 2.0], shape=tf.TensorShape(shape), name="v")
    with rt.Tape() as tape:
        target = tf.reduce_sum(v**3)
        v.assign(2.0 * v)
    check(tape, target, {"v": v}, tmp_path, order=3)


@pytest.mark.parametrize("keep", ["needed", "all", "leaves", "segments", "disk"])
def test_tapes_that_keep_other_values(keep, tmp_path):
    x, w = tf.constant(X, tf.float32), tf.Variable([1.0, 2.0, 3.0], name="w")
    with rt.Tape(keep=keep) as tape:
        y = x
        for _ in range(5):
            y = tf.sin(y * w)
        w.assign_sub(0.1 * y)
        target = tf.reduce_sum(y * w)
    for values in VALUES:
        made = check(tape, target, {"x": x, "w": w}, tmp_path, order=3, values=values)
        got = made.loaded.gradient("target", "x", through_updates=True)
        assert_same(got, tape.gradient(target, x, through_updates=True))


# ------------------------------------------------------------------ how much is written


@pytest.fixture(scope="module")
def network() -> tuple[rt.Tape, Any, Any, Any]:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(64, "tanh"), keras.layers.Dense(64, "relu"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((20,)), *layers])
    x = tf.constant(np.random.default_rng(0).normal(size=(50, 20)), tf.float32)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(x) ** 2)
    return tape, model, x, loss


def test_more_values_are_more_bytes_and_the_same_answers(network, tmp_path):
    tape, model, x, loss = network
    sizes = {}
    for values in VALUES:
        sources = {"x": x, "kernel": model.trainable_variables[0]}
        made = trip(tape, {"target": loss, **sources}, tmp_path, values=values)
        assert_answers(made, loss, sources)
        sizes[values] = made.size
        assert made.size == os.path.getsize(made.path)
    assert sizes["leaves"] * 1.5 < sizes["needed"] < sizes["all"] * 0.9


def test_values_that_are_there_are_not_computed_again(network, tmp_path, monkeypatch):
    tape, _, x, loss = network
    counts = {}
    for values in VALUES:
        loaded = trip(tape, {"x": x, "loss": loss}, tmp_path, values=values).loaded
        guard, ran = loaded._session.trace.guard, []
        monkeypatch.setattr(
            guard,
            "run",
            lambda eqn, *rest, run=guard.run, ran=ran, **options: ran.append(eqn.op) or run(eqn, *rest, **options),
        )
        assert_same(loaded.value("loss"), loss)
        loaded.gradient("loss", "x")
        counts[values] = len(ran)
    assert counts["leaves"] > counts["needed"] > counts["all"] == 0


@pytest.mark.parametrize("values", VALUES)
def test_size_is_known_before(network, values, tmp_path):
    tape, _, x, loss = network
    written = tape.save(tmp_path / "a.tape", {"x": x, "loss": loss}, values=values)
    assert abs(tape.size(values) - written) < 0.05 * written
    assert abs(rt.load(tmp_path / "a.tape").size(values) - written) < 0.05 * written


def test_size_of_a_small_tape(tmp_path):
    x = tf.constant(X, tf.float32)
    with rt.Tape() as tape:
        y = tf.nn.silu(tf.sin(x) * x)
    written = tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    assert abs(tape.size() - written) < 0.2 * written


def test_unknown_choice_of_values(network, tmp_path):
    with pytest.raises(ValueError, match="values must be one of 'leaves', 'needed', 'all', got 'some'"):
        network[0].save(tmp_path / "a.tape", values="some")
    assert not (tmp_path / "a.tape").exists()


def test_value_of_anything(network, tmp_path):
    tape, model, x, loss = network
    loaded = trip(tape, {"x": x, "loss": loss}, tmp_path).loaded
    kernel = model.trainable_variables[0]
    np.testing.assert_array_equal(tape.value(loss), loss)
    np.testing.assert_array_equal(tape.value(kernel), kernel)
    np.testing.assert_array_equal(loaded.value("x"), x)
    np.testing.assert_array_equal(loaded.value("loss"), loss)
    np.testing.assert_array_equal(loaded.value(loaded[kernel.path]), kernel)
    np.testing.assert_array_equal(loaded[kernel.path].numpy(), kernel)


def test_a_store_of_tensors_that_tapes_share(network, tmp_path):
    tape, _, x, loss = network
    first = tape.save(tmp_path / "a.tape", {"x": x, "loss": loss}, store=tmp_path / "store")
    tape.save(tmp_path / "b.tape", {"x": x, "loss": loss}, store=tmp_path / "store")
    stored = sum(file.stat().st_size for file in (tmp_path / "store").rglob("*") if file.is_file())
    assert stored < 1.2 * first
    for name in ("a.tape", "b.tape"):
        loaded = rt.load(tmp_path / name)
        assert_same(loaded.gradient("loss", "x"), tape.gradient(loss, x))
