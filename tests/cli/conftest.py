from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import retrotape as rt
from cli.making import Runner


@pytest.fixture
def run() -> Runner:
    """Call the command line in this process."""
    return Runner()


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tapes")


def layer(x: tf.Tensor, w: tf.Variable, b: tf.Variable, *, noise: bool = False) -> tuple[rt.Tape, dict[str, tf.Tensor]]:
    with rt.Tape() as tape:
        hidden = tf.nn.relu(x @ w + b)
        if noise:
            hidden = hidden + tf.random.normal(hidden.shape)
        if tf.reduce_sum(hidden) > 2.0:
            hidden = hidden * 2.0
        loss = tf.reduce_mean(hidden**2)
    return tape, {"x": x, "hidden": hidden, "loss": loss}


@pytest.fixture(scope="session")
def saved(folder) -> dict[str, Path]:
    """Several recordings of nearly the same."""
    w = tf.Variable([[0.5, -0.2], [0.3, 0.7]], name="w")
    b = tf.Variable([0.1, 0.2], name="b")
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    moved = tf.constant([[1.0, 2.001], [3.0, 4.0]])
    wide = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    plans = {
        "plain": (x, False),
        "again": (tf.identity(x), False),
        "moved": (moved, False),
        "small": (0.01 * x, False),
        "noisy": (x, True),
        "noisy too": (x, True),
        "wide": (wide, False),
    }
    found = {}
    for number, (name, (value, noise)) in enumerate(plans.items()):
        tf.random.set_seed(number)  # or two draws may be the same, after what other tests have set
        tape, names = layer(value, w, b, noise=noise)
        found[name] = folder / f"{name}.tape"
        tape.save(found[name], names)
        if name == "plain":
            found["folder"], found["redacted"] = folder / "folder.tape", folder / "redacted.tape"
            tape.save(found["folder"], names, store=folder / "store")
            tape.save(found["redacted"], names, redact=["x"])
    return found


@pytest.fixture(scope="session")
def loop(folder) -> Path:
    """Twenty steps of gradient descent on a variable, through a custom gradient."""

    @tf.custom_gradient
    def cube(value):
        return value**3, lambda upstream: 3.0 * upstream * value**2

    v = tf.Variable(0.5, name="v")
    with rt.Tape() as tape:
        rate = tf.constant(0.01)
        for _ in range(20):
            v.assign_sub(rate * v * 2.0)
        loss = cube(v)
    tape.save(folder / "loop.tape", {"loss": loss, "rate": rate})
    return folder / "loop.tape"
