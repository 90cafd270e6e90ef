"""Two losses, two optimizers, two parts of a model: one tape, as many gradients as needed.

The stock tape, which needs `persistent=True`, gives the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS = 20


class TwoHeads:
    """A shared trunk with a head for a number and a head for a class."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        self.trunk = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="tanh")])
        self.number = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        self.kind = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        rng = np.random.default_rng(1)
        self.x = tf.constant(rng.normal(size=(16, 3)), tf.float32)
        self.y = tf.reduce_sum(self.x, 1, keepdims=True)
        self.label = tf.cast(self.x[:, 0] > 0.0, tf.int32)

    def losses(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the squared error of the number and the cross entropy of the class."""
        features = self.trunk(self.x)
        off = tf.reduce_mean((self.number(features) - self.y) ** 2)
        logits = self.kind(features)
        wrong = tf.nn.sparse_softmax_cross_entropy_with_logits(self.label, logits)
        return off, tf.reduce_mean(wrong)

    def weights(self) -> list[np.ndarray]:
        """Return the value of every weight."""
        return [w for part in (self.trunk, self.number, self.kind) for w in part.get_weights()]


def one_loss_per_part(make_tape: Callable[[], Any]) -> tuple[list[np.ndarray], float]:
    """Train trunk and number head on the first loss, the other head on the second, with another optimizer."""
    net = TwoHeads()
    mine = net.trunk.trainable_variables + net.number.trainable_variables
    theirs = net.kind.trainable_variables
    adam, sgd = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
    for _ in range(STEPS):
        with make_tape() as tape:
            off, wrong = net.losses()
        from_off, from_wrong = tape.gradient(off, mine), tape.gradient(wrong, theirs)
        adam.apply_gradients(zip(from_off, mine, strict=True))
        sgd.apply_gradients(zip(from_wrong, theirs, strict=True))
    return net.weights(), float(sum(net.losses()))


def joint_then_a_part(make_tape: Callable[[], Any]) -> tuple[list[np.ndarray], float]:
    """Take a step on the sum of the losses, then one more step of one head on its own loss."""
    net = TwoHeads()
    head = net.kind.trainable_variables
    everything = net.trunk.trainable_variables + net.number.trainable_variables + head
    adam = keras.optimizers.Adam(0.01)
    for _ in range(STEPS):
        with make_tape() as tape:
            off, wrong = net.losses()
            total = off + wrong
        for_all, for_head = tape.gradient(total, everything), tape.gradient(wrong, head)
        adam.apply_gradients(zip(for_all, everything, strict=True))
        adam.apply_gradients(zip(for_head, head, strict=True))
    return net.weights(), float(sum(net.losses()))


def main() -> dict[str, dict[str, float]]:
    before = float(sum(TwoHeads().losses()))
    numbers = {}
    for train in (one_loss_per_part, joint_then_a_part):
        ours, loss = train(rt.Tape)
        stock, _ = train(lambda: tf.GradientTape(persistent=True))
        apart = max(float(np.abs(a - b).max()) for a, b in zip(ours, stock, strict=True))
        numbers[train.__name__] = {"before": before, "loss": loss, "apart": apart}
        print(f"{train.__name__:18} loss {before:.3f} → {loss:.3f}, weights differ from stock by {apart:.1e}")
    return numbers


if __name__ == "__main__":
    main()
