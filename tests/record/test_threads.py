"""Each thread records its own ops; a tape may be asked on another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, in_threads


def test_four_threads_record_at_once_and_each_its_own():
    barrier = threading.Barrier(4, timeout=60)
    cube = tf.function(lambda a: a * a * a)
    cube(X)

    def worker(number: int) -> Callable[[], None]:
        def work() -> None:
            x = tf.constant(float(number + 1))
            for _ in range(5):
                barrier.wait()
                with rt.Tape() as tape:
                    y = tf.reshape(cube(x), [1])
                    for _ in range(number):
                        y = tf.negative(y)
                    barrier.wait()
                    z = tf.reshape(y, []) * x
                sign = (-1) ** number
                assert_close(tape.gradient(z, x), sign * 4 * x**3)
                assert sum(eqn.op == "Neg" for eqn in tape.program.eqns) == number

        return work

    in_threads(*(worker(number) for number in range(4)))


def test_leaving_one_block_does_not_blind_another_thread():
    entered, left = threading.Event(), threading.Event()
    square = tf.function(lambda a: a * a)
    square(X)

    def short() -> None:
        with rt.Tape():
            entered.set()
            square(X)
        left.set()

    def long() -> None:
        with rt.Tape() as tape:
            entered.wait(60)
            left.wait(60)
            y = tf.reshape(square(X), [1])
            z = tf.reshape(y, []) * X
        assert_close(tape.gradient(z, X), 3 * X**2)

    in_threads(long, short)


def test_an_op_of_another_thread_is_not_recorded():
    made = []
    with rt.Tape() as tape:
        y = X * X
        in_threads(lambda: made.append(tf.reshape(tf.sin(X), [1])))
    assert [eqn.op for eqn in tape.program.eqns] == ["Mul"]
    assert_close(tape.gradient(y, X), 2 * X)


def test_a_tape_may_be_asked_in_another_thread():
    found = []
    with rt.Tape() as tape:
        y = X**3
    in_threads(lambda: found.append(tape.gradient(y, X)))
    in_threads(lambda: found.append(tape.gradient(found[0], X)))
    assert_close(found, [3 * X**2, 6 * X])
