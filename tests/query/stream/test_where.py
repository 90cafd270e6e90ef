"""Gradients one by one inside the block, inside functions, within outer tapes and on joined ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.untouched import is_untouched
from query.stream.nets import KEEPS, Net, identical, matches
from retrotape import errors


@pytest.mark.parametrize("keep", KEEPS)
def test_inside_the_block_what_is_yielded_is_recorded(keep: str):
    net = Net()
    with rt.Tape(keep=keep) as tape:
        loss = net.loss()
        total = tf.add_n([tf.reduce_sum(grad**2) for _, grad in tape.stream(loss)])
    with tf.GradientTape() as outer:
        outer.watch(net.x)
        with tf.GradientTape() as inner:
            loss = net.loss()
        wanted = tf.add_n([tf.reduce_sum(grad**2) for grad in inner.gradient(loss, net.weights)])
    np.testing.assert_allclose(tape.gradient(total, net.x), outer.gradient(wanted, net.x), rtol=1e-9)


def asked_in_function(net: Net, ask: Callable[[rt.Tape, tf.Tensor, tf.Tensor], Any], keep: str = "needed") -> Any:
    @tf.function
    def function(x: tf.Tensor) -> Any:
        net.x = x
        with rt.Tape(keep=keep) as tape:
            loss = net.loss()
        return ask(tape, loss, x)

    x = net.x
    try:
        return function(x)
    finally:
        net.x = x


@pytest.mark.parametrize("keep", KEEPS)
def test_inside_a_function(keep: str):
    net = Net()

    def all_at_once(tape: rt.Tape, loss: tf.Tensor, x: tf.Tensor) -> Any:
        return tape.gradient(loss, [*net.weights, x])

    def one_by_one(tape: rt.Tape, loss: tf.Tensor, x: tf.Tensor) -> Any:
        found: list[Any] = [None] * 7
        for source, grad in tape.stream(loss, [*net.weights, x]):
            found[6 if source is x else net.number(source)] = grad
        return found

    wanted = asked_in_function(net, all_at_once, keep)
    for grad, expected in zip(asked_in_function(net, one_by_one, keep), wanted, strict=True):
        identical(grad, expected)


def test_inside_a_function_with_updates_as_they_come():
    net, other = Net(), Net()

    def train(tape: rt.Tape, loss: tf.Tensor, x: tf.Tensor) -> Any:
        for weight, grad in tape.stream(loss):
            weight.assign_sub(0.1 * grad)
        return loss

    asked_in_function(net, train)
    tape, loss = other.recorded()
    for weight, grad in zip(other.weights, tape.gradient(loss, other.weights), strict=True):
        weight.assign_sub(0.1 * grad)
    for ours, theirs in zip(net.weights, other.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_inside_a_function_abandoned():
    net = Net()

    def ask(tape: rt.Tape, loss: tf.Tensor, x: tf.Tensor) -> Any:
        stream = tape.stream(loss)
        next(stream)
        del stream
        with tape:
            more = loss * 2.0
        return tape.gradient(more, x), tape.gradient(loss, x)

    twice, once = asked_in_function(net, ask)
    np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-12)
    assert is_untouched()


def of_all(grads: Iterator[Any] | list[Any]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.sin(grad)) for grad in grads])


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("outer", [rt.Tape, tf.GradientTape], ids=["ours", "stock"])
def test_second_derivatives_on_an_outer_tape(outer: Any, keep: str):
    net = Net()

    def second(ask: Callable[[rt.Tape, tf.Tensor], Any], keep: str, outer: Any) -> Any:
        with outer:
            outer.watch(net.x)
            tape, loss = net.recorded(keep)
            total = ask(tape, loss)
        return outer.gradient(total, [net.x, *net.weights])

    streamed = second(lambda tape, loss: of_all(grad for _, grad in tape.stream(loss)), keep, outer())
    stock = second(
        lambda tape, loss: of_all(tape.gradient(loss, net.weights[::-1])), "needed", tf.GradientTape(persistent=True)
    )
    for one, other in zip(streamed, stock, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def test_of_joined_tapes():
    net = Net()
    with rt.Tape() as whole:
        with rt.Tape(keep="disk") as first:
            y = tf.tanh(net.x @ net.weights[0])
        with rt.Tape(keep="segments") as second:
            loss = tf.reduce_sum(tf.sin(y @ net.weights[1]) @ net.weights[0])
    sources = [net.weights[0], net.weights[1], net.x, y]
    matches(list(rt.join(second, first).stream(loss, sources)), sources, whole.gradient(loss, sources))


def test_the_derivative_of_what_was_streamed_is_refused_with_a_reason():
    net = Net()
    tape, loss = net.recorded()
    _, grad = next(tape.stream(loss))
    with pytest.raises(errors.NotRecordedError, match="it was made after recording ended"):
        tape.gradient(grad, net.x)
