"""What tapes answer under `tf.distribute`, each against one process on the whole batch.

Several devices have to be there before TensorFlow starts, so this runs as a script of its own, once for all cases:
it prints, as JSON, what came of each. An answer is right, or an error of this library says what to type.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from record.replicas import (
    cases_around,
    cases_files,
    cases_graph,
    cases_inside,
    cases_updates,
)
from record.replicas.setting import CASES, Setting

MODULES = (cases_around, cases_files, cases_graph, cases_inside, cases_updates)
ORDERS = {2: (0, 1), 4: (2, 0, 3, 1)}  # of the devices: replicas need not be in the order of devices


def _outcome(function: Callable, setting: Setting) -> str:
    try:
        found, want = function(setting)
    except Exception as error:  # which one it is, is what the test looks at
        return f"{type(error).__name__}: {error}"
    pairs = zip(found, want, strict=True) if isinstance(found, list) else [(found, want)]
    right = all(one is not None and np.allclose(one, other, rtol=3e-3, atol=1e-5) for one, other in pairs)
    return "right" if right else f"wrong: {found}, not {want}"


def main(replicas: int, chosen: list[str]) -> None:
    """Run cases, with one strategy of each kind: two with collectives in one process disturb each other."""
    physical = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * replicas)
    tf.get_logger().setLevel("ERROR")
    devices = [f"CPU:{number}" for number in ORDERS[replicas]]
    made = {
        "one": tf.distribute.OneDeviceStrategy("CPU:0"),
        "mirrored": tf.distribute.MirroredStrategy(devices),
        "central": tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0"),
    }
    outcomes = {}
    for name in chosen or CASES:
        wrap = [tf.function] if name.endswith(" function") else []
        outcomes[name] = _outcome(CASES[name][0], Setting(made[name.split()[1]], *wrap))
    print("outcomes:" + json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
