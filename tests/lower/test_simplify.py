"""What is computed when a function is built, and what is left out: only what changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lower.lowering import assert_lowers, lowered, observed, ops, simplified
from retrotape.lower._lower import guards_of, lower
from retrotape.lower._observed import NotCompilableError, Observation
from retrotape.record import Recorder

A = tf.constant([[1.0, -2.0, 3.0], [-0.0, 5.0, float("inf")]])
OTHER = tf.constant([[-1.5, 2.5, -0.0], [4.0, float("nan"), 6.0]])

NO_OPS: dict[str, Any] = {
    "Identity": tf.identity,
    "StopGradient": tf.stop_gradient,
    "Reshape": lambda a: tf.reshape(a, [2, 3]),
    "BroadcastTo": lambda a: tf.broadcast_to(a, [2, 3]),
    "Tile": lambda a: tf.tile(a, [1, 1]),
    "Cast": lambda a: tf.raw_ops.Cast(x=a, DstT=tf.float32),
    "AddN": lambda a: tf.raw_ops.AddN(inputs=[a]),
    "Sum": lambda a: tf.reduce_sum(a, []),
    "Transpose": lambda a: tf.transpose(a, [0, 1]),
    "Mul": lambda a: tf.multiply(a, tf.ones([2, 3])),
    "Mul, from the left": lambda a: tf.multiply(1.0, a),
    "Mul, OnesLike": lambda a: tf.multiply(a, tf.ones_like(a)),
}


@pytest.mark.parametrize("name", list(NO_OPS))
def test_ops_that_return_their_input_are_left_out(name: str):
    assert ops(lambda a: [tf.sin(NO_OPS[name](a))], A) == ["Sin"]
    assert_lowers(lambda a: [tf.sin(NO_OPS[name](a))], [A], [OTHER])


SOME_OPS: dict[str, Any] = {
    "Reshape": lambda a: tf.reshape(a, [3, 2]),
    "Tile": lambda a: tf.tile(a, [1, 2]),
    "Cast": lambda a: tf.cast(a, tf.float64),
    "Sum": lambda a: tf.reduce_sum(a, [0], keepdims=True),
    "Mean": lambda a: tf.reduce_mean(a),
    "Sum, of one row": lambda a: tf.reduce_sum(a[1:], 0, keepdims=True),
    "Transpose": lambda a: tf.transpose(tf.linalg.matmul(a, a, transpose_b=True)),
    "Mul": lambda a: tf.multiply(a, 2.0),
    "AddV2": lambda a: a + tf.zeros([2, 3]),  # -0.0 + 0.0 is 0.0
    "Mul, broadcast": lambda a: tf.multiply(a[0], tf.ones([2, 3])),
}


@pytest.mark.parametrize("name", list(SOME_OPS))
def test_ops_that_look_like_them_are_not(name: str):
    assert name.partition(",")[0] in ops(lambda a: [SOME_OPS[name](a)], A)
    assert_lowers(lambda a: [SOME_OPS[name](a)], [A], [OTHER])


def test_what_depends_on_shapes_alone_is_computed_once():
    def function(a):
        rows = tf.cast(tf.shape(a)[0] * tf.size(a) + tf.rank(a), tf.float32)
        return [a * tf.sqrt(rows)]

    assert ops(function, A) == ["Mul"]
    assert_lowers(function, [A], [OTHER])


def test_large_constants_are_made_each_time():
    assert "Fill" in ops(lambda a: [a * tf.sin(tf.fill([3000], 2.0))[:3]], A)


def test_random_draws_are_never_folded():
    with pytest.raises(NotCompilableError, match="it runs RandomUniform, which has an effect, or another result"):
        observed(lambda a: [a * tf.raw_ops.RandomUniform(shape=[3], dtype=tf.float32)], A)


def test_zeros_need_no_value_of_their_shape():
    (eqn,) = simplified(lambda a: [tf.raw_ops.ZerosLike(x=tf.tile(a, [40, 40]))], A).eqns
    assert eqn.op == "Fill"
    assert_lowers(lambda a: [tf.raw_ops.ZerosLike(x=tf.tile(a, [40, 40]))], [A], [OTHER])


def test_a_square_takes_the_place_of_a_power_of_two():
    nodes = [lowered(lambda a, p=power: [a**p], A).function for power in (2.0, 3.0)]
    assert ops(lambda a: [a**2.0], A) == ["Pow"]  # only if it may specialize
    assert nodes[0].size < nodes[1].size  # no constant for the exponent
    assert_lowers(lambda a: [a**2.0], [A], [OTHER])
    assert_lowers(lambda a: [a**3.0], [A], [OTHER])


def on_a_trace(function: Any, exponent: tf.Tensor, specialize: bool) -> Any:
    """Return a function lowered where the exponent is a value of the trace, and the guards."""
    trace = Recorder()
    var = trace.var_of(exponent)
    trace.values[var] = exponent
    observation = Observation(trace, [A])
    computation = observation.computation(observation.run(lambda: function(A, exponent)))
    return lower(computation, trace.values.__getitem__, specialize), var


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_an_exponent_of_the_tape_is_guarded_if_it_was_assumed(exponent: float):
    given = tf.constant(exponent - 1.0)
    found, var = on_a_trace(lambda a, p: [a ** (p + 1.0)], given, True)
    assert [guarded for guarded, _ in found.guards] == ([var] if exponent == 2.0 else [])
    assert found.fits({var: given}.__getitem__)
    assert found.fits({var: tf.constant(5.0)}.__getitem__) == (exponent != 2.0)
    np.testing.assert_array_equal(found([A], [given] * len(found.feeds))[0], A**exponent)


def test_without_specializing_nothing_is_assumed():
    given = tf.constant(2.0)
    found, var = on_a_trace(lambda a, p: [a**p], given, False)
    assert found.guards == ()
    assert found.feeds == (var,)
    np.testing.assert_array_equal(found([A], [tf.constant(3.0)])[0], A**3.0)


def test_integers_that_shapes_depend_on_are_guarded_in_any_case():
    found, var = on_a_trace(lambda a, axis: [tf.reduce_sum(a, axis + 1)], tf.constant(0), False)
    assert [guarded for guarded, _ in found.guards] == [var]
    assert not found.fits({var: tf.constant(-1)}.__getitem__)


def test_guards_are_not_repeated():
    trace, given = Recorder(), tf.constant(0)
    var = trace.var_of(given)
    trace.values[var] = given
    observation = Observation(trace, [A])

    def compute():
        assert int(given) == 0  # a host read
        return [tf.reduce_sum(A, given)]

    computation = observation.computation(observation.run(compute))
    (leaf,) = (leaf for leaf, _ in computation.feeds)
    assert [guarded for guarded, _ in guards_of(computation, [leaf], trace.values.__getitem__)] == [var]


REFUSED: dict[str, Any] = {
    "Where": lambda a: [tf.cast(tf.where(a > 0.0), tf.float32)],
    "UniqueV2": lambda a: [tf.unique(tf.reshape(a, [-1]))[0]],
    "Reshape": lambda a: [tf.reshape(a, tf.cast(a[0, :1] + 5.0, tf.int32))],
    "Sum": lambda a: [tf.reduce_sum(a, tf.cast(a[0, 0], tf.int32))],
    "Fill": lambda a: [tf.fill([tf.cast(a[0, 0], tf.int32)], 1.0)],
    "Range": lambda a: [tf.range(a[0, 0])],
    "StridedSlice": lambda a: [a[tf.cast(a[0, 0], tf.int32) :]],
    "DynamicPartition": lambda a: tf.dynamic_partition(a, [0, 1], 2),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_shapes_that_depend_on_values_are_refused(name: str):
    function = REFUSED[name]
    first = {"UniqueV2": "Unique"}.get(name, name)
    with pytest.raises(NotCompilableError, match=f"the shape of what {first}.* returns may depend on values"):
        lowered(function, A)
