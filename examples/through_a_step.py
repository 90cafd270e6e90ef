"""An optimizer's step is part of the computation: differentiate the loss after it by the learning rate before it.

The optimizers are those of Keras, unchanged. The last part shows a variable that changes while it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import retrotape as rt

OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "SGD": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "Adam": keras.optimizers.Adam,
    "RMSprop": keras.optimizers.RMSprop,
}


def train(optimizer: Any, steps: int) -> tuple[rt.Tape, tf.Tensor]:
    """Take steps down a² + b² from (1, 2); return the tape and the loss after them."""
    pair = [tf.Variable(1.0), tf.Variable(2.0)]
    with rt.Tape() as tape:
        for _ in range(steps):
            loss = pair[0] ** 2 + pair[1] ** 2
            optimizer.apply_gradients(zip(tape.gradient(loss, pair), pair, strict=True))
        after = pair[0] ** 2 + pair[1] ** 2
    return tape, after


def by_rate(make: Callable[[float], Any], steps: int, rate: float = 0.1) -> float:
    """Return the derivative of the loss after some steps by the learning rate."""
    optimizer = make(rate)
    tape, after = train(optimizer, steps)
    return float(tape.gradient(after, optimizer.learning_rate, through_updates=True))


def by_difference(make: Callable[[float], Any], steps: int, rate: float = 0.1, gap: float = 1e-3) -> float:
    """Return the same, by training twice with rates a little apart."""
    more, less = (float(train(make(rate + sign * gap), steps)[1]) for sign in (1.0, -1.0))
    return (more - less) / (2.0 * gap)


def changing_variable() -> dict[str, object]:
    """Record `y = x²; x += 1` three times from 0."""
    x = tf.Variable(0.0)
    tape = rt.Tape()
    ys = []
    with tape:
        for _ in range(3):
            ys.append(x**2)
            x.assign_add(1.0)
    found: dict[str, object] = {
        "by the first x": float(tape.gradient(ys[-1], x, through_updates=True)),
        "step by step": [float(tape.gradient(y, tape.at(x, k))) for k, y in enumerate(ys)],
    }
    tape.reset()  # outside of its block: the tape is empty and can be used again
    with tape:
        y = 5.0 * x
    return {**found, "after reset": float(tape.gradient(y, x))}


def main() -> dict[str, object]:
    numbers: dict[str, object] = {"one step": by_rate(OPTIMIZERS["SGD"], steps=1)}
    print(f"SGD, one step: d loss / d rate = {numbers['one step']}")
    for name, make in OPTIMIZERS.items():
        numbers[name] = by_rate(make, steps=3), by_difference(make, steps=3)
        print("{:8} three steps: {:.4f}, by difference {:.4f}".format(name, *numbers[name]))
    numbers |= changing_variable()
    print(f"y = x², x += 1, three times: the last y by the first x {numbers['by the first x']},", end=" ")
    print(f"each y by the x that it was made from {numbers['step by step']}")
    return numbers


if __name__ == "__main__":
    main()
