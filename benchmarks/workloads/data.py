"""The data of every workload as NumPy arrays, the same for all frameworks.

Parameters are dictionaries, so that gradients of different frameworks can be compared by name.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]

HEADS = 8  # losses on one trunk
DEPTH, WIDTH, BATCH = 6, 64, 32  # the MLP
STEPS, RATE, MOMENTUM = 20, 0.05, 0.9  # the training that is differentiated
STAGES, BLOCKS = (16, 32, 64), 3  # the CNN: filters of a stage, residual blocks in it
LAYERS, MODEL, ATTENTION_HEADS, WIDE, VOCABULARY, LENGTH, SEQUENCES = 2, 64, 4, 256, 128, 32, 16  # the Transformer
BATCHES = {WIDTH: BATCH, 512: 64}  # of the MLP with eight losses, by its width
SMALL_RATE = 1e-3  # of the step that combines their gradients
TAPES = 16  # sub-models with a tape each
EPSILON = 1e-5  # of normalizations


class Data(NamedTuple):
    """What a workload computes with."""

    params: Arrays
    inputs: dict[str, Any]


class Source:
    """Draws float32 arrays."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Return normally distributed numbers."""
        return self._rng.standard_normal(shape, np.float32) * np.float32(scale)

    def labels(self, classes: int, *shape: int) -> np.ndarray:
        """Return whole numbers below `classes`."""
        return self._rng.integers(0, classes, shape, np.int32)

    def dense(self, name: str, before: int, after: int, gain: float = 1.0) -> Arrays:
        """Return the kernel and the bias of a layer."""
        kernel = self.normal(before, after, scale=gain / before**0.5)
        return {f"{name}/kernel": kernel, f"{name}/bias": self.normal(after, scale=0.05)}

    def norm(self, name: str, width: int) -> Arrays:
        """Return the scale and the shift of a normalization."""
        return {f"{name}/scale": 1 + self.normal(width, scale=0.1), f"{name}/shift": self.normal(width, scale=0.1)}

    def conv(self, name: str, size: int, before: int, after: int) -> Arrays:
        """Return a kernel; height and width come first, as in TensorFlow."""
        return {name: self.normal(size, size, before, after, scale=(2.0 / (size * size * before)) ** 0.5)}


def mlp(width: int = WIDTH, batch: int = BATCH) -> Data:
    """Six layers of 64 units with tanh; the mean squared error of a batch of 32."""
    draw, params = Source(1), {}
    for layer in range(DEPTH):
        params |= draw.dense(f"layer{layer}", width, width, gain=1.2)
    return Data(params, {"x": draw.normal(batch, width), "y": draw.normal(batch, width, scale=0.5)})


def mlp_losses(width: int = WIDTH, batch: int = BATCH) -> Data:
    """The MLP with eight linear heads of four units, each with a loss."""
    draw, (params, inputs) = Source(2), mlp(width, batch)
    for head in range(HEADS):
        params = params | draw.dense(f"head{head}", width, 4)
    return Data(params, {"x": inputs["x"], "y": draw.normal(HEADS, batch, 4)})


