"""The workloads as steps: in eager mode, in `tf.function` without and with XLA, and played back by `rt.compile`.

Each contender has variables of its own, as some steps update them. The step is the same Python function for all, under
the stock tape or under ours; only in `hyper` the stock tape needs the update written by hand. A step that cannot be
played back raises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from _measure import Contender, limit_threads

import retrotape as rt
from workloads import data, in_tensorflow, tensorflow_models
from workloads.in_tensorflow import STOCK, Contenders, function, to_numpy

__all__ = ["OURS", "WORKLOADS", "limit_threads", "to_numpy"]

OURS = "rt.compile"
WAYS: dict[str, tuple[Any, Callable[..., Any]]] = {
    STOCK: (tf.GradientTape, lambda step: step),
    "tf.function": (tf.GradientTape, function),
    "tf.function, XLA": (tf.GradientTape, partial(function, jit_compile=True)),
    OURS: (rt.Tape, lambda step: rt.compile(step, strict=True)),
    f"{OURS}, XLA": (rt.Tape, lambda step: rt.compile(step, jit=True, strict=True)),
}


def in_every_way(make: Callable[[Any], Contender]) -> Contenders:
    """Make a step for each way to run it; `make` is given the type of tape."""
    made = {name: (make(tape_type), compile) for name, (tape_type, compile) in WAYS.items()}
    return {name: contender._replace(run=compile(contender.run)) for name, (contender, compile) in made.items()}


def update(model: str, tape_type: Any) -> Contender:
    """The gradient, and a step of SGD; shown is how far the parameters have moved."""
    params, loss = tensorflow_models.make(model)
    start = {name: tf.identity(value) for name, value in params.items()}

    def step() -> Any:
        with tape_type() as tape:
            value = loss()
        for name, grad in tape.gradient(value, params).items():
            params[name].assign_sub(data.RATE * tf.convert_to_tensor(grad))
        return value

    def named(value: Any) -> dict[str, Any]:
        return {"loss": value, **{name: variable - start[name] for name, variable in params.items()}}

    return Contender(step, named=named)


def losses(model: str, tape_type: Any) -> Contender:
    params, loss = tensorflow_models.make(model)
    return in_tensorflow.losses_in_turn(tape_type, loss, params)


def hyper(tape_type: Any) -> Contender:
    return in_tensorflow.hyper()[STOCK if tape_type is tf.GradientTape else "ours"]


def tapes(tape_type: Any) -> Contender:
    return in_tensorflow.tapes()[STOCK if tape_type is tf.GradientTape else "ours, not joined"]


WORKLOADS: dict[str, Callable[[], Contenders]] = {
    "mlp-update": partial(in_every_way, partial(update, "mlp")),
    "mlp-losses": partial(in_every_way, partial(losses, "mlp_losses")),
    "hyper": partial(in_every_way, hyper),
    "cnn-update": partial(in_every_way, partial(update, "cnn")),
    "transformer-update": partial(in_every_way, partial(update, "transformer")),
    "tapes": partial(in_every_way, tapes),
}
