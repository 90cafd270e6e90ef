"""When a gradient is yielded, and that none is held longer than it must be."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from query.stream.nets import KEEPS, Net
from retrotape.execute import _vjp


@pytest.mark.parametrize("keep", KEEPS)
def test_the_last_layer_comes_first(keep: str):
    net = Net(12)
    tape, loss = net.recorded(keep)
    order = [net.number(weight) for weight, _ in tape.stream(loss)]
    assert order == list(range(11, -1, -1))


def test_tensors_between_come_in_their_place():
    net = Net()
    tape, loss = net.recorded()
    sources = [*net.weights, *net.hidden]
    order = [id(key) for key, _ in tape.stream(loss, sources)]
    layers = list(zip(net.hidden[1:], net.weights, strict=True))
    assert [key for key in order if key not in map(id, net.weights)] == [id(made) for made in net.hidden[::-1]]
    assert [key for key in order if key in map(id, net.weights)] == [id(weight) for weight in net.weights[::-1]]
    for made, weight in layers:  # what a layer makes comes before its weight
        assert order.index(id(made)) < order.index(id(weight))
    for (made, _), (_, later) in zip(layers, layers[2:], strict=False):  # and after the weight of the next but one
        assert order.index(id(made)) > order.index(id(later))


def test_a_gradient_is_yielded_before_the_walk_goes_on(monkeypatch: pytest.MonkeyPatch):
    pulled: list[int] = []
    call = _vjp.RuleVjp.__call__

    def counted(self: Any, index: int, *rest: Any) -> Any:
        pulled.append(index)
        return call(self, index, *rest)

    monkeypatch.setattr(_vjp.RuleVjp, "__call__", counted)
    net = Net(20)
    tape, loss = net.recorded()
    counts = [len(pulled) for _ in tape.stream(loss)]
    assert counts[0] <= 8  # of more than eighty
    assert max(after - before for before, after in pairwise(counts)) <= 8
    assert len(pulled) >= 60


@pytest.mark.parametrize("keep", KEEPS)
def test_what_was_yielded_is_not_held(keep: str, monkeypatch: pytest.MonkeyPatch):
    net = Net(10)
    tape, loss = net.recorded(keep)
    references: list[weakref.ref] = []
    most: list[int] = []

    def alive() -> int:
        return sum(reference() is not None for reference in references)

    call = _vjp.RuleVjp.__call__

    def watched(self: Any, *args: Any) -> Any:
        most.append(alive())
        return call(self, *args)

    monkeypatch.setattr(_vjp.RuleVjp, "__call__", watched)
    gc.collect()
    gc.disable()
    try:
        for weight, grad in tape.stream(loss):
            assert alive() == 0
            references.append(weakref.ref(grad))
            del weight, grad
    finally:
        gc.enable()
    assert len(references) == 10
    assert max(most) <= 1  # the one that was yielded last


def test_while_one_is_handed_out_what_led_to_it_is_let_go(monkeypatch: pytest.MonkeyPatch):
    given: list[weakref.ref] = []
    call = _vjp.RuleVjp.__call__

    def watched(self: Any, index: int, grads: list[Any], plan: Any) -> Any:
        given[:] = [weakref.ref(grad) for grad in grads if grad is not None]
        return call(self, index, grads, plan)

    monkeypatch.setattr(_vjp.RuleVjp, "__call__", watched)
    net = Net(10)
    weights = [weight.read_value() for weight in net.weights]  # a read of its own would hand on what it is given
    with rt.Tape() as tape:
        y = net.x
        for weight in weights:
            y = tf.tanh(y) @ weight  # nothing beside the path holds a cotangent
        loss = tf.reduce_sum(y)
    gc.collect()
    for _ in tape.stream(loss, weights):
        assert len(given) == 1
        assert given[0]() is None


@pytest.mark.parametrize("keep", KEEPS)
def test_nothing_is_left_of_it(keep: str):
    net = Net()
    tape, loss = net.recorded(keep)
    references = [weakref.ref(grad) for _, grad in tape.stream(loss)]
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
    list(tape.stream(loss))  # after which a tape in segments holds again what the first query has released
    before = tape.memory()
    list(tape.stream(loss))
    assert tape.memory() == before
