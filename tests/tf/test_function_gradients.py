"""The gradients that TensorFlow makes of a function, asked for by several threads at once."""

from __future__ import annotations

import time
from threading import Barrier

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads
from retrotape.tf import functions
from retrotape.tf.function_gradients import own_gradients


@pytest.fixture
def function():
    return tf.function(lambda x: x * x).get_concrete_function(tf.TensorSpec([], tf.float32))


def gradients_of(function):
    return [function._first_order_tape_functions, function._higher_order_tape_functions]


def test_what_a_function_had_comes_back_when_the_last_one_leaves(function):
    before = gradients_of(function)
    first, second = own_gradients(function), own_gradients(function)
    first.__enter__()
    second.__enter__()
    inside = gradients_of(function)
    first.__exit__(None, None, None)
    still = gradients_of(function)
    second.__exit__(None, None, None)
    assert all(now is not then for now, then in zip(inside, before, strict=True))
    assert all(now is then for now, then in zip(still, inside, strict=True))
    assert all(now is then for now, then in zip(gradients_of(function), before, strict=True))


def test_one_gradient_is_made_for_all_threads(function, monkeypatch):
    made = []
    make = functions.gradient_function

    def slowly(function):
        made.append(function)
        time.sleep(0.05)  # so that others ask meanwhile
        return make(function)

    monkeypatch.setattr(functions, "gradient_function", slowly)
    x, start, found = tf.constant(3.0), Barrier(6), []
    with rt.Tape() as tape:
        y = function(x)

    def ask():
        with rt.Tape() as own:
            z = function(x)
        start.wait()
        found.append(float(own.hvp(z, x, tf.constant(1.0))))

    in_threads(*[ask] * 6)
    assert found == [2.0] * 6
    assert float(tape.gradient(y, x)) == 6.0
    assert len(made) == len(set(map(id, made)))
