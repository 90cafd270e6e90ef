from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt


def test_all_finite():
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.math.log(x))
    assert tape.first_nonfinite() is None
    assert tape.first_nonfinite(y) is None


def test_the_producer_is_named_and_not_those_that_passed_it_on():
    x = tf.constant([0.0, 2.0])
    with rt.Tape() as tape:
        inverse = 1.0 / x
        y = tf.reduce_sum(tf.sin(inverse) * 0.0)
    found = tape.first_nonfinite(y)
    assert (found.op, found.backward) == ("RealDiv", False)
    assert found.frame.file == __file__
    assert "from 0 to 2" in str(found)
    assert str(found).startswith("RealDiv at ")


def test_a_gradient_that_is_not_finite_though_the_value_is():
    x = tf.constant([0.0, 4.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.sqrt(x))
    found = tape.first_nonfinite(y)
    assert (found.op, found.backward) == ("Sqrt", True)
    assert "the gradient of Sqrt" in str(found)


def test_the_branch_that_where_did_not_take():
    x = tf.constant([0.0, 4.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.where(x > 0.0, tf.math.log(x), 0.0))
    assert tape.first_nonfinite(y).op == "Log"


def test_through_an_optimizer_without_epsilon():
    w = tf.Variable([0.0, 1.0])
    optimizer = tf.keras.optimizers.RMSprop(0.1, epsilon=0.0)
    optimizer.build([w])
    with rt.Tape() as tape:
        optimizer.apply([2.0 * w * tf.constant([1.0, 1.0])], [w])
        y = tf.reduce_sum(w * tf.constant([0.0, 1.0]))
    assert tape.first_nonfinite(y) is not None


def test_inside_a_function_there_are_no_values():
    @tf.function
    def ask(x):
        with rt.Tape() as tape:
            y = x * x
        return tape.first_nonfinite(y)

    with pytest.raises(rt.errors.TapeUseError, match="Ask in eager code"):
        ask(tf.constant(1.0))
