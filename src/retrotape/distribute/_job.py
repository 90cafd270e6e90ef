"""What is to be computed, as data that is sent to workers: one job, cut into chunks whose results have names.

The name of a chunk's result is a digest of all that it depends on: the tapes with their stamps, the query, and the
versions of the libraries. A result that is there is not computed again, and one that is out of date is not used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retrotape._version import __version__
from retrotape.tf.core import tf

FORMAT = 3  # goes up when results of the same query would differ


class Gradient(NamedTuple):
    """The query of `farm.backward`: names on each tape, all trainable variables if `wrt` is None."""

    target: str
    wrt: tuple[str, ...] | None
    through_updates: bool


@dataclass(frozen=True)
class Job:
    """What all chunks have in common.

    Attributes:
      summed: Whether the gradients of a chunk are summed; else the result of each item is kept.
      query: What to ask of each tape; None if there is a question.
      question: The user's function, for workers that share this process's memory.
      question_file: For others, the file that holds it, and the digest of its content.
      references: Functions of it that travel by name, which have to be the same in workers.
      load: Options for `rt.load`.
      stop: Whether the first tape that fails ends the chunk.
      replayed: The tape whose inputs the items are, or its path and stamp; None if items are tapes.
      trust: As for `tape.replay`.
      versions: Of the libraries that results depend on.
    """

    summed: bool = False
    query: Gradient | None = None
    question: Callable[[Any], Any] | None = None
    question_file: tuple[str, str] | None = None
    references: tuple[Any, ...] = ()
    load: Mapping[str, Any] = field(default_factory=dict)
    stop: bool = True
    replayed: Any = None
    trust: bool = False
    versions: tuple[str, str] = field(default_factory=lambda: (__version__, tf.__version__))


class Item(NamedTuple):
    """One tape, or one input of a replay.

    Attributes:
      name: What to call it: the path as it was given, or the number of the input.
      path: The whole path: workers may have another current folder.
      stamp: Of its content, a new one each time if nothing tells its versions apart; "" if it could not be read.
      problem: Why it could not: it fails with this error, even if it is there by the time that it is opened.
    """

    name: str
    path: str = ""
    stamp: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Task:
    """One chunk.

    Attributes:
      job: What all chunks have in common.
      items: Its items.
      key: The digest of all that its result depends on.
      path: Where its result goes.
      inputs: Those of a replay, as bytes or the file with them.
      note: A file for the number of the item that is computed, to know it if the process dies.
      deadly: The numbers of items that processes died of: they fail without another attempt.
    """

    job: Job
    items: tuple[Item, ...]
    key: str
    path: str
    inputs: bytes | str | None = None
    note: str | None = None
    deadly: tuple[int, ...] = ()


class Outcome(NamedTuple):
    """What a worker returns; results themselves are in the file.

    Attributes:
      key: Of the task.
      failed: How many items failed and were left out.
      error: What ended the chunk: kind ("tape", "shape" or "farm"), text, name of the item, traceback.
    """

    key: str
    failed: int = 0
    error: tuple[str, str, str, str] | None = None


def digest(*parts: Any) -> str:
    """Return the digest of some data; equal data has equal digests, in every process."""
    return hashlib.sha256(repr((FORMAT, parts)).encode()).hexdigest()


def plain(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return options in one order, for a digest."""
    return [(name, sorted(v) if isinstance(v, (set, frozenset)) else v) for name, v in sorted(options.items())]


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of a size, the last one maybe shorter.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    part: list[Any] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def result_path(folder: str, key: str) -> str:
    """Return where the result of a chunk goes."""
    return os.path.join(folder, f"{key}.part")


def failed_path(path: str) -> str:
    """Return where the result of a chunk goes if items of it failed: it never replaces one in which none did."""
    return f"{path.removesuffix('.part')}-failed.part"


def tape_tasks(job: Job, what: str, items: Sequence[Item], size: int, folder: str) -> list[Task]:
    """Return the chunks of a job over tapes; `what` is a digest of all that is not in the items."""
    found = []
    for part in chunks(items, size):
        key = digest(what, [tuple(item) for item in part])
        found.append(Task(job, tuple(part), key, result_path(folder, key)))
    return found
