"""Tapes nest like `tf.GradientTape`, but a single tape gives the same derivatives.

The inner derivative, the outer one and the second derivative come from the same three lines.
"""

from __future__ import annotations

import tensorflow as tf

import retrotape as rt


def inner_in_outer(x: tf.Variable) -> dict[str, float]:
    """Query the inner tape while the outer one records."""
    with rt.Tape(persistent=True) as outer:
        with rt.Tape() as inner:
            y = x**2
        z = tf.sin(y)
        dy_dx = inner.gradient(y, x)
    return {
        "dy/dx": float(dy_dx),
        "dz/dx": float(outer.gradient(z, x)),
        "d²y/dx²": float(outer.gradient(dy_dx, x)),
    }


def flat(x: tf.Variable) -> dict[str, float]:
    """Record once, compute everything afterwards."""
    with rt.Tape() as tape:
        y = x**2
        z = tf.sin(y)
    dy_dx = tape.gradient(y, x)
    return {
        "dy/dx": float(dy_dx),
        "dz/dx": float(tape.gradient(z, x)),
        "d²y/dx²": float(tape.gradient(dy_dx, x)),
    }


def main() -> dict[str, dict[str, float]]:
    x = tf.Variable(1.0)
    numbers = {"nested": inner_in_outer(x), "flat": flat(x)}
    for name, values in numbers.items():
        print(f"{name:7}", "  ".join(f"{what} = {value:.7f}" for what, value in values.items()))
    return numbers


if __name__ == "__main__":
    main()
