"""Which training examples do harm? Weight each one, train, and differentiate the loss with respect to the weights.

Through twenty steps of stock Adam, the examples with wrong labels have the largest derivatives of the validation loss.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, EXAMPLES = 20, 40
WRONG = np.array([3, 8, 13, 22, 27, 31])  # examples whose labels are flipped


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two clusters of points and the cluster of each point, as 0.0 or 1.0."""
    rng = np.random.default_rng(seed)
    label = np.arange(EXAMPLES) % 2
    centre = np.where(label[:, None] == 1, 1.0, -1.0) * np.array([1.0, 0.5])
    return centre + 0.4 * rng.normal(size=(EXAMPLES, 2)), label.astype(float)


def each_loss(model: keras.Model, x: np.ndarray, label: np.ndarray) -> tf.Tensor:
    return tf.nn.sigmoid_cross_entropy_with_logits(tf.constant(label), model(x)[:, 0])


def train(weight: tf.Tensor) -> tuple[rt.Tape, tf.Tensor]:
    """Train with weighted examples; return the tape and the loss on clean data."""
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(8, "tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
    model, adam = keras.Sequential([keras.Input((2,), dtype="float64"), *layers]), keras.optimizers.Adam(0.05)
    x, label = data(0)
    label[WRONG] = 1.0 - label[WRONG]
    with rt.Tape() as tape:
        for _ in range(STEPS):
            loss = tf.reduce_mean(weight * each_loss(model, x, label))
            variables = model.trainable_variables
            adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        clean = tf.reduce_mean(each_loss(model, *data(1)))
    return tape, clean


def main() -> dict[str, np.ndarray]:
    weight = tf.ones(EXAMPLES, tf.float64)
    tape, clean = train(weight)
    harm = tape.gradient(clean, weight, through_updates=True).numpy()
    order = np.argsort(-harm)
    print(f"validation loss {float(clean):.4f}; the examples that raise it most, and by how much:")
    for example in order[: len(WRONG) + 2]:
        print(f"  example {example:2}  {harm[example]:+.6f}  {'wrong label' if example in WRONG else ''}")
    return {"harm": harm, "order": order}


if __name__ == "__main__":
    main()
