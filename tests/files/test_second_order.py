"""Second derivatives of loaded tapes: the same whatever was saved, and whichever queries came before."""

from __future__ import annotations

import itertools
import random

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.seeds import DATE


@tf.custom_gradient
def sine(a):
    return tf.sin(a), lambda dy: dy * tf.cos(a)


@tf.function
def sine_in_a_function(a):
    return tf.sin(a)


@tf.function
def sine_by_condition(a):
    return tf.sin(a) if a > -10.0 else a


SINES = {
    "op": tf.sin,
    "custom gradient": sine,
    "custom gradient of a custom gradient": lambda a: tf.custom_gradient(
        lambda b: (sine(b), lambda dy: dy * tf.cos(b))
    )(a),
    "function": sine_in_a_function,
    "condition": sine_by_condition,
    "recompute_grad": tf.recompute_grad(tf.sin),
}
QUERIES = {
    "gradient": lambda tape: tape.gradient("y", "x"),
    "hessian": lambda tape: tape.hessian("y", "x"),
    "hvp": lambda tape: tape.hvp("y", "x", tf.constant(1.0, tf.float64)),
    "gradient of gradient": lambda tape: tape.gradient(tape.gradient("y", "x"), "x"),
}
X = tf.constant(0.5, tf.float64)
FIRST = tf.sin(X) + X * tf.cos(X)
SECOND = 2.0 * tf.cos(X) - X * tf.sin(X)


@pytest.mark.parametrize("values", ["leaves", "needed", "all"])
@pytest.mark.parametrize("name", SINES)
def test_queries_in_any_order(tmp_path, name, values):
    with rt.Tape() as tape:
        y = SINES[name](X) * X
    tape.save(tmp_path / "a.tape", {"x": X, "y": y}, values=values)
    orders = [*itertools.permutations(QUERIES, 3)]
    for order in orders if DATE else random.Random(f"{name} {values}").sample(orders, len(orders) // 3):
        loaded = rt.load(tmp_path / "a.tape")
        for query in order:
            want = FIRST if query == "gradient" else SECOND
            assert float(QUERIES[query](loaded)) == pytest.approx(float(want), rel=1e-12), (order, query)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("name", ["op", "custom gradient"])
def test_an_outer_tape_sees_what_the_first_query_read(tmp_path, name, query):
    """What the file holds is one tensor for the tape and for the fork that a second walk is recorded on."""
    with rt.Tape() as tape:
        y = SINES[name](X) * X
    tape.save(tmp_path / "a.tape", {"x": X, "y": y})
    touched, untouched = rt.load(tmp_path / "a.tape"), rt.load(tmp_path / "a.tape")
    assert float(touched["x"]) == 0.5
    found = []
    for loaded in (touched, untouched):
        with rt.Tape() as outer:
            result = QUERIES[query](loaded)
        found.append(outer.gradient(result, loaded["x"]))
    assert None not in found
    assert float(found[0]) == float(found[1])
