"""Small models of Keras layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

layers = tf.keras.layers


class Work(NamedTuple):
    """A model and the loss of one step."""

    model: Any
    loss: Callable[[], Any]


def _classify(model: Any, x: Any, labels: Any) -> Work:
    def loss() -> Any:
        logits = model(x, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    loss()
    return Work(model, loss)


def mlp(width: int = 64, depth: int = 6, batch: int = 32) -> Work:
    hidden = [layers.Dense(width, "relu") for _ in range(depth - 1)]
    model = tf.keras.Sequential([tf.keras.Input((width,)), *hidden, layers.Dense(10)])
    return _classify(model, tf.random.normal((batch, width)), tf.random.uniform((batch,), 0, 10, tf.int32))


def cnn(batch: int = 32) -> Work:
    def block(filters: int) -> list[Any]:
        return [
            layers.Conv2D(filters, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]

    head = [layers.Dropout(0.3), layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.Input((32, 32, 3)), *block(32), *block(64), *head])
    return _classify(model, tf.random.normal((batch, 32, 32, 3)), tf.random.uniform((batch,), 0, 10, tf.int32))


def transformer(width: int = 64, length: int = 32, depth: int = 2, vocabulary: int = 100, batch: int = 16) -> Work:
    tokens = tf.keras.Input((length,), dtype="int32")
    hidden = layers.Embedding(vocabulary, width)(tokens)
    for _ in range(depth):
        attended = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(hidden, hidden, use_causal_mask=True)
        hidden = layers.LayerNormalization()(hidden + attended)
        wide = layers.Dense(4 * width, "gelu")(hidden)
        hidden = layers.LayerNormalization()(hidden + layers.Dense(width)(wide))
    model = tf.keras.Model(tokens, layers.Dense(vocabulary)(hidden))
    x = tf.random.uniform((batch, length), 0, vocabulary, tf.int32)
    return _classify(model, x, x)
