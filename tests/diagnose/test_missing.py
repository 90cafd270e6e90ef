"""A gradient that is missing knows why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.diagnose import missing

UNREAD = "it was not read on this tape"
ABSENT = "no op on this tape used it"
UPDATES = "every path ends at an assignment; pass through_updates=True"
SINCE = "since= excludes every path; start from an earlier value"
CUT = "the ops between it and the loss pass no gradient on"
NO_OP = "no recorded op connects it to the loss"
STOPPED = "`tf.stop_gradient` cuts the path: StopGradient ("


# ------------------------------------------------------------------ what a tape says


def test_a_variable_that_was_not_read():
    used, unused, x = tf.Variable(2.0), tf.Variable(3.0), tf.constant(1.0)
    with rt.Tape() as tape:
        loss = used * 2.0
    grads = tape.backward(loss, [used, unused, x])
    assert [grads.why(key) for key in (unused, x)] == [UNREAD, ABSENT]


def test_a_keras_variable_that_was_not_read():
    used, unused = keras.Variable(2.0), keras.Variable(3.0)
    with rt.Tape() as tape:
        loss = used.value * 2.0
    grads = tape.backward(loss, [used, unused])
    assert grads.why(unused) == grads.why(unused.value) == UNREAD


def test_ops_that_lead_elsewhere():
    v, x = tf.Variable(2.0), tf.constant(1.0)
    with rt.Tape() as tape:
        _ = v * x
        loss = tf.constant(3.0) * 2.0
    grads = tape.backward(loss, [v, x])
    assert [grads.why(key) for key in (v, x)] == [NO_OP, NO_OP]


@pytest.mark.parametrize("dtype", [tf.int32, tf.bool])
def test_a_dtype_without_derivative(dtype):
    taken, not_read = tf.cast([1, 0], dtype), tf.Variable(tf.cast([1, 0], dtype))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.cast(taken, tf.float32))
    grads = tape.backward(loss, [taken, not_read])
    assert [grads.why(key) for key in (taken, not_read)] == [f"its dtype {dtype.name} has no derivative"] * 2


CUTS: dict[str, tuple[Callable, str]] = {
    "stop_gradient": (tf.stop_gradient, "`tf.stop_gradient` cuts the path: StopGradient"),
    "floor": (tf.floor, "the gradient function of an op on the path returned None: Floor"),
    "integers": (
        lambda v: tf.cast(tf.cast(v, tf.int32), tf.float32),
        "the path goes through integers, booleans or strings: Cast",
    ),
    "function": (
        tf.function(lambda v: tf.stop_gradient(v) * 2.0),
        "`tf.stop_gradient` cuts the path: StopGradient",
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_ops_that_pass_no_gradient_on(name):
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    cut, reason = CUTS[name]
    with rt.Tape() as tape:
        loss = cut(v) * w
    grads = tape.backward(loss, v)
    assert grads.missing == (v,)
    assert grads.why(v).startswith(f"{reason} (")
    assert tape.backward(loss, [v, w]).why(v) == grads.why(v)  # whatever else has a gradient
    assert [row.why(v) for row in tape.backward_each([loss, loss], [v, w])] == [grads.why(v)] * 2
    assert grads.why(v) in str(tape.backward(loss, [v, w]))


# ------------------------------------------------------------------ through updates


def test_a_path_through_an_assignment():
    x, rate, v = tf.constant(3.0), tf.Variable(0.5), tf.Variable(1.0)
    with rt.Tape() as tape:
        v.assign_sub(rate * x)
        loss = v * v
    grads = tape.backward(loss, [x, rate, v])
    assert [grads.why(key) for key in (x, rate)] == [UPDATES, UPDATES]
    assert grads.missing == (x, rate)
    assert tape.backward(loss, [x, rate, v], through_updates=True).missing == ()  # as it says


def test_each_is_told_its_own_reason_although_they_are_planned_together():
    through, aside, cut, v = (tf.Variable(1.0, name=name) for name in ("through", "aside", "cut", "v"))
    with rt.Tape() as tape:
        _ = aside * 2.0
        v.assign(through * tf.stop_gradient(cut))
        loss = v * v
    grads = tape.backward(loss, [through, aside, cut])
    assert [grads.why(key) for key in (through, aside)] == [UPDATES, NO_OP]
    assert grads.why(cut).startswith(STOPPED)
    assert tape.backward(loss, [aside, cut], through_updates=True).missing == (aside, cut)


def test_one_plan_for_all_that_are_missing(monkeypatch):
    asked = []

    def make_plan(trace, targets, sources, **options):
        asked.append(len(list(sources)))
        return real(trace, targets, sources, **options)

    real = missing.make_plan
    monkeypatch.setattr(missing, "make_plan", make_plan)
    sources, v, aside = [tf.Variable(1.0) for _ in range(5)], tf.Variable(0.0), tf.Variable(0.0)
    with rt.Tape() as tape:
        _ = aside * 1.0
        plain = tf.add_n(sources)
        v.assign(plain)
        loss = v * v
    grads = tape.backward(loss, [*sources, aside])
    assert {grads.why(source) for source in sources} == {UPDATES}
    assert asked == [5]  # and nothing for the one that no op could help
    tape.backward(plain, [*sources])
    tape.backward(plain, [*sources, aside])
    assert asked == [5]


def test_since_ends_a_path():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        x = v * 1.0
        v.assign(x)
        v.assign(v * 3.0)
        loss = v * v
    grads = tape.backward(loss, [x], through_updates=True, since=-1)
    assert grads.why(x) == SINCE
    assert tape.backward(loss, [x], through_updates=True).missing == ()


def test_since_means_a_value_of_a_variable_that_has_no_path():
    v, w = tf.Variable(2.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        w.assign(v * 3.0)
        v.assign(5.0)
        v.assign(7.0)
        loss = w * w
    assert tape.backward(loss, [v], through_updates=True, since=-1).why(v) == SINCE
    assert tape.backward(loss, [v], through_updates=True).missing == ()


def test_an_assignment_that_was_not_seen_promises_nothing():
    x, v = tf.constant(2.0), tf.Variable(1.0)
    tape = rt.Tape()
    with tape:
        v.assign(x)
        first = v * v
    v.assign(7.0)
    with tape:
        loss = first * v
    unseen = "the loss depends on a variable that was assigned while the tape was not recording: AssignVariableOp"
    assert tape.backward(loss, [x]).why(x).startswith(unseen)
    with pytest.raises(errors.UnseenUpdateError):
        tape.gradient(loss, x, through_updates=True)


def test_a_value_that_a_variable_had():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        v.assign(tf.stop_gradient(v))
        loss = v * v
    early = tape.at(v, 0)
    assert tape.backward(loss, [early]).why(early).startswith(STOPPED)


# ------------------------------------------------------------------ other ways to ask


def test_zeros_on_request_are_not_missing():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        loss = v * 1.0
    grads = tape.backward(loss, [v, w], unconnected_gradients="zero")
    assert grads.missing == ()
    assert grads.why(w).startswith("There is a gradient with respect to ")


def test_ragged_sources():
    ragged, other = tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.ragged.constant([[1.0], []])
    with rt.Tape() as tape:
        _ = tf.reduce_sum(ragged)
        loss = tf.constant(1.0) * 2.0
    grads = tape.backward(loss, [ragged, other])
    assert [grads.why(key) for key in (ragged, other)] == [NO_OP, ABSENT]


def test_inside_a_function():
    v, unread, given = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)
    found = []

    @tf.function
    def step(x):
        with rt.Tape() as tape:
            v.assign(given * x)
            loss = v * tf.stop_gradient(x)
        grads = tape.backward(loss, [v, unread, given, x])
        found[:] = [grads.why(key) for key in (unread, given, x)]
        return grads[v]

    assert float(step(tf.constant(5.0))) == 5.0
    assert found == [UNREAD, UPDATES, UPDATES]  # x is also in what was assigned


def test_on_joined_tapes():
    x, aside, y = tf.constant(1.0), tf.constant(2.0), tf.Variable(0.0)
    with rt.Tape() as first:
        y.assign(x * 2.0)
    with rt.Tape() as second:
        loss = y * y
        _ = aside * 1.0
    grads = rt.join(first, second).backward(loss, [x, aside])
    assert [grads.why(key) for key in (x, aside)] == [UPDATES, NO_OP]
    assert second.backward(loss, [x]).why(x) == ABSENT


def test_a_gradient_asked_about_again():
    x, y = tf.Variable(3.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = x * x + tf.stop_gradient(y)
    slope = tape.gradient(loss, x)
    grads = tape.backward(slope, [x, y])
    assert float(grads[x]) == 2.0
    assert grads.why(y) == NO_OP


# ------------------------------------------------------------------ reasons are kept


@pytest.fixture
def given() -> dict[str, Any]:
    a, b = tf.Variable([1.0, 2.0], name="a"), tf.Variable(3.0, name="b")
    return {"a": a, "b": b, "cotangents": rt.Gradients([(a, tf.constant([3.0, 4.0])), (b, None)], [(b, "no path")])}


def test_why(given):
    grads, b = given["cotangents"], given["b"]
    assert grads.why(b) == "no path"
    assert grads.why(given["a"]) == "There is a gradient with respect to a."
    assert rt.Gradients([(b, None)]).why(b) == "no reason is known"
    with pytest.raises(
        errors.UnknownSourceError, match=r"no gradient with respect to other here\. The sources are: a, b"
    ):
        grads.why(tf.Variable(1.0, name="other"))


def test_reasons_for_others_are_ignored(given):
    a, b = given["a"], given["b"]
    grads = rt.Gradients([(a, tf.ones(2))], [(a, "it has one"), (b, "it is not here")])
    assert grads.why(a) == "There is a gradient with respect to a."
    assert b not in grads
    assert (grads + rt.Gradients([(b, None)])).why(b) == "no reason is known"


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "negative": lambda g: -g,
    "product": lambda g: 2.0 * g,
    "tensor product": lambda g: g * tf.constant(2.0),
    "quotient": lambda g: g / 2.0,
    "map": lambda g: g.map(tf.abs),
    "sum": lambda g: g + g,
    "difference": lambda g: g - 0.5 * g,
    "builtin sum": lambda g: sum([g, g, g]),
    "with nothing": lambda g: rt.Gradients([]) + g,
    "mean": lambda g: rt.Gradients.mean([g, g], weights=[1, 3]),
    "norm": lambda g: g.clip(norm=1.0),
    "global norm": lambda g: g.clip(global_norm=1.0),
    "value": lambda g: g.clip(value=1.0),
    "adaptive": lambda g: g.clip(adaptive=0.1),
    "normalized": lambda g: g.normalized(),
    "only": lambda g: g.only(*g.missing),
    "without": lambda g: g.without(*[key for key, grad in g.items() if grad is not None]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_reasons_survive(name, given):
    result = OPERATIONS[name](given["cotangents"])
    assert result.why(given["b"]) == "no path"
    assert "missing: no path" in repr(result)


def test_dense_results_miss_nothing(given):
    grads, b = given["cotangents"], given["b"]
    for result in (grads.unflatten(grads.flatten()), grads.with_noise(0.1)):
        assert result.why(b) == "There is a gradient with respect to b."


def test_of_two_missing_ones_both_reasons_are_kept(given):
    b = given["b"]
    first, second, third = (rt.Gradients([(b, None)], [(b, reason)]) for reason in ("one; two", "three", "one; two"))
    assert (first + second).why(b) == "one; two; three"
    assert (first + third).why(b) == "one; two"
    assert ((first + second) + third).why(b) == (first + (second + third)).why(b) == "one; two; three"
    assert (first + rt.Gradients([(b, None)])).why(b) == "one; two"


def test_where_one_has_a_gradient_there_is_no_reason(given):
    b = given["b"]
    there = rt.Gradients([(b, tf.constant(1.0))])
    for total in (there + given["cotangents"], given["cotangents"] + there):
        assert total.why(b) == "There is a gradient with respect to b."
    back = total.map(lambda grad: None)  # the old reason does not come back
    assert back.why(b) == "no reason is known"


def test_reasons_of_two_tapes():
    shared, late = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as one:
        left = shared * 1.0
    with rt.Tape() as other:
        _ = late * 1.0
        right = shared * 1.0
    total = one.backward(left, [shared, late]) + other.backward(right, [shared, late])
    assert total.why(late) == f"{UNREAD}; {NO_OP}"
    np.testing.assert_allclose(total[shared], 2.0)
