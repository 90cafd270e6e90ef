"""What `tape.why` says is so: its numbers, the path that it shows, and what it does not claim."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.diagnose.why import Verdict

# ------------------------------------------------------------------ numbers


def change(text: str) -> tuple[str, float, float]:
    """Return the op at which the norm changes most, and the norms before and after."""
    op, before, after = re.search(r"changes most at (\w+) \(.*\): (\S+) → (\S+)\.$", text).groups()
    return op, float(before), float(after)


def test_the_norm_that_changes_is_that_of_the_path_alone():
    """The gradient by the constant, which nobody asked for, does not count."""
    w = tf.Variable([1.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * tf.constant([30.0, 40.0]))
    assert change(tape.why(loss, w).detail) == ("Mul", pytest.approx(2**0.5, abs=0.01), 50.0)


def test_an_op_that_takes_the_source_twice_passes_on_the_sum():
    x = tf.constant([3.0, 4.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(x * x)
    op, _, after = change(tape.why(loss, x).detail)
    assert (op, after) == ("Mul", 10.0)


def test_the_norm_of_rows_that_are_taken_twice():
    table = tf.Variable(tf.ones([4, 2]))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 1]))
        nothing = tf.reduce_sum(tf.gather(table, [1, 1]) * [[1.0], [-1.0]])
    dense = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()
    assert f"The norm of the gradient is {np.linalg.norm(dense):.3g}." in tape.why(loss, table).detail
    found = tape.why(nothing, table)
    assert found.verdict is Verdict.ZERO
    assert found.detail == "The gradients of a row that is gathered several times add up to zero."


def test_the_norm_by_all_values_that_a_variable_had():
    w = tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = w * 3.0
        w.assign(5.0)
        loss += w * 4.0
        nothing = loss - w * 7.0
    assert tape.why(loss, w).detail.startswith("The norm of the gradient is 7.")
    assert float(tape.gradient(nothing, w)) == 0.0
    assert tape.why(nothing, w).verdict is Verdict.ZERO


def test_a_gradient_that_is_not_finite():
    w = tf.Variable([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sqrt(w))
    found = tape.why(loss, w)
    assert found.verdict is Verdict.CONNECTED
    assert found.remedy == "The gradient is not finite: `tape.first_nonfinite(target)` finds the op that caused it."
    assert tape.first_nonfinite(loss).op == "Sqrt"


# ------------------------------------------------------------------ paths


def test_the_path_is_one_that_a_gradient_comes_along():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.round(w * 2.0)) + tf.reduce_sum(tf.nn.relu(w - 9.0)) + tf.reduce_sum(tf.exp(w))
    assert [step.op for step in tape.why(loss, w).reached] == ["Exp", "Sum", "AddV2"]


def test_the_path_of_a_zero_passes_the_op_that_made_it():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.round(w * 2.0)) + tf.reduce_sum(tf.exp(w)) * 0.0
    found = tape.why(loss, w)
    assert [step.op for step in found.reached] == ["Exp", "Sum", "Mul", "AddV2"]
    assert found.cut in found.reached


def test_of_two_cuts_in_a_row_the_first_is_named():
    w = tf.Variable([1.25, 2.5])
    with rt.Tape() as tape:
        level = tf.floor(w)
        loss = tf.reduce_sum(tf.gather([1.0, 2.0, 3.0], tf.cast(level, tf.int32)))
    found = tape.why(loss, w)
    assert (found.verdict, found.cut.op) == (Verdict.RULE_RETURNED_NONE, "Floor")


# ------------------------------------------------------------------ what it leaves alone


def test_what_is_computed_to_find_out_is_not_recorded():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.round(w) + tf.nn.relu(w - 9.0))
        before = tape.summary().ops
        tape.why(loss, w)
        assert tape.summary().ops == before


def test_a_by_product_of_a_function_as_target():
    w = tf.Variable([1.0, 2.0])

    @tf.function
    def error(x):
        return tf.reduce_sum(tf.sin(x * 2.0) ** 2)

    with rt.Tape() as tape:
        error(w)
    found = tape.why(tape.tensors()[-1], w)
    assert (found.verdict, found.cut.op) == (Verdict.NO_GRADIENT, "tf.function 'error'")
    assert "__forward" not in str(found)


def test_a_variable_that_was_never_read_as_target():
    w, unread = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as tape:
        w * 2.0
    found = tape.why(unread, w)
    assert found.verdict is Verdict.TARGET_NOT_RECORDED
    assert found.detail == "No op on the tape has read or assigned it."


# ------------------------------------------------------------------ zeros


def test_a_function_that_cannot_be_run_again_gives_zeros():
    """No reason is claimed: it may be dead, stopped, or not used."""
    w = tf.Variable([1.0, 2.0])

    @tf.function
    def noisy(x):
        return tf.reduce_sum(tf.nn.relu(x - 9.0) + tf.random.normal([2]))

    with rt.Tape() as tape:
        loss = noisy(w)
    found = tape.why(loss, w)
    assert (found.verdict, found.cut.op) == (Verdict.ZERO, "tf.function 'noisy'")
    assert "which op inside makes it zero cannot be determined" in found.detail
    assert "run_functions_eagerly" in found.remedy


def test_relu_that_is_dead_where_it_counts():
    w, mask = tf.Variable([1.0, -1.0]), tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(w) * mask)
    assert tape.why(loss, w).detail == "Every input of the ReLU that contributes to the target is zero or negative."


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda w: tf.math.imag(tf.cast(w, tf.complex64)), "The input is real, and only the imaginary part"),
        (
            lambda w: tf.tensor_scatter_nd_update(w * 2.0, [[0], [1]], [5.0, 6.0]),
            "Every element that contributes to the target is over",
        ),
        (lambda w: tf.exp(w - 500.0), "Its result is 0: every input is -498 or less."),
        (lambda w: tf.cast(tf.cast(w, tf.float16), tf.float32) * 1e-12, "It underflows: the largest element would be"),
        (lambda w: tf.nn.softmax_cross_entropy_with_logits([1.0, 0.0], w * [400.0, 0.0]), "The softmax of the logits"),
        (lambda w: (w - [1.0, 2.0]) ** 2, "Every input is zero, where Pow is flat. The zeros are the result of Sub"),
    ],
)
def test_why_a_gradient_vanishes(compute, said):
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(compute(w))
    assert tape.gradient(loss, w).numpy().tolist() == [0.0, 0.0]
    found = tape.why(loss, w)
    assert found.verdict is Verdict.ZERO
    assert found.detail.startswith(said)
    assert found.remedy


def test_a_custom_gradient_of_zeros():
    @tf.custom_gradient
    def flat(x):
        return x * 2.0, lambda upstream: upstream * 0.0

    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(flat(w))
    assert tape.why(loss, w).detail == "Its gradient function returned zeros."


def test_lists_of_tensors_in_a_loop_can_be_asked_about():
    x = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def squared(values):
        return tf.map_fn(lambda each: each * each, values)

    with rt.Tape() as tape:
        loss = tf.reduce_sum(squared(x))
    found = tape.why(loss, x)
    assert found.verdict is Verdict.CONNECTED
    assert f"norm of the gradient is {np.linalg.norm([2.0, 4.0, 6.0]):.3g}" in found.detail
