"""Hessian-vector products, whole Hessians and third derivatives from one plain tape."""

from __future__ import annotations

import tensorflow as tf

import retrotape as rt


def cube() -> dict[str, float]:
    """Return the derivatives of x³ at 2, order by order."""
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        y = x**3
    first = tape.gradient(y, x)
    second = tape.gradient(first, x)
    third = tape.gradient(second, x)
    return {
        "first": float(first),
        "second": float(second),
        "third": float(third),
        "hvp": float(tape.hvp(y, x, tf.constant(1.0))),
    }


def valley() -> dict[str, object]:
    """Return the Hessian of Rosenbrock's function at its minimum, and its product with a vector."""
    p = tf.Variable([1.0, 1.0], dtype=tf.float64)
    with rt.Tape() as tape:
        height = (1.0 - p[0]) ** 2 + 100.0 * (p[1] - p[0] ** 2) ** 2
    along = tf.constant([1.0, 2.0], tf.float64)  # the floor of the valley: almost no curvature
    return {"hessian": tape.hessian(height, p).numpy(), "along": tape.hvp(height, p, along).numpy()}


def main() -> dict[str, object]:
    numbers: dict[str, object] = {**cube(), **valley()}
    print("x³ at 2:", ", ".join(f"{name} {numbers[name]}" for name in ("first", "second", "third", "hvp")))
    print("Rosenbrock at (1, 1):", numbers["hessian"].tolist(), "along the valley", numbers["along"].tolist())
    return numbers


if __name__ == "__main__":
    main()
