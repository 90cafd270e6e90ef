"""Any tensor that took part can be asked about, as often as you like, though nobody watched it.

So a gradient can begin or end in the middle of a computation: between two tapes, or inside a Keras model.
"""

from __future__ import annotations

import keras
import tensorflow as tf

import retrotape as rt


def between_two_tapes() -> dict[str, float]:
    """Compute `y` on one tape and go on from it on another."""
    x = tf.Variable(1.0)
    with rt.Tape() as first:
        y = x**2
    with rt.Tape() as second:
        z = tf.sin(y)
    return {"dz/dy": float(second.gradient(z, y)), "dy/dx": float(first.gradient(y, x))}


def twice() -> dict[str, float]:
    """Ask one tape for one source, and then for another."""
    x, y = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as first:
        product = x * y
    with rt.Tape() as second:
        power = tf.exp(product)
    by_product = second.gradient(power, product)
    return {
        "dz2/dx": float(by_product * first.gradient(product, x)),
        "dz2/dy": float(by_product * first.gradient(product, y)),
    }


def inside_a_model() -> tuple[list[float], list[float]]:
    """Return how each hidden unit of a frozen model moves its output, and how it should."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.trainable = False  # nothing here that a stock tape would watch
    with rt.Tape() as tape:
        out = model(tf.constant([[1.0, -1.0, 0.5]]))
    hidden = tape.tensors(op="Tanh")[0]  # found afterwards; the model is called as it is
    kernel = model.layers[1].get_weights()[0]  # the layer after is linear, so its weights are the answer
    return tape.gradient(out, hidden)[0].numpy().tolist(), kernel[:, 0].tolist()


def main() -> dict[str, object]:
    between, asked_twice, hidden = between_two_tapes(), twice(), inside_a_model()
    print("y = x² on a tape, z = sin y on the next:", ", ".join(f"{name} = {v:.7f}" for name, v in between.items()))
    print("z2 = exp(xy), asked twice:", ", ".join(f"{name} = {value:.7f}" for name, value in asked_twice.items()))
    for name, values in zip(("by the hidden units of a model:", "the weights that they meet:"), hidden, strict=True):
        print(f"{name:31}", ", ".join(f"{value:+.4f}" for value in values))
    return {**between, **asked_twice, "hidden": hidden}


if __name__ == "__main__":
    main()
