"""Programs with the same gradients on this tape and on the stock tape; `retrotape doctor` runs them on each device.

They are a sample of the tests, from different parts of TensorFlow: kernels of a device, and how they are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrotape.tf.core import StockTape, tf
from retrotape.tf.selftest import MakeTape, Pairs, Program


def _same(make_tape: MakeTape, sources: list[Any], compute: Callable[..., Any]) -> Pairs:
    """Return the gradients of a scalar on both tapes, as shares of the stock tape's largest element."""
    with StockTape() as stock, make_tape() as tape:
        stock.watch([source for source in sources if isinstance(source, tf.Tensor)])
        target = compute(*sources)
    pairs = zip(tape.gradient(target, sources), stock.gradient(target, sources), strict=True)
    return [_scaled(got, expected) for got, expected in pairs]


def _scaled(got: Any, expected: Any) -> tuple[Any, Any]:
    if got is None or expected is None:
        return (None if got is None else 1.0), (0.0 if expected is None else 1.0)
    got, expected = (tf.cast(tf.convert_to_tensor(value), tf.float64) for value in (got, expected))
    # Some kernels of a GPU sum in another order each time, and half precision has three digits.
    size = 100.0 * tf.maximum(tf.reduce_max(tf.abs(expected)), 1e-30)
    return got / size, expected / size


def _numbers(*shape: int) -> Any:
    """Return fixed numbers between -1 and 1, without a random op, which would be another on each device."""
    count = tf.reduce_prod(shape)
    return tf.reshape(tf.sin(tf.cast(tf.range(count), tf.float32) * 1.7 + 0.3), shape)


def _dense(make_tape: MakeTape) -> Pairs:
    def loss(x: Any, w: Any, b: Any) -> Any:
        logits = tf.nn.gelu(x @ w + b)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 2, 1], logits))

    return _same(make_tape, [_numbers(3, 4), tf.Variable(_numbers(4, 3)), tf.Variable(_numbers(3))], loss)


def _convolution(make_tape: MakeTape) -> Pairs:
    def loss(image: Any, kernel: Any) -> Any:
        hidden = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME"))
        return tf.reduce_sum(tf.nn.max_pool2d(hidden, 2, 2, "VALID") ** 2)

    return _same(make_tape, [_numbers(2, 6, 6, 3), tf.Variable(_numbers(3, 3, 3, 4))], loss)


def _normalization(make_tape: MakeTape) -> Pairs:
    def loss(x: Any, scale: Any) -> Any:
        mean, variance = tf.nn.moments(x, [0])
        return tf.reduce_sum(tf.nn.batch_normalization(x, mean, variance, None, scale, 1e-3) ** 3)

    return _same(make_tape, [_numbers(8, 5), tf.Variable(_numbers(5))], loss)


def _embedding(make_tape: MakeTape) -> Pairs:
    table = tf.Variable(_numbers(6, 4))
    return _same(make_tape, [table], lambda rows: tf.reduce_sum(tf.nn.embedding_lookup(rows, [1, 4, 1]) ** 2))


def _attention(make_tape: MakeTape) -> Pairs:
    def loss(query: Any, key: Any, value: Any) -> Any:
        weights = tf.nn.softmax(tf.einsum("bqd,bkd->bqk", query, key))
        return tf.reduce_sum(tf.einsum("bqk,bkd->bqd", weights, value) ** 2)

    return _same(make_tape, [_numbers(2, 3, 4), _numbers(2, 5, 4) * 0.5, _numbers(2, 5, 4)], loss)


def _loop(make_tape: MakeTape) -> Pairs:
    weight = tf.Variable(_numbers(3, 3))

    def rnn(x: Any, variable: Any) -> Any:
        def body(number: Any, state: Any) -> Any:
            return number + 1, tf.tanh(state @ variable + x)

        return tf.reduce_sum(tf.while_loop(lambda number, _: number < 4, body, (0, x))[1])

    return _same(make_tape, [_numbers(2, 3), weight], tf.function(rnn, autograph=False))


def _half(make_tape: MakeTape) -> Pairs:
    def loss(x: Any, w: Any) -> Any:
        return tf.reduce_sum(tf.cast(tf.cast(x, tf.float16) @ tf.cast(w, tf.float16), tf.float32) ** 2)

    return _same(make_tape, [_numbers(3, 4), tf.Variable(_numbers(4, 2))], loss)


def _double(make_tape: MakeTape) -> Pairs:
    def loss(x: Any) -> Any:
        return tf.reduce_sum(tf.linalg.solve(tf.eye(3, dtype=tf.float64) * 4.0 + x, x) ** 2)

    return _same(make_tape, [tf.cast(_numbers(3, 3), tf.float64)], loss)


def _hessian(make_tape: MakeTape) -> Pairs:
    """The Hessian of a sum of cubes is diagonal: 6x."""
    x = tf.Variable(_numbers(4))
    with make_tape() as tape:
        target = tf.reduce_sum(x**3)
    return [(tape.hessian(target, x), tf.linalg.diag(6.0 * x.read_value()))]


def _optimizer(make_tape: MakeTape) -> Pairs:
    """A step of gradient descent on x w² / 2 with rate r gives w (1 − r x), whose derivative in r is −w x."""
    w, rate, x = tf.Variable(2.0), tf.constant(0.1), tf.constant(3.0)
    with make_tape() as tape:
        gradient = w * x
        w.assign_sub(rate * gradient)
        after = w * 1.0
    return [(tape.gradient(after, rate, through_updates=True), -6.0), (after, 2.0 - 0.6)]


PROGRAMS: dict[str, Program] = {
    "dense layer": _dense,
    "convolution": _convolution,
    "normalization": _normalization,
    "embedding": _embedding,
    "attention": _attention,
    "loop in a tf.function": _loop,
    "float16": _half,
    "float64": _double,
    "Hessian": _hessian,
    "step of an optimizer": _optimizer,
}
