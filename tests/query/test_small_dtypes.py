"""Tensors of eight bits, floating and quantized: they may be anywhere on a tape, and gradients pass beside them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors

SMALL = tf.dtypes.experimental
X = tf.constant([1.0, 2.0, -1.5])
KEEPS = ("needed", "all", "leaves", "segments", "disk")


def to_float8(dtype):
    return lambda x: tf.cast(x, dtype), lambda z: tf.cast(z, tf.float32)


def to_qint8():
    return lambda x: tf.raw_ops.QuantizeV2(input=x, min_range=-3.0, max_range=3.0, T=tf.qint8).output, (
        lambda z: tf.raw_ops.Dequantize(input=z, min_range=-3.0, max_range=3.0)
    )


KINDS = {
    "float8_e5m2": to_float8(SMALL.float8_e5m2),
    "float8_e4m3fn": to_float8(SMALL.float8_e4m3fn),
    "qint8": to_qint8(),
}


def bits(tensor: tf.Tensor) -> bytes:
    return np.asarray(tensor).tobytes()


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


def recorded(kind: str, keep: str = "needed"):
    shrink, grow = KINDS[kind]
    leaf = shrink(0.5 * X)
    with rt.Tape(keep=keep) as tape:
        small = tf.identity(shrink(X * 1.0))
        y = grow(small) * X + grow(tf.identity(leaf))
    return tape, small, leaf, y


@pytest.mark.parametrize("keep", KEEPS)
def test_gradients_pass_beside_them(kind, keep):
    tape, small, leaf, y = recorded(kind, keep)
    shrink, grow = KINDS[kind]
    expected = grow(shrink(X))  # the small one counts as a constant, as on the stock tape
    with tf.GradientTape() as stock:
        stock.watch(X)
        theirs = grow(tf.identity(shrink(X * 1.0))) * X
    np.testing.assert_array_equal(expected, stock.gradient(theirs, X))
    np.testing.assert_array_equal(tape.gradient(y, X), expected)
    assert tape.gradient(y, [small, leaf]) == [None, None]
    np.testing.assert_array_equal(tape.jacobian(y, X), np.diag(expected))
    assert tape.backward(y, [X, small]).why(small) == f"its dtype {kind} has no derivative"


def test_zeros_for_them(kind):
    tape, small, leaf, y = recorded(kind)
    for found in (
        tape.gradient(y, small, unconnected_gradients="zero"),
        tape.gradient(y, leaf, none="zero"),
        tape.backward(y, [small])[small],
    ):
        assert (found.dtype, found.shape) == (small.dtype, small.shape)
        assert not any(bits(found))
    blocks = tape.jacobian(y, [small], unconnected_gradients="zero")
    assert (blocks[0].dtype, blocks[0].shape) == (small.dtype, [3, 3])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(X * X)
    assert tape.hessian(loss, [small])[0][0].dtype == small.dtype


def test_as_targets_they_are_none_with_a_warning(kind):
    tape, small, _, y = recorded(kind)
    with pytest.warns(errors.NotDifferentiableWarning, match=f"The target is {kind}"):
        assert tape.gradient(small, X) is None
    with pytest.warns(errors.NotDifferentiableWarning, match=f"The target is {kind}"):
        np.testing.assert_array_equal(tape.gradient([small, y], X), tape.gradient(y, X))


def test_beside_others_in_the_results_of_one_op(kind):
    shrink, grow = KINDS[kind]
    with rt.Tape() as tape:
        first, second = tf.raw_ops.IdentityN(input=[X * X, shrink(X)])
        y = first * grow(second)
    np.testing.assert_array_equal(tape.gradient(y, X), 2.0 * X * grow(shrink(X)))


@pytest.mark.parametrize("keep", KEEPS)
def test_looking_at_a_tape_that_has_them(kind, keep):
    tape, small, leaf, y = recorded(kind, keep)
    assert rt.Program.parse(str(tape.program)) == tape.program
    assert kind in str(tape.program)
    assert str(tape.memory())
    assert str(tape.summary())
    assert tape.first_nonfinite() is None
    assert tape.why(y, small).verdict is rt.Verdict.INTEGER
    assert tape.why(y, X).verdict is rt.Verdict.CONNECTED
    assert bits(tape.value(small)) == bits(small)
    again = tape.replay([(X, 0.5 * X), (leaf, leaf)])
    shrink, grow = KINDS[kind]
    np.testing.assert_array_equal(again.gradient(y, X), grow(shrink(0.5 * X)))


def test_files_keep_them_to_the_bit(kind, tmp_path):
    tape, small, leaf, y = recorded(kind)
    names = {"x": X, "small": small, "leaf": leaf, "y": y}
    freeze = ["Dequantize", "QuantizeV2"] if kind == "qint8" else []
    for values in ("leaves", "all"):
        tape.save(tmp_path / "a.tape", names, values=values, freeze=freeze)
        loaded = rt.load(tmp_path / "a.tape")
        assert [bits(loaded[name]) for name in ("small", "leaf")] == [bits(small), bits(leaf)]
        np.testing.assert_array_equal(loaded.gradient("y", "x"), tape.gradient(y, X))


def test_in_variables_and_functions(kind):
    shrink, grow = KINDS[kind]
    variable = tf.Variable(shrink(X))
    with rt.Tape() as tape:
        y = grow(tf.identity(variable)) * X
        variable.assign(shrink(0.5 * X))
    assert tape.gradient(y, variable) is None
    assert tape.gradient(y, variable, through_updates=True) is None
    assert [bits(version.value) for version in tape.versions(variable)] == [bits(shrink(X)), bits(shrink(0.5 * X))]

    @tf.function
    def inside(x):
        with rt.Tape() as inner:
            z = grow(shrink(x)) * x
        return inner.gradient(z, x)

    np.testing.assert_array_equal(inside(X), grow(shrink(X)))
    with rt.Tape() as tape:
        z = tf.function(lambda x: grow(shrink(x)) * x)(X)
    np.testing.assert_array_equal(tape.gradient(z, X), grow(shrink(X)))
