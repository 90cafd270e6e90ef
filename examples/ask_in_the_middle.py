"""Any tensor that was used can be a source or a target, as often as you like, without `watch`.

So a gradient can begin or end in the middle of a computation: between two tapes, or inside a Keras model.
"""

from __future__ import annotations

import keras
import tensorflow as tf

import retrotape as rt


def between_two_tapes() -> dict[str, float]:
    """Compute `y` on one tape and use it on another."""
    x = tf.Variable(1.0)
    with rt.Tape() as first:
        y = x**2
    with rt.Tape() as second:
        z = tf.sin(y)
    return {"dz/dy": float(second.gradient(z, y)), "dy/dx": float(first.gradient(y, x))}


def twice() -> dict[str, float]:
    """Compute the gradient with respect to one source, then with respect to another, on the same tape."""
    x, y = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as first:
        product = x * y
    with rt.Tape() as second:
        power = tf.exp(product)
    grad_product = second.gradient(power, product)
    return {
        "dz2/dx": float(grad_product * first.gradient(product, x)),
        "dz2/dy": float(grad_product * first.gradient(product, y)),
    }


def inside_a_model() -> tuple[list[float], list[float]]:
    """Return the gradient with respect to each hidden unit of a frozen model, and the expected one."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.trainable = False  # so a stock tape would watch nothing here
    with rt.Tape() as tape:
        out = model(tf.constant([[1.0, -1.0, 0.5]]))
    hidden = tape.tensors(op="Tanh")[0]  # found afterwards; the model is called as it is
    kernel = model.layers[1].get_weights()[0]  # the next layer is linear, so its weights are the gradient
    return tape.gradient(out, hidden)[0].numpy().tolist(), kernel[:, 0].tolist()


def main() -> dict[str, object]:
    between, two_sources, hidden = between_two_tapes(), twice(), inside_a_model()
    print("y = x² on one tape, z = sin y on another:", ", ".join(f"{name} = {v:.7f}" for name, v in between.items()))
    print("z2 = exp(xy), two gradients:", ", ".join(f"{name} = {value:.7f}" for name, value in two_sources.items()))
    for name, values in zip(("w.r.t. a model's hidden units:", "weights of the next layer:"), hidden, strict=True):
        print(f"{name:31}", ", ".join(f"{value:+.4f}" for value in values))
    return {**between, **two_sources, "hidden": hidden}


if __name__ == "__main__":
    main()
