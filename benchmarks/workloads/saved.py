"""A gradient computation as a file, in each framework: saved with weights and data, loaded without the model's code.

`save_*` return what saves, `load_*` what computes loss and gradients from the file. Nothing is imported before it is
needed, as every function runs in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from workloads import data

GATE = Event()  # to be opened after timing
Save = Callable[[], Any]
Load = Callable[[], dict[str, Any]]


def save_ours(model: str, path: Path) -> Save:
    """A tape; its parameters have their names."""
    import retrotape as rt
    from workloads import tensorflow_models

    params, loss = tensorflow_models.make(model)
    with rt.Tape() as tape:
        value = loss()
    return lambda: tape.save(path / "step.tape", {"loss": value, **params})


def save_in_background(model: str, path: Path) -> Save:
    """The same with `wait=False`, which returns at once. The rest happens on another thread, once `GATE` is open."""
    import retrotape as rt
    from retrotape.files.background import submit
    from workloads import tensorflow_models

    params, loss = tensorflow_models.make(model)
    with rt.Tape() as tape:
        value = loss()
    tape.save(path / "step.tape", {"loss": value, **params}, wait=False).result()
    submit("(gate)", lambda: int(GATE.wait()))  # the thread would compete for the interpreter while the call is timed
    return lambda: tape.save(path / "step.tape", {"loss": value, **params}, wait=False)


def load_ours(path: Path) -> Load:
    import retrotape as rt

    tape = rt.load(path / "step.tape")
    names = [name for name in tape.names if name != "loss"]

    def run() -> dict[str, Any]:
        return {"loss": tape["loss"], **dict(zip(names, tape.gradient("loss", names), strict=True))}

    return run


def save_savedmodel(model: str, path: Path) -> Save:
    """A `tf.Module` with a traced gradient function."""
    import tensorflow as tf

    from workloads import tensorflow_models

    params, inputs = getattr(data, model)()
    module = tf.Module()
    module.params = {name: tf.Variable(value) for name, value in params.items()}
    module.inputs = {name: tf.Variable(value, trainable=False) for name, value in inputs.items()}

    @tf.function(input_signature=[], autograph=False)
    def gradient() -> dict[str, Any]:
        given = {name: tf.convert_to_tensor(value) for name, value in module.inputs.items()}
        with tf.GradientTape() as tape:
            loss = tensorflow_models.LOSSES[model](module.params, **given)
        grads = tape.gradient(loss, dict(module.params))
        return {"loss": loss, **{name: tf.convert_to_tensor(grad) for name, grad in grads.items()}}

    module.gradient = gradient
    gradient.get_concrete_function()  # recording is not timed for ours either
    return lambda: tf.saved_model.save(module, str(path))


def load_savedmodel(path: Path) -> Load:
    import tensorflow as tf

    module = tf.saved_model.load(str(path))
    return lambda: module.gradient()


def save_jax(model: str, path: Path) -> Save:
    """`jax.export` with its vjp; parameters and data in an npz file."""
    import jax
    import jax.export

    from workloads import in_jax

    params, inputs = getattr(data, model)()
    args = (params, *inputs.values())
    exported = jax.export.export(jax.jit(in_jax.LOSSES[model]))(*args)

    def save() -> None:
        (path / "loss.bin").write_bytes(exported.serialize(vjp_order=1))
        np.savez(path / "data.npz", *jax.tree.leaves(args))

    (path / "names.json").write_text(json.dumps(sorted(params)))
    return save


def load_jax(path: Path) -> Load:
    import jax
    import jax.export

    exported = jax.export.deserialize(bytearray((path / "loss.bin").read_bytes()))
    with np.load(path / "data.npz") as saved:
        args, _ = jax.tree.unflatten(exported.in_tree, [jax.numpy.asarray(saved[key]) for key in saved])
    compute = jax.jit(jax.value_and_grad(exported.call))

    def run() -> dict[str, Any]:
        loss, grads = jax.block_until_ready(compute(*args))
        return {"loss": loss, **grads}

    return run


def save_torch(model: str, path: Path) -> Save:
    """`torch.export`; the gradient is that of the loaded module."""
    import torch

    from workloads import in_torch

    arrays, inputs = getattr(data, model)()
    names = list(arrays)

    class Step(torch.nn.Module):
        """The loss of one step; its batch is a pair of buffers."""

        def __init__(self) -> None:
            super().__init__()
            self.params = torch.nn.ParameterList(map(torch.nn.Parameter, in_torch.parameters(arrays).values()))
            x = in_torch.tensor(inputs["x"])
            self.register_buffer("x", x.permute(0, 3, 1, 2).contiguous() if model == "cnn" else x)
            self.register_buffer("y", in_torch.tensor(inputs["y"]))

        def forward(self) -> Any:
            """Return the loss."""
            return in_torch.LOSSES[model](dict(zip(names, self.params, strict=True)), self.x, self.y)

    exported = torch.export.export(Step(), ())
    (path / "names.json").write_text(json.dumps(names))
    return lambda: torch.export.save(exported, path / "step.pt2")


def load_torch(path: Path) -> Load:
    import torch

    step = torch.export.load(path / "step.pt2").module()
    names, weights = json.loads((path / "names.json").read_text()), list(step.parameters())

    def run() -> dict[str, Any]:
        loss = step()
        return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, weights), strict=True))}

    return run
