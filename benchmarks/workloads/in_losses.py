"""The gradients of eight losses, and what is made of them, in TensorFlow: under the stock tape, under ours, compiled.

A step combines the gradients of the shared variables by UPGrad; the heads have the gradient of their own loss. Each
contender has variables of its own, as a step updates them. Contenders whose name begins with `SUM` add the losses up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _measure import Contender, limit_threads
from scipy.optimize import nnls

import retrotape as rt
from workloads import data, in_tensorflow, tensorflow_models
from workloads.in_tensorflow import STOCK, Contenders, function, to_numpy

__all__ = ["METHODS", "WORKLOADS", "limit_threads", "to_numpy"]

SUM = "Sum, "
Step = Callable[[], Any]

# ------------------------------------------------------------------ the gradients of each loss, and their Gramian


def rows() -> Contenders:
    """The gradient of each loss with respect to all variables."""
    params, loss = tensorflow_models.make("mlp_losses")
    found = in_tensorflow.losses("mlp_losses")

    def jacobian() -> Any:
        with tf.GradientTape() as tape:
            values = loss()
            stacked = tf.stack(values)
        return tape.jacobian(stacked, params), values

    def apart(result: Any) -> dict[str, Any]:
        columns, values = result
        split = [{name: column[head] for name, column in columns.items()} for head in range(data.HEADS)]
        return in_tensorflow.rows_by_name(split, values)

    def ours() -> Any:
        with rt.Tape() as tape:
            values = loss()
        return [{name: row.get(v) for name, v in params.items()} for row in tape.backward_each(values, params)], values

    def named(result: Any) -> dict[str, Any]:
        return in_tensorflow.rows_by_name(*result)

    return {
        **found,
        "tape.jacobian": Contender(jacobian, named=apart),
        "tape.jacobian in tf.function": Contender(function(jacobian), named=apart),
        "ours, tf.function": Contender(function(ours), named=named),
        "ours, rt.compile": Contender(rt.compile(ours, strict=True), named=named),
    }


def flat(column: Sequence[Any]) -> Any:
    return tf.reshape(tf.stack(column), [len(column), -1])


def products(blocks: Sequence[Any]) -> Any:
    return tf.add_n([tf.matmul(block, block, transpose_b=True) for block in blocks])


def gramian() -> Contenders:
    """The inner products of the gradients of the losses, over the variables that they share."""
    params, loss = tensorflow_models.make("mlp_losses")
    trunk = [variable for name, variable in params.items() if name.startswith("layer")]

    def stock() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            values = loss()
        grads = [tape.gradient(value, trunk) for value in values]
        return {"gramian": products([flat(column) for column in zip(*grads, strict=True)])}

    def ours() -> Any:
        with rt.Tape() as tape:
            values = loss()
        return {"gramian": tape.gramian(values)}

    def ours_by_rows() -> Any:
        with rt.Tape() as tape:
            values = loss()
        return {"gramian": tape.backward_each(values).gramian()}

    return {
        STOCK: Contender(stock),
        "ours": Contender(ours),
        "ours, rows.gramian": Contender(ours_by_rows),
        "tf.function": Contender(function(stock)),
        "ours, tf.function": Contender(function(ours)),
        "ours, rt.compile": Contender(rt.compile(ours, strict=True)),
    }


# ------------------------------------------------------------------ whole steps


class Model:
    """A model with variables of its own, and an optimizer."""

    def __init__(self, width: int) -> None:
        self.params, self.losses = tensorflow_models.make("mlp_losses", width, data.BATCHES[width])
        self.trunk = [value for name, value in self.params.items() if name.startswith("layer")]
        self.heads = [
            [value for name, value in self.params.items() if name.startswith(f"head{head}/")]
            for head in range(data.HEADS)
        ]
        self.optimizer = keras.optimizers.SGD(data.SMALL_RATE)
        self.optimizer.build(list(self.params.values()))


def moved(params: in_tensorflow.Variables, values: Sequence[Any]) -> dict[str, Any]:
    """Return the losses, and how far the variables have moved."""
    start = data.mlp_losses(params["layer0/bias"].shape[0]).params
    return {"losses": tf.stack(values), **{name: value - start[name] for name, value in params.items()}}


def upgrad_weights(gramian: np.ndarray) -> np.ndarray:
    """Return the weights of UPGrad, by SciPy's NNLS, as a user would write it.

    >>> upgrad_weights(np.array([[1.0, -0.5], [-0.5, 1.0]])).round(9).tolist()
    [0.75, 0.75]
    """
    root = np.linalg.cholesky(np.float64(gramian)).T
    return sum(u + nnls(root, -root @ u)[0] for u in np.eye(len(gramian)) / len(gramian))


def by_hand(model: Model) -> Step:
    """UPGrad with the stock tape: eight calls, the Gramian in TensorFlow, weights by SciPy, updates by `assign_sub`."""

    def step() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            values = model.losses()
        each = [tape.gradient(value, (model.trunk, own)) for value, own in zip(values, model.heads, strict=True)]
        blocks = [flat(column) for column in zip(*(trunk for trunk, _ in each), strict=True)]
        weights = tf.constant(upgrad_weights(products(blocks).numpy()), tf.float32)
        for variable, block in zip(model.trunk, blocks, strict=True):
            grad = tf.linalg.matvec(block, weights, transpose_a=True)
            variable.assign_sub(data.SMALL_RATE * tf.reshape(grad, variable.shape))
        for own, (_, grads) in zip(model.heads, each, strict=True):
            for variable, grad in zip(own, grads, strict=True):
                variable.assign_sub(data.SMALL_RATE * grad)
        return values

    return step


def summed(model: Model) -> Step:
    """The gradient of the sum of the losses, with the stock tape."""

    def step() -> Any:
        with tf.GradientTape() as tape:
            values = model.losses()
            total = tf.add_n(values)
        for name, grad in tape.gradient(total, model.params).items():
            model.params[name].assign_sub(data.SMALL_RATE * grad)
        return values

    return step


def ours(model: Model) -> Step:
    """UPGrad of the rows of our tape."""
    method = rt.aggregate.UPGrad()

    def step() -> Any:
        with rt.Tape() as tape:
            values = model.losses()
        method(tape.backward_each(values)).apply(model.optimizer)
        return values

    return step


def ours_by_gramian(model: Model) -> Step:
    """The same without rows: the Gramian, then the gradient of the weighted sum, and that of the heads."""
    method, heads = rt.aggregate.UPGrad(), [variable for own in model.heads for variable in own]

    def step() -> Any:
        with rt.Tape(persistent=True) as tape:
            values = model.losses()
        weights = tf.unstack(tf.cast(method.weights(tape.gramian(values)), tf.float32))
        grads = tape.gradient(values, model.trunk, output_gradients=weights)
        model.optimizer.apply([*grads, *tape.gradient(values, heads)], [*model.trunk, *heads])
        return values

    return step


WAYS: dict[str, tuple[Callable[[Model], Step], Callable[[Step], Step]]] = {
    STOCK: (by_hand, lambda step: step),
    f"{SUM}{STOCK}": (summed, lambda step: step),
    f"{SUM}tf.function": (summed, function),
    "ours": (ours, lambda step: step),
    "ours, gramian": (ours_by_gramian, lambda step: step),
    "ours, rt.compile": (ours, lambda step: rt.compile(step, strict=True)),
    "ours, tf.function": (ours, function),
    "ours, XLA": (ours, partial(function, jit_compile=True)),
}


def steps(width: int, *only: str) -> Contenders:
    """A step of training, in every way or in some of them."""
    found = {}
    for name in only or WAYS:
        make, compiled = WAYS[name]
        model = Model(width)
        found[name] = Contender(compiled(make(model)), named=partial(moved, model.params))
    return found


# ------------------------------------------------------------------ methods

# With the parameters that TorchJD has; those below the line need more than a matrix, or are not there.
METHODS: dict[str, Callable[[int], Any]] = {
    "Sum": lambda m: rt.aggregate.Sum(),
    "Mean": lambda m: rt.aggregate.Mean(),
    "Constant": lambda m: rt.aggregate.Constant([1.0 / m] * m),
    "Random": lambda m: rt.aggregate.Random(seed=1),
    "UPGrad": lambda m: rt.aggregate.UPGrad(),
    "DualProj": lambda m: rt.aggregate.DualProj(),
    "MGDA": lambda m: rt.aggregate.MGDA(),
    "PCGrad": lambda m: rt.aggregate.PCGrad(seed=1),
    "CAGrad": lambda m: rt.aggregate.CAGrad(0.5),
    "IMTLG": lambda m: rt.aggregate.IMTLG(),
    "AlignedMTL": lambda m: rt.aggregate.AlignedMTL(),
    "ConFIG": lambda m: rt.aggregate.ConFIG(),
    "FairGrad": lambda m: rt.aggregate.FairGrad(1.0),
    "NashMTL": lambda m: rt.aggregate.NashMTL(),
    "GradVac": lambda m: rt.aggregate.GradVac(epsilon=1e-8, seed=1),
    "Krum": lambda m: rt.aggregate.Krum(1, squared=False),
    "TrimmedMean": lambda m: rt.aggregate.TrimmedMean(1),
    "GradDrop": lambda m: rt.aggregate.GradDrop(seed=1),
    # ---
    "DWA": lambda m: rt.aggregate.DWA(),
    "GradNorm": lambda m: rt.aggregate.GradNorm(),
    "MoCo": lambda m: rt.aggregate.MoCo(),
    "UncertaintyWeighting": lambda m: rt.aggregate.UncertaintyWeighting(),
    "DPSGD": lambda m: rt.aggregate.DPSGD(clip=1.0, noise_multiplier=1.0, expected_batch_size=m, seed=1),
}


def methods(losses: int, size: int) -> Contenders:
    """Each method, on the same rows."""
    stacked, values = tf.constant(data.rows(losses, size)), tf.ones([losses])
    variable = tf.Variable(tf.zeros([size]))

    def contender(method: Any) -> Contender:
        def run() -> Any:
            return method(rt.Rows.from_stacked([variable], [stacked], losses=values, mixed_by=None))

        return Contender(run, named=lambda combined: {"grad": combined[variable]})

    return {f"ours: {name}": contender(make(losses)) for name, make in METHODS.items()}


WORKLOADS: dict[str, Callable[..., Contenders]] = {
    "rows": rows,
    "gramian": gramian,
    "step-64": partial(steps, 64),
    "step-512": partial(steps, 512),
    "methods-8": partial(methods, 8, 24_960),
    "methods-64": partial(methods, 64, 4_096),
}
