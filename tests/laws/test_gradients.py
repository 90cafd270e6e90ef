"""Gradients form a vector space, whether dense, sparse, missing or of mixed precision."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import retrotape as rt
from laws.vectors import KEYS, LAWS, NESTS, WIDE, dense, dot, few, law, many, same, scalars, sparse, vectors

# ------------------------------------------------------------------ addition


@law(vectors(), vectors())
def test_addition_commutes_and_is_that_of_arrays(a: rt.Gradients, b: rt.Gradients) -> None:
    same(a + b, dense(a) + dense(b))
    same(a + b, b + a)
    assert a + b == b + a


@law(vectors(), vectors(), vectors())
def test_addition_associates(a: rt.Gradients, b: rt.Gradients, c: rt.Gradients) -> None:
    same((a + b) + c, dense(a) + dense(b) + dense(c))
    assert (a + b) + c == a + (b + c) == sum([a, b, c])


@law(vectors())
def test_zero_and_negation(a: rt.Gradients) -> None:
    missing = rt.Gradients([(key, None) for key in KEYS.values()])
    assert a + missing == a == missing + a == a + rt.Gradients([])
    assert a - a == missing == 0.0 * a
    same(-a, -dense(a))
    assert -1.0 * -a == a


@law(vectors(), vectors())
def test_subtraction_is_that_of_arrays(a: rt.Gradients, b: rt.Gradients) -> None:
    same(a - b, dense(a) - dense(b))
    assert a - b == -(b - a)


# ------------------------------------------------------------------ multiplication by a number


@law(vectors(), vectors(), scalars, scalars)
def test_scaling_distributes_and_associates(a: rt.Gradients, b: rt.Gradients, s: float, t: float) -> None:
    same(s * (a + b), s * (dense(a) + dense(b)))
    assert s * (a + b) == s * a + s * b
    assert (s + t) * a == s * a + t * a
    assert (s * t) * a == s * (t * a)
    assert 1.0 * a == a == a * 1.0


@law(vectors(), st.sampled_from([-2.0, 0.5, 4]))
def test_division_is_scaling_by_the_inverse(a: rt.Gradients, s: float) -> None:
    same(a / s, dense(a) / s)
    same(a * tf.constant(s, tf.float32), dense(a) * s)
    same(tf.constant(s, tf.float32) * a, dense(a) * s)


@law(vectors(), vectors(), scalars)
def test_what_is_missing_in_all_stays_missing(a: rt.Gradients, b: rt.Gradients, s: float) -> None:
    assert [key.ref() for key in (s * a).missing] == [key.ref() for key in a.missing]
    both = {key.ref() for key in a.missing} & {key.ref() for key in b.missing}
    assert {key.ref() for key in (a + b).missing} == both


# ------------------------------------------------------------------ parts of a vector


@law(vectors(), st.sampled_from(NESTS))
def test_a_vector_is_the_sum_of_its_parts(a: rt.Gradients, nest: Any) -> None:
    part, rest = a.only(nest), a.without(nest)
    assert part + rest == a == rest + part
    assert float(part @ rest) == 0.0
    assert float(part @ part) + float(rest @ rest) == float(a @ a)
    assert {key.ref() for key in (*part.keys(), *rest.keys())} == {key.ref() for key in a.keys()}
    assert len(part) + len(rest) == len(a)
    assert {key.ref() for key in (*part.missing, *rest.missing)} == {key.ref() for key in a.missing}


@law(vectors(), vectors(), st.sampled_from(NESTS), scalars)
def test_taking_a_part_is_linear(a: rt.Gradients, b: rt.Gradients, nest: Any, s: float) -> None:
    assert (a + s * b).only(nest) == a.only(nest) + s * b.only(nest)
    assert (a - s * b).without(nest) == a.without(nest) - s * b.without(nest)


def reasons(grads: rt.Gradients) -> dict[str, set[str]]:
    return {key.name: set(grads.why(key).split("; ")) for key in grads.missing}


@law(vectors(), vectors(), vectors(), scalars)
def test_reasons_of_a_sum_are_those_of_its_parts(a: rt.Gradients, b: rt.Gradients, c: rt.Gradients, s: float) -> None:
    a, b, c = (
        rt.Gradients(g.items(), [(key, why) for key in KEYS.values()]) for g, why in ((a, "x"), (b, "y"), (c, "x"))
    )
    assert reasons((a + b) + c) == reasons(a + (b + c)) == reasons(c + b + a)
    assert reasons(a + b + c) == {key.name: {"x", "y"} for key in (a + b + c).missing}
    assert reasons(s * a - c) == {key.name: {"x"} for key in (a + c).missing}


# ------------------------------------------------------------------ precision


@law(vectors(), vectors(), scalars)
def test_dtypes_stay_or_widen(a: rt.Gradients, b: rt.Gradients, s: float) -> None:
    for result in (a + b, s * a, a / 2.0, -a, a.normalized(), a.clip(norm=2.0), a.clip(global_norm=2.0)):
        for name, key in KEYS.items():
            grad = result.get(key)
            if grad is not None and name != "kernel":
                assert grad.dtype == key.dtype, name
    narrow = {a[KEYS["kernel"]].dtype, b[KEYS["kernel"]].dtype}
    if None not in (a.get(KEYS["kernel"]), b.get(KEYS["kernel"])):
        assert (a + b)[KEYS["kernel"]].dtype == (narrow.pop() if len(narrow) == 1 else tf.float32)


@law(vectors())
def test_normalized_has_the_norm_one_or_is_zero(a: rt.Gradients) -> None:
    length = float(a.normalized().norm())
    assert length == pytest.approx(1.0, rel=1e-2) if np.any(dense(a)) else length == 0.0
    assert a.normalized().is_finite()


# ------------------------------------------------------------------ inner product and norm


@law(vectors(), vectors())
def test_dot_is_symmetric_and_that_of_arrays(a: rt.Gradients, b: rt.Gradients) -> None:
    assert float(a @ b) == float(b @ a) == dot(a, b)


@law(vectors(), vectors(), vectors(), scalars, scalars)
def test_dot_is_bilinear(a: rt.Gradients, b: rt.Gradients, c: rt.Gradients, s: float, t: float) -> None:
    assert float((s * a + t * b) @ c) == s * float(a @ c) + t * float(b @ c)
    assert float(c @ (s * a + t * b)) == s * float(c @ a) + t * float(c @ b)


@law(vectors())
def test_norm_is_that_of_arrays(a: rt.Gradients) -> None:
    assert float(a.norm()) == pytest.approx(np.linalg.norm(dense(a)), rel=1e-6)
    assert float(a.norm()) ** 2 == pytest.approx(float(a @ a), rel=1e-6)
    assert complex(a.sum()) == dense(a).sum()
    assert sum(norm**2 for _, norm in a.norms()) == pytest.approx(float(a @ a), rel=1e-5)


@law(vectors(), vectors(), scalars)
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


@pytest.mark.parametrize("missing", [True, False])
def test_the_zero_vector_is_finite(missing: bool) -> None:
    zero = rt.Gradients([(key, None if missing else tf.zeros(key.shape, key.dtype)) for key in KEYS.values()])
    assert zero.is_finite() is True
    assert rt.Gradients([]).is_finite() is True
    assert float(zero.norm()) == float(zero @ zero) == 0.0
    assert zero.normalized() == zero


@pytest.mark.parametrize("part", [complex(np.inf, 0.0), complex(0.0, np.nan)])
def test_parts_of_complex_numbers_are_looked_at(part: complex) -> None:
    key = KEYS["complex"]
    assert not rt.Gradients([(key, tf.constant([part, 0j], tf.complex64))]).is_finite()
    large = tf.constant([complex(3e38, 3e38), 0j], tf.complex64)  # whose absolute value does not fit
    assert rt.Gradients([(key, large)]).is_finite()


def test_sums_over_real_and_complex_gradients_lose_no_part() -> None:
    double, key = KEYS["double"], KEYS["complex"]
    pairs = [(double, tf.constant([1.0 + 2.0**-40, 0.0], tf.float64)), (key, tf.constant([2j, 1 + 0j], tf.complex64))]
    for order in (pairs, pairs[::-1]):
        assert complex(rt.Gradients(order).sum()) == 2.0 + 2.0**-40 + 2j


def test_norm_squared_is_dot_for_complex_gradients() -> None:
    key = tf.Variable(tf.zeros(1, tf.complex64))
    grads = rt.Gradients([(key, tf.constant([3 + 4j], tf.complex64))])
    assert complex(grads @ grads) == pytest.approx(float(grads.norm()) ** 2) == 25.0


# ------------------------------------------------------------------ one flat vector


@law(vectors(), vectors())
def test_flatten_and_back_in_one_precision(a: rt.Gradients, b: rt.Gradients) -> None:
    a, b = a.only(WIDE), b.only(WIDE)
    again = a.unflatten(a.flatten())
    assert again == a
    assert again.missing == ()
    assert float(tf.tensordot(a.flatten(), b.flatten(), 1)) == float(a @ b) == dot(a, b)
    np.testing.assert_array_equal((a + b).flatten(), a.flatten() + b.flatten())


@law(vectors())
def test_flatten_and_back_in_mixed_precision(a: rt.Gradients) -> None:
    flat = a.flatten()
    np.testing.assert_array_equal(flat, dense(a))
    again = a.unflatten(flat)
    assert again == a
    assert flat.dtype == tf.complex128
    assert all(again[key].dtype == key.dtype for key in KEYS.values())
    real = a.without(KEYS["complex"])
    np.testing.assert_array_equal(real.flatten(), dense(real)[: -KEYS["complex"].shape[0]].real)
    assert real.flatten().dtype == tf.float64
    assert a.only(KEYS["half"], KEYS["brain"]).flatten().dtype == tf.float32  # neither holds the other


# ------------------------------------------------------------------ sparse gradients


TABLES = [KEYS["table"], KEYS["half_table"], KEYS["brain_table"]]
STAYS = {
    "sum": lambda a: a + 2.0 * a,
    "difference": lambda a: a - 0.5 * a,
    "with missing": lambda a: a + rt.Gradients([(key, None) for key in KEYS.values()]),
    "product": lambda a: 3.0 * a,
    "quotient": lambda a: a / 2.0,
    "negative": operator.neg,
    "norm": lambda a: a.clip(norm=0.5),
    "global_norm": lambda a: a.clip(global_norm=0.5),
    "value": lambda a: a.without(KEYS["complex"]).clip(value=1.0),
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


@law(vectors(tables=("sparse",)), vectors(tables=("sparse", "dense")))
def test_sparse_is_what_its_dense_form_is(a: rt.Gradients, b: rt.Gradients) -> None:
    filled = a.map(tf.convert_to_tensor)
    assert a == filled
    assert float(a @ b) == float(filled @ b)
    assert float(a.norm()) == pytest.approx(float(filled.norm()), rel=1e-6)
    for bound in ({"norm": 2.0}, {"global_norm": 2.0}):
        assert a.clip(**bound).is_close(filled.clip(**bound), rtol=2e-2), bound  # bfloat16 has three digits
    a, filled = a.without(KEYS["complex"]), filled.without(KEYS["complex"])  # which have no order
    assert a.clip(value=1.5) == filled.clip(value=1.5)


def test_rows_named_twice_are_added_before_norms() -> None:
    table = tf.Variable(tf.zeros([4, 2]), name="table")
    rows = sparse([1, 1, 1], np.ones((3, 2)), table)  # the row [3, 3]
    grads = rt.Gradients([(table, rows)])
    assert float(tf.linalg.global_norm([rows])) == pytest.approx(6**0.5)  # 2.449, TensorFlow's, is too small
    assert float(grads.norm()) == pytest.approx(18**0.5)  # 4.243
    assert float(grads.clip(global_norm=1.0).norm()) == pytest.approx(1.0)
    assert float(grads.clip(norm=1.0).norm()) == pytest.approx(1.0)
    np.testing.assert_array_equal(tf.convert_to_tensor(grads.clip(value=2.0)[table])[1], [2.0, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize(("function", "strategies"), LAWS, ids=[function.__name__ for function, _ in LAWS])
def test_with_many_examples(function: Callable, strategies: tuple) -> None:
    many(given(*strategies)(function))()
