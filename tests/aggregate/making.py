"""Rows with given numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt


def rows_of_matrix(matrix: np.ndarray, parts: int = 1, losses: Any = None, dtype: Any = tf.float64) -> rt.Rows:
    """Return rows whose gradients, with respect to one variable or some, are those of a matrix."""
    blocks = np.split(np.asarray(matrix), parts, axis=1)
    variables = [tf.Variable(tf.zeros([block.shape[1]], dtype)) for block in blocks]
    grads = [
        rt.Gradients([(key, tf.constant(block[row], dtype)) for key, block in zip(variables, blocks, strict=True)])
        for row in range(len(matrix))
    ]
    return rt.Rows(grads, losses=losses)
