"""The workloads in TensorFlow: under the stock tape, under ours, and in `tf.function`.

Every call records anew, with a fresh tape. Contenders named `STOCK` are what the others are compared with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _measure import Contender, limit_threads

import retrotape as rt
from workloads import data, tensorflow_models

__all__ = ["STOCK", "WORKLOADS", "limit_threads", "to_numpy"]

STOCK = "stock tape"
Contenders = dict[str, Contender]
Variables = dict[str, tf.Variable]
function = partial(tf.function, autograph=False)
logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its advice about tracing


def to_numpy(value: Any) -> np.ndarray:
    """Return a result as an array."""
    return tf.convert_to_tensor(value).numpy()


def variables(params: data.Arrays) -> Variables:
    return {name: tf.Variable(value, name=name) for name, value in params.items()}


# ------------------------------------------------------------------ one loss


def gradient_step(tape_type: Any, loss: Callable[[], Any], params: Variables) -> Callable[[], dict[str, Any]]:
    """Return a function that records a loss and computes its gradient."""

    def step() -> dict[str, Any]:
        with tape_type() as tape:
            value = loss()
        return {"loss": value, **tape.gradient(value, params)}

    return step


def whole_steps(model: str) -> Contenders:
    """The forward pass of a model and the gradient with respect to its parameters."""
    params, loss = tensorflow_models.make(model)
    stock = gradient_step(tf.GradientTape, loss, params)
    ours = gradient_step(rt.Tape, loss, params)
    return {STOCK: Contender(stock), "ours": Contender(ours), "tf.function": Contender(function(stock))}


def gradient_calls(model: str) -> Contenders:
    """The call of `gradient` alone, each on a tape that has just been recorded."""
    params, loss = tensorflow_models.make(model)

    def recorded(tape_type: Any) -> tuple[Any, Any]:
        with tape_type() as tape:
            value = loss()
        return tape, value

    def gradient(prepared: tuple[Any, Any]) -> Any:
        tape, value = prepared
        return tape.gradient(value, params)

    tapes = {STOCK: tf.GradientTape, "ours": rt.Tape}
    return {name: Contender(gradient, partial(recorded, tape)) for name, tape in tapes.items()}


# ------------------------------------------------------------------ eight losses


def rows_by_name(rows: Sequence[Mapping[str, Any]], losses: Sequence[Any]) -> dict[str, Any]:
    """Name the gradients of several losses; another head's parameters are left out, as no path leads to them."""
    named: dict[str, Any] = {f"loss{head}": loss for head, loss in enumerate(losses)}
    for head, row in enumerate(rows):
        wanted = [name for name in row if not name.startswith("head") or name.startswith(f"head{head}/")]
        named |= {f"{head}: {name}": row[name] for name in wanted}
    return named


def losses_in_turn(tape_type: Any, loss: Callable[[], Any], params: Variables) -> Contender:
    """Record several losses on one tape, and compute the gradient of one after the other."""

    def step() -> Any:
        with tape_type(persistent=True) as tape:
            values = loss()
        return [tape.gradient(value, params) for value in values], values

    return Contender(step, named=lambda result: rows_by_name(*result))


def losses(model: str) -> Contenders:
    """The gradient of each of eight losses."""
    params, loss = tensorflow_models.make(model)
    stock = losses_in_turn(tf.GradientTape, loss, params)

    def ours() -> Any:
        with rt.Tape() as tape:
            values = loss()
        return tape.backward_each(values, params), values

    def our_rows(result: Any) -> dict[str, Any]:
        rows, values = result
        return rows_by_name([{name: row.get(v) for name, v in params.items()} for row in rows], values)

    return {
        STOCK: stock,
        "ours": Contender(ours, named=our_rows),
        "tf.function": stock._replace(run=function(stock.run)),
    }


# ------------------------------------------------------------------ second order


def hvp() -> Contenders:
    """A Hessian-vector product of the MLP."""
    params, loss = tensorflow_models.make("mlp")
    vectors = {name: tf.constant(value) for name, value in data.hvp().inputs["vectors"].items()}

    def stock() -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = loss()
            grads = inner.gradient(value, params)
        return outer.gradient(grads, params, output_gradients=vectors)

    def ours() -> Any:
        with rt.Tape() as tape:
            value = loss()
        return tape.hvp(value, params, vectors)

    return {STOCK: Contender(stock), "ours": Contender(ours), "tf.function": Contender(function(stock))}


def hessian() -> Contenders:
    """The Hessian of 400 weights; on stock tapes the Jacobian of a gradient, vectorized by pfor."""
    params, loss = tensorflow_models.make("hessian")
    weights = params["w"]

    def stock() -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = loss()
            slope = inner.gradient(value, weights)
        return {"hessian": outer.jacobian(slope, weights)}

    def ours() -> Any:
        with rt.Tape() as tape:
            value = loss()
        return {"hessian": tape.hessian(value, weights)}

    return {STOCK: Contender(stock), "ours": Contender(ours), "tf.function": Contender(function(stock))}


