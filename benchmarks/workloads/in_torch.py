"""The workloads in PyTorch, eager, and for several losses TorchJD."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torchjd.autojac
from _measure import Contender
from torch.nn import functional as F

from workloads import data

Params = dict[str, Any]
Contenders = dict[str, Contender]


def limit_threads(count: int) -> None:
    """Let PyTorch use so many threads; 0 is its default."""
    if count:
        torch.set_num_threads(count)


def to_numpy(value: Any) -> np.ndarray:
    """Return a result as an array; kernels of convolutions with height and width first, as in TensorFlow."""
    found = value.detach().numpy()
    return found.transpose(2, 3, 1, 0) if found.ndim == 4 else found


def tensor(value: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(value.astype(np.int64) if value.dtype == np.int32 else np.array(value))


def parameters(params: data.Arrays) -> Params:
    """Return tensors that need gradients; kernels of convolutions in the order that PyTorch has."""
    ordered = {name: v.transpose(3, 2, 0, 1).copy() if v.ndim == 4 else v for name, v in params.items()}
    return {name: tensor(value).requires_grad_() for name, value in ordered.items()}


def gradient(loss: Any, params: Params) -> dict[str, Any]:
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


# ------------------------------------------------------------------ models


def dense(p: Params, name: str, x: Any) -> Any:
    return torch.addmm(p[f"{name}/bias"], x, p[f"{name}/kernel"])


def trunk(p: Params, x: Any) -> Any:
    for layer in range(data.DEPTH):
        x = torch.tanh(dense(p, f"layer{layer}", x))
    return x


def mlp(p: Params, x: Any, y: Any) -> Any:
    return F.mse_loss(trunk(p, x), y)


def mlp_losses(p: Params, x: Any, y: Any) -> list[Any]:
    hidden = trunk(p, x)
    return [F.mse_loss(dense(p, f"head{head}", hidden), y[head]) for head in range(data.HEADS)]


def small_net(x: Any, y: Any, w: Any) -> Any:
    hidden = torch.tanh(x @ w[:361].view(19, 19) + w[361:380])
    return F.mse_loss(hidden @ w[380:399].view(19, 1) + w[399:], y)


def small_loss(p: Params, x: Any, y: Any) -> Any:
    hidden = torch.tanh(dense(p, "layer1", torch.tanh(dense(p, "layer0", x))))
    return F.mse_loss(dense(p, "layer2", hidden), y)


def sub_model(p: Params, number: int, x: Any, y: Any) -> Any:
    hidden = torch.tanh(dense(p, f"model{number}/inner", torch.tanh(x @ p["shared"])))
    return F.mse_loss(hidden @ p[f"model{number}/outer"], y)


def conv(p: Params, name: str, x: Any, stride: int = 1) -> Any:
    return F.conv2d(x, p[name], stride=stride, padding=p[name].shape[-1] // 2)


def batch_norm(p: Params, name: str, x: Any) -> Any:
    scale, shift = p[f"{name}/scale"], p[f"{name}/shift"]
    return F.batch_norm(x, None, None, scale, shift, training=True, eps=data.EPSILON)


def cnn(p: Params, x: Any, y: Any) -> Any:
    h = F.elu(batch_norm(p, "stem/norm", conv(p, "stem/conv", x)))
    for stage in range(len(data.STAGES)):
        for number in range(data.BLOCKS):
            name = f"stage{stage}/block{number}"
            shrinks = f"{name}/shortcut" in p
            inner = F.elu(batch_norm(p, f"{name}/norm0", conv(p, f"{name}/conv0", h, 1 + shrinks)))
            inner = batch_norm(p, f"{name}/norm1", conv(p, f"{name}/conv1", inner))
            h = F.elu(inner + (conv(p, f"{name}/shortcut", h, 2) if shrinks else h))
    return F.cross_entropy(dense(p, "top", h.mean((2, 3))), y)


def layer_norm(p: Params, name: str, x: Any) -> Any:
    return F.layer_norm(x, (data.MODEL,), p[f"{name}/scale"], p[f"{name}/shift"], data.EPSILON)


def attention(p: Params, name: str, x: Any) -> Any:
    size = data.MODEL // data.ATTENTION_HEADS
    split = dense(p, f"{name}/qkv", x).view(-1, data.LENGTH, 3, data.ATTENTION_HEADS, size)
    query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
    heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return dense(p, f"{name}/attended", heads.transpose(1, 2).reshape(-1, data.MODEL))


def encode(p: Params, x: Any) -> Any:
    h = (F.embedding(x, p["tokens"]) + p["places"]).view(-1, data.MODEL)
    for layer in range(data.LAYERS):
        name = f"layer{layer}"
        h = h + attention(p, name, layer_norm(p, f"{name}/norm0", h))
        wide = F.gelu(dense(p, f"{name}/wide", layer_norm(p, f"{name}/norm1", h)), approximate="tanh")
        h = h + dense(p, f"{name}/narrow", wide)
    return layer_norm(p, "norm", h)


def transformer(p: Params, x: Any, y: Any) -> Any:
    return F.cross_entropy(dense(p, "top", encode(p, x)), y.view(-1))


def transformer_losses(p: Params, x: Any, y: Any) -> list[Any]:
    hidden = encode(p, x)
    return [F.cross_entropy(dense(p, f"head{k}", hidden), y[k].view(-1)) for k in range(data.HEADS)]


LOSSES = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


# ------------------------------------------------------------------ workloads


def with_data(model: str) -> tuple[Params, Callable[[], Any]]:
    """Return the parameters of a model, and a function that computes its loss."""
    arrays, inputs = getattr(data, model)()
    params, x, y = parameters(arrays), tensor(inputs["x"]), tensor(inputs["y"])
    if model == "cnn":
        x = x.permute(0, 3, 1, 2).contiguous()
    return params, partial(LOSSES[model], params, x, y)


def step(model: str) -> Contenders:
    params, loss_of = with_data(model)

    def run() -> Any:
        loss = loss_of()
        return {"loss": loss, **gradient(loss, params)}

    return {"torch": Contender(run)}


def update(model: str) -> Contenders:
    """The gradient, and a step of SGD."""
    params, loss_of = with_data(model)
    start = {name: value.detach().clone() for name, value in params.items()}

    def run() -> Any:
        loss = loss_of()
        grads = gradient(loss, params)
        with torch.no_grad():
            for name, value in params.items():
                value.sub_(grads[name], alpha=data.RATE)
        return loss

    def named(loss: Any) -> dict[str, Any]:
        return {"loss": loss, **{name: value.detach() - start[name] for name, value in params.items()}}

    return {"torch": Contender(run, named=named)}


def losses(make: Callable[[], data.Data], compute: Callable[..., Any]) -> Contenders:
    arrays, inputs = make()
    params, x, y = parameters(arrays), tensor(inputs["x"]), tensor(inputs["y"])
    weights = list(params.values())

    def in_turn() -> Any:
        values = compute(params, x, y)
        rows = [torch.autograd.grad(v, weights, retain_graph=True, allow_unused=True) for v in values]
        return values, list(zip(*rows, strict=True))

    def jacobian() -> Any:
        values = compute(params, x, y)
        return values, torchjd.autojac.jac(values, weights)

    def named(result: Any) -> dict[str, Any]:
        values, columns = result
        found = {f"loss{head}": value for head, value in enumerate(values)}
        for name, column in zip(params, columns, strict=True):
            wanted = range(data.HEADS) if not name.startswith("head") else [int(name[4])]
            found |= {f"{head}: {name}": column[head] for head in wanted}
        return found

    return {"torch": Contender(in_turn, named=named), "TorchJD": Contender(jacobian, named=named)}


def hvp() -> Contenders:
    arrays, inputs = data.hvp()
    params, x, y = parameters(arrays), tensor(inputs["x"]), tensor(inputs["y"])
    weights, vectors = list(params.values()), [tensor(inputs["vectors"][name]) for name in params]

    def run() -> Any:
        grads = torch.autograd.grad(mlp(params, x, y), weights, create_graph=True)
        return dict(zip(params, torch.autograd.grad(grads, weights, vectors), strict=True))

    return {"torch": Contender(run)}


def hessian() -> Contenders:
    arrays, inputs = data.hessian()
    loss = partial(small_net, tensor(inputs["x"]), tensor(inputs["y"]))
    compute, weights = torch.func.hessian(loss), tensor(arrays["w"])
    return {"torch": Contender(lambda: {"hessian": compute(weights)})}


def hyper() -> Contenders:
    arrays, inputs = data.hyper()
    first, rate = parameters(arrays), torch.tensor(data.RATE, requires_grad=True)
    x, y, valid_x, valid_y = map(tensor, inputs.values())

    def run() -> Any:
        params, momentum = first, {name: torch.zeros_like(value) for name, value in first.items()}
        for batch in zip(x, y, strict=True):
            grads = torch.autograd.grad(small_loss(params, *batch), list(params.values()), create_graph=True)
            momentum = {name: data.MOMENTUM * momentum[name] + g for name, g in zip(params, grads, strict=True)}
            params = {name: value - rate * momentum[name] for name, value in params.items()}
        loss = small_loss(params, valid_x, valid_y)
        return {"loss": loss, **gradient(loss, {"rate": rate, **first})}

    return {"torch": Contender(run)}


def tapes() -> Contenders:
    arrays, inputs = data.tapes()
    params, x, y = parameters(arrays), tensor(inputs["x"]), tensor(inputs["y"])

    def run() -> Any:
        return gradient(sum(sub_model(params, number, x[number], y[number]) for number in range(data.TAPES)), params)

    return {"torch": Contender(run)}


WORKLOADS: dict[str, Callable[[], Contenders]] = {
    "mlp": partial(step, "mlp"),
    "cnn": partial(step, "cnn"),
    "transformer": partial(step, "transformer"),
    "mlp-update": partial(update, "mlp"),
    "cnn-update": partial(update, "cnn"),
    "transformer-update": partial(update, "transformer"),
    "mlp-losses": partial(losses, data.mlp_losses, mlp_losses),
    "transformer-losses": partial(losses, data.transformer_losses, transformer_losses),
    "hvp": hvp,
    "hessian": hessian,
    "hyper": hyper,
    "tapes": tapes,
}
