"""The inputs of a replay, cut into chunks: as bytes here, as files for other processes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from retrotape.distribute import _partial as partial
from retrotape.distribute._codec import encode
from retrotape.distribute._job import Item, Job, Task, chunks, digest, result_path
from retrotape.distribute._paths import stamp, whole
from retrotape.errors import NoTapesError
from retrotape.files.background import finish_all
from retrotape.io import replace_file
from retrotape.tape.isolated import IsolatedTape
from retrotape.tape.loaded import LoadedTape, load
from retrotape.tf.core import tf


def _checked(number: int, element: Any) -> dict[str, Any]:
    if not isinstance(element, Mapping) or not all(isinstance(name, str) for name in element):
        raise TypeError(
            f"Element {number} of the dataset is a {type(element).__name__}; expected a mapping from names on the tape "
            'to values: `[{"x": x0}, {"x": x1}]`, or `dataset.map(lambda x, y: {"x": x, "y": y})`.'
        )
    return dict(element)


def _elements(dataset: Any) -> Iterator[dict[str, Any]]:
    if isinstance(dataset, Mapping) or not isinstance(dataset, (Iterable, tf.data.Dataset)):
        raise TypeError(
            f"Got {type(dataset).__name__} as dataset; expected many mappings from names on the tape to values: "
            '`[{"x": x0}, {"x": x1}]`, or a `tf.data.Dataset` of dictionaries.'
        )
    for number, element in enumerate(dataset):
        yield _checked(number, element)


def input_tasks(job: Job, what: str, dataset: Any, size: int, folder: str, in_files: bool) -> list[Task]:
    """Return the chunks of a replay; `what` is a digest of all that is not in the inputs."""
    found, number = [], 0
    for part in chunks(_elements(dataset), size):
        data = encode({"inputs": part}, keep_tensors=True)
        items = tuple(Item(f"element {number + place}") for place in range(len(part)))
        key = digest(what, hashlib.sha256(data).hexdigest())
        path = result_path(folder, key)
        inputs: bytes | str = data
        if in_files:
            inputs = os.path.join(folder, f"inputs-{key}.part")
            if not partial.is_whole(path) and not partial.is_whole(inputs):
                partial.write(inputs, {"inputs": np.frombuffer(data, np.uint8), "failed": {}})
        found.append(Task(job, items, key, path, inputs))
        number += len(part)
    if not found:
        raise NoTapesError("The dataset has no elements", "Give at least one mapping from names on the tape to values.")
    return found


def remove_inputs(tasks: Iterable[Task]) -> None:
    """Remove the files of inputs whose results are there; the others are needed by whoever tries again."""
    for task in tasks:
        if isinstance(task.inputs, str) and partial.is_whole(task.path):
            with suppress(FileNotFoundError):  # another driver was first
                os.unlink(task.inputs)


def replayed_tape(tape: Any, shares_memory: bool, options: Mapping[str, Any], folder: str) -> tuple[Any, str]:
    """Return the tape for workers, itself or as a file, and a digest of its content."""
    if isinstance(tape, (str, os.PathLike)):
        path = os.fsdecode(tape)
        finish_all()  # this process may be saving it
        try:
            item = Item(path, whole(path), stamp(path))
        except FileNotFoundError:
            raise NoTapesError(f"There is no {path!r}", "Give what `tape.save` wrote.") from None
        return (load(path, **options) if shares_memory else item), item.stamp
    if options:
        raise ValueError("load= applies to a tape that is loaded from a path; this one is loaded already.")
    if isinstance(tape, LoadedTape):
        saved, checksum = _saved(tape, folder)
        return (tape if shares_memory else Item(saved, saved, stamp(saved))), checksum
    if isinstance(tape, IsolatedTape) and shares_memory:
        return tape, ""
    raise TypeError(
        f"Got {type(tape).__name__} as tape; expected a path, or a loaded tape. Save it with names for its inputs: "
        "`tape.save(path, x=x, loss=loss)`, and give the path."
    )


def _saved(tape: LoadedTape, folder: str) -> tuple[str, str]:
    """Write a tape to a file that is named by its content; return the path and a digest."""
    with tempfile.TemporaryDirectory(prefix="retrotape-farm-") as elsewhere:
        written = os.path.join(elsewhere, "tape")
        tape.save(written)
        with open(written, "rb") as file:
            data = file.read()
    checksum = hashlib.sha256(data).hexdigest()
    path = os.path.join(folder, f"tape-{checksum[:32]}.tape")
    replace_file(path, data)
    return path, checksum