def hyper() -> Contenders:
    """The gradient of a validation loss through twenty steps of SGD, with respect to rate and first weights.

    Ours differentiates a stock Keras optimizer. The stock tape cannot, so for it the update is written by hand.
    """
    start, inputs = data.hyper()
    batches = list(zip(tf.unstack(inputs["x"]), tf.unstack(inputs["y"]), strict=True))
    valid = tf.constant(inputs["valid_x"]), tf.constant(inputs["valid_y"])
    first, rate = variables(start), tf.Variable(data.RATE)
    loss = tensorflow_models.small_loss

    def stock() -> Any:
        with tf.GradientTape() as outer:
            params = {name: tf.convert_to_tensor(value) for name, value in first.items()}
            momentum = {name: tf.zeros_like(value) for name, value in params.items()}
            for x, y in batches:
                with tf.GradientTape() as inner:
                    inner.watch(params)
                    value = loss(params, x, y)
                grads = inner.gradient(value, params)
                momentum = {name: data.MOMENTUM * momentum[name] + grad for name, grad in grads.items()}
                params = {name: value - rate * momentum[name] for name, value in params.items()}
            value = loss(params, *valid)
        slope, grads = outer.gradient(value, (rate, first))
        return {"loss": value, "rate": slope, **grads}

    params = {name: keras.Variable(value) for name, value in start.items()}
    weights = list(params.values())
    optimizer = keras.optimizers.SGD(data.RATE, momentum=data.MOMENTUM)
    optimizer.build(weights)

    def reset() -> None:
        for variable, value in zip(weights, start.values(), strict=True):
            variable.assign(value)
        for variable in optimizer.momentums:
            variable.assign(tf.zeros_like(variable))

    def ours(_: None) -> Any:
        with rt.Tape() as tape:
            for x, y in batches:
                optimizer.apply(tape.gradient(loss(params, x, y), weights), weights)
            value = loss(params, *valid)
        slope, grads = tape.gradient(value, (optimizer.learning_rate, params), through_updates=True)
        return {"loss": value, "rate": slope, **grads}

    return {STOCK: Contender(stock), "ours": Contender(ours, reset), "tf.function": Contender(function(stock))}


# ------------------------------------------------------------------ many tapes


def tapes() -> Contenders:
    """Sixteen sub-models with a shared variable, and the gradient of the sum of their losses."""
    arrays, inputs = data.tapes()
    params, xs, ys = variables(arrays), tf.unstack(inputs["x"]), tf.unstack(inputs["y"])
    own = [[name for name in params if name.startswith(f"model{number}/")] for number in range(data.TAPES)]

    def loss(number: int) -> Any:
        return tensorflow_models.sub_model(params, number, xs[number], ys[number])

    def recorded(tape_type: Any) -> tuple[list[Any], list[Any]]:
        found, values = [], []
        for number in range(data.TAPES):
            with tape_type() as tape:
                values.append(loss(number))
            found.append(tape)
        return found, values

    def one_by_one(tape_type: Any) -> Any:
        total, grads = None, {}
        for number, (tape, value) in enumerate(zip(*recorded(tape_type), strict=True)):
            found = tape.gradient(value, {name: params[name] for name in ("shared", *own[number])})
            shared = found.pop("shared")
            total = shared if total is None else total + shared
            grads |= found
        return {"shared": total, **grads}

    def joined() -> Any:
        found, values = recorded(rt.Tape)
        return rt.join(*found).gradient(values, params)

    def one_tape(tape_type: Any) -> Any:
        with tape_type(persistent=True) as tape:
            values = [loss(number) for number in range(data.TAPES)]
        return tape.gradient(values, params)

    return {
        STOCK: Contender(partial(one_by_one, tf.GradientTape)),
        "one stock tape": Contender(partial(one_tape, tf.GradientTape)),
        "ours": Contender(joined),
        "ours, not joined": Contender(partial(one_by_one, rt.Tape)),
        "ours, one tape": Contender(partial(one_tape, rt.Tape)),
        "tf.function": Contender(function(partial(one_by_one, tf.GradientTape))),
    }


# ------------------------------------------------------------------ a new batch size in every call


def shapes(model: str) -> Contenders:
    """The gradient of a model, for a batch that is larger by one every time."""
    arrays, inputs = getattr(data, model)()
    params = variables(arrays)

    def contender(tape_type: Any) -> Contender:
        counter = count(2)

        def prepare() -> dict[str, Any]:
            size = next(counter)
            grown = {name: np.resize(inputs[name], (size, *inputs[name].shape[1:])) for name in ("x", "y")}
            return {name: tf.constant(value) for name, value in (inputs | grown).items()}

        def step(batch: dict[str, Any]) -> dict[str, Any]:
            with tape_type() as tape:
                loss = tensorflow_models.LOSSES[model](params, **batch)
            return {"loss": loss, **tape.gradient(loss, params)}

        return Contender(step, prepare)

    return {STOCK: contender(tf.GradientTape), "ours": contender(rt.Tape)}


WORKLOADS: dict[str, Callable[..., Contenders]] = {
    "mlp": partial(whole_steps, "mlp"),
    "mlp-gradient": partial(gradient_calls, "mlp"),
    "mlp-losses": partial(losses, "mlp_losses"),
    "cnn": partial(whole_steps, "cnn"),
    "transformer": partial(whole_steps, "transformer"),
    "transformer-gradient": partial(gradient_calls, "transformer"),
    "transformer-losses": partial(losses, "transformer_losses"),
    "hvp": hvp,
    "hessian": hessian,
    "hyper": hyper,
    "tapes": tapes,
    "shapes": shapes,
}
