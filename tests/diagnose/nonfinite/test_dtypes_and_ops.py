"""`first_nonfinite` for dtypes and ops that few programs have, and how its answer is shown."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import rich
import tensorflow as tf

import retrotape as rt
from retrotape.diagnose.nonfinite import Cause


def test_bfloat16():
    """NumPy has no such dtype of its own."""
    x = tf.constant([1e38, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.cast(x, tf.bfloat16) * 10.0)
        fine = tf.reduce_sum(tf.cast(x, tf.bfloat16) * 0.5)
    found = tape.first_nonfinite(loss)
    assert (found.op, found.cause) == ("Mul", Cause.OVERFLOW)
    assert found.inputs[0].startswith("bfloat16[2] from 1 to ")
    assert tape.first_nonfinite(fine) is None


def test_bfloat16_backward():
    x = tf.Variable([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sqrt(tf.cast(x, tf.bfloat16)))
    found = tape.first_nonfinite(loss)
    assert (found.op, found.backward, found.cause) == ("Sqrt", True, Cause.SQRT_AT_ZERO)


@pytest.mark.parametrize(
    ("compute", "cause", "said"),
    [
        (lambda: tf.math.rsqrt([0.0, 4.0]), Cause.RSQRT_OF_ZERO, "The input is exactly 0 at 1 of 2 positions."),
        (
            lambda: tf.math.erfinv([0.5, 2.0]),
            Cause.OUTSIDE_DOMAIN,
            "The input is not inside (-1, 1) at 1 of 2 positions.",
        ),
        (lambda: tf.linalg.cholesky([[1.0, 2.0], [2.0, 1.0]]), Cause.NOT_DEFINITE, "Its smallest eigenvalue is -1."),
    ],
)
def test_causes(compute, cause, said):
    with rt.Tape() as tape:
        loss = tf.reduce_sum(compute())
    assert not np.isfinite(loss.numpy())
    found = tape.first_nonfinite(loss)
    assert (found.cause, found.detail) == (cause, said)


def test_of_several_matrices_those_that_are_wrong_are_judged():
    good, bad = [[2.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, -3.0]]
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.linalg.cholesky([good, bad]))
    found = tape.first_nonfinite(loss)
    assert (found.cause, found.detail) == (Cause.NOT_DEFINITE, "Its smallest eigenvalue is -3.")


def test_a_function_with_draws_is_named_as_the_user_does():
    x = tf.constant([0.0, 1.0])

    @tf.function
    def noisy(x):
        return tf.reduce_sum(tf.math.log(x) + tf.random.normal([2]))

    with rt.Tape() as tape:
        loss = noisy(x)
    found = tape.first_nonfinite(loss)
    assert (found.op, found.cause) == ("tf.function 'noisy'", Cause.INSIDE_FUNCTION)
    assert "run_functions_eagerly" in found.remedy
    assert [name for row in tape.summary().rows for name in row.ops if "noisy" in name] == ["tf.function 'noisy'"]
    assert {one.op for one in tape.tensors().found if "noisy" in one.op} == {"tf.function 'noisy'"}


def test_it_is_shown_as_its_text(capsys):
    x = tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.math.log(x)[0:1])
    found = tape.first_nonfinite(loss)
    assert repr(found) == str(found)
    assert pickle.loads(pickle.dumps(found)) == found
    rich.print(found)
    assert "tf.math.log(x)[0:1]" in capsys.readouterr().out.replace("\n", "")
    assert repr(tape.summary()) == str(tape.summary())
