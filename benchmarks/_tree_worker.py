"""One side of `compare_trees.py`: a process with one installation of retrotape that times what it is told to.

Every line on standard input is a request, `{"row": name, "inner": calls}`; every line on standard output a reply, the
CPU seconds of one call. The first reply comes unasked and says what there is to measure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _measure

OPS = 300


def rows(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name."""
    import tensorflow as tf
    from workloads.in_keras import cnn, mlp

    import retrotape as rt

    tf.keras.utils.set_random_seed(1)
    x = tf.constant([0.1, 0.2, 0.3])

    def plain() -> Any:
        y = x
        for _ in range(OPS // 3):
            y = tf.tanh(y) * x + x
        return y

    losses: dict[str, Callable[[], Any]] = {f"{OPS} ops": plain}
    sources: dict[str, Any] = {f"{OPS} ops": x}
    for name, work in {"MLP": mlp(), "CNN": cnn(batch=4)}.items():
        losses[name], sources[name] = work.loss, work.model.trainable_variables

    def record(name: str) -> tuple[Any, Any]:
        with rt.Tape() as tape:
            loss = losses[name]()
        return tape, loss

    def step(name: str) -> Any:
        tape, loss = record(name)
        return tape.gradient(loss, sources[name])

    found: dict[str, Callable[[], Any]] = {}
    tapes = {name: record(name) for name in losses}
    for name, (tape, loss) in tapes.items():
        found[f"record {name}"] = partial(record, name)
        found[f"gradient {name}"] = partial(tape.gradient, loss, sources[name])
        found[f"step {name}"] = partial(step, name)
    tape, loss = tapes["MLP"]
    vectors = [tf.ones_like(weight) for weight in sources["MLP"]]
    tape.save(folder / "tape", {"loss": loss})
    found["hvp MLP"] = partial(tape.hvp, loss, sources["MLP"], vectors)
    found["save MLP"] = partial(tape.save, folder / "again", {"loss": loss})
    found["load + gradient MLP"] = lambda: rt.load(folder / "tape").backward("loss")
    return found


def serve(found: dict[str, Callable[[], Any]], send: Callable[[object], None]) -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        send(_measure.cpu_seconds(found[request["row"]], request["inner"]))


def main() -> None:
    # What a library prints must not come between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(reply: object) -> None:
        replies.write(json.dumps(reply) + "\n")

    _measure.limit_threads(int(sys.argv[1]))
    import retrotape

    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder))
        send({"package": retrotape.__file__, "rows": list(found)})
        serve(found, send)


if __name__ == "__main__":
    main()
