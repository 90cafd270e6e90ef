"""One tape after another joined to the joined ones: the same as all at once, and what was joined before stays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import forgetful
from retrotape import errors
from retrotape.transform import _join

Recorded = tuple[list[rt.Tape], list[tf.Tensor], tf.Tensor, tf.Variable]


def chain(count: int) -> Recorded:
    """Return tapes of which each continues the one before, with losses, their first input and a variable."""
    x, w = tf.constant([0.5, 0.25]), tf.Variable([0.9, 1.1], name="w")
    tapes, losses, h = [], [], x
    for _ in range(count):
        with rt.Tape() as tape:
            h = tf.sin(h * w)
            losses.append(tf.reduce_sum(h))
        tapes.append(tape)
    return tapes, losses, x, w


def updated(count: int) -> Recorded:
    """Return tapes that read a variable and update it."""
    x, w = tf.constant([0.5, 0.25]), tf.Variable([0.9, 1.1], name="w")
    tapes, losses = [], []
    for _ in range(count):
        with rt.Tape() as tape:
            losses.append(tf.reduce_sum(tf.square(x * w)))
            w.assign_sub(0.1 * x)
        tapes.append(tape)
    return tapes, losses, x, w


def unused(count: int) -> Recorded:
    """Return tapes with values that no op uses, and with values that Python read."""
    tapes, losses, x, w = chain(count)
    for tape, loss in zip(tapes, losses, strict=True):
        with tape:
            tape.watch(tf.constant(1.0))
            float(loss)
    return tapes, losses, x, w


def interleaved(count: int) -> Recorded:
    """Return tapes that ran at the same time and share ops."""
    x, w = tf.constant([0.5, 0.25]), tf.Variable([0.9, 1.1], name="w")
    tapes = [rt.Tape() for _ in range(count)]
    losses, h = [], x
    for tape in [*tapes, *tapes]:
        with tapes[0], rt.Tape() if tape is tapes[0] else tape:
            h = tf.sin(h * w)
            losses.append(tf.reduce_sum(h))
    return tapes, losses, x, w


PROGRAMS = [chain, updated, unused, interleaved]


def one_by_one(tapes: list[rt.Tape], each: Callable[[Any, int], None] = lambda joined, number: None) -> Any:
    joined: Any = tapes[0]
    for number, tape in enumerate(tapes[1:], 1):
        joined = rt.join(joined, tape)
        each(joined, number)
    return joined


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("queried", [False, True])
def test_the_same_program_and_results_as_all_at_once(program, queried):
    tapes, losses, x, w = program(6)
    whole = rt.join(*tapes)
    joined = one_by_one(tapes, lambda joined, number: queried and joined.gradient(losses[number], w))
    assert str(joined.program) == str(whole.program)
    for through in (False, True):
        for one, other in zip(
            joined.gradient(losses, [x, w], through_updates=through),
            whole.gradient(losses, [x, w], through_updates=through),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
    assert len(joined.versions(w)) == len(whole.versions(w))
    assert str(joined.summary()) == str(whole.summary())


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("queried", [False, True])
def test_what_was_joined_before_does_not_change(program, queried):
    tapes, losses, x, w = program(6)
    kept, before = [], []

    def keep(joined: Any, number: int) -> None:
        kept.append(joined)
        if queried:
            before.append(str(joined.program))

    one_by_one(tapes, keep)
    for number, joined in reversed(list(enumerate(kept, 1))):
        whole = rt.join(*tapes[: number + 1])
        assert str(joined.program) == str(whole.program)
        assert not before or before[number - 1] == str(joined.program)
        for one, other in zip(
            joined.gradient(losses[number], [x, w]), whole.gradient(losses[number], [x, w]), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_a_later_tape_is_not_on_the_earlier_join():
    tapes, losses, x, _ = chain(4)
    early = rt.join(*tapes[:2])
    early.gradient(losses[1], x)
    late = rt.join(early, tapes[2])
    assert late.gradient(losses[2], x) is not None
    with pytest.raises(errors.NotRecordedError):
        early.gradient(losses[2], x)


@pytest.mark.parametrize("first", [0, 1])
def test_two_joins_that_begin_with_the_same_one(first):
    tapes, losses, x, _ = chain(4)
    begin = rt.join(*tapes[:2])
    want = [rt.join(*tapes[:2], tape) for tape in tapes[2:]]
    joins = [rt.join(begin, tape) for tape in tapes[2:]]
    del begin
    gc.collect()
    for number in (first, 1 - first):
        assert str(joins[number].program) == str(want[number].program)
        grads = (join.gradient(losses[2 + number], x) for join in (joins[number], want[number]))
        np.testing.assert_equal(*(None if grad is None else grad.numpy() for grad in grads))


def test_what_a_tape_records_later_is_not_part_of_the_join():
    tapes, _, x, _ = chain(3)
    joined = rt.join(rt.join(*tapes[:2]), tapes[2])
    with tapes[2]:
        later = x * 2.0
    with pytest.raises(errors.NotRecordedError):
        joined.gradient(later, x)
    tapes[2].reset()
    assert len(joined.program.eqns) == len(rt.join(*tapes[:2]).program.eqns) + 4


def test_gradients_that_explain_themselves_later():
    tapes, losses, _, _ = chain(4)
    unread = tf.Variable(1.0)
    joined = rt.join(*tapes[:2])
    grads = joined.backward(losses[1], [unread])
    for tape in tapes[2:]:
        joined = rt.join(joined, tape)
        joined.gradient(losses[3], unread) if tape is tapes[3] else None
    assert grads.why(unread) == "it was not read on this tape"


def test_a_join_that_was_interrupted_gives_no_result(monkeypatch):
    with forgetful():  # a known join is not used up by a longer one
        tapes, losses, x, _ = chain(4)
        joined = rt.join(*tapes[:2])
    joined.gradient(losses[1], x)
    joined = rt.join(joined, tapes[2])
    add = _join.Joiner.add

    def interrupted(self, which, index, time):
        add(self, which, index, time)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_join.Joiner, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            joined.gradient(losses[2], x)
    with pytest.raises(errors.InterruptedTapeError):
        joined.gradient(losses[2], x)
    np.testing.assert_array_equal(rt.join(*tapes).gradient(losses[2], x), rt.join(*tapes[:3]).gradient(losses[2], x))


def test_loaded_tapes_and_their_names(tmp_path):
    tapes, losses, _, _ = chain(4)
    for number, (tape, loss) in enumerate(zip(tapes, losses, strict=True)):
        tape.save(tmp_path / f"{number}.tape", {f"loss{number}": loss, "same": loss})
    loaded = [rt.load(tmp_path / f"{number}.tape") for number in range(4)]
    whole, joined = rt.join(*loaded), one_by_one(loaded)
    early = loaded[1]["loss1"]  # made after it was joined
    assert sorted(joined.names) == sorted(whole.names)
    for tape in (whole, joined):
        np.testing.assert_array_equal(tape.gradient(early, loaded[1]["w"]), whole.gradient("loss1", loaded[1]["w"]))
        with pytest.raises(errors.TapeUseError, match="More than one of the joined tapes has the name 'same'"):
            tape.gradient("same", "w")


def test_each_equation_is_copied_once(monkeypatch):
    tapes, losses, _, w = chain(20)
    copied, add = [], _join.Joiner.add
    monkeypatch.setattr(_join.Joiner, "add", lambda *given: copied.append(given[1:]) or add(*given))
    joined = one_by_one(tapes, lambda joined, number: joined.gradient(losses[number], w))
    assert len(copied) <= len(joined.program.eqns) + 4  # the first join is copied once more
