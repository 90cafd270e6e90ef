"""Gradients that the tests of them begin with."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt


class Case:
    """A vector with a dense, a sparse and a missing gradient."""

    def __init__(self) -> None:
        self.w = tf.Variable([[1.0, 2.0], [3.0, -4.0]], name="w")
        self.table = tf.Variable(tf.ones([4, 2]), name="table")
        self.b = tf.Variable(1.0, name="b")
        self.rows = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 1, 2]), tf.constant([4, 2]))
        self.dense = {"w": np.array([[3.0, 0.0], [0.0, -4.0]]), "table": np.array([[0, 0], [2, 2], [1, 1], [0, 0.0]])}
        pairs = [(self.w, tf.constant(self.dense["w"], tf.float32)), (self.table, self.rows), (self.b, None)]
        self.grads = rt.Gradients(pairs)


def array(grad: Any) -> np.ndarray:
    return tf.convert_to_tensor(grad).numpy()


def one(value: Any, dtype: Any = tf.float32, name: str = "v") -> tuple[tf.Variable, rt.Gradients]:
    value = tf.constant(value, dtype)
    variable = tf.Variable(tf.ones_like(value), name=name)
    return variable, rt.Gradients([(variable, value)])


def dense_model(units: int = 2, seed: int = 0) -> keras.Model:
    init = keras.initializers.RandomNormal(seed=seed)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, kernel_initializer=init)])


X = tf.constant(np.random.default_rng(3).normal(size=(5, 3)), tf.float32)
