"""A join that comes again is not copied, and nobody notices."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from threading import Event
from typing import Any
from weakref import ref

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads
from helpers.warm import assert_same, forgetful
from retrotape.transform import _known_joins

W, V = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 5.0])


@pytest.fixture(autouse=True)
def at_first() -> Iterator[None]:
    W.assign([1.0, 2.0])
    V.assign([3.0, 5.0])
    with forgetful():
        yield


def block(x: tf.Tensor, variable: tf.Variable = W) -> tuple[rt.Tape, tf.Tensor]:
    with rt.Tape() as tape:
        y = tf.sin(x * variable)
    return tape, y


def is_known(joined: Any) -> bool:
    return joined._session.trace.followed() is not None


def warm(steps: int = 4) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Join two tapes, of which the second continues the first, a few times."""
    for number in range(steps):
        x = tf.constant([0.5, 0.25]) + number
        first, y = block(x)
        second, z = block(y)
        joined = rt.join(first, second)
    return joined, x, z


def test_the_third_join_of_followed_tapes_is_known():
    assert not is_known(warm(3)[0])
    assert is_known(warm(1)[0])


def test_the_program_and_the_results_are_the_same():
    joined, x, z = warm()
    assert is_known(joined)
    with rt.config(compile=False):
        other, source, target = warm()
    assert str(joined.program) == str(other.program)
    assert_same(joined.gradient(z, [W, x]), other.gradient(target, [W, source]))
    assert_same(joined.jacobian(z, W), other.jacobian(target, W))
    assert joined.why(z, V).verdict == other.why(target, V).verdict


def test_other_variables_and_other_tensors_are_another_join():
    warm()
    x = tf.constant([0.5, 0.25])
    cases = [(x, V, None), (x, W, x), (x, V, x), (x, W, None)]
    for mode in (True, False, True):
        with rt.config(compile=mode):
            for given, variable, again in cases:
                first, y = block(given)
                second, z = block(y if again is None else again, variable)
                found = rt.join(first, second).gradient(z, [W, V, x])
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    one = tf.sin(x * W)
                    two = tf.sin((one if again is None else x) * variable)
                assert_same(found, tape.gradient(two, [W, V, x]))


def test_an_update_that_no_tape_recorded_ends_the_path():
    warm()
    x = tf.constant([0.5, 0.25])
    first, y = block(x)
    W.assign([7.0, 8.0])
    second, _ = block(y)
    joined = rt.join(first, second)
    assert not is_known(joined)
    assert len(joined.versions(W)) == 2


def test_ops_of_two_threads_by_turns():
    def stepwise(x: tf.Tensor, before: Event, after: Event) -> tuple[rt.Tape, tf.Tensor]:
        with rt.Tape() as tape:
            y = tf.sin(x * W)
            after.set()
            assert before.wait(10.0)
            z = y * 2.0
        return tape, z

    def both(by_turns: bool) -> Any:
        x, found = tf.constant([0.5, 0.25]), {}
        one, two, ready = Event(), Event(), Event()
        ready.set()
        work = [
            lambda: found.update(first=stepwise(x, two if by_turns else ready, one)),
            lambda: one.wait(10.0) and found.update(second=stepwise(x, ready, two)),
        ]
        if by_turns:
            in_threads(*work)
        else:
            for step in work:
                step()
        joined = rt.join(found["first"][0], found["second"][0])
        return is_known(joined), [eqn.op for eqn in joined.program.eqns]

    rounds = [both(False) for _ in range(5)]
    assert rounds[-1][0]
    known, ops = both(True)
    assert not known
    assert ops != rounds[-1][1]
    assert sorted(ops) == sorted(rounds[-1][1])


def test_a_longer_join_begins_with_a_known_one():
    joined, x, z = warm()
    third, loss = block(z)
    longer = rt.join(joined, third)
    with tf.GradientTape() as tape:
        expected = tf.sin(tf.sin(tf.sin(x * W) * W) * W)
    assert_same(longer.gradient(loss, W), tape.gradient(expected, W))
    assert len(joined.program.eqns) < len(longer.program.eqns)


def test_what_a_tape_records_later_is_not_part_of_it():
    for _ in range(4):
        first, y = block(tf.constant([0.5, 0.25]))
        joined = rt.join(first)
    assert is_known(joined)
    with first:
        tf.exp(y)
    assert len(joined.program.eqns) == len(first.program.eqns) - 1


def test_the_state_of_a_backward_function_counts():
    state = [1.0]

    @tf.custom_gradient
    def scaled(x: tf.Tensor) -> Any:
        (factor,) = state
        return x * 1.0, lambda grad: grad * factor

    for state[0] in (1.0, 1.0, 1.0, 1.0, 3.0):
        with rt.Tape() as first:
            y = scaled(W * 2.0)
        second, z = block(y)
        joined = rt.join(first, second)
        grad = joined.gradient(z, [W, V])[0]
        with tf.GradientTape() as tape:
            expected = tf.sin(scaled(W * 2.0) * W)
        assert_same(grad, tape.gradient(expected, W))
    assert is_known(joined)


def test_nothing_is_kept_alive():
    joined, x, z = warm()
    assert is_known(joined)
    alive = [ref(x), ref(z), ref(joined._session.trace)]
    del joined, x, z
    gc.collect()
    assert [one() for one in alive] == [None] * 3


def test_few_joins_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_known_joins, "JOINS", 2)
    for count in range(1, 6):
        for _ in range(3):
            rt.join(*[block(tf.constant([0.5, 0.25]))[0] for _ in range(count)])
    assert len(_known_joins._known) == 2
    assert len(_known_joins._seen) <= 8
    monkeypatch.setattr(_known_joins, "TOTAL", 5)
    for _ in range(3):
        rt.join(*[block(tf.constant([0.5, 0.25]))[0] for _ in range(6)])
    assert not _known_joins._known
