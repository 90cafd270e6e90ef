"""One variable on two tapes: each part of the loss has its own tape, and the gradients are added.

This is correct because the derivative of a sum of losses is the sum of their derivatives.
"""

from __future__ import annotations

import tensorflow as tf

import retrotape as rt


def descend(variable: tf.Variable, parts: list, rate: float = 0.1) -> tuple[float, float]:
    """Record each part on its own tape and take one gradient step on their sum."""
    total = tf.zeros_like(variable)
    for part in parts:
        with rt.Tape() as tape:
            value = part(variable)
        total += tape.gradient(value, variable)
    variable.assign_sub(rate * total)
    return float(total), float(variable)


def main() -> dict[str, tuple[float, float]]:
    curved = descend(tf.Variable(2.0), [lambda x: x**2 + 2.0 * x + 1.0, lambda x: tf.sin(x) + x])
    straight = descend(tf.Variable(1.0), [lambda v: 2.0 * v, lambda v: v + 5.0])
    print(f"(x + 1)² and sin x + x at 2: gradient {curved[0]:.6f}, then x = {curved[1]:.7f}")
    print(f"2v and v + 5 at 1:           gradient {straight[0]:.1f}, then v = {straight[1]:.1f}")
    return {"curved": curved, "straight": straight}


if __name__ == "__main__":
    main()
