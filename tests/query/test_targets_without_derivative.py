"""Targets of integers, booleans and text: None with a warning on every route; others in the nest are answered."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors

X = tf.constant([1.0, 2.5])
KINDS = {
    "int32": lambda x: tf.cast(x, tf.int32),
    "int64": lambda x: tf.cast(x, tf.int64),
    "uint8": lambda x: tf.cast(x, tf.uint8),
    "bool": lambda x: x > 2.0,
    "string": tf.strings.as_string,
}


def warned(dtype: str = "int32"):
    return pytest.warns(
        errors.NotDifferentiableWarning,
        match=rf"^The target tensor {dtype}\[.*\] has no gradient and is left out\. The path goes through integers, "
        rf"booleans or strings, which are not differentiable\. The target is {dtype}\. Make the target floating",
    )


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def recorded(kind):
    with rt.Tape() as tape:
        whole, y = KINDS[kind](X), X * X
    return tape, whole, y


# ------------------------------------------------------------------ each route


def test_gradient(recorded, kind):
    tape, whole, _ = recorded
    with warned(kind) as caught:
        assert tape.gradient(whole, X) is None
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warned(kind):
        assert tape.gradient([whole], {"x": X, "again": [X]}) == {"x": None, "again": [None]}
    with warned(kind):
        np.testing.assert_array_equal(tape.gradient(whole, X, unconnected_gradients="zero"), [0.0, 0.0])
    with warned(kind):
        np.testing.assert_array_equal(tape.gradient(whole, X, none="zero"), [0.0, 0.0])


def test_the_others_in_a_nest_are_answered_as_on_the_stock_tape(recorded, kind):
    tape, whole, y = recorded
    with tf.GradientTape() as stock:
        stock.watch(X)
        theirs = [KINDS[kind](X), {"y": X * X}]
    expected = stock.gradient(theirs, X)
    with warned(kind):
        np.testing.assert_array_equal(tape.gradient([whole, {"y": y}], X), expected)
    with warned(kind):
        found = tape.gradient([whole, y], X, output_gradients=[tf.ones(2), tf.constant([1.0, 10.0])])
    np.testing.assert_array_equal(found, 2.0 * X * [1.0, 10.0])


def test_none_raise_raises(recorded, kind):
    tape, whole, y = recorded
    text = rf"The target tensor {kind}\[2\] has dtype {kind}; a target must be floating .* Compute it in floating point"
    for target in (whole, [y, whole]):
        with pytest.raises(errors.NotDifferentiableError, match=text) as caught:
            tape.gradient(target, X, none="raise")
        assert caught.value.dtype == kind
        with pytest.raises(errors.NotDifferentiableError, match=text):
            tape.backward(target, [X], none="raise")


def test_backward_knows_the_reason(recorded, kind):
    tape, whole, y = recorded
    with warned(kind) as caught:
        grads = tape.backward(whole, [X])
    assert len(caught) == 1
    assert grads.missing == (X,)
    assert grads.why(X) == f"the target is {kind}, which has no derivative"
    with warned(kind):
        grads = tape.backward([whole, y], [X])
    np.testing.assert_array_equal(grads[X], 2.0 * X)


def test_a_source_that_only_the_whole_numbers_use():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        targets = [tf.cast(v * v, tf.int32), w * w]
    with warned():
        grads = tape.backward(targets, [v, w])
    assert grads.why(v) == "no recorded op connects it to the loss"
    assert float(grads[w]) == 6.0


def test_backward_each(recorded, kind):
    tape, whole, y = recorded
    for losses in ([whole, y], [y, whole, y], [[whole, y]]):
        with warned(kind) as caught:
            rows = tape.backward_each(losses, [X])
        assert len(caught) == 1
        for loss, row in zip(losses, rows, strict=True):
            if loss is whole:
                assert row.why(X) == f"the target is {kind}, which has no derivative"
            else:
                np.testing.assert_array_equal(row[X], 2.0 * X)
    with warned(kind):
        assert [row.missing for row in tape.backward_each(whole, [X])] == [(X,), (X,)]


def test_jacobians(recorded, kind):
    tape, whole, _ = recorded
    with warned(kind) as caught:
        assert tape.jacobian(whole, X) is None
    assert len(caught) == 1
    with warned(kind):
        np.testing.assert_array_equal(tape.jacobian(whole, X, unconnected_gradients="zero"), np.zeros([2, 2]))
    with warned(kind):
        assert tape.per_example(whole, [X]) == [None]


def test_batch_jacobian_gives_zeros_as_on_the_stock_tape(kind):
    x = tf.ones([2, 3])
    with tf.GradientTape(persistent=True) as stock, rt.Tape() as tape:
        stock.watch(x)
        y = KINDS[kind](x)
    with warned(kind):
        found = tape.batch_jacobian(y, x)
    expected = stock.batch_jacobian(y, x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_stream_vjp_and_jvp(recorded, kind):
    tape, whole, y = recorded
    with warned(kind):
        assert list(tape.stream(whole, [X])) == []
    with warned(kind):
        ((_, grad),) = tape.stream([whole, y], [X])
    np.testing.assert_array_equal(grad, 2.0 * X)
    with warned(kind):
        assert tape.vjp(whole, X, tf.ones(2)) is None
    with warned(kind):
        assert tape.jvp(whole, X, tf.ones(2)) is None


def test_second_derivatives_and_the_search_for_nan_raise():
    with rt.Tape() as tape:
        whole = tf.cast(tf.reduce_sum(X), tf.int32)
    refused = pytest.raises(errors.NotDifferentiableError, match=r"tensor int32\[\] has dtype int32; a target must be")
    with refused:
        tape.hvp(whole, X, tf.ones(2))
    with refused:
        tape.hessian(whole, X)
    with refused:
        tape.first_nonfinite(whole)


# ------------------------------------------------------------------ every kind of tape


def test_inside_a_function():
    @tf.function
    def inside(x):
        with rt.Tape() as tape:
            whole, y = tf.cast(x, tf.int32), x * x
        assert tape.gradient(whole, x) is None
        assert tape.jacobian(whole, x) is None
        return tape.gradient([whole, y], x), tape.backward_each([whole, y], [x])[1][x]

    with warned():
        first, second = inside(X)
    np.testing.assert_array_equal(first, 2.0 * X)
    np.testing.assert_array_equal(second, 2.0 * X)


def test_a_tape_that_was_saved_joined_or_played_again(tmp_path):
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        whole, y = tf.cast(w * X, tf.int32), w * w
    tape.save(tmp_path / "a.tape", {"whole": whole, "y": y})
    loaded = rt.load(tmp_path / "a.tape")
    for each, ints, floats, source in (
        (loaded, "whole", "y", "w"),
        (rt.join(tape), whole, y, w),
        (tape.replay([]), whole, y, w),
    ):
        with warned():
            assert each.gradient(ints, source) is None
        with warned():
            np.testing.assert_array_equal(each.gradient([ints, floats], source), [2.0, 4.0])
        with pytest.raises(errors.NotDifferentiableError, match="has dtype int32"):
            each.gradient(ints, source, none="raise")


def test_an_isolated_tape_warns_in_this_process(tmp_path):
    with rt.Tape() as tape:
        whole = tf.cast(X, tf.int32)
    tape.save(tmp_path / "a.tape", {"x": X, "whole": whole})
    with rt.load(tmp_path / "a.tape", isolate=True) as isolated:
        with warned() as caught:
            assert isolated.gradient("whole", "x") is None
        assert caught[0].filename == __file__
        with pytest.raises(errors.NotDifferentiableError, match="has dtype int32"):
            isolated.gradient("whole", "x", none="raise")


def test_a_variable_of_integers():
    step = tf.Variable(3)
    with rt.Tape() as tape:
        _ = step + 1
    with pytest.warns(errors.NotDifferentiableWarning, match=r"The target '.*' \(int32\[\]\) has no gradient"):
        assert tape.gradient(step, X) is None


def test_what_holds_something_else_is_refused():
    with rt.Tape() as tape:
        listed = tf.raw_ops.TensorListFromTensor(tensor=X, element_shape=tf.constant([], tf.int32))
    with pytest.raises(errors.NotDifferentiableError, match="has dtype variant"):
        tape.gradient(listed, X)
