"""Two copies of one program, and what is compared of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

T = TypeVar("T")


def build(make: Callable[[], T], seed: int = 7) -> T:
    """Make something from a seed: all generators of random numbers begin anew."""
    keras.backend.clear_session(free_memory=False)  # also the global seed generator of Keras
    keras.utils.set_random_seed(seed)
    return make()


def state_of(nest: Any) -> Any:
    """Return a nest with arrays in place of tensors and variables, and of everything that has variables."""
    if isinstance(nest, dict):
        return {key: state_of(value) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        found = [state_of(value) for value in nest]
        return found if isinstance(nest, list) else (type(nest).__name__, *found)
    if isinstance(nest, tf.IndexedSlices):
        return ("IndexedSlices", state_of(nest.values), state_of(nest.indices))
    if isinstance(nest, keras.random.SeedGenerator):
        return state_of(nest.state)
    if tf.is_tensor(nest) or isinstance(nest, (tf.Variable, keras.Variable)):
        value = tf.convert_to_tensor(nest)
        return np.array(value.numpy()) if hasattr(value, "numpy") else "symbolic"
    if hasattr(nest, "variables"):
        return [state_of(variable) for variable in nest.variables]
    return nest


def generators() -> Any:
    """Return the next number of each global generator; this draws it."""
    return [
        random.random(),
        np.random.random_sample(),
        tf.random.uniform([]).numpy(),
        state_of(keras.random.uniform([])),
    ]


def assert_same(ours: Any, theirs: Any, tolerance: float, where: str) -> None:
    """Check that two nests of arrays and values of Python are the same; to the bit if `tolerance` is zero."""
    assert type(ours) is type(theirs), f"{where}: got {ours!r}, expected {theirs!r}"
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], tolerance, f"{where}, {key!r}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, tolerance, f"{where}, {number}")
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        if tolerance and theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=where)
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=where)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), f"{where}: got {ours!r}, expected {theirs!r}"


def plays(compiled: Any) -> int:
    """Return how often recordings of a compiled step were played."""
    return sum(row.plays for row in compiled.recordings())
