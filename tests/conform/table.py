"""What a case of the conformance table is, and the sources that cases are made of."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

Random = np.random.RandomState
Spec = Callable[[Random], Any]


class Ask(NamedTuple):
    """What a program returns when the plain question about its result is not the one to ask."""

    target: Any
    sources: Any = None  # in place of those the program was built with
    output_gradients: Any = None
    unconnected: Any = tf.UnconnectedGradients.NONE


class Case(NamedTuple):
    """A differentiable program: `build` gives a function and the sources that it is called with."""

    name: str
    build: Callable[[Random], tuple[Callable[..., Any], list[Any]]]
    eager_only: str | None = None  # why it cannot be traced
    tolerance: float = 1e-6
    more: bool = False  # whether we may answer where the stock tape says None
    apart: bool = False  # whether two tapes in one graph get in each other's way, in TensorFlow itself

    def made(self) -> tuple[Callable[..., Any], list[Any]]:
        """Build the program, the same one each time."""
        seed = zlib.crc32(self.name.encode()) % 2**31
        keras.utils.set_random_seed(seed)
        return self.build(Random(seed))


def simple(name: str, function: Callable[..., Any], *specs: Spec, **options: Any) -> Case:
    """Return a case that calls `function` with a source for each of `specs`."""
    return Case(name, lambda rng: (function, [spec(rng) for spec in specs]), **options)


def case(table: list[Case], **options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that puts a builder into `table` under its own name."""

    def add(build: Callable) -> Callable:
        table.append(Case(build.__name__.strip("_"), build, **options))
        return build

    return add


# ------------------------------------------------------------------ sources


def normal(*shape: int, dtype: str = "float32") -> Spec:
    """Return a tensor with entries of both signs."""
    return lambda rng: tf.constant(rng.normal(size=shape), dtype)


def positive(*shape: int, dtype: str = "float32") -> Spec:
    """Return a tensor with entries between a half and three halves."""
    return lambda rng: tf.constant(rng.uniform(0.5, 1.5, size=shape), dtype)


def inside(*shape: int, dtype: str = "float32") -> Spec:
    """Return a tensor with entries well inside (-1, 1)."""
    return lambda rng: tf.constant(rng.uniform(-0.9, 0.9, size=shape), dtype)


def definite(*shape: int, dtype: str = "float32") -> Spec:
    """Return a batch of symmetric, positive definite matrices."""

    def make(rng: Random) -> Any:
        root = rng.normal(size=shape)
        return tf.constant(root @ np.swapaxes(root, -1, -2) + shape[-1] * np.eye(shape[-1]), dtype)

    return make


def complexes(*shape: int, dtype: str = "complex64") -> Spec:
    """Return a tensor of complex numbers."""
    return lambda rng: tf.constant(rng.normal(size=shape) + 1j * rng.normal(size=shape), dtype)


def variable(*shape: int, dtype: str = "float32", **options: Any) -> Spec:
    """Return a variable with entries of both signs."""
    return lambda rng: tf.Variable(rng.normal(size=shape), dtype=dtype, **options)


def apart(*shape: int) -> Spec:
    """Return a tensor whose entries all differ by a tenth at least, so that ties do not decide."""
    return lambda rng: tf.constant(rng.permutation(int(np.prod(shape))).reshape(shape) / 10.0 - 0.3, tf.float32)
