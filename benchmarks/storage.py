"""Cost of saving a gradient computation and running it in a new process, compared with other libraries.

Ours: `tape.save`, `rt.load`, `tape.backward`. SavedModel: a `tf.Module` with a traced gradient function. JAX:
`jax.export` with its vjp, parameters in an npz. PyTorch: `torch.export`, then `backward`. All files contain the weights
and data of one step, and are loaded without the model's code.

The row `wait=False` has the time that `tape.save(..., wait=False)` takes before it returns.

Run: `python benchmarks/storage.py`. JAX and PyTorch are measured if they are installed; to use another interpreter for
them: `python benchmarks/storage.py --peers /path/to/python`. Every number is the median of several runs, in CPU
milliseconds with wall milliseconds in parentheses; on a busy machine only the former is reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from threading import Event
from typing import Any

import _measure

RUNS = 5
MODELS = ("MLP 6 x 64", "CNN", "Transformer")
Times = dict[str, tuple[float, float]]  # name: CPU seconds, wall seconds


class Clock:
    """Times the parts of a run."""

    def __init__(self) -> None:
        self.times: Times = {}

    def __call__(self, name: str, run: Callable[[], Any]) -> Any:
        """Run a function, and store how long it took."""
        cpu, wall = time.process_time(), time.perf_counter()
        found = run()
        self.times[name] = (time.process_time() - cpu, time.perf_counter() - wall)
        return found


def size_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(path) for name in names)


# ------------------------------------------------------------------ TensorFlow: ours and SavedModel


def _import_tensorflow() -> Any:
    import tensorflow as tf

    _measure.one_thread()
    tf.keras.utils.set_random_seed(1)
    return tf


def save_ours(clock: Clock, model: str, path: str) -> None:
    _import_tensorflow()
    from models import MODELS as MAKERS

    import retrotape as rt

    work = MAKERS[model]()
    with rt.Tape() as tape:
        loss = work.loss()
    tape.save(f"{path}.first", {"loss": loss})
    clock("save", lambda: tape.save(path, {"loss": loss}))


def save_in_background(clock: Clock, model: str, path: str) -> None:
    """Time what `wait=False` costs the caller; the rest happens on another thread."""
    _import_tensorflow()
    from models import MODELS as MAKERS

    import retrotape as rt
    from retrotape.files.background import submit

    work = MAKERS[model]()
    with rt.Tape() as tape:
        loss = work.loss()
    tape.save(f"{path}.first", {"loss": loss}, wait=False).result()
    go = Event()
    submit("(gate)", lambda: int(go.wait()))  # the thread would compete for the interpreter while the call is timed
    saving = clock("save", lambda: tape.save(path, {"loss": loss}, wait=False))
    go.set()
    saving.result()


def load_ours(clock: Clock, path: str) -> float:
    def both() -> Any:
        _import_tensorflow()
        return import_module("retrotape.tape.loaded")

    rt = clock("import", both)
    tape = clock("load", lambda: rt.load(path))
    return clock("gradient", lambda: float(tape.backward("loss").norm()))


def save_savedmodel(clock: Clock, model: str, path: str) -> None:
    tf = _import_tensorflow()
    from models import MODELS as MAKERS

    work = MAKERS[model]()
    weights = work.model.trainable_variables
    module = tf.Module()
    module.variables_ = [variable.value for variable in work.model.variables]

    @tf.function(input_signature=[])
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = work.loss()
        return [tf.convert_to_tensor(grad) for grad in tape.gradient(loss, weights)]

    module.gradients = gradients
    gradients.get_concrete_function()  # recording is not timed for ours either
    tf.saved_model.save(module, f"{path}.first")
    clock("save", lambda: tf.saved_model.save(module, path))


def load_savedmodel(clock: Clock, path: str) -> float:
    tf = clock("import", _import_tensorflow)
    module = clock("load", lambda: tf.saved_model.load(path))
    return clock("gradient", lambda: float(tf.linalg.global_norm(module.gradients())))


# ------------------------------------------------------------------ JAX


def _jax_model(name: str) -> tuple[Callable[..., Any], Any, Any, Any]:
    """Return a loss of (parameters, x, y), and values for all three; with the sizes of `models.py`."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(1)

    def weight(*shape: int) -> Any:
        return jnp.asarray(random.normal(0.0, 0.1, shape), jnp.float32)

    def cross_entropy(logits: Any, labels: Any) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))

    def normal(h: Any, scale: Any, shift: Any, axes: tuple[int, ...]) -> Any:
        mean, variance = h.mean(axes, keepdims=True), h.var(axes, keepdims=True)
        return (h - mean) / jnp.sqrt(variance + 1e-3) * scale + shift

    if name == MODELS[0]:
        sizes = [64] * 6 + [10]
        params = [(weight(a, b), weight(b)) for a, b in pairwise(sizes)]

        def mlp(params: Any, x: Any, y: Any) -> Any:
            for w, b in params[:-1]:
                x = jax.nn.relu(x @ w + b)
            return cross_entropy(x @ params[-1][0] + params[-1][1], y)

        return mlp, params, weight(32, 64), jnp.asarray(random.integers(0, 10, 32))
    if name == MODELS[1]:
        blocks = [(weight(3, 3, a, b), weight(b), weight(b), weight(b)) for a, b in ((3, 32), (32, 64))]
        params = (blocks, weight(64, 10), weight(10))

        def cnn(params: Any, x: Any, y: Any) -> Any:
            for w, b, scale, shift in params[0]:
                x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
                x = jax.nn.relu(normal(x, scale, shift, (0, 1, 2)))
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            return cross_entropy(x.mean((1, 2)) @ params[1] + params[2], y)

        return cnn, params, weight(32, 32, 32, 3), jnp.asarray(random.integers(0, 10, 32))

    layer = [
        [(weight(64, 4, 16), weight(4, 16)) for _ in range(3)],
        (weight(4, 16, 64), weight(64)),
        (weight(64), weight(64), weight(64), weight(64)),
        (weight(64, 256), weight(256), weight(256, 64), weight(64)),
    ]
    params = (weight(100, 64), [layer, jax.tree.map(lambda leaf: leaf + 0.0, layer)], (weight(64, 100), weight(100)))

    def transformer(params: Any, x: Any, y: Any) -> Any:
        h = params[0][x]
        for heads, (wo, bo), (s1, t1, s2, t2), (w1, b1, w2, b2) in params[1]:
            q, k, v = (jnp.einsum("bld,dhe->blhe", h, w) + b for w, b in heads)
            scores = jnp.einsum("blhe,bmhe->bhlm", q, k) / 4.0
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
            mixed = jnp.einsum("bhlm,bmhe->blhe", jax.nn.softmax(scores), v)
            h = normal(h + jnp.einsum("blhe,hed->bld", mixed, wo) + bo, s1, t1, (2,))
            h = normal(h + jax.nn.gelu(h @ w1 + b1) @ w2 + b2, s2, t2, (2,))
        return cross_entropy(h @ params[2][0] + params[2][1], y)

    tokens = jnp.asarray(random.integers(0, 100, (16, 32)))
    return transformer, params, tokens, tokens


