"""An optimizer's step is part of the computation: differentiate the loss with respect to the rate.

The optimizers are those of Keras, unchanged. The last part shows a variable that changes during recording.
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


def rate_gradient(make: Callable[[float], Any], steps: int, rate: float = 0.1) -> float:
    """Return the derivative of the loss after some steps with respect to the learning rate."""
    optimizer = make(rate)
    tape, after = train(optimizer, steps)
    return float(tape.gradient(after, optimizer.learning_rate, through_updates=True))


def finite_difference(make: Callable[[float], Any], steps: int, rate: float = 0.1, gap: float = 1e-3) -> float:
    """Return a finite difference: train twice, with slightly different rates."""
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
        "w.r.t. the first x": float(tape.gradient(ys[-1], x, through_updates=True)),
        "step by step": [float(tape.gradient(y, tape.at(x, k))) for k, y in enumerate(ys)],
    }
    tape.reset()  # outside the block: the tape is empty and can be used again
    with tape:
        y = 5.0 * x
    return {**found, "after reset": float(tape.gradient(y, x))}


def main() -> dict[str, object]:
    numbers: dict[str, object] = {"one step": rate_gradient(OPTIMIZERS["SGD"], steps=1)}
    print(f"SGD, one step: d loss / d rate = {numbers['one step']}")
    for name, make in OPTIMIZERS.items():
        numbers[name] = rate_gradient(make, steps=3), finite_difference(make, steps=3)
        print("{:8} three steps: {:.4f}, finite difference {:.4f}".format(name, *numbers[name]))
    numbers |= changing_variable()
    print(f"y = x², x += 1, three times: the last y w.r.t. the first x {numbers['w.r.t. the first x']},", end=" ")
    print(f"each y w.r.t. the x it was computed from {numbers['step by step']}")
    return numbers


if __name__ == "__main__":
    main()
