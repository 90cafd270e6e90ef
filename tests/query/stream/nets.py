"""A net to stream the gradients of, and how they are compared with those that come all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt

KEEPS = ["needed", "all", "leaves", "segments", "disk"]


def identical(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    ours, theirs = (tf.nest.flatten(value, expand_composites=True) for value in (one, other))
    for left, right in zip(ours, theirs, strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.numpy().tobytes() == right.numpy().tobytes()


def matches(pairs: list[tuple[Any, Any]], sources: list[Any], wanted: list[Any]) -> None:
    """Check that each source with a gradient was yielded once, with that gradient."""
    assert len(pairs) == sum(grad is not None for grad in wanted)
    for source, grad in zip(sources, wanted, strict=True):
        found = [value for key, value in pairs if key is source]
        assert len(found) == (0 if grad is None else 1)
        if grad is not None:
            identical(found[0], grad)


class Net:
    """Six layers, each with a weight of its own."""

    def __init__(self, depth: int = 6) -> None:
        rng = np.random.default_rng(3)
        self.x = tf.constant(rng.uniform(0.2, 1.0, (4, 5)))
        self.weights = [tf.Variable(rng.normal(size=(5, 5)) / 2.0, name=f"w{n}") for n in range(depth)]
        self.hidden: list[tf.Tensor] = []

    def loss(self) -> tf.Tensor:
        self.hidden = [self.x]
        for weight in self.weights:
            self.hidden.append(tf.tanh(self.hidden[-1] @ weight) + self.hidden[-1])
        return tf.reduce_sum(self.hidden[-1] ** 2)

    def recorded(self, keep: str = "needed") -> tuple[rt.Tape, tf.Tensor]:
        with rt.Tape(keep=keep) as tape:
            loss = self.loss()
        return tape, loss

    def number(self, weight: Any) -> int:
        return next(number for number, other in enumerate(self.weights) if other is weight)
