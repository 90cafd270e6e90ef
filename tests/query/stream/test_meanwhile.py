"""What may happen between one gradient and the next."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.untouched import is_untouched
from query.stream.nets import KEEPS, Net, identical, matches
from retrotape import errors


def test_weights_may_be_updated_as_their_gradients_come():
    @tf.custom_gradient
    def scaled(x: tf.Tensor) -> Any:
        def back(upstream: tf.Tensor, variables: Any = None) -> Any:
            return upstream * variables[0], [tf.reduce_sum(upstream * x)]

        return x * scale, back

    scale = tf.Variable(2.0, dtype=tf.float64)
    for keep in KEEPS:
        net = Net()
        scale.assign(2.0)
        with rt.Tape(keep=keep) as tape:
            loss = tf.reduce_sum(scaled(net.loss()))
        sources = [scale, *net.weights]
        wanted = tape.gradient(loss, sources)
        found = []
        for variable, grad in tape.stream(loss, sources):
            found.append((variable, grad))
            variable.assign_sub(0.5 * grad)
        matches(found, sources, wanted)
        matches(list(tape.stream(loss, sources)), sources, wanted)


@pytest.mark.parametrize("keep", KEEPS)
def test_other_questions_in_between(keep: str):
    net = Net()
    tape, loss = net.recorded(keep)
    wanted = tape.gradient(loss, net.weights)
    product = tape.hvp(loss, net.x, net.x)
    found = []
    for pair in tape.stream(loss):
        found.append(pair)
        identical(tape.hvp(loss, net.x, net.x), product)
        first = tape.gradient(loss, net.x)
        tape.gradient(first, net.x)
        with tape:
            tf.sin(net.x)
    matches(found, net.weights, wanted)


@pytest.mark.parametrize("keep", KEEPS)
def test_two_at_a_time(keep: str):
    net = Net()
    tape, loss = net.recorded(keep)
    wanted = tape.gradient(loss, net.weights)
    pairs = list(zip(tape.stream(loss), tape.stream(loss), strict=True))
    matches([one for one, _ in pairs], net.weights, wanted)
    matches([two for _, two in pairs], net.weights, wanted)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("end", ["closed", "dropped", "raised"])
def test_one_that_is_abandoned_leaves_the_tape_usable(keep: str, end: str):
    net = Net()
    tape, loss = net.recorded(keep)
    wanted = tape.gradient(loss, net.weights)
    stream = tape.stream(loss)
    next(stream), next(stream)
    if end == "closed":
        stream.close()
    elif end == "raised":
        with pytest.raises(KeyError, match="mine"):
            stream.throw(KeyError("mine"))
    del stream
    assert is_untouched()
    for grad, expected in zip(tape.gradient(loss, net.weights), wanted, strict=True):
        identical(grad, expected)
    matches(list(tape.stream(loss)), net.weights, wanted)
    with tape:
        more = tf.sin(loss)
    with rt.Tape() as fresh:
        again = tf.sin(net.loss())
    identical(tape.gradient(more, net.x), fresh.gradient(again, net.x))
    np.testing.assert_allclose(tape.hvp(more, net.x, net.x), fresh.hvp(again, net.x, net.x), rtol=1e-12)


def test_the_tape_may_be_dropped_meanwhile():
    net = Net()
    tape, loss = net.recorded("disk")
    wanted = tape.gradient(loss, net.weights)
    stream = tape.stream(loss)
    first = next(stream)
    del tape
    gc.collect()
    matches([first, *stream], net.weights, wanted)


@pytest.mark.parametrize("keep", KEEPS)
def test_a_tape_that_is_reset_meanwhile(keep: str):
    net = Net()
    tape, loss = net.recorded(keep)
    wanted = tape.gradient(loss, net.weights)
    stream = tape.stream(loss)
    first = next(stream)
    matches([first], net.weights[-1:], wanted[-1:])
    tape.reset()
    with tape:
        for weight in net.weights:
            tf.exp(-net.x @ weight) * 3.0  # something else, of the same shapes
    with pytest.raises(errors.TapeUseError, match=r"was reset while its gradients were being streamed\. Take all"):
        next(stream)
