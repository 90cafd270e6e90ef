"""The gradients of eight losses, and what is made of them, in PyTorch by TorchJD: the peer of `in_losses.py`.

UPGrad and DualProj are asked for the exact projections, as ours are: without TorchJD's additions to the Gramian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import torch
from _measure import Contender
from torch import nn
from torch.nn import functional as F
from torchjd import aggregation
from torchjd.aggregation import UPGrad, UPGradWeighting
from torchjd.autogram import Engine
from torchjd.autojac import jac, jac_to_grad, mtl_backward
from torchjd.linalg import QuadprogProjector

from workloads import data, in_torch
from workloads.in_torch import Contenders, limit_threads, tensor, to_numpy

__all__ = ["WORKLOADS", "limit_threads", "to_numpy"]

Step = Callable[[], Any]


def exact() -> QuadprogProjector:
    """Return a solver that adds as good as nothing to the Gramian."""
    return QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)


class Model:
    """The MLP with eight heads as modules, and an optimizer."""

    def __init__(self, width: int) -> None:
        self.start, inputs = data.mlp_losses(width, data.BATCHES[width])
        self.x, self.y = tensor(inputs["x"]), tensor(inputs["y"])
        layers = [self._linear(f"layer{layer}") for layer in range(data.DEPTH)]
        self.trunk = nn.Sequential(*(module for layer in layers for module in (layer, nn.Tanh())))
        self.heads = [self._linear(f"head{head}") for head in range(data.HEADS)]
        self.named = {f"layer{place}": layer for place, layer in enumerate(layers)}
        self.named |= {f"head{place}": head for place, head in enumerate(self.heads)}
        self.shared = list(self.trunk.parameters())
        self.own = [list(head.parameters()) for head in self.heads]
        self.optimizer = torch.optim.SGD([*self.shared, *chain(*self.own)], lr=data.SMALL_RATE)

    def _linear(self, name: str) -> nn.Linear:
        kernel, bias = tensor(self.start[f"{name}/kernel"]), tensor(self.start[f"{name}/bias"])
        layer = nn.Linear(*kernel.shape)
        with torch.no_grad():
            layer.weight.copy_(kernel.T)
            layer.bias.copy_(bias)
        return layer

    def losses(self) -> tuple[Any, list[Any]]:
        """Return the features that the heads share, and the losses."""
        hidden = self.trunk(self.x)
        return hidden, [F.mse_loss(head(hidden), y) for head, y in zip(self.heads, self.y, strict=True)]

    def moved(self, values: list[Any]) -> dict[str, Any]:
        """Return the losses, and how far the parameters have moved."""
        found = {"losses": torch.stack(values)}
        for name, layer in self.named.items():
            found[f"{name}/kernel"] = layer.weight.T - tensor(self.start[f"{name}/kernel"])
            found[f"{name}/bias"] = layer.bias - tensor(self.start[f"{name}/bias"])
        return found


# ------------------------------------------------------------------ the gradients of each loss, and their Gramian


def rows() -> Contenders:
    return in_torch.WORKLOADS["mlp-losses"]()


def products(columns: Iterable[Any]) -> Any:
    blocks = [column.flatten(1) for column in columns]
    return sum(block @ block.T for block in blocks)


def gramian() -> Contenders:
    model, hooked = Model(data.WIDTH), Model(data.WIDTH)
    engine = Engine(hooked.trunk, batch_dim=None)

    def by_rows() -> Any:
        _, values = model.losses()
        return {"gramian": products(jac(values, model.shared))}

    def autogram() -> Any:
        _, values = hooked.losses()
        return {"gramian": engine.compute_gramian(torch.stack(values))}

    return {"TorchJD, jac": Contender(by_rows), "TorchJD, autogram": Contender(autogram)}


# ------------------------------------------------------------------ whole steps


def by_jacobian(model: Model, optimize: bool) -> Step:
    """UPGrad of the Jacobian with respect to the shared parameters."""
    method = UPGrad(projector=exact())

    def step() -> Any:
        hidden, values = model.losses()
        mtl_backward(values, features=hidden, tasks_params=model.own, shared_params=model.shared)
        jac_to_grad(model.shared, method, optimize_gramian_computation=optimize)
        model.optimizer.step()
        model.optimizer.zero_grad()
        return values

    return step


def by_gramian(model: Model) -> Step:
    """The same without a Jacobian: the Gramian, then the gradient of the weighted sum, and that of the heads."""
    engine, method = Engine(model.trunk, batch_dim=None), UPGradWeighting(projector=exact())
    heads = list(chain(*model.own))

    def step() -> Any:
        _, values = model.losses()
        stacked = torch.stack(values)
        weights = method(engine.compute_gramian(stacked))
        stacked.backward(torch.ones(data.HEADS), retain_graph=True, inputs=heads)
        stacked.backward(weights, inputs=model.shared)
        model.optimizer.step()
        model.optimizer.zero_grad()
        return values

    return step


def summed(model: Model) -> Step:
    def step() -> Any:
        _, values = model.losses()
        torch.stack(values).sum().backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        return values

    return step


WAYS: dict[str, Callable[[Model], Step]] = {
    "Sum, torch": summed,
    "TorchJD, mtl_backward": partial(by_jacobian, optimize=False),
    "TorchJD, mtl_backward, optimized": partial(by_jacobian, optimize=True),
    "TorchJD, autogram": by_gramian,
}


def steps(width: int, *only: str) -> Contenders:
    """A step of training, in every way or in some of them."""
    found = {}
    for name in only or WAYS:
        model = Model(width)
        found[name] = Contender(WAYS[name](model), named=model.moved)
    return found


# ------------------------------------------------------------------ methods

METHODS: dict[str, Callable[[int], Any]] = {
    "Sum": lambda m: aggregation.Sum(),
    "Mean": lambda m: aggregation.Mean(),
    "Constant": lambda m: aggregation.Constant(torch.full([m], 1.0 / m)),
    "Random": lambda m: aggregation.Random(),
    "UPGrad": lambda m: aggregation.UPGrad(projector=exact()),
    "DualProj": lambda m: aggregation.DualProj(projector=exact()),
    "MGDA": lambda m: aggregation.MGDA(),
    "PCGrad": lambda m: aggregation.PCGrad(),
    "CAGrad": lambda m: aggregation.CAGrad(0.5, norm_eps=0.0),
    "IMTLG": lambda m: aggregation.IMTLG(),
    "AlignedMTL": lambda m: aggregation.AlignedMTL(),
    "ConFIG": lambda m: aggregation.ConFIG(),
    "FairGrad": lambda m: aggregation.FairGrad(1.0),
    "NashMTL": lambda m: aggregation.NashMTL(m),
    "GradVac": lambda m: aggregation.GradVac(),
    "Krum": lambda m: aggregation.Krum(1),
    "TrimmedMean": lambda m: aggregation.TrimmedMean(1),
    "GradDrop": lambda m: aggregation.GradDrop(),
}


def methods(losses: int, size: int) -> Contenders:
    """Each method, on the same rows."""
    matrix = tensor(data.rows(losses, size))

    def contender(method: Any) -> Contender:
        return Contender(partial(method, matrix), named=lambda vector: {"grad": vector})

    return {f"TorchJD: {name}": contender(make(losses)) for name, make in METHODS.items()}


WORKLOADS: dict[str, Callable[..., Contenders]] = {
    "rows": rows,
    "gramian": gramian,
    "step-64": partial(steps, 64),
    "step-512": partial(steps, 512),
    "methods-8": partial(methods, 8, 24_960),
    "methods-64": partial(methods, 64, 4_096),
}
