"""The loss is finite, but after one step all weights are NaN: the tape names the op, line, cause and fix."""

from __future__ import annotations

import tensorflow as tf

import retrotape as rt

tf.keras.utils.set_random_seed(1)
net = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(2)])
left = tf.random.normal([6, 4])
right = tf.concat([left[:1], tf.random.normal([5, 4])], axis=0)  # the first pair is identical


def main() -> dict[str, object]:
    with rt.Tape() as tape:
        loss = tf.reduce_mean(tf.norm(net(left) - net(right), axis=-1))
    broken = tape.first_nonfinite(loss)
    print(f"loss {float(loss):.3f}, but {broken}")
    with rt.Tape() as tape:
        distances = tf.sqrt(tf.reduce_sum((net(left) - net(right)) ** 2, axis=-1) + 1e-12)
        loss = tf.reduce_mean(distances)
    fixed, norm = tape.first_nonfinite(loss), float(tape.backward(loss).norm())
    print(f"fixed: loss {float(loss):.3f}, gradient norm {norm:.3f}, first value that is not finite: {fixed}")
    return {"broken": broken, "fixed": fixed, "norm": norm}


if __name__ == "__main__":
    main()
