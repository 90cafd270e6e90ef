"""Gradients form a vector space, whether dense, sparse, missing or of mixed precision."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import retrotape as rt

# Small integers: every sum and product below is exact, in float16 too, so that laws hold without tolerance.
few = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SHAPES = {"kernel": (3, 2), "scalar": (), "table": (5, 2), "half": (4,), "half_table": (3, 2)}
KEYS = {
    name: tf.Variable(tf.zeros(shape, tf.float16 if name.startswith("half") else tf.float32), name=name)
    for name, shape in SHAPES.items()
}
WIDE = [key for key in KEYS.values() if key.dtype == tf.float32]
scalars = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])


def sparse(ids: list[int], values: Any, key: tf.Variable) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, key.dtype), tf.constant(ids), tf.constant(key.shape.as_list()))


def drawn(key: tf.Variable, kind: str, seed: int) -> Any:
    random = np.random.default_rng(seed)
    if kind == "missing":
        return None
    if kind == "dense":
        return tf.constant(random.integers(-4, 5, size=key.shape), key.dtype)
    count = int(random.integers(1, 7))  # more rows than the table has: some are named twice
    ids = random.integers(0, key.shape[0], size=count).tolist()
    return sparse(ids, random.integers(-4, 5, size=(count, *key.shape[1:])), key)


@st.composite
def vectors(draw: st.DrawFn, tables: tuple[str, ...] = ("dense", "sparse", "missing")) -> rt.Gradients:
    kinds = {name: draw(st.sampled_from(tables if "table" in name else ("dense", "dense", "missing"))) for name in KEYS}
    return rt.Gradients(
        [(KEYS[name], drawn(KEYS[name], kind, draw(st.integers(0, 999)))) for name, kind in kinds.items()]
    )


def dense(grads: rt.Gradients) -> np.ndarray:
    """Return the reference: one dense vector over every key, in double precision."""
    parts = [tf.convert_to_tensor(grads[key]).numpy() if key in grads else np.zeros(key.shape) for key in KEYS.values()]
    return np.concatenate([part.astype(np.float64).ravel() for part in parts])


def same(left: rt.Gradients, right: rt.Gradients | np.ndarray) -> None:
    np.testing.assert_array_equal(dense(left), right if isinstance(right, np.ndarray) else dense(right))


# ------------------------------------------------------------------ addition


@few
@given(vectors(), vectors())
def test_addition_commutes_and_is_that_of_arrays(a: rt.Gradients, b: rt.Gradients) -> None:
    same(a + b, dense(a) + dense(b))
    same(a + b, b + a)
    assert a + b == b + a


@few
@given(vectors(), vectors(), vectors())
def test_addition_associates(a: rt.Gradients, b: rt.Gradients, c: rt.Gradients) -> None:
    same((a + b) + c, dense(a) + dense(b) + dense(c))
    assert (a + b) + c == a + (b + c) == sum([a, b, c])


@few
@given(vectors())
def test_zero_and_negation(a: rt.Gradients) -> None:
    missing = rt.Gradients([(key, None) for key in KEYS.values()])
    assert a + missing == a == missing + a == a + rt.Gradients([])
    assert a - a == missing == 0.0 * a
    same(-a, -dense(a))
    assert -1.0 * -a == a


@few
@given(vectors(), vectors())
def test_subtraction_is_that_of_arrays(a: rt.Gradients, b: rt.Gradients) -> None:
    same(a - b, dense(a) - dense(b))
    assert a - b == -(b - a)


# ------------------------------------------------------------------ multiplication by a number


@few
@given(vectors(), vectors(), scalars, scalars)
def test_scaling_distributes_and_associates(a: rt.Gradients, b: rt.Gradients, s: float, t: float) -> None:
    same(s * (a + b), s * (dense(a) + dense(b)))
    assert s * (a + b) == s * a + s * b
    assert (s + t) * a == s * a + t * a
    assert (s * t) * a == s * (t * a)
    assert 1.0 * a == a == a * 1.0


@few
@given(vectors(), st.sampled_from([-2.0, 0.5, 4]))
def test_division_is_scaling_by_the_inverse(a: rt.Gradients, s: float) -> None:
    same(a / s, dense(a) / s)
    same(a * tf.constant(s, tf.float32), dense(a) * s)
    same(tf.constant(s, tf.float32) * a, dense(a) * s)


@few
@given(vectors(), vectors(), scalars)
def test_what_is_missing_in_all_stays_missing(a: rt.Gradients, b: rt.Gradients, s: float) -> None:
    assert [key.ref() for key in (s * a).missing] == [key.ref() for key in a.missing]
    both = {key.ref() for key in a.missing} & {key.ref() for key in b.missing}
    assert {key.ref() for key in (a + b).missing} == both


# ------------------------------------------------------------------ inner product and norm


@few
@given(vectors(), vectors())
def test_dot_is_symmetric_and_that_of_arrays(a: rt.Gradients, b: rt.Gradients) -> None:
    assert float(a @ b) == float(b @ a) == dense(a) @ dense(b)


@few
@given(vectors(), vectors(), vectors(), scalars, scalars)
def test_dot_is_bilinear(a: rt.Gradients, b: rt.Gradients, c: rt.Gradients, s: float, t: float) -> None:
    assert float((s * a + t * b) @ c) == s * float(a @ c) + t * float(b @ c)
    assert float(c @ (s * a + t * b)) == s * float(c @ a) + t * float(c @ b)


@few
@given(vectors())
def test_norm_is_that_of_arrays(a: rt.Gradients) -> None:
    assert float(a.norm()) == pytest.approx(np.linalg.norm(dense(a)), rel=1e-6)
    assert float(a.norm()) ** 2 == pytest.approx(float(a @ a), rel=1e-6)
    assert float(a.sum()) == dense(a).sum()
    assert sum(norm**2 for _, norm in a.norms()) == pytest.approx(float(a @ a), rel=1e-5)


@few
@given(vectors(), vectors(), scalars)
def test_inequalities(a: rt.Gradients, b: rt.Gradients, s: float) -> None:
    lengths = float(a.norm()), float(b.norm())
    assert abs(float(a @ b)) <= lengths[0] * lengths[1] * (1 + 1e-5)  # Cauchy and Schwarz
    assert float((a + b).norm()) <= sum(lengths) * (1 + 1e-5)
    assert float((s * a).norm()) == pytest.approx(abs(s) * lengths[0], rel=1e-5)


@pytest.mark.parametrize("size", [300.0, 2.0**-11])
def test_norm_squared_is_dot_beyond_the_range_of_float16(size: float) -> None:
    half, table = KEYS["half"], KEYS["half_table"]
    grads = rt.Gradients(
        [(half, tf.fill([4], tf.cast(size, tf.float16))), (table, sparse([1, 1], [[size, 0]] * 2, table))]
    )
    assert float(grads @ grads) == pytest.approx(8 * size**2, rel=1e-3)
    assert float(grads.norm()) ** 2 == pytest.approx(8 * size**2, rel=1e-3)


def test_norm_squared_is_dot_for_complex_gradients() -> None:
    key = tf.Variable(tf.zeros(1, tf.complex64))
    grads = rt.Gradients([(key, tf.constant([3 + 4j], tf.complex64))])
    assert complex(grads @ grads) == pytest.approx(float(grads.norm()) ** 2) == 25.0


# ------------------------------------------------------------------ one flat vector


@few
@given(vectors(), vectors())
def test_flatten_and_back_in_one_precision(a: rt.Gradients, b: rt.Gradients) -> None:
    a, b = a.only(WIDE), b.only(WIDE)
    again = a.unflatten(a.flatten())
    assert again == a
    assert again.missing == ()
    assert float(tf.tensordot(a.flatten(), b.flatten(), 1)) == float(a @ b)
    np.testing.assert_array_equal((a + b).flatten(), a.flatten() + b.flatten())


@few
@given(vectors())
def test_flatten_and_back_in_mixed_precision(a: rt.Gradients) -> None:
    flat = a.flatten()
    np.testing.assert_array_equal(flat, dense(a))
    again = a.unflatten(flat)
    assert again == a
    assert all(again[key].dtype == key.dtype for key in KEYS.values())


# ------------------------------------------------------------------ sparse gradients

TABLES = [KEYS["table"], KEYS["half_table"]]
STAYS = {
    "sum": lambda a: a + 2.0 * a,
    "difference": lambda a: a - 0.5 * a,
    "with missing": lambda a: a + rt.Gradients([(key, None) for key in KEYS.values()]),
    "product": lambda a: 3.0 * a,
    "quotient": lambda a: a / 2.0,
    "negative": operator.neg,
    "norm": lambda a: a.clip(norm=0.5),
    "global_norm": lambda a: a.clip(global_norm=0.5),
    "value": lambda a: a.clip(value=1.0),
    "normalized": lambda a: a.normalized(),
}


@pytest.mark.parametrize("name", STAYS)
@settings(few, max_examples=4)
@given(vectors(tables=("sparse",)))
def test_sparse_stays_sparse(name: str, a: rt.Gradients) -> None:
    result = STAYS[name](a)
    for key in TABLES:
        assert isinstance(result[key], tf.IndexedSlices)
        assert result[key].dtype == key.dtype


@few
@given(vectors(tables=("sparse",)), vectors(tables=("sparse", "dense")))
def test_sparse_is_what_its_dense_form_is(a: rt.Gradients, b: rt.Gradients) -> None:
    filled = a.map(tf.convert_to_tensor)
    assert a == filled
    assert float(a @ b) == float(filled @ b)
    assert float(a.norm()) == pytest.approx(float(filled.norm()), rel=1e-6)
    for bound in ({"norm": 2.0}, {"global_norm": 2.0}, {"value": 1.5}):
        assert a.clip(**bound).is_close(filled.clip(**bound), rtol=2e-3), bound


def test_rows_named_twice_are_added_before_norms() -> None:
    table = tf.Variable(tf.zeros([4, 2]), name="table")
    rows = sparse([1, 1, 1], np.ones((3, 2)), table)  # the row [3, 3]
    grads = rt.Gradients([(table, rows)])
    assert float(tf.linalg.global_norm([rows])) == pytest.approx(6**0.5)  # 2.449, TensorFlow's, is too small
    assert float(grads.norm()) == pytest.approx(18**0.5)  # 4.243
    assert float(grads.clip(global_norm=1.0).norm()) == pytest.approx(1.0)
    assert float(grads.clip(norm=1.0).norm()) == pytest.approx(1.0)
    np.testing.assert_array_equal(tf.convert_to_tensor(grads.clip(value=2.0)[table])[1], [2.0, 2.0])
