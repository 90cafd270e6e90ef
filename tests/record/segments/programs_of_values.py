"""Programs of many segments that make every kind of value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import retrotape as rt
from record.segments.tools import Program, chain, into, numbers

PROGRAMS: dict[str, Program] = {}
program = into(PROGRAMS)


@program
def mask_of_an_early_tensor(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(-1.0, 1.0, 30)
    with tape:
        early = tf.sin(3.0 * x)
        mask = tf.cast(early > 0.1, tf.float32)
        order = tf.argsort(early)
        y = chain(tf.abs(x) + 0.1)
        picked = tf.gather(y, order[:5])
        z = tf.where(early > 0.3, y * mask, tf.stop_gradient(chain(y, 2)) * x)
        z = tf.boolean_mask(z, early < 0.5)
        loss = tf.reduce_sum(chain(z, 3)) + tf.reduce_sum(chain(picked, 3))
    return lambda: [tape.gradient(loss, [x, early, y]), tape.hvp(loss, x, x)]


@program
def integers_booleans_strings(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 12)
    with tape:
        words = tf.strings.join([tf.as_string(tf.range(12)), "x"])
        lengths = tf.strings.length(words)
        places = tf.cast(tf.strings.to_number(tf.strings.regex_replace(words, "x", "")), tf.int64)
        odd = tf.equal(places % 2, 1)
        y = x
        for _ in range(5):
            y = tf.where(odd, tf.sin(y), tf.exp(-y)) * tf.cast(lengths, tf.float32)
            y = tf.gather(y, tf.reverse(places, [0]))
        parts = tf.dynamic_partition(y, tf.cast(odd, tf.int32), 2)
        loss = tf.reduce_sum(chain(tf.dynamic_stitch([[1, 3, 5, 7, 9, 11], [0, 2, 4, 6, 8, 10]], parts), 3))
    return lambda: [tape.gradient(loss, [x, y]), tape.gradient(loss, places), tape.hvp(loss, x, x)]


@program
def lists_of_tensors(tape: rt.Tape) -> Callable[[], Any]:
    x, ops = numbers(0.2, 1.0, 6), tf.raw_ops
    scalar = tf.constant([], tf.int32)
    with tape:
        y = x
        for place in range(4):  # a list is a variant: rules look at it, and it has no bytes to move
            items = ops.TensorListFromTensor(tensor=chain(y, 1), element_shape=scalar)
            item = ops.TensorListGetItem(
                input_handle=items, index=place, element_shape=scalar, element_dtype=tf.float32
            )
            items = ops.TensorListSetItem(input_handle=items, index=place + 1, item=tf.sin(item) * item)
            y = ops.TensorListStack(input_handle=items, element_shape=scalar, element_dtype=tf.float32)
        z = chain(y, 3)
    return lambda: [tape.gradient(z, [x, y]), tape.jacobian(z, x, experimental_use_pfor=False)]


@program
def half_precision(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 30)
    with tape:
        half = chain(tf.cast(x, tf.float16), 4)
        brain = chain(tf.cast(half, tf.bfloat16), 4)
        wide = chain(tf.cast(brain, tf.float64), 4)
        loss = tf.reduce_sum(wide)
    return lambda: [tape.gradient(loss, [x, half, brain, wide]), tape.hvp(loss, half, tf.ones_like(half))]


@program
def complex_numbers(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 8)
    with tape:
        z = tf.complex(x, x * x)
        for _ in range(5):
            z = tf.exp(0.3 * z) * tf.math.conj(z) + tf.sin(z)
            z = tf.signal.ifft(tf.signal.fft(z) * 0.9)
        loss = tf.reduce_sum(tf.abs(z))
    return lambda: [tape.gradient(loss, [x, z]), tape.gradient(z, x)]


@program
def empty_tensors(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6, 5)
    with tape:
        y, none = chain(x, 3), x[:0]
        for _ in range(6):
            none = tf.sin(none) * tf.exp(none)
            y = chain(tf.concat([y, none], 0), 1)
        loss = tf.reduce_sum(y) + tf.reduce_sum(none * y[:0])
    return lambda: [tape.gradient(loss, [x, none]), tape.gradient(none, x), tape.hvp(loss, x, x)]


@program
def several_outputs(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 4, 4) + tf.eye(4)
    with tape:
        q, r = tf.linalg.qr(chain(x, 2))
        values, vectors = tf.linalg.eigh(r + tf.transpose(r) + tf.linalg.diag(numbers(1.0, 4.0, 4)))
        top, where = tf.math.top_k(tf.reshape(chain(q, 2), [-1]), 5)
        mean, spread = tf.nn.moments(vectors * values, [0])
        rows = tf.unstack(chain(tf.concat([vectors, q], 0), 2))
        loss = tf.reduce_sum(top * tf.cast(where, tf.float32)) + tf.reduce_sum(mean / spread) + tf.reduce_sum(rows[3])
    return lambda: [tape.gradient(loss, [x, q, values]), tape.hvp(loss, q, tf.ones_like(q))]


@program
def model(tape: rt.Tape) -> Callable[[], Any]:
    layers = [
        keras.layers.Embedding(11, 6),
        keras.layers.Conv1D(6, 3, activation="gelu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5, seed=3),
        keras.layers.LayerNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(3, activation="softmax"),
    ]
    net = keras.Sequential([keras.Input([8], dtype="int32"), *layers])
    x = tf.reshape(tf.range(48) % 11, [6, 8])
    with tape:
        loss = tf.reduce_mean(net(x, training=True) ** 2)
    return lambda: [tape.gradient(loss, net.trainable_variables), tape.gradient(loss, net.trainable_variables)]


@program
def attributes_that_are_shapes(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        y = chain(tf.ensure_shape(chain(x, 3), [None]), 3)
        z = chain(tf.raw_ops.PlaceholderWithDefault(input=y, shape=[6]), 3)
    return lambda: [tape.gradient(z, [x, y])]


@program
def python_functions(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        y = tf.py_function(lambda a: chain(a, 4), [chain(x, 4)], tf.float32)
        z = chain(y, 4)
    return lambda: [tape.gradient(z, [x, y]), tape.jvp(z, x, x)]


@program
def nothing_finite(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.0, 1.0, 6)
    with tape:
        y = chain(x)
        z = tf.sqrt(y) * 2.0
        safe = tf.reduce_sum(chain(z, 3))
        bad = chain(tf.math.log(x - 0.1), 2)

    def ask() -> Any:
        found = [tape.first_nonfinite(), tape.first_nonfinite(safe), tape.first_nonfinite(y)]
        return [found, tape.gradient(bad, x), tape.gradient(safe, x)]

    return ask


@program
def scalars(tape: rt.Tape) -> Callable[[], Any]:
    x = tf.constant(0.7)
    with tape:
        y = x
        for _ in range(60):
            y = tf.sin(y) * 1.2
    return lambda: [tape.gradient(y, x), tape.hessian(y, x)]
