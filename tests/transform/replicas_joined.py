"""A saved step of two replicas, joined to another tape and saved again: a script of its own, for two devices."""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf


def main(folder: str) -> None:
    """Compare what the tapes tell about the step."""
    (physical,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    import retrotape as rt

    with strategy.scope():
        w = tf.Variable([1.0, 2.0], name="w")
        seeds = keras.random.SeedGenerator(1)  # each replica moves its own copy on, without waiting for the other

    def step(x: tf.Tensor) -> tf.Tensor:
        noise = [keras.random.uniform([2], seed=seeds) for _ in range(2)]
        return tf.reduce_sum(tf.sin(w * x) * noise[0] * noise[1])

    given = [tf.constant([0.5, 1.0]), tf.constant([1.5, -1.0])]
    x = strategy.experimental_distribute_values_from_function(lambda context: given[context.replica_id_in_sync_group])
    with rt.Tape() as tape:
        losses = strategy.experimental_local_results(strategy.run(step, args=(x,)))
        loss = losses[0] + losses[1]
    tape.save(f"{folder}/step.tape", {"loss": loss})
    loaded = rt.load(f"{folder}/step.tape")
    with rt.Tape() as other:
        tf.sin(tf.constant(1.0))
    loaded.save(f"{folder}/again.tape", freeze=["Unknown"])
    again = rt.load(f"{folder}/again.tape")
    whole = rt.join(loaded, other)
    found = {
        "loaded": (loaded.gradient("loss", "w"), loaded.value("loss")),
        "saved again": (again.gradient("loss", "w"), again.value("loss")),
        "joined": (whole.gradient(loaded["loss"], loaded["w"]), whole.value(loaded["loss"])),
    }
    wanted = tape.gradient(loss, w)
    for name, (grad, value) in found.items():
        np.testing.assert_allclose(grad, wanted, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(value, loss, rtol=1e-6, err_msg=name)
    print("compared", len(found))


if __name__ == "__main__":
    main(sys.argv[1])
