"""Programs whose reports are tested: a training step of a Transformer, and a step with a NaN."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import retrotape as rt


class Block(layers.Layer):
    """A block of a Transformer."""

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(heads, width // heads, name="attention")
        self.norm1 = layers.LayerNormalization(name="norm1")
        self.norm2 = layers.LayerNormalization(name="norm2")
        self.up = layers.Dense(4 * width, activation="gelu", name="up")
        self.down = layers.Dense(width, name="down")

    def call(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.down(self.up(x)))


def transformer(blocks: int = 2, width: int = 16, heads: int = 2, words: int = 30, length: int = 8) -> keras.Model:
    """Return a model that predicts the next token."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input([length], dtype="int32")
    x = layers.Embedding(words, width, name="tokens")(tokens)
    for number in range(blocks):
        x = Block(width, heads, name=f"block{number}")(x)
    return keras.Model(tokens, layers.Dense(words, name="head")(x), name="transformer")


def batch(words: int = 30, length: int = 8, size: int = 4) -> tuple[tf.Tensor, tf.Tensor]:
    """Return tokens, and those to be predicted."""
    text = np.random.default_rng(1).integers(0, words, [size, length + 1])
    return tf.constant(text[:, :-1], tf.int32), tf.constant(text[:, 1:], tf.int32)


def step(model: keras.Model, optimizer: Any = None, length: int = 8, words: int = 30) -> tuple[rt.Tape, tf.Tensor]:
    """Return the tape of a training step, and its loss."""
    x, y = batch(words, length)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with rt.Tape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
        if optimizer is not None:
            tape.backward(loss).apply(optimizer)
    return tape, loss
