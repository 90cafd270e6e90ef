"""Several workers in one process: each has a tape and variables of its own, and they take turns.

A program is a generator function of a `Side`. Where workers communicate it yields what it sends, and gets the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from retrotape.files import store
from retrotape.files.save import Snapshot
from retrotape.record import current_stack

RUN = "0123456789abcdef" * 2


class Sent(NamedTuple):
    """What a worker sends to the others: how it is combined, and the value."""

    how: str  # SUM, MEAN, or "gather"
    value: Any  # a list where the worker has several replicas


Program = Callable[["Side"], Generator[Sent, Any, Mapping[str, Any]]]


class Side:
    """One worker: its number, and its variables."""

    def __init__(self, worker: int, workers: int, values: Mapping[str, np.ndarray]) -> None:
        self.worker, self.workers = worker, workers
        self.variables = {name: tf.Variable(value, name=name) for name, value in values.items()}

    def read(self, name: str) -> Any:
        return self.variables[name] * 1.0

    def update(self, name: str, value: Any) -> None:
        self.variables[name].assign(value)


def record(program: Program, workers: int, values: Mapping[str, np.ndarray]) -> list[tuple[rt.Tape, dict[str, Any]]]:
    """Return the tape of each worker, and what its program has named."""
    sides = [Side(worker, workers, values) for worker in range(workers)]
    running = [program(side) for side in sides]
    tapes = [rt.Tape() for _ in sides]
    names: list[dict[str, Any]] = [{} for _ in sides]
    results: list[Any] = [None] * workers
    while True:
        sent: list[Sent] = []
        for worker, tape in enumerate(tapes):
            with tape:
                try:
                    sent.append(running[worker].send(results[worker]))
                except StopIteration as end:
                    names[worker] = dict(end.value)
        if not sent:
            return list(zip(tapes, names, strict=True))
        whole = combine(sent)
        copies = [tf.identity(whole) for _ in tapes]
        for worker, tape in enumerate(tapes):
            with tape:
                results[worker] = _communicate(sent[worker], copies[worker], workers)


def combine(sent: Sequence[Sent]) -> Any:
    """Return what the workers get for what they have sent."""
    values = [value for one in sent for value in tf.nest.flatten(one.value)]
    if sent[0].how == "gather":
        return tf.concat(values, 0)
    return tf.add_n(values) / (len(values) if sent[0].how == "MEAN" else 1)


def _communicate(sent: Sent, result: Any, workers: int) -> Any:
    stack, given = current_stack(), tf.nest.flatten(sent.value)
    replicas = workers * len(given)
    if sent.how == "gather":
        return stack.on_all_gather(0, replicas, [given], lambda: [result])[0]
    return stack.on_all_reduce(sent.how, replicas, [given], lambda: [result])[0]


def as_on_a_worker(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot whose variables are mirrored."""
    return snapshot._replace(flags={key: flags._replace(mirrored=True) for key, flags in snapshot.flags.items()})


def save_all(folder: Path, recorded: Sequence[tuple[rt.Tape, Mapping[str, Any]]], **options: Any) -> None:
    """Save the shards of all workers, and the manifest."""
    folder.mkdir(exist_ok=True)
    shards = []
    for worker, (tape, names) in enumerate(recorded):
        path = folder / store.shard_name(worker, len(recorded), RUN)
        shard = {"run": RUN, "worker": worker, "workers": len(recorded)}
        prepared = as_on_a_worker(tape._snapshot(tape._eager("save"), names, **options)).prepare()
        prepared.with_fields({"features": ["shards"], "shard": shard}).write(path, overwrite=True, store_in=None)
        shards.append(store.describe_file(str(path)))
    store.write_manifest(str(folder), store.Manifest(RUN, tuple(shards)))
