"""A training step in eager code, recorded once and then played back as one function: the same weights, in less time.

The step adds up gradients of micro-batches, and applies them in every fourth call, by a plain `if`.
"""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, EVERY = 200, 4
X = tf.constant(np.random.default_rng(0).normal(size=(STEPS, 16, 4)), tf.float32)
Y = tf.sin(X[..., :1]) + X[..., 1:2]


def make_step() -> tuple[rt.CompiledStep, keras.Model]:
    """Return a step, and the model that it trains."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Dense(32, "tanh"), layers.Dropout(0.1), layers.Dense(1)])
    adam, weights = keras.optimizers.Adam(0.03), model.trainable_variables
    adam.build(weights)
    sums, count = [tf.Variable(tf.zeros(w.shape)) for w in weights], tf.Variable(0)

    @rt.compile
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        for total, grad in zip(sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(grad / EVERY)
        if count.assign_add(1) % EVERY == 0:  # Python reads it: one path for each side
            adam.apply([total.read_value() for total in sums], weights)
            for total in sums:
                total.assign(tf.zeros_like(total))
        return loss

    return step, model


def train(played: bool) -> tuple[list[np.ndarray], list[float], float, rt.CompiledStep]:
    """Return the weights after all steps, the losses, the seconds for the later half, and the step."""
    step, model = make_step()
    call = step if played else step.__wrapped__  # the function itself
    losses, begin = [], 0.0
    for number, (x, y) in enumerate(zip(X, Y, strict=True)):
        if number == STEPS // 2:
            begin = time.perf_counter()
        losses.append(call(x, y))
    seconds = time.perf_counter() - begin
    return model.get_weights(), [float(loss) for loss in losses], seconds, step


def main() -> dict[str, object]:
    (eager, _, slow, _), (weights, losses, fast, step) = train(played=False), train(played=True)
    equal = all(np.array_equal(a, b) for a, b in zip(eager, weights, strict=True))
    first, last = np.mean(losses[:20]), np.mean(losses[-20:])
    print(f"{STEPS} micro-batches, a step of Adam after each {EVERY}: loss {first:.3f} → {last:.3f}")
    print(f"eager code {slow / STEPS * 2e3:.2f} ms a step, played back {fast / STEPS * 2e3:.2f} ms")
    print(f"the same weights to the bit, with the same dropout: {equal}")
    for one in step.recordings():
        print(f"recorded since: {one.why.split(' at ')[0].strip(',')}; {one.ops} ops, played back {one.plays} times")
    plays = [one.plays for one in step.recordings()]
    return {"equal": equal, "first": first, "last": last, "plays": plays, "seconds": (slow, fast)}


if __name__ == "__main__":
    main()
