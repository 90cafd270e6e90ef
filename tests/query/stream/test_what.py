"""Gradients handed out one by one are the same as all at once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from query.stream.nets import KEEPS, Net, identical, matches
from retrotape import errors


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
    assert {id(variable) for variable, _ in tape.stream(loss)} == {id(weight) for weight in weights}


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
    with pytest.raises(errors.NotRecordedError, match="it was made after recording ended"):
        next(tape.stream(tf.ones(3), net.weights))
    with pytest.raises(errors.EmptyTapeError, match="its block was never entered"):
        next(rt.Tape().stream(tf.ones(3)))
