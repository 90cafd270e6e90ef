"""Two workers train on half of the batch each and save one tape together; another process asks it about the whole job.

The gradient is that of the whole batch, and that of the learning rate runs through two distributed steps of Adam.
Run without arguments it starts its own workers, on this machine only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

RATE, STEPS, BUMP = 0.05, 2, 2e-3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(8, 3)).astype("float32")
Y = np.sin(X @ DRAW.normal(size=(3, 1))).astype("float32")


def build(rate: float) -> tuple[keras.Model, keras.Optimizer]:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "tanh", name="hidden"), keras.layers.Dense(1, name="head")]
    return keras.Sequential([keras.Input((3,)), *layers], name="model"), keras.optimizers.Adam(rate)


def work(folder: str) -> None:
    """Train as one of the workers that TF_CONFIG names, and save the tape with the others."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, adam = build(RATE)
    x, y = (np.split(rows, 2)[strategy.cluster_resolver.task_id] for rows in (X, Y))
    loss_of = lambda: tf.reduce_sum((model(x) - y) ** 2) / len(X)  # noqa: E731

    def step() -> None:
        with tf.GradientTape() as inner:
            loss = loss_of()
        adam.apply(inner.gradient(loss, model.trainable_variables), model.trainable_variables)

    with rt.Tape() as tape:
        for _ in range(STEPS):
            strategy.run(step)
        loss = strategy.reduce("SUM", strategy.run(loss_of), axis=None)
    tape.save(folder, {"loss": loss, "rate": adam.learning_rate})
    os._exit(0)  # without waiting for the other worker to end


def start_workers(folder: str) -> None:
    """Run this file as each of two workers, and wait until both have saved."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
    jobs = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": k}} for k in range(2)]
    settings = [{**os.environ, "TF_CONFIG": json.dumps(job)} for job in jobs]
    workers = [subprocess.Popen([sys.executable, __file__, folder], env=each) for each in settings]
    try:
        assert not any(worker.wait(timeout=120) for worker in workers), "a worker failed; its message is above"
    finally:
        for worker in workers:
            worker.kill()


def train(rate: float) -> tuple[float, dict[str, tf.Tensor]]:
    """Return the loss after the same steps in one process, on the whole batch with a stock tape, and its gradient."""
    model, adam = build(rate)
    for step in range(STEPS + 1):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(X) - Y) ** 2) / len(X)
        grads = tape.gradient(loss, model.trainable_variables)
        if step < STEPS:
            adam.apply(grads, model.trainable_variables)
    return float(loss), dict(zip([variable.path for variable in model.trainable_variables], grads, strict=True))


def main() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as parent:
        start_workers(f"{parent}/job")
        print("saved:", *sorted(os.listdir(f"{parent}/job")))
        whole = rt.load(f"{parent}/job")
        apart = max(float(tf.norm(whole.gradient("loss", path) - grad)) for path, grad in train(RATE)[1].items())
        slope = float(whole.gradient("loss", "rate", through_updates=True))
    difference = (train(RATE + BUMP)[0] - train(RATE - BUMP)[0]) / (2 * BUMP)
    print(f"the gradient of the whole batch is {apart:.1e} from that of one process")
    print(f"d loss / d rate through two distributed steps: {slope:.5f}, by finite differences {difference:.5f}")
    return {"apart": apart, "slope": slope, "difference": difference}


if __name__ == "__main__":
    work(sys.argv[1]) if len(sys.argv) > 1 else main()
