"""The workloads in JAX: each one function, compiled by `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _measure import Contender
from jax import lax

from workloads import data

Params = dict[str, Any]
Contenders = dict[str, Contender]
to_numpy = np.asarray


def limit_threads(count: int) -> None:
    """Do nothing: `XLA_FLAGS` has to say it before JAX is imported."""


def ready(compute: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a function that computes with arrays on the device, and waits for the result."""
    compiled, placed = jax.jit(compute), jax.tree.map(jnp.asarray, args)
    return lambda: jax.block_until_ready(compiled(*placed))


def with_loss(result: Any) -> dict[str, Any]:
    """Name the results of `jax.value_and_grad`."""
    loss, grads = result
    return {"loss": loss, **grads}


# ------------------------------------------------------------------ models


def dense(p: Params, name: str, x: Any) -> Any:
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def squared_error(predicted: Any, y: Any) -> Any:
    return jnp.mean((predicted - y) ** 2)


def cross_entropy(logits: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)


def trunk(p: Params, x: Any) -> Any:
    for layer in range(data.DEPTH):
        x = jnp.tanh(dense(p, f"layer{layer}", x))
    return x


def mlp(p: Params, x: Any, y: Any) -> Any:
    return squared_error(trunk(p, x), y)


def mlp_losses(p: Params, x: Any, y: Any) -> Any:
    hidden = trunk(p, x)
    return jnp.stack([squared_error(dense(p, f"head{head}", hidden), y[head]) for head in range(data.HEADS)])


def small_net(w: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ w[:361].reshape(19, 19) + w[361:380])
    return squared_error(hidden @ w[380:399].reshape(19, 1) + w[399:], y)


def small_loss(p: Params, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(dense(p, "layer1", jnp.tanh(dense(p, "layer0", x))))
    return squared_error(dense(p, "layer2", hidden), y)


def sub_model(p: Params, number: int, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(dense(p, f"model{number}/inner", jnp.tanh(x @ p["shared"])))
    return squared_error(hidden @ p[f"model{number}/outer"], y)


def conv(p: Params, name: str, x: Any, stride: int = 1) -> Any:
    pad = p[name].shape[0] // 2
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, p[name], (stride, stride), [(pad, pad)] * 2, dimension_numbers=layout)


def normalize(p: Params, name: str, x: Any, axes: Sequence[int]) -> Any:
    mean, variance = jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + data.EPSILON) * p[f"{name}/scale"] + p[f"{name}/shift"]


batch_norm = partial(normalize, axes=(0, 1, 2))
layer_norm = partial(normalize, axes=(-1,))


def cnn(p: Params, x: Any, y: Any) -> Any:
    h = jax.nn.elu(batch_norm(p, "stem/norm", conv(p, "stem/conv", x)))
    for stage in range(len(data.STAGES)):
        for number in range(data.BLOCKS):
            name = f"stage{stage}/block{number}"
            shrinks = f"{name}/shortcut" in p
            inner = jax.nn.elu(batch_norm(p, f"{name}/norm0", conv(p, f"{name}/conv0", h, 1 + shrinks)))
            inner = batch_norm(p, f"{name}/norm1", conv(p, f"{name}/conv1", inner))
            h = jax.nn.elu(inner + (conv(p, f"{name}/shortcut", h, 2) if shrinks else h))
    return cross_entropy(dense(p, "top", jnp.mean(h, (1, 2))), y)


def attention(p: Params, name: str, x: Any, mask: Any) -> Any:
    size = data.MODEL // data.ATTENTION_HEADS
    split = dense(p, f"{name}/qkv", x).reshape(-1, data.LENGTH, 3, data.ATTENTION_HEADS, size)
    query, key, value = split.transpose(2, 0, 3, 1, 4)
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) * size**-0.5 + mask)
    return dense(p, f"{name}/attended", (weights @ value).transpose(0, 2, 1, 3).reshape(-1, data.MODEL))


