"""Models as people write them, recorded on a small batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

L = keras.layers


class Scaled(L.Layer):
    """A layer that nobody else has."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return tf.nn.silu(x * self.scale) + keras.ops.sin(x)


def _transformer() -> keras.Model:
    x = keras.Input((5, 6))
    attended = L.MultiHeadAttention(2, 3, dropout=0.1)(x, x, use_causal_mask=True)
    y = L.LayerNormalization()(L.Add()([x, attended]))
    z = L.Dense(6)(L.Dropout(0.1)(L.Dense(12, activation="gelu")(y)))
    y = L.LayerNormalization()(L.Add()([y, z]))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(y)))


def _convolutions() -> keras.Model:
    first = [L.Conv2D(4, 3, padding="same"), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D(), L.Dropout(0.3)]
    return keras.Sequential([*first, L.Flatten(), L.Dense(3)])


MODELS: dict[str, tuple[Callable[[], keras.Model], tuple[int, ...]]] = {
    "mlp": (lambda: keras.Sequential([L.Dense(8, "silu", kernel_regularizer="l2"), L.Dense(3, "gelu")]), (4, 5)),
    "convolutions": (_convolutions, (4, 6, 6, 1)),
    "lstm": (lambda: keras.Sequential([L.Embedding(7, 3), L.LSTM(4, dropout=0.2), L.Dense(3)]), (4, 5)),
    "gru": (lambda: keras.Sequential([L.Bidirectional(L.GRU(3)), L.Dense(3)]), (4, 5, 2)),
    "transformer": (_transformer, (4, 5, 6)),
    "custom layer": (lambda: keras.Sequential([L.Dense(4), Scaled(), L.Dense(3)]), (4, 5)),
    "separable": (
        lambda: keras.Sequential([L.SeparableConv2D(3, 3), L.PReLU(), L.Flatten(), L.Dense(3)]),
        (4, 5, 5, 2),
    ),
    "spectral": (lambda: keras.Sequential([L.SpectralNormalization(L.Dense(4)), L.Dense(3)]), (4, 5)),
    "norms": (lambda: keras.Sequential([L.GroupNormalization(2), L.UnitNormalization(), L.Dense(3)]), (4, 6)),
    "transposed": (lambda: keras.Sequential([L.Conv1DTranspose(3, 2), L.GlobalMaxPooling1D(), L.Dense(3)]), (4, 5, 2)),
}
EVERY_DAY = ("mlp", "convolutions", "lstm", "transformer", "custom layer", "spectral")


def run(name: str, traced: bool = False) -> tuple[rt.Tape, keras.Model, Any, Any, Any]:
    make, shape = MODELS[name]
    keras.utils.set_random_seed(7)
    random = np.random.default_rng(1)
    whole = name == "lstm"
    x = tf.constant(
        random.integers(7, size=shape) if whole else random.normal(size=shape), "int32" if whole else "float32"
    )
    model = make()
    model(x)
    call = tf.function(model) if traced else model
    labels = tf.constant([0, 1, 2, 0])
    with rt.Tape() as tape:
        out = call(x, training=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, out) + sum(model.losses)
    return tape, model, x, out, loss
