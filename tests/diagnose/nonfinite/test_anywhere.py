"""`tape.first_nonfinite()` without a target: everything that was recorded, forward, and back from scalars."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

INF = float("inf")


@pytest.mark.parametrize("given", [[INF, 1.0], [-INF, 1.0]])
@pytest.mark.parametrize("summed", [True, False])
def test_an_infinity_that_was_given_is_found_in_a_result(given: list[float], summed: bool) -> None:
    x = tf.constant(given)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x * 2.0) if summed else x * 2.0
    found = tape.first_nonfinite()
    assert (found.op, found.cause, found.backward) == ("Mul", rt.Cause.GIVEN, False)
    assert str(found) == str(tape.first_nonfinite(y))


def test_a_mask_of_infinities_does_no_harm() -> None:
    scores, mask = tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[0.0, 0.0, -INF]])
    with rt.Tape() as tape:
        weights = tf.nn.softmax(scores + mask)
        loss = tf.reduce_sum(weights * [1.0, 2.0, 3.0])
    assert tape.first_nonfinite() is None
    assert np.isfinite(tape.gradient(loss, scores)).all()


def test_a_gradient_of_a_scalar_that_nothing_uses_further() -> None:
    x = tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        tf.reduce_sum(x * 3.0)
        tf.reduce_sum(tf.sqrt(x))
        tf.reduce_mean(x)
    found = tape.first_nonfinite()
    assert (found.op, found.backward, found.cause.name) == ("Sqrt", True, "SQRT_AT_ZERO")


def test_a_scalar_that_was_named_though_something_uses_it(tmp_path: Any) -> None:
    x = tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sqrt(x))
        text = tf.strings.as_string(loss)
    assert tape.first_nonfinite() is None  # the loss goes into a text
    tape.save(tmp_path / "a.tape", {"loss": loss, "x": x, "text": text})
    found = rt.load(tmp_path / "a.tape").first_nonfinite()
    assert (found.op, found.backward) == ("Sqrt", True)


def test_without_scalars_only_values_are_looked_at() -> None:
    x = tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        y = tf.sqrt(x)
    assert tape.first_nonfinite() is None
    assert tape.first_nonfinite(y).backward


def test_what_is_made_comes_before_what_is_given_and_both_before_gradients() -> None:
    x, given = tf.constant([0.0, 1.0]), tf.constant(INF)
    with rt.Tape() as tape:
        _ = given * 1.0
        tf.reduce_sum(tf.sqrt(x))
        made = tf.math.log(x)
    assert tape.first_nonfinite().op == "Log"
    assert made.shape == (2,)


def test_a_dataset_in_the_block() -> None:
    w = tf.Variable([1.0, -1.0])
    with rt.Tape() as tape:
        total = 0.0
        for row in tf.data.Dataset.from_tensor_slices([[1.0, 2.0], [3.0, 1.0]]).map(lambda a: a * 2.0).batch(1):
            total += tf.reduce_sum(w * row)
    assert tape.first_nonfinite() is None
    assert tape.first_nonfinite(total) is None
    with tape:
        total += tf.reduce_sum(tf.sqrt(w))
    assert tape.first_nonfinite().op == tape.first_nonfinite(total).op == "Sqrt"


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_fit_in_the_block(eagerly: bool) -> None:
    x, y = tf.ones([8, 2]), tf.ones([8, 1])
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=eagerly)
    with rt.Tape() as tape:
        model.fit(x, y, batch_size=4, verbose=0)
    assert tape.first_nonfinite() is None
    with rt.Tape() as tape:
        model.fit(x, y, batch_size=4, verbose=0)
        tf.reduce_sum(tf.math.log(model(x) * 0.0))
    assert tape.first_nonfinite().op == "Log"


def test_code_of_somebody_that_fails_on_the_way_back_is_passed_over() -> None:
    @tf.custom_gradient
    def failing(x: tf.Tensor) -> Any:
        def grad(_: tf.Tensor) -> tf.Tensor:
            raise RuntimeError("what it needs is gone")

        return x * 2.0, grad

    x = tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        tf.reduce_sum(failing(x))
    assert tape.first_nonfinite() is None
    with tape:
        tf.reduce_sum(tf.sqrt(x))
    assert tape.first_nonfinite().op == "Sqrt"