def encode(p: Params, x: Any, mask: Any) -> Any:
    h = (p["tokens"][x] + p["places"]).reshape(-1, data.MODEL)
    for layer in range(data.LAYERS):
        name = f"layer{layer}"
        h = h + attention(p, name, layer_norm(p, f"{name}/norm0", h), mask)
        wide = jax.nn.gelu(dense(p, f"{name}/wide", layer_norm(p, f"{name}/norm1", h)), approximate=True)
        h = h + dense(p, f"{name}/narrow", wide)
    return layer_norm(p, "norm", h)


def transformer(p: Params, x: Any, y: Any, mask: Any) -> Any:
    return cross_entropy(dense(p, "top", encode(p, x, mask)), y.reshape(-1))


def transformer_losses(p: Params, x: Any, y: Any, mask: Any) -> Any:
    hidden = encode(p, x, mask)
    return jnp.stack([cross_entropy(dense(p, f"head{k}", hidden), y[k].reshape(-1)) for k in range(data.HEADS)])


LOSSES = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


# ------------------------------------------------------------------ workloads


def step(model: str) -> Contenders:
    params, inputs = getattr(data, model)()
    return {"jax.jit": Contender(ready(jax.value_and_grad(LOSSES[model]), params, *inputs.values()), named=with_loss)}


def update(model: str) -> Contenders:
    """The gradient, and a step of SGD."""
    start, inputs = getattr(data, model)()
    params, args = jax.tree.map(jnp.asarray, (start, tuple(inputs.values())))

    @jax.jit
    def updated(p: Params, *args: Any) -> Any:
        loss, grads = jax.value_and_grad(LOSSES[model])(p, *args)
        return loss, jax.tree.map(lambda w, g: w - data.RATE * g, p, grads)

    def run() -> Any:
        nonlocal params
        loss, params = jax.block_until_ready(updated(params, *args))
        return loss

    def named(loss: Any) -> dict[str, Any]:
        return {"loss": loss, **{name: value - start[name] for name, value in params.items()}}

    return {"jax.jit": Contender(run, named=named)}


def losses(make: Callable[[], data.Data], compute: Callable[..., Any], batched: bool) -> Contenders:
    params, inputs = make()

    def both(p: Params, *args: Any) -> Any:
        values, back = jax.vjp(lambda p: compute(p, *args), p)
        seeds = jnp.eye(data.HEADS)
        return values, jax.vmap(back)(seeds)[0] if batched else [back(seed)[0] for seed in seeds]

    def named(result: Any) -> dict[str, Any]:
        values, rows = result
        found = {f"loss{head}": value for head, value in enumerate(values)}
        for head in range(data.HEADS):
            row = {name: value[head] for name, value in rows.items()} if batched else rows[head]
            wanted = [name for name in row if not name.startswith("head") or name.startswith(f"head{head}/")]
            found |= {f"{head}: {name}": row[name] for name in wanted}
        return found

    return {"jax.jit": Contender(ready(both, params, *inputs.values()), named=named)}


def products(rows: Params) -> Any:
    """Return the Gramian of the gradients of all losses, over the variables that they share."""
    blocks = [rows[name].reshape(data.HEADS, -1) for name in rows if name.startswith("layer")]
    return sum(block @ block.T for block in blocks)


def rows_of(p: Params, x: Any, y: Any) -> tuple[Any, Params]:
    values, back = jax.vjp(lambda p: mlp_losses(p, x, y), p)
    return values, jax.vmap(back)(jnp.eye(data.HEADS))[0]


def gramian() -> Contenders:
    params, inputs = data.mlp_losses()
    run = ready(lambda p, x, y: products(rows_of(p, x, y)[1]), params, *inputs.values())
    return {"jax.jit": Contender(run, named=lambda result: {"gramian": result})}


def upgrad_weights(gramian: Any) -> Any:
    """Return the weights of UPGrad by coordinate descent: JAX has no solver for such problems."""
    size = gramian.shape[0]
    wanted = jnp.eye(size) / size

    def sweep(state: Any) -> Any:
        count, v, _ = state
        before = v
        for place in range(size):
            free = v[:, place] - v @ gramian[:, place] / gramian[place, place]
            v = v.at[:, place].set(jnp.maximum(free, wanted[:, place]))
        return count + 1, v, jnp.max(jnp.abs(v - before))

    def go_on(state: Any) -> Any:
        count, v, change = state
        return (count < 1000) & (change > 1e-7 * jnp.max(v))

    return jnp.sum(lax.while_loop(go_on, sweep, (0, wanted, jnp.inf))[1], 0)


