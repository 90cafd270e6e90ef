"""Tapes asked side by side give what they give one after the other, to the bit."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.tape import parallel

WAYS = pytest.mark.parametrize("way", [False, True, None], ids=["in turn", "threads", "chosen"])


@pytest.fixture
def work() -> SimpleNamespace:
    """Four sub-models with a shared variable and a sparse one, a tape each, and what stock tapes give."""
    rng = np.random.default_rng(0)
    shared, table = tf.Variable(rng.normal(size=(8, 8))), tf.Variable(rng.normal(size=(6, 8)))
    own = [tf.Variable(rng.normal(size=(8, 8))) for _ in range(4)]
    variables = [shared, table, *own]
    tapes, losses, expected = [], [], []
    for number, matrix in enumerate(own):
        with tf.GradientTape() as stock, rt.Tape() as tape:
            hidden = tf.tanh(tf.gather(table, [number, 0]) @ shared)
            loss = tf.reduce_sum(tf.nn.softmax(hidden @ matrix) ** 2)
        tapes.append(tape)
        losses.append(loss)
        expected.append(stock.gradient(loss, variables))
    return SimpleNamespace(tapes=tapes, losses=losses, expected=expected, variables=variables)


def dense(grad):
    return None if grad is None else tf.convert_to_tensor(grad).numpy()


def check(found: list[rt.Gradients], work: SimpleNamespace) -> None:
    for grads, expected in zip(found, work.expected, strict=True):
        for variable, grad in zip(work.variables, expected, strict=True):
            np.testing.assert_array_equal(dense(grads.get(variable)), dense(grad))


@pytest.fixture
def threads(monkeypatch) -> set[str]:
    """The names of the threads on which a tape was asked."""
    names: set[str] = set()
    backward = rt.Tape.backward

    def noted(self, *args, **options):
        here = threading.current_thread()
        names.add("main" if here is threading.main_thread() else here.name.rpartition("_")[0])
        return backward(self, *args, **options)

    monkeypatch.setattr(rt.Tape, "backward", noted)
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: 4)
    return names


# ------------------------------------------------------------------ the same numbers


@WAYS
def test_the_numbers_are_those_of_stock_tapes_to_the_bit(work, way):
    check(rt.backward_all(work.tapes, work.losses, parallel=way), work)
    check(rt.backward_all(work.tapes, work.losses, work.variables, parallel=way), work)


def test_the_order_is_that_of_the_tapes(work):
    backwards = rt.backward_all(work.tapes[::-1], work.losses[::-1], parallel=True)
    check(backwards[::-1], work)


@WAYS
def test_many_times_on_many_threads(work, way):
    found = rt.backward_all(work.tapes * 10, work.losses * 10, work.variables, parallel=way)
    for start in range(0, 40, 4):
        check(found[start : start + 4], work)


@WAYS
def test_two_losses_of_one_tape(way):
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        losses = [w**2, 5.0 * w, w**3]
    assert [float(grads[w]) for grads in rt.backward_all([tape] * 3, losses, parallel=way)] == [6.0, 5.0, 27.0]


@WAYS
def test_joined_tapes_beside_plain_ones(way):
    x = tf.constant(1.0)
    with rt.Tape() as first:
        y = x**2
    with rt.Tape() as second:
        z = tf.sin(y)
    joined, plain = rt.backward_all([rt.join(first, second), first], [z, y], x, parallel=way)
    assert (float(joined[x]), float(plain[x])) == pytest.approx((2.0 * math.cos(1.0), 2.0))


@WAYS
def test_options_are_handed_on(way):
    v, tapes, losses = tf.Variable(3.0), [], []
    for _ in range(2):
        with rt.Tape() as tape:
            v.assign(v * 2.0)
            losses.append(v * v)
        tapes.append(tape)
    found = rt.backward_all(tapes, losses, v, parallel=way, through_updates=True)
    assert [float(grads[v]) for grads in found] == [24.0, 48.0]


@WAYS
def test_none_and_one(work, way):
    assert rt.backward_all([], [], parallel=way) == []
    (only,) = rt.backward_all(work.tapes[:1], work.losses[:1], parallel=way)
    np.testing.assert_array_equal(only[work.variables[0]], work.expected[0][0])


def test_an_answer_from_a_thread_can_be_asked_about(work):
    shared = work.variables[0]
    tape = work.tapes[0]
    grads, _ = rt.backward_all(work.tapes[:2], work.losses[:2], parallel=True)
    expected = tape.gradient(tape.gradient(work.losses[0], shared), shared)
    np.testing.assert_allclose(tape.gradient(grads[shared], shared), expected, rtol=1e-12)


# ------------------------------------------------------------------ where it runs


def test_threads_are_used_if_asked_for(work, threads):
    rt.backward_all(work.tapes, work.losses, parallel=True)
    assert threads == {"backward_all"}


def test_no_threads_by_default_or_if_refused(work, threads):
    rt.backward_all(work.tapes, work.losses)
    rt.backward_all(work.tapes, work.losses, parallel=False)
    assert threads == {"main"}


@pytest.mark.parametrize(
    ("per_op", "intra_op", "used"),
    [(1, 1, "backward_all"), (10**9, 1, "main"), (1, 0, "main"), (1, 2, "main")],
    ids=["large", "small", "TensorFlow's threads", "two threads"],
)
def test_with_one_thread_per_op_the_size_decides(work, threads, monkeypatch, per_op, intra_op, used):
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: intra_op)
    monkeypatch.setattr(parallel, "BYTES_PER_OP", per_op)
    check(rt.backward_all(work.tapes, work.losses), work)
    assert threads == {used}


def test_a_tape_that_records_here_hears_the_answers(work, threads):
    shared = work.variables[0]
    with rt.Tape() as around:
        total = sum(rt.backward_all(work.tapes, work.losses, parallel=True))[shared]
        energy = tf.reduce_sum(total**2)
    assert threads == {"main"}
    np.testing.assert_allclose(around.gradient(energy, total), 2.0 * total)


def test_a_stock_tape_that_records_here_hears_the_answers(threads):
    x, tapes, losses = tf.constant(3.0), [], []
    with tf.GradientTape() as around:
        around.watch(x)
        for power in (2.0, 3.0):
            with rt.Tape() as tape:
                losses.append(x**power)
            tapes.append(tape)
        first, second = (grads[x] for grads in rt.backward_all(tapes, losses, x, parallel=True))
        total = first + second
    assert threads == {"main"}
    assert float(around.gradient(total, x)) == 2.0 + 6.0 * 3.0


def test_a_paused_tape_is_asked_here(threads):
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        losses = [w**2, w**3]
        with tape.stop_recording():
            found = rt.backward_all([tape, tape], losses, parallel=True)
    assert threads == {"main"}
    assert [float(grads[w]) for grads in found] == [6.0, 27.0]


def test_inside_a_function(threads):
    w = tf.Variable(3.0)

    @tf.function
    def ask():
        tapes, losses = [], []
        for power in (2.0, 3.0):
            with rt.Tape() as tape:
                losses.append(w**power)
            tapes.append(tape)
        return [grads[w] for grads in rt.backward_all(tapes, losses, parallel=True)]

    assert [float(grad) for grad in ask()] == [6.0, 27.0]
    assert threads == {"main"}


# ------------------------------------------------------------------ what is refused


@WAYS
def test_an_error_comes_out_as_it_is(work, way):
    late = work.losses[0] * 2.0
    with pytest.raises(errors.NotRecordedError, match="it was made after recording ended"):
        rt.backward_all(work.tapes, [*work.losses[:3], late], parallel=way)


def test_one_loss_for_each_tape(work):
    with pytest.raises(errors.ShapeMismatchError, match="Got 3 losses for 4 tapes; give one for each"):
        rt.backward_all(work.tapes, work.losses[:3])


def test_something_else_than_tapes(work):
    with pytest.raises(
        errors.TapeUseError,
        match=r"takes tapes, got GradientTape: `rt.backward_all\(\[first, second\], losses\)`",
    ):
        rt.backward_all([tf.GradientTape()], work.losses[:1])
    with pytest.raises(errors.TapeUseError, match=r"takes a list of tapes .* for one, `tape.backward\(loss\)`"):
        rt.backward_all(work.tapes[0], work.losses[0])
