"""How much memory the seeds of a Jacobian take, and that rows are the same however they are made."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import UnsafeTapeError
from retrotape.execute import UnitSeeds, _jacobian


@pytest.fixture
def few_at_once(monkeypatch) -> None:
    monkeypatch.setattr(_jacobian, "AT_ONCE", 1)  # 17 rows


@pytest.fixture
def largest(monkeypatch) -> list[int]:
    """Elements of the largest seeds that were made at once."""
    sizes = [0]
    for name in ("all", "part"):
        made = getattr(UnitSeeds, name)

        def measured(self, *bounds, made=made):
            found = made(self, *bounds)
            sizes[0] = max(sizes[0], int(tf.size(found)))
            return found

        monkeypatch.setattr(UnitSeeds, name, measured)
    return sizes


DTYPES = (tf.float32, tf.float64, tf.bfloat16, tf.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (0, 3), (3, 0)], ids=str)
def test_parts_are_the_rows_of_an_identity(shape, dtype):
    seeds = UnitSeeds(tf.constant(shape, tf.int32), dtype)
    count = int(np.prod(shape))
    expected = tf.reshape(tf.eye(count, dtype=dtype), (count, *shape))
    parts = tf.concat([seeds.part(begin, begin + 2) for begin in range(0, max(count, 1), 2)], 0)[:count]
    rows = list(seeds.each())
    for found in (seeds.all(), parts, tf.stack(rows) if rows else expected):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("chunk", [None, 1, 16, 20, 1000])
def test_a_jacobian_is_the_same_in_any_chunks(few_at_once, chunk, vectorize):
    x = tf.constant([1.0, 2.0, 3.0])
    for _ in range(4):  # op by op, then compiled
        with rt.Tape() as tape:
            y = tf.reshape(tf.repeat(x * x, 15), [9, 5])
        found = tape.jacobian(y, x, experimental_use_pfor=vectorize, chunk=chunk)
        with tf.GradientTape() as stock:
            stock.watch(x)
            z = tf.reshape(tf.repeat(x * x, 15), [9, 5])
        np.testing.assert_array_equal(found, stock.jacobian(z, x))


def test_batch_jacobians_and_hessians_are_the_same_in_chunks(few_at_once):
    x = tf.random.stateless_normal([3, 25], [1, 2])
    for _ in range(4):
        with rt.Tape() as tape:
            y = tf.sin(x) * x
            loss = tf.reduce_sum(y * y)
        rows = tape.batch_jacobian(y, x)
        np.testing.assert_allclose(rows, tf.linalg.diag(tf.cos(x) * x + tf.sin(x)), rtol=1e-6)
        np.testing.assert_allclose(tape.hessian(loss, x), tape.hessian(loss, x, chunk=9), rtol=1e-5)


@pytest.mark.parametrize("query", ["jacobian", "batch_jacobian", "per_example"])
def test_seeds_take_no_more_than_a_part(largest, query):
    count = 5000
    x = tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        y = tf.repeat(x * x, count // 2, axis=1)
        flat = tf.reshape(y, [-1])
    target = y if query == "batch_jacobian" else flat
    getattr(tape, query)(target, x)
    assert 0 < largest[0] * 4 <= _jacobian.AT_ONCE
    largest[0] = 0
    if query != "batch_jacobian":
        getattr(tape, query)(target, x, chunk=32)
        assert largest[0] == 32 * count


def test_a_small_file_is_refused_where_its_jacobian_is_large(tmp_path):
    x = tf.constant([1.0] * 40)
    with rt.Tape() as tape:
        y = tf.tile(x * x, [1000])
        z = tf.reshape(y, [1, -1])
        loss = tf.reduce_sum(y)
    tape.save(tmp_path / "a.tape", x=x, y=y, z=z, loss=loss)
    limit = 2**20
    loaded = rt.load(tmp_path / "a.tape", limits=rt.store.Limits(total_bytes=limit))
    loaded.gradient("loss", "x")
    for ask in (lambda: loaded.jacobian("y", "x"), lambda: loaded.per_example("y", "x", chunk=1)):
        with pytest.raises(UnsafeTapeError) as raised:
            ask()
        assert "a Jacobian would make" in str(raised.value)
        assert f"with the live values, more than {limit:,}" in str(raised.value)
        assert "If you trust it: `rt.load(path, limits=retrotape.store.Limits(total_bytes=" in str(raised.value)