def rows(losses: int, size: int) -> np.ndarray:
    """The gradients of so many losses, as a matrix: half as many directions that they share, and some noise."""
    draw = Source(10)
    return draw.normal(losses, losses // 2) @ draw.normal(losses // 2, size) + draw.normal(losses, size, scale=0.5)


def hvp() -> Data:
    """The MLP, and a vector for each of its parameters."""
    draw, (params, inputs) = Source(3), mlp()
    return Data(params, inputs | {"vectors": {name: draw.normal(*value.shape) for name, value in params.items()}})


def hessian() -> Data:
    """A net of 19, 19 and 1 units, whose 400 weights are one vector."""
    draw = Source(4)
    parts = (draw.normal(19 * 19, scale=19**-0.5), draw.normal(19, scale=0.1))
    parts += (draw.normal(19, scale=19**-0.5), draw.normal(1, scale=0.1))
    return Data({"w": np.concatenate(parts)}, {"x": draw.normal(32, 19), "y": draw.normal(32, 1)})


def hyper() -> Data:
    """A net of 16, 32, 32 and 1 units, batches for twenty steps of SGD with momentum, and a batch to validate."""
    draw, params = Source(5), {}
    for layer, (before, after) in enumerate(pairwise((16, 32, 32, 1))):
        params |= draw.dense(f"layer{layer}", before, after)
    batches = {"x": draw.normal(STEPS, 32, 16), "y": draw.normal(STEPS, 32, 1)}
    return Data(params, batches | {"valid_x": draw.normal(32, 16), "valid_y": draw.normal(32, 1)})


def cnn() -> Data:
    """A ResNet of 20 layers on 32 images of 32 × 32 pixels, in ten classes.

    With ELU, as its derivative is continuous. Among a million ReLUs some are so close to zero that frameworks round
    them to different sides, after which gradients agree to two digits only.
    """
    draw = Source(6)
    params = draw.conv("stem/conv", 3, 3, STAGES[0]) | draw.norm("stem/norm", STAGES[0])
    before = STAGES[0]
    for stage, after in enumerate(STAGES):
        for number in range(BLOCKS):
            name = f"stage{stage}/block{number}"
            params |= draw.conv(f"{name}/conv0", 3, before, after) | draw.norm(f"{name}/norm0", after)
            params |= draw.conv(f"{name}/conv1", 3, after, after) | draw.norm(f"{name}/norm1", after)
            if before != after:
                params |= draw.conv(f"{name}/shortcut", 1, before, after)
            before = after
    params |= draw.dense("top", before, 10)
    return Data(params, {"x": draw.normal(32, 32, 32, 3), "y": draw.labels(10, 32)})


def transformer() -> Data:
    """A causal language model: two layers of width 64 with four heads, 16 sequences of 32 tokens."""
    draw = Source(7)
    params = {"tokens": draw.normal(VOCABULARY, MODEL, scale=0.5), "places": draw.normal(LENGTH, MODEL, scale=0.5)}
    for layer in range(LAYERS):
        name = f"layer{layer}"
        params |= draw.norm(f"{name}/norm0", MODEL) | draw.dense(f"{name}/qkv", MODEL, 3 * MODEL)
        params |= draw.dense(f"{name}/attended", MODEL, MODEL) | draw.norm(f"{name}/norm1", MODEL)
        params |= draw.dense(f"{name}/wide", MODEL, WIDE) | draw.dense(f"{name}/narrow", WIDE, MODEL)
    params |= draw.norm("norm", MODEL) | draw.dense("top", MODEL, VOCABULARY)
    text = draw.labels(VOCABULARY, SEQUENCES, LENGTH + 1)
    mask = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    return Data(params, {"x": text[:, :-1].copy(), "y": text[:, 1:].copy(), "mask": mask})


def transformer_losses() -> Data:
    """The Transformer with eight heads of 16 classes in place of the last layer, each with a loss."""
    draw, (params, inputs) = Source(8), transformer()
    params = {name: value for name, value in params.items() if not name.startswith("top/")}
    for head in range(HEADS):
        params |= draw.dense(f"head{head}", MODEL, 16)
    return Data(params, inputs | {"y": draw.labels(16, HEADS, SEQUENCES, LENGTH)})


def tapes() -> Data:
    """Sixteen small sub-models, whose first layer is shared."""
    draw = Source(9)
    params = {"shared": draw.normal(16, 16, scale=0.25)}
    for number in range(TAPES):
        params |= draw.dense(f"model{number}/inner", 16, 16)
        params |= {f"model{number}/outer": draw.normal(16, 1, scale=0.25)}
    return Data(params, {"x": draw.normal(TAPES, 8, 16), "y": draw.normal(TAPES, 8, 1)})
