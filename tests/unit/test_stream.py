"""Gradients handed out one by one: the same as all at once, and none is held longer than it must be."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from recording_tools import is_untouched
from retrotape import errors
from retrotape.execute import _each, _pull, _values
from retrotape.record import _segments

KEEPS = ["needed", "all", "leaves", "segments", "disk"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_segments, _values, _each):
        monkeypatch.setattr(module, "SEGMENT", 100)
    monkeypatch.setattr(_values, "trim", lambda: None)


def identical(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    ours, theirs = (tf.nest.flatten(value, expand_composites=True) for value in (one, other))
    for left, right in zip(ours, theirs, strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.numpy().tobytes() == right.numpy().tobytes()


def matches(pairs: list[tuple[Any, Any]], sources: list[Any], wanted: list[Any]) -> None:
    """Check that each source with a gradient was yielded once, with that gradient."""
    assert len(pairs) == sum(grad is not None for grad in wanted)
    for source, grad in zip(sources, wanted, strict=True):
        found = [value for key, value in pairs if key is source]
        assert len(found) == (0 if grad is None else 1)
        if grad is not None:
            identical(found[0], grad)


class Net:
    """Six layers, each with a weight of its own."""

    def __init__(self, depth: int = 6) -> None:
        rng = np.random.default_rng(3)
        self.x = tf.constant(rng.uniform(0.2, 1.0, (4, 5)))
        self.weights = [tf.Variable(rng.normal(size=(5, 5)) / 2.0, name=f"w{n}") for n in range(depth)]
        self.hidden: list[tf.Tensor] = []

    def loss(self) -> tf.Tensor:
        self.hidden = [self.x]
        for weight in self.weights:
            self.hidden.append(tf.tanh(self.hidden[-1] @ weight) + self.hidden[-1])
        return tf.reduce_sum(self.hidden[-1] ** 2)

    def recorded(self, keep: str = "needed") -> tuple[rt.Tape, tf.Tensor]:
        with rt.Tape(keep=keep) as tape:
            loss = self.loss()
        return tape, loss

    def number(self, weight: Any) -> int:
        return next(number for number, other in enumerate(self.weights) if other is weight)


# ------------------------------------------------------------------ what is yielded


@pytest.mark.parametrize("keep", KEEPS)
def test_the_gradients_are_those_of_gradient(keep: str):
    net = Net()
    tape, loss = net.recorded(keep)
    sources = [*net.weights, net.x, net.hidden[2], net.hidden[5], loss]
    wanted = tape.gradient(loss, sources)
    assert all(grad is not None for grad in wanted)
    matches(list(tape.stream(loss, sources)), sources, wanted)
    matches(list(tape.stream(loss, sources[::-1])), sources, wanted)


def test_without_sources_it_is_all_trainable_variables():
    net = Net()
    fixed, unread = tf.Variable(2.0, trainable=False, dtype=tf.float64), tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = net.loss() * fixed
    pairs = list(tape.stream(loss))
    matches(pairs, net.weights, tape.gradient(loss, net.weights))
    assert not any(key is fixed or key is unread for key, _ in pairs)


def test_a_model_and_its_keras_variables():
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.layers.Embedding(7, 4), keras.layers.Dense(3, "gelu"), keras.layers.Dense(1)])
    x = tf.constant([[1, 1, 3], [6, 0, 1]])
    net(x)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(net(x) ** 2)
    weights = net.trainable_variables
    wanted = tape.gradient(loss, weights)
    assert isinstance(wanted[0], tf.IndexedSlices)
    matches(list(tape.stream(loss, weights)), weights, wanted)
    assert {id(variable) for variable, _ in tape.stream(loss)} == {id(weight.value) for weight in weights}


def test_nests_of_sources_and_of_losses():
    net = Net()
    tape, loss = net.recorded()
    first, last = net.weights[0], net.weights[-1]
    wrt = {"b": [first], "a": (last, net.x)}
    losses = [loss, net.hidden[3], net.hidden[3]]
    flat = tf.nest.flatten(wrt)
    matches(list(tape.stream(losses, wrt)), flat, tf.nest.flatten(tape.gradient(losses, wrt)))


def test_sources_without_path_are_left_out():
    net = Net()
    aside, unread, count = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3)
    with rt.Tape() as tape:
        loss = net.loss() + tf.cast(tf.stop_gradient(aside) * tf.cast(count, tf.float32), tf.float64)
        other = aside * 2.0
    sources = [aside, unread, net.weights[1], count, tf.ones(3), other]
    assert [key for key, _ in tape.stream(loss, sources)] == [net.weights[1]]
    assert list(tape.stream(loss, [])) == []


def test_a_source_given_twice_comes_once():
    net = Net()
    tape, loss = net.recorded()
    sources = [net.weights[2], net.x]
    matches(list(tape.stream(loss, [net.weights[2], *sources])), sources, tape.gradient(loss, sources))


@pytest.mark.parametrize("keep", KEEPS)
def test_a_variable_that_is_read_several_times(keep: str):
    net = Net()
    shared, table = net.weights[0], tf.Variable(tf.ones([9, 5], tf.float64))
    with rt.Tape(keep=keep) as tape:
        y = net.x
        for _ in range(5):
            y = tf.sin(y @ shared) + tf.gather(table, [1, 1, 8, 3]) * shared.read_value()[:4]
        loss = tf.reduce_sum(y)
    sources = [shared, table, net.x]
    matches(list(tape.stream(loss, sources)), sources, tape.gradient(loss, sources))


@pytest.mark.parametrize("keep", KEEPS)
def test_a_variable_that_is_assigned(keep: str):
    net = Net()
    weight = net.weights[0]
    with rt.Tape(keep=keep) as tape:
        y = net.x
        for _ in range(4):
            y = tf.sin(y @ weight)
            weight.assign_sub(0.1 * tf.tanh(weight))
            weight.scatter_add(tf.IndexedSlices(net.x[:1] * 0.1, tf.constant([2])))
        loss = tf.reduce_sum(y @ weight)
    weight.assign(tf.zeros([5, 5], tf.float64))
    sources = [weight, net.x]
    assert len(tape.versions(weight)) == 9
    matches(list(tape.stream(loss, sources)), sources, tape.gradient(loss, sources))
    through = tape.gradient(loss, sources, through_updates=True)
    matches(list(tape.stream(loss, sources, through_updates=True)), sources, through)
    late = tape.gradient(loss, sources, through_updates=True, since=-3)
    matches(list(tape.stream(loss, sources, through_updates=True, since=-3)), sources, late)
    past = [tape.at(weight, k) for k in range(9)] + [weight]
    matches(list(tape.stream(loss, past)), past, tape.gradient(loss, past))


def test_what_an_assigned_variable_gets_is_added_in_the_order_of_the_stock_tape():
    rng = np.random.default_rng(0)
    x, weight = tf.constant(rng.normal(size=(4, 5))), tf.Variable(rng.normal(size=(5, 5)))
    with tf.GradientTape() as stock, rt.Tape() as tape:
        y = x
        for _ in range(7):
            y = tf.sin(y @ weight)
            weight.assign_sub(0.3 * tf.sin(weight))
        loss = tf.reduce_sum(y @ weight)
    ((_, grad),) = tape.stream(loss)
    identical(grad, stock.gradient(loss, weight))


def test_of_a_ragged_source_the_values_are_yielded():
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([1.0, 2.0, 3.0]), [1, 2])
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(ragged * ragged) * x
    wanted = tape.gradient(loss, [ragged, x])
    matches(list(tape.stream(loss, [ragged, x])), [ragged, x], [wanted[0].flat_values, wanted[1]])


def test_what_cannot_be_asked_is_refused():
    net = Net()
    tape, _ = net.recorded()
    with pytest.raises(errors.NotRecordedError):
        next(tape.stream(tf.ones(3), net.weights))
    with pytest.raises(errors.NotDifferentiableError):
        next(tape.stream(tf.constant(3), net.weights))
    with pytest.raises(errors.EmptyTapeError):
        next(rt.Tape().stream(tf.ones(3)))


# ------------------------------------------------------------------ when it is yielded, and for how long it is held


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
    order = [key for key, _ in tape.stream(loss, sources)]
    for number in range(5):  # what a layer makes, before its weight, before what it is given
        made, weight = net.hidden[number + 1], net.weights[number]
        places = [next(place for place, key in enumerate(order) if key is one) for one in (made, weight)]
        assert places == sorted(places)


def test_a_gradient_is_yielded_before_the_walk_goes_on(monkeypatch: pytest.MonkeyPatch):
    pulled: list[int] = []
    call = _pull.Puller.__call__

    def counted(self: Any, index: int, *rest: Any) -> Any:
        pulled.append(index)
        return call(self, index, *rest)

    monkeypatch.setattr(_pull.Puller, "__call__", counted)
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

    call = _pull.Puller.__call__

    def watched(self: Any, *args: Any) -> Any:
        most.append(alive())
        return call(self, *args)

    monkeypatch.setattr(_pull.Puller, "__call__", watched)
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
    call = _pull.Puller.__call__

    def watched(self: Any, index: int, grads: list[Any], plan: Any) -> Any:
        given[:] = [weakref.ref(grad) for grad in grads if grad is not None]
        return call(self, index, grads, plan)

    monkeypatch.setattr(_pull.Puller, "__call__", watched)
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
    before = tape.memory()
    list(tape.stream(loss))
    assert tape.memory() == before


# ------------------------------------------------------------------ what happens meanwhile


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
    assert tape.gradient(more, net.x) is not None
    assert tape.hvp(more, net.x, net.x) is not None


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
    tape.reset()
    with tape:
        for weight in net.weights:
            tf.exp(-net.x @ weight) * 3.0  # something else, of the same shapes
    try:
        rest = list(stream)
    except errors.TapeUseError:
        return
    matches([first, *rest], net.weights, wanted)


# ------------------------------------------------------------------ where it is asked


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
    with pytest.raises(errors.NotRecordedError):
        tape.gradient(grad, net.x)
