"""The programs of the demo, on the stock tape: the shortest honest attempt at the same task."""

from __future__ import annotations

import pickle

from retrotape.cli._demo._ours import Scaled, variables, x
from retrotape.cli._demo._show import Print
from retrotape.tf.core import tf


def several_tapes(print: Print) -> None:
    """Two models, a tape each, one optimizer for both."""
    left, right = tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)
    adam = tf.keras.optimizers.Adam(0.1)
    with tf.GradientTape() as first:
        one = tf.nn.l2_loss(left(x))
    with tf.GradientTape() as second:
        two = tf.nn.l2_loss(right(x))
    print("losses before", one + two)
    adam.apply(first.gradient(one, left.trainable_variables), left.trainable_variables)
    adam.apply(second.gradient(two, right.trainable_variables), right.trainable_variables)
    print("losses after", tf.nn.l2_loss(left(x)) + tf.nn.l2_loss(right(x)))


def chain_rule(print: Print) -> None:
    """One tape continues where another ended."""
    x = tf.constant(1.0)
    with tf.GradientTape() as first:
        first.watch(x)
        y = x**2
    with tf.GradientTape() as second:
        z = tf.sin(y)
    inner, outer = first.gradient(y, x), second.gradient(z, y)
    print("dy/dx", inner)
    print("dz/dy", outer)
    print("dz/dx", outer * inner)


def through_a_step(print: Print) -> None:
    """A stock optimizer's step."""
    w, sgd = tf.Variable([1.0, 2.0]), tf.keras.optimizers.SGD(0.1)
    rate = sgd.learning_rate.value
    with tf.GradientTape() as outer, tf.GradientTape(persistent=True) as tape:
        grads = tape.gradient(tf.reduce_sum(w**2), [w])
        sgd.apply(grads, [w])
        after = tf.reduce_sum(w**2)
        slope = tape.gradient(after, rate)
    print("w.r.t. the learning rate", slope)
    print("second derivative", outer.gradient(slope, rate))


def second_order(print: Print) -> None:
    """Second derivatives with nested tapes."""
    x = tf.constant([1.0, 2.0, 4.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            variance = tf.nn.moments(x, [0])[1]
        slope = inner.gradient(variance, x)
    print("row 0", outer.jacobian(slope, x)[0])


def several_losses(print: Print) -> None:
    """Two losses that share a part of the model."""
    weights = body, head, other = variables([[1.0], [0.5]], [[2.0]], [[-1.0]])
    sgd = tf.keras.optimizers.SGD(0.1)
    with tf.GradientTape(persistent=True) as tape:
        features = tf.tanh(x @ body)
        one = tf.reduce_mean((features @ head) ** 2)
        two = tf.reduce_mean((features @ other - 1.0) ** 2)
    pairs = zip(tape.gradient(one, weights), tape.gradient(two, weights), strict=True)
    grads, norm = tf.clip_by_global_norm([a + b for a, b in pairs], 1.0)
    print("norm of the sum", norm)
    sgd.apply(grads, weights)
    print("head after the step", head)


def saved(print: Print) -> None:
    """The only way to save a stock tape is pickle."""
    layer = Scaled()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x))
    print("in another process", pickle.dumps((tape, loss)))


def why_none(print: Print) -> None:
    """A gradient that is None."""
    w = tf.Variable(3.0, name="w")
    with tf.GradientTape() as tape:
        y = w * 2.0
        loss = tf.square(float(y))
    print("gradient", tape.gradient(loss, w))


def find_the_nan(print: Print) -> None:
    """A finite loss whose gradient is not a number."""
    x = tf.constant([0.0, 1.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.where(x > 0.0, x * tf.math.log(x), 0.0))
    print("gradient", tape.gradient(loss, x))
