"""Tapes of segments within other tapes, around them and joined."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from record.segments.tools import KEEPS, X, chain, close, combined, frozen, numbers

pytestmark = pytest.mark.slow  # every program four times, in segments of a hundred bytes


OUTER = {"ours": rt.Tape, "stock": tf.GradientTape}


def slope_of(ask: Callable[[rt.Tape, tf.Tensor], tf.Tensor], keep: str, outer: Any) -> Any:
    """Return the derivative, on an outer tape, of what an inner one is asked when its block has ended."""
    with outer:
        outer.watch(X)
        with rt.Tape(keep=keep) as inner:
            y = chain(X)
        first = ask(inner, y)
    return outer.gradient(first, X)


def second_by_x(keep: str, outer: Any) -> Any:
    return slope_of(lambda inner, y: inner.gradient(y, X), keep, outer)


def second_of_a_jacobian(keep: str, outer: Any) -> Any:
    return slope_of(lambda inner, y: inner.jacobian(y, X), keep, outer)


def second_inside_the_block(keep: str, outer: Any) -> Any:
    with outer:
        outer.watch(X)
        with rt.Tape(keep=keep) as inner:
            y = chain(X)
            first = inner.gradient(y, X)
    return outer.gradient(first, X)


def second_of_a_stream(keep: str, outer: Any) -> Any:
    with outer:
        outer.watch(X)
        with rt.Tape(keep=keep) as inner:
            middle = chain(X, 4)
            y = chain(middle, 4)
        total = tf.add_n([tf.reduce_sum(grad * grad) for _, grad in inner.stream(y, [X, middle])])
    return outer.gradient(total, X)


def second_while_another_records(keep: str, outer: Any) -> Any:
    with outer, rt.Tape(keep=keep):
        outer.watch(X)
        with rt.Tape(keep=keep) as inner:
            y = chain(X)
        first = inner.gradient(y, X)
    return outer.gradient(first, X)


def third(keep: str, outer: Any) -> Any:
    with outer:
        outer.watch(X)
        with rt.Tape(keep=keep) as between:
            with rt.Tape(keep=keep) as inner:
                y = chain(X, 3)
            first = inner.gradient(y, X)
        second = between.gradient(first, X)
    return outer.gradient(second, X)


def second_by_a_tensor_between(keep: str, outer: Any) -> Any:
    with outer:
        outer.watch(X)
        with rt.Tape(keep=keep) as inner:
            middle = chain(X, 3)
            y = chain(middle, 5)
        first = inner.gradient(y, middle)
    return outer.gradient(first, middle)


def paused_while_something_is_asked(keep: str, outer: Any) -> Any:
    with outer:
        outer.watch(X)
        with rt.Tape(keep=keep) as inner:
            y = chain(X)
            with outer.stop_recording():
                inner.gradient(y, X)
        first = inner.gradient(y, X)
    return outer.gradient(first, X)


def opened_later(keep: str, outer: Any) -> Any:
    # What ran before the outer tape began is constant to it, whether it is computed again or not.
    with rt.Tape(keep=keep) as inner:
        y = chain(X)
    with outer:
        outer.watch(X)
        first = inner.gradient(y, X)
    return outer.gradient(first, X)


def opened_later_around_a_tensor_between(keep: str, outer: Any) -> Any:
    with rt.Tape(keep=keep) as inner:
        middle = tf.tanh(chain(X, 3))
        y = chain(middle, 5)
    with outer:
        outer.watch(middle)
        first = inner.gradient(y, middle)
    return outer.gradient(first, middle)


NESTS = [
    second_by_x,
    second_inside_the_block,
    second_of_a_jacobian,
    second_of_a_stream,
    second_while_another_records,
    third,
    second_by_a_tensor_between,
    paused_while_something_is_asked,
    opened_later,
    opened_later_around_a_tensor_between,
]
LATER = "what is computed again is a constant to a stock tape that began later; a warning says so"
KNOWN_NESTS = {("opened_later_around_a_tensor_between", "stock", keep): LATER for keep in ("leaves", "disk")}


@pytest.mark.filterwarnings("ignore:A tf.GradientTape is open while values")
@pytest.mark.parametrize(("nest", "outer", "keep"), combined(NESTS, OUTER, KEEPS, known=KNOWN_NESTS))
def test_outer_tapes_lose_nothing(nest: Callable[..., Any], outer: str, keep: str):
    close(nest(keep, OUTER[outer]()), nest("needed", OUTER[outer]()))


def mixed(keep: str) -> Any:
    with rt.Tape(keep=keep) as inner:
        middle = tf.tanh(chain(X, 3))
        y = chain(middle, 5)
    with rt.Tape() as outer:
        product = inner.gradient(y, middle) * middle
    return outer.gradient(product, middle)


@pytest.mark.parametrize("keep", KEEPS)
def test_an_outer_tape_sees_a_tensor_only_after_it_was_recomputed(keep: str):
    close(mixed(keep), mixed("needed"))


@pytest.mark.parametrize("keep", KEEPS)
def test_a_stock_tape_that_began_later_is_warned_of(keep: str):
    with rt.Tape(keep=keep) as inner:
        y = chain(X)
    with tf.GradientTape(), pytest.warns(UserWarning, match=r"it treats them as constants\. Open it before"):
        inner.gradient(y, X)
    with rt.Tape():  # one of ours is told which tensors the new ones stand for
        inner.gradient(y, X)


@pytest.mark.parametrize("keep", KEEPS)
def test_what_a_stock_tape_heard_stays(keep: str):
    with rt.Tape(keep=keep) as alone:
        chain(X)
    with tf.GradientTape(), rt.Tape(keep=keep) as heard:
        chain(X)
    with rt.Tape() as needed:
        chain(X)
    assert alone.memory().bytes < heard.memory().bytes
    assert heard.memory().bytes >= needed.memory().bytes


@pytest.mark.parametrize("keep", KEEPS)
def test_outer_tape_that_keeps_as_little(keep: str):
    close(second_by_x(keep, rt.Tape(keep=keep)), second_by_x("needed", tf.GradientTape()))
    close(third(keep, rt.Tape(keep=keep)), third("needed", tf.GradientTape()))


@pytest.mark.parametrize("keep", KEEPS)
def test_stock_tape_inside(keep: str):
    def second(keep: str) -> Any:
        with rt.Tape(keep=keep) as outer:
            with tf.GradientTape() as inner:
                inner.watch(X)
                y = chain(X)
            first = inner.gradient(y, X)
        return frozen([outer.gradient(first, X), outer.jacobian(first, X)])

    assert second(keep) == second("needed")


@pytest.mark.parametrize("keep", KEEPS)
def test_forward_accumulator_outside(keep: str):
    def second(keep: str) -> Any:
        with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as outer:
            with rt.Tape(keep=keep) as inner:
                y = chain(X)
            first = inner.gradient(y, X)
        return outer.jvp(first)

    close(second(keep), second("needed"))


@pytest.mark.parametrize("keeps", [KEEPS, KEEPS[::-1], ["disk", "needed", "segments", "leaves"]], ids="-".join)
def test_joined_tapes_of_all_kinds(keeps: list[str]):
    def joined(keeps: list[str]) -> Any:
        x, v = numbers(0.2, 1.0, 6), tf.Variable(numbers(0.5, 1.0, 6))
        tapes, y = [], x
        for keep in keeps:
            with rt.Tape(keep=keep) as tape:
                y = chain(y * v, 3)
                v.assign_sub(0.1 * y)
            tapes.append(tape)
        whole = rt.join(*tapes)
        del tapes, tape  # what they moved to files must still be there
        gc.collect()
        loss = [whole.gradient(y, [x, v]), whole.gradient(y, [x, v], through_updates=True)]
        return frozen([loss, whole.jvp(y, x, x), [version.value for version in whole.versions(v)]])

    assert joined(keeps) == joined(["needed"] * len(keeps))
