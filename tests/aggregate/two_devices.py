"""`fit` under MirroredStrategy on two devices, against one device on the whole batch: a script of its own.

Several devices have to be there before TensorFlow starts. It prints, as JSON, how far the weights are apart.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import tensorflow as tf


def main(names: list[str]) -> None:
    """Train with each method twice."""
    (physical,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    from aggregate.heads import fit, net

    apart = {}
    for name in names:
        one = net(name)
        before = one.get_weights()
        with strategy.scope():
            both = net(name)
            both.set_weights(before)
            fit(both)
        fit(one)
        pairs = list(zip(one.get_weights(), both.get_weights(), strict=True))
        moved = max(float(np.abs(a - b).max()) for a, b in zip(before, one.get_weights(), strict=True))
        apart[name] = max(float(np.abs(a - b).max()) for a, b in pairs) / moved
    print("apart:" + json.dumps(apart))


if __name__ == "__main__":
    main(sys.argv[1:])
