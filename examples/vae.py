"""A variational autoencoder, and a check after training: which of its latent numbers does the decoder use?

The images have two degrees of freedom, the code has four numbers. The Jacobian with respect to the code shows that two
of them collapsed, and the same tape gives separate gradients for the two parts of the loss.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, BATCH, SIZE, CODE, NOISE = 600, 64, 12, 4, 0.5


def blobs(count: int) -> tf.Tensor:
    """Return images of one round blob at a random position."""
    centre = tf.random.uniform((count, 2, 1), 0.2, 0.8)
    bell = tf.exp(-(((tf.linspace(0.0, 1.0, SIZE) - centre) / 0.25) ** 2))
    return tf.reshape(bell[:, 0, :, None] * bell[:, 1, None, :], (count, SIZE * SIZE))


def make_net(inputs: int, outputs: int) -> keras.Model:
    hidden = [keras.layers.Dense(64, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(outputs)])


def forward(encoder: keras.Model, decoder: keras.Model, images: tf.Tensor, noise: tf.Tensor) -> tuple:
    """Return the error of the reconstruction, the KL divergence, the code and the decoded images."""
    mean, log_std = tf.split(encoder(images), 2, axis=1)
    code = mean + tf.exp(log_std) * noise
    decoded = decoder(code)
    error = tf.reduce_mean(tf.reduce_sum((decoded - images) ** 2, axis=1)) / (2.0 * NOISE**2)
    divergence = tf.reduce_sum(mean**2 + tf.exp(2.0 * log_std) - 1.0 - 2.0 * log_std, axis=1) / 2.0
    return error, tf.reduce_mean(divergence), code, decoded


def main() -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    encoder, decoder, adam = make_net(SIZE**2, 2 * CODE), make_net(CODE, SIZE**2), keras.optimizers.Adam(0.004)

    @tf.function
    def step() -> tf.Tensor:
        with rt.Tape() as tape:
            error, divergence, *_ = forward(encoder, decoder, blobs(BATCH), tf.random.normal((BATCH, CODE)))
            loss = error + divergence
        tape.backward(loss).apply(adam)
        return loss

    losses = [float(step()) for _ in range(STEPS)]
    print(f"loss (minus the ELBO) {losses[0]:.1f} → {np.mean(losses[-50:]):.1f} in {STEPS} steps")

    with rt.Tape() as tape:
        error, divergence, code, decoded = forward(encoder, decoder, blobs(256), tf.random.normal((256, CODE)))
    moved = tf.norm(tape.batch_jacobian(decoded, code), axis=1)  # how far a unit of each number moves each image
    used = tf.reduce_mean(moved, axis=0).numpy()
    print(f"a unit of each latent number moves the image by {', '.join(f'{each:.2f}' for each in used)}")
    apart = tape.backward_each([error, divergence], encoder.trainable_variables)
    lengths = [float(grads.norm()) for grads in apart]
    cosine = float(apart[0] @ apart[1]) / np.prod(lengths)
    print("norms of the encoder's gradients: reconstruction {:.1f}, KL divergence {:.1f},".format(*lengths), end=" ")
    print(f"cosine between them {cosine:+.2f}")
    shift = np.linspace(-2.0, 2.0, 9)[:, None, None] * np.eye(CODE)  # one number changes, the others stay 0
    rows = decoder(shift.reshape(-1, CODE)).numpy().reshape(9, CODE, SIZE, SIZE)
    return {"losses": losses, "used": used, "cosine": cosine, "rows": rows, "nets": (encoder, decoder)}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=[2.25, 1.0])
    tiles = numbers["rows"].transpose(1, 2, 0, 3).reshape(CODE * SIZE, -1)
    left.imshow(tiles, cmap="gray", extent=(-2.25, 2.25, CODE - 0.5, -0.5), aspect="auto")
    left.set(title="decoded images", xlabel="one latent number, the others are 0", ylabel="which number")
    right.barh(range(CODE), numbers["used"])
    right.set(title="mean norm of the derivative", xlabel="change of the image per unit", ylim=(CODE - 0.5, -0.5))
    for axis in (left, right):
        axis.set_yticks(range(CODE))


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