def upgrad(width: int) -> Contenders:
    """A step that combines the gradients of the shared variables by UPGrad."""
    start, inputs = data.mlp_losses(width, data.BATCHES[width])
    params, args = jax.tree.map(jnp.asarray, (start, tuple(inputs.values())))

    @jax.jit
    def updated(p: Params, x: Any, y: Any) -> Any:
        values, rows = rows_of(p, x, y)
        weights = upgrad_weights(products(rows))
        grads = {
            name: jnp.tensordot(weights, row, 1) if name.startswith("layer") else row[int(name[4])]
            for name, row in rows.items()
        }
        return values, jax.tree.map(lambda w, g: w - data.SMALL_RATE * g, p, grads)

    def run() -> Any:
        nonlocal params
        values, params = jax.block_until_ready(updated(params, *args))
        return values

    def named(values: Any) -> dict[str, Any]:
        return {"losses": values, **{name: value - start[name] for name, value in params.items()}}

    return {"jax.jit": Contender(run, named=named)}


def hvp() -> Contenders:
    params, inputs = data.hvp()

    def product(p: Params, v: Params, x: Any, y: Any) -> Any:
        return jax.jvp(lambda p: jax.grad(mlp)(p, x, y), (p,), (v,))[1]

    return {"jax.jit": Contender(ready(product, params, inputs["vectors"], inputs["x"], inputs["y"]))}


def hessian() -> Contenders:
    params, inputs = data.hessian()
    run = ready(jax.hessian(small_net), params["w"], inputs["x"], inputs["y"])
    return {"jax.jit": Contender(run, named=lambda result: {"hessian": result})}


def hyper() -> Contenders:
    params, inputs = data.hyper()

    def trained(rate_and_first: Any, x: Any, y: Any, valid_x: Any, valid_y: Any) -> Any:
        rate, first = rate_and_first

        def update(state: Any, batch: Any) -> Any:
            p, momentum = state
            momentum = jax.tree.map(lambda m, g: data.MOMENTUM * m + g, momentum, jax.grad(small_loss)(p, *batch))
            return (jax.tree.map(lambda w, m: w - rate * m, p, momentum), momentum), None

        (p, _), _ = lax.scan(update, (first, jax.tree.map(jnp.zeros_like, first)), (x, y))
        return small_loss(p, valid_x, valid_y)

    def named(result: Any) -> dict[str, Any]:
        loss, (rate, grads) = result
        return {"loss": loss, "rate": rate, **grads}

    start = jnp.float32(data.RATE), params
    return {"jax.jit": Contender(ready(jax.value_and_grad(trained), start, *inputs.values()), named=named)}


def tapes() -> Contenders:
    params, inputs = data.tapes()

    def total(p: Params, x: Any, y: Any) -> Any:
        return sum(sub_model(p, number, x[number], y[number]) for number in range(data.TAPES))

    return {"jax.jit": Contender(ready(jax.grad(total), params, inputs["x"], inputs["y"]))}


WORKLOADS: dict[str, Callable[[], Contenders]] = {
    "mlp": partial(step, "mlp"),
    "cnn": partial(step, "cnn"),
    "transformer": partial(step, "transformer"),
    "mlp-update": partial(update, "mlp"),
    "cnn-update": partial(update, "cnn"),
    "transformer-update": partial(update, "transformer"),
    "mlp-losses": partial(losses, data.mlp_losses, mlp_losses, batched=True),
    # Batched, this one is compiled to wrong gradients (JAX 0.10.2, CPU); without `jit` they are right.
    "transformer-losses": partial(losses, data.transformer_losses, transformer_losses, batched=False),
    "rows": partial(losses, data.mlp_losses, mlp_losses, batched=True),
    "gramian": gramian,
    "step-64": partial(upgrad, 64),
    "step-512": partial(upgrad, 512),
    "hvp": hvp,
    "hessian": hessian,
    "hyper": hyper,
    "tapes": tapes,
}
