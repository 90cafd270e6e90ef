"""A training in a process of its own: with two devices, or to be killed.

python worker.py FOLDER SEED [--mirrored] [--mixed] [--kill STEP] [--forever] [--options JSON]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from contextlib import nullcontext

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from callbacks.flight.programs import state, training


class Kill(keras.callbacks.Callback):
    """Kill the process after a step, and write before what it has learned."""

    def __init__(self, folder: str, step: int) -> None:
        super().__init__()
        self._folder, self._step = folder, step

    def on_train_batch_end(self, batch, logs=None):
        if batch >= self._step:
            np.savez(os.path.join(self._folder, "truth.npz"), step=batch, **state(self.model))
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("seed", type=int)
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--kill", type=int)
    parser.add_argument("--forever", action="store_true")
    parser.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    program, strategy = training(given.seed), None
    if given.mirrored:
        devices = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if given.mixed:
        keras.mixed_precision.set_global_policy("mixed_float16")
    with strategy.scope() if strategy else nullcontext():
        model = program.make(**given.options)
    recorder = rt.FlightRecorder(given.folder, every=6)
    callbacks = [recorder, *([] if given.kill is None else [Kill(given.folder, given.kill)])]
    print("begin", flush=True)
    program.fit(
        model, program.bad if given.forever else None, callbacks=callbacks, epochs=10**6 if given.forever else 1
    )
    found = [{"step": crash.step, "tape": crash.tape, "message": crash.message} for crash in recorder.crashes]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