def save_jax(clock: Clock, model: str, path: str) -> None:
    import jax
    import jax.export
    import numpy as np

    loss, params, x, y = _jax_model(model)
    exported = jax.export.export(jax.jit(loss))(params, x, y)  # tracing is not timed for the others either

    def save() -> None:
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "loss.bin"), "wb") as out:
            out.write(exported.serialize(vjp_order=1))
        leaves = jax.tree.leaves((params, x, y))
        np.savez(os.path.join(path, "data.npz"), **{str(n): leaf for n, leaf in enumerate(leaves)})

    save()
    clock("save", save)


def load_jax(clock: Clock, path: str) -> float:
    jax = clock("import", lambda: __import__("jax.export"))
    import numpy as np

    def load() -> Any:
        with open(os.path.join(path, "loss.bin"), "rb") as file:
            exported = jax.export.deserialize(bytearray(file.read()))
        data = np.load(os.path.join(path, "data.npz"))
        args, _ = jax.tree.unflatten(exported.in_tree, [data[str(n)] for n in range(len(data))])
        return exported, args

    exported, args = clock("load", load)

    def gradient() -> float:
        found = jax.tree.leaves(jax.jit(jax.grad(exported.call))(*args))
        return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in map(np.asarray, found))))

    return clock("gradient", gradient)


# ------------------------------------------------------------------ PyTorch


