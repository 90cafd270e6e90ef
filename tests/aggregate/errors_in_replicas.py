"""What raises in the replicas of a strategy, on two devices: a script of its own.

Several devices have to be there before TensorFlow starts. It prints the types and messages of the errors as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def main() -> None:
    """Make each error."""
    (physical,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    import retrotape as rt

    with strategy.scope():
        w = tf.Variable([1.0, 2.0])
    used = {"state": rt.aggregate.GradNorm(), "draws": rt.aggregate.PCGrad(seed=1)}
    for method in used.values():
        method.weights(tf.eye(2), [1.0, 1.0])
    uses: dict[str, Callable[[rt.Rows], Any]] = {
        **used,
        "gramian": lambda rows: rows.gramian(),
        "DPSGD": lambda rows: rt.aggregate.DPSGD(1.0, 1.0, 2)(rt.Rows(list(rows), mixed_by=None)),
    }

    def step(use: Callable[[rt.Rows], Any]) -> None:
        with rt.Tape() as tape:
            losses = [tf.reduce_sum(w**2), w[0] + w[1]]
        use(tape.backward_each(losses))

    errors = {}
    for name, use in uses.items():
        try:
            strategy.run(step, args=(use,))
        except Exception as error:
            errors[name] = [type(error).__name__, str(error)]
    print("errors:" + json.dumps(errors))


if __name__ == "__main__":
    main()
