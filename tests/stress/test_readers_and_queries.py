"""What only reads a tape, on one thread, while another one makes queries that record."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

READERS = {
    "repr": repr,
    "program": lambda tape: tape.program,
    "memory": lambda tape: tape.memory(),
    "watched_variables": lambda tape: tape.watched_variables(),
    "summary": lambda tape: tape.summary(),
}


@pytest.fixture(autouse=True)
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name", READERS)
def test_gradients_of_gradients_stay_right(name):
    x = tf.constant([1.0, 2.0, 3.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(x**5)
    stop, errors = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                READERS[name](tape)
            except Exception as error:  # handed to the test
                errors.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(60):
            second = tape.gradient(tape.gradient(y, x), x)
            np.testing.assert_allclose(second, 20.0 * x**3, rtol=1e-5)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert len(tape.program.eqns) > 1