def _torch_model(name: str) -> Any:
    """Return a module whose `forward` is the loss of one step; its batch is a buffer."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))
            self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
            self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, h: Any) -> Any:
            q, k, v = (part(h).unflatten(-1, (4, 16)).transpose(1, 2) for part in (self.query, self.key, self.value))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = self.first(h + self.out(mixed.transpose(1, 2).flatten(2)))
            return self.second(h + self.narrow(nn.functional.gelu(self.wide(h))))

    def block(a: int, b: int) -> list[Any]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]

    torch.manual_seed(1)
    labels = torch.randint(0, 10, (32,))
    if name == MODELS[0]:
        hidden = [layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.ReLU())]
        body, x, y = nn.Sequential(*hidden, nn.Linear(64, 10)), torch.randn(32, 64), labels
    elif name == MODELS[1]:
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        body, x, y = nn.Sequential(*block(3, 32), *block(32, 64), *head), torch.randn(32, 3, 32, 32), labels
    else:
        body = nn.Sequential(nn.Embedding(100, 64), Attention(), Attention(), nn.Linear(64, 100), nn.Flatten(0, 1))
        x = torch.randint(0, 100, (16, 32))
        y = x.flatten()

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body
            self.register_buffer("x", x)
            self.register_buffer("y", y)

        def forward(self) -> Any:
            return nn.functional.cross_entropy(self.body(self.x), self.y)

    return Step()


def save_torch(clock: Clock, model: str, path: str) -> None:
    import torch

    torch.set_num_threads(1)
    exported = torch.export.export(_torch_model(model), ())  # tracing is not timed for the others either
    torch.export.save(exported, f"{path}.first.pt2")
    os.makedirs(path, exist_ok=True)
    clock("save", lambda: torch.export.save(exported, os.path.join(path, "step.pt2")))


def load_torch(clock: Clock, path: str) -> float:
    torch = clock("import", lambda: __import__("torch"))
    torch.set_num_threads(1)
    step = clock("load", lambda: torch.export.load(os.path.join(path, "step.pt2")).module())

    def gradient() -> float:
        step().backward()
        grads = [parameter.grad for parameter in step.parameters()]
        return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads])))

    return clock("gradient", gradient)


# ------------------------------------------------------------------ children and the table

CONTENDERS = {
    "ours": (save_ours, load_ours, "tensorflow"),
    "wait=False": (save_in_background, load_ours, "tensorflow"),
    "SavedModel": (save_savedmodel, load_savedmodel, "tensorflow"),
    "jax.export": (save_jax, load_jax, "jax"),
    "torch.export": (save_torch, load_torch, "torch"),
}
PARTS = ("save", "import", "load", "gradient")


def in_child(python: str, *args: str) -> dict[str, Any]:
    """Run this file in a fresh process and return what it measured."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    done = subprocess.run([python, __file__, *args], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(args)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def child(role: str, name: str, *args: str) -> None:
    clock = Clock()
    save, load, _ = CONTENDERS[name]
    norm = (save if role == "save" else load)(clock, *args)
    print(json.dumps({"norm": norm, **clock.times}))


def has(python: str, module: str) -> bool:
    found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", found], check=False).returncode == 0


def measure(model: str, pythons: dict[str, str], folder: str, runs: int) -> dict[str, dict[str, Any]]:
    """Return the medians of each contender; all take turns."""
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in pythons}
    for run in range(runs):
        for name, python in pythons.items():
            path = os.path.join(folder, f"{name}-{model.split()[0]}-{run}")
            times = {**in_child(python, "save", name, model, path), **in_child(python, "load", name, path)}
            for part, value in {**times, "bytes": size_of(path)}.items():
                found[name].setdefault(part, []).append(value)
    return {
        name: {
            part: statistics.median(values)
            if part in ("bytes", "norm")
            else tuple(map(statistics.median, zip(*values, strict=True)))
            for part, values in parts.items()
        }
        for name, parts in found.items()
    }


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.{0 if seconds > 0.01 else 1}f}"


def row(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    mine, ours = found[name], found["ours"]
    times = [f"{milliseconds(mine[part][0])} ({milliseconds(mine[part][1])})" for part in PARTS]
    after = [sum(each[part][0] for part in ("load", "gradient")) for each in (mine, ours)]
    ratios = [mine["bytes"] / ours["bytes"], mine["save"][0] / ours["save"][0], after[0] / after[1]]
    return [name, f"{mine['bytes'] / 1e3:,.0f}", *times, *(f"{ratio:.2f}" for ratio in ratios)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--peers", default=sys.executable, help="a Python interpreter with JAX or PyTorch")
    options.add_argument("--runs", type=int, default=RUNS)
    given = options.parse_args()
    pythons = {}
    for name, (_, _, module) in CONTENDERS.items():
        python = sys.executable if module == "tensorflow" else given.peers
        if has(python, module):
            pythons[name] = python
        else:
            print(f"{name}: {module} is not installed")
    columns = ["", "kB", "save", "import", "load", "gradient", "size", "save", "load + grad"]
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(model, pythons, folder, given.runs)
        _measure.table(
            f"{model}: CPU ms (wall ms), then ratios to ours", columns, [row(name, found) for name in pythons]
        )


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in ("save", "load"):
        child(*sys.argv[1:])
    else:
        main()
