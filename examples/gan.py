"""A GAN with two losses, two optimizers and one tape, which computes both gradients.

The tape does not have to be persistent, and each query names the part of the model that it differentiates.
"""

from __future__ import annotations

import keras
import tensorflow as tf

import retrotape as rt

STEPS, BATCH, MEAN, STD = 400, 128, 3.0, 1.0


def make_net(activation: str) -> keras.Model:
    hidden = [keras.layers.Dense(16, activation=activation) for _ in range(2)]
    return keras.Sequential([keras.Input((1,)), *hidden, keras.layers.Dense(1)])


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    generator, discriminator = make_net("tanh"), make_net("relu")
    generator_adam, discriminator_adam = (keras.optimizers.Adam(rate, beta_1=0.5) for rate in (0.001, 0.01))

    def cross_entropy(logits: tf.Tensor, real: float) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(real * tf.ones_like(logits), logits))

    @tf.function
    def step() -> None:
        real = tf.random.normal((BATCH, 1), MEAN, STD)
        with rt.Tape() as tape:
            on_real, on_fake = discriminator(real), discriminator(generator(tf.random.normal((BATCH, 1))))
            caught = cross_entropy(on_real, 1.0) + cross_entropy(on_fake, 0.0)
            fooled = cross_entropy(on_fake, 1.0)
        tape.backward(caught, discriminator.trainable_variables).apply(discriminator_adam)
        tape.backward(fooled, generator.trainable_variables).apply(generator_adam)

    for number in range(STEPS + 1):
        if number % 100 == 0:
            made = generator(tf.random.normal((2000, 1)))
            mean, std = float(tf.reduce_mean(made)), float(tf.math.reduce_std(made))
            print(f"{number:4} steps: made {mean:+.2f} ± {std:.2f}, the data {MEAN:+.2f} ± {STD:.2f}")
        step()
    return {"mean": mean, "std": std}


if __name__ == "__main__":
    main()
