"""Inside a `tf.function`, a tape adds no more operations than the stock tape, and gives the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

Loss = Callable[[], Any]


def products() -> tuple[Loss, list[Any]]:
    x, w, b = tf.constant([[0.5, 0.25]]), tf.Variable([[0.5], [0.1]]), tf.Variable([0.3])
    return lambda: tf.reduce_mean(tf.math.squared_difference(tf.matmul(x, w) + b, 2.0) * 3.0), [w, b]


def powers() -> tuple[Loss, list[Any]]:
    w = tf.Variable([0.5, 1.5])
    return lambda: tf.reduce_sum((w**2.0 - 1.0) / tf.constant([[2.0], [3.0]])), [w]


def normalized() -> tuple[Loss, list[Any]]:
    layer, x = keras.layers.BatchNormalization(), tf.ones((4, 6, 6, 3)) * tf.range(3.0)
    layer.build(x.shape)
    return lambda: tf.reduce_mean(layer(x, training=True) ** 2), layer.trainable_variables


def looped() -> tuple[Loss, list[Any]]:
    w, step = tf.Variable(1.1), tf.constant(0.5)

    def loss() -> Any:
        return tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y * w + step), (0, tf.constant(1.0)))[1]

    return loss, [w]


def recurrent() -> tuple[Loss, list[Any]]:
    keras.utils.set_random_seed(0)
    model, x = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.Dense(1)]), tf.ones((2, 5, 3))
    return lambda: tf.reduce_mean(model(x) ** 2), model.trainable_variables


def gradient_of(tape_class: Any, loss: Loss, sources: list[Any]) -> Any:
    @tf.function(autograph=False)
    def first() -> Any:
        with tape_class() as tape:
            found = loss()
        return tape.gradient(
            found, [source.value if isinstance(source, keras.Variable) else source for source in sources]
        )

    return first


def second_of(tape_class: Any, loss: Loss, sources: list[Any]) -> Any:
    @tf.function(autograph=False)
    def second() -> Any:
        with tape_class() as outer:
            with tape_class() as inner:
                found = loss()
            grads = inner.gradient(found, sources)
        return outer.gradient(grads, sources)

    return second


def size(function: Any) -> int:
    graph = function.get_concrete_function().graph
    return len(graph.get_operations()) + sum(len(one.node_def) for one in graph.as_graph_def().library.function)


@pytest.mark.parametrize("program", [products, powers, normalized, looped, recurrent])
def test_no_more_operations_than_the_stock_tape(program):
    loss, sources = program()
    loss()  # what it makes once
    stock, ours = (gradient_of(kind, loss, sources) for kind in (tf.GradientTape, rt.Tape))
    assert size(ours) <= size(stock)
    for one, other in zip(ours(), stock(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("program", [products, powers, looped])
def test_no_more_operations_for_second_derivatives(program):
    loss, sources = program()
    stock, ours = (second_of(kind, loss, sources) for kind in (tf.GradientTape, rt.Tape))
    assert size(ours) <= size(stock)
    for one, other in zip(ours(), stock(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_loop_queried_again_with_respect_to_another_source():
    v, w = tf.Variable(1.5), tf.Variable(1.25)

    @tf.function(autograph=False)
    def both() -> Any:
        with rt.Tape() as tape:
            y = tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y * w * v), (0, tf.constant(1.0)))[1]
        first = tape.gradient(y, v)
        return first, tape.gradient(y, w), tape.gradient(first, w)

    product = 1.5 * 1.25
    want = 3 * product**2 * 1.25, 3 * product**2 * 1.5, 9 * product**2
    np.testing.assert_allclose(both(), want, rtol=1e-6)
