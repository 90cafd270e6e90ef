"""Programs to interrupt, and what they should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

W = tf.Variable([1.0, 2.0], name="w")
V = tf.Variable([0.5, -1.0], name="v")
keras.utils.set_random_seed(1)
NET = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)])
NET(tf.ones([1, 2]))
FUNCTION = tf.function(lambda x: tf.sin(W * x) * V)
ASSIGNING = tf.function(lambda x: V.assign(x * 2.0))

Made = dict[str, Any]  # by name: tensors that a program has made
Step = Callable[[Made], None]


@tf.custom_gradient
def cube(x):
    return x * x * x, lambda upstream: upstream * 3.0 * x * x


def ops(made: Made) -> None:
    made["square"] = W * W
    made["sum"] = tf.reduce_sum(made["square"] * V)


def variables(made: Made) -> None:
    made["square"] = W * W
    V.assign(made["square"] + 1.0)
    made["assigned"] = W * V
    V.assign_add([1.0, 1.0])
    V.scatter_update(tf.IndexedSlices([3.0], [0]))
    made["added"] = tf.gather(V, [0, 1]) * W


def layers(made: Made) -> None:
    made["net"] = NET(W[tf.newaxis] * V)


def functions(made: Made) -> None:
    made["called"] = FUNCTION(V)
    ASSIGNING(made["called"])
    made["after"] = V * W


def custom(made: Made) -> None:
    made["cube"] = cube(W * 1.0)
    made["again"] = tf.recompute_grad(lambda x: tf.exp(x) * x)(made["cube"] * 0.1)


def square(x):
    return x * x


def python(made: Made) -> None:
    made["python"] = tf.py_function(square, [W * 1.0], tf.float32)
    made["after"] = made["python"] * V


def nested(made: Made) -> None:
    with rt.Tape() as inner:
        made["square"] = W * W
        with inner.stop_recording():
            made["paused"] = W * 3.0
        made["inner"] = made["square"] * W
    made["slope"] = inner.gradient(made["inner"], W)


STEPS: dict[str, Step] = {step.__name__: step for step in (ops, variables, layers, functions, custom, python, nested)}


def gradients(tape: Any, made: Made) -> dict[str, Any]:
    """Return the gradient of each tensor with respect to `W`, or the error of ours that says why there is none."""
    found: dict[str, Any] = {}
    for name, tensor in made.items():
        try:
            gradient = tape.gradient(tensor, W)
            found[name] = None if gradient is None else np.asarray(tf.convert_to_tensor(gradient))
        except rt.errors.RetrotapeError as error:
            found[name] = error
    return found


def reset() -> None:
    """Let the variables hold what they held at first."""
    V.assign([0.5, -1.0])


def expected(step: Step) -> dict[str, Any]:
    """Return what `gradients` should be, from stock tapes: one for each, which a `tf.py_function` needs."""
    names: Made = {}
    step(names)
    found: dict[str, Any] = {}
    for name in names:
        reset()
        made: Made = {}
        with tf.GradientTape() as tape:
            step(made)
        found |= gradients(tape, {name: made[name]})
    return found


def agree(found: Any, right: Any) -> bool:
    if found is None or right is None:
        return found is right
    return bool(np.allclose(found, right, rtol=1e-5, atol=1e-6))


def wrong(found: dict[str, Any], right: dict[str, Any], errors_allowed: bool) -> list[str]:
    """Return which gradients are neither right nor refused with an error of ours."""
    bad = []
    for name, gradient in found.items():
        if isinstance(gradient, rt.errors.RetrotapeError):
            if not errors_allowed:
                bad.append(f"{name}: {type(gradient).__name__}: {gradient}")
        elif not agree(gradient, right[name]):
            bad.append(f"{name}: {gradient} instead of {right[name]}")
    return bad


def next_is_wrong(step: Step, right: dict[str, Any]) -> list[str]:
    """Record once more, undisturbed, and return what is wrong about that."""
    reset()
    made: Made = {}
    with rt.Tape() as tape:
        step(made)
    return wrong(gradients(tape, made), right, errors_allowed=False)
