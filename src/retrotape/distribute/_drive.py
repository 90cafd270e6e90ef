"""The driver: which chunks are still to be computed, what becomes of failures, and where results are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from retrotape.distribute import _partial as partial
from retrotape.distribute._executors import LostWorkerError, Way
from retrotape.distribute._job import Task, failed_path
from retrotape.distribute._progress import Progress
from retrotape.errors import FarmError, RemoteError, ShapeMismatchError
from retrotape.io import sweep


class Work:
    """The folder of partial results: the user's, or a temporary one that is removed.

    Args:
      given: The user's; it is made if it is not there.
    """

    def __init__(self, given: str | os.PathLike[str] | None) -> None:
        self.temporary = given is None
        if given is None:
            self.path = tempfile.mkdtemp(prefix="retrotape-farm-")
        else:
            self.path = os.path.abspath(os.fsdecode(given))
            os.makedirs(self.path, exist_ok=True)
            sweep(self.path)  # of what was killed while it wrote there

    def remove(self) -> None:
        """Remove the folder if it is temporary."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)


class Done(NamedTuple):
    """A job that is finished.

    Attributes:
      tasks: Its chunks in order.
      paths: The file with the result of each.
      what: What the items are called: "tapes".
    """

    tasks: Sequence[Task]
    paths: Sequence[str]
    what: str


def drive(tasks: Sequence[Task], way: Way, work: Work, progress: bool | None, what: str) -> Done:
    """Compute all chunks that are not there yet.

    Raises:
      FarmError: If an item failed and the job is to stop, if all failed, or if workers were lost.
      ShapeMismatchError: If gradients of different shapes were to be summed.
    """
    unique = {task.key: task for task in tasks}  # the same tapes, given twice, are computed once
    pending = [task for task in unique.values() if not partial.is_whole(task.path)]
    some_failed = set()
    with Progress(progress, sum(len(task.items) for task in unique.values()), what) as bar:
        bar.advance(sum(len(task.items) for task in unique.values()) - sum(len(task.items) for task in pending))
        outcomes = way.run(pending)
        try:
            for outcome in outcomes:
                if outcome.error is not None:
                    _raise(*outcome.error, what)
                if outcome.failed:
                    some_failed.add(outcome.key)
                bar.advance(len(unique[outcome.key].items))
        except LostWorkerError as error:
            work.temporary = False  # so that it can be continued
            raise FarmError(
                "A worker of the executor died, and the executor can do no more",
                f"Call again with a new executor and `work={work.path!r}`: what is done is not computed again.",
            ) from error
        finally:
            outcomes.close()
    chosen = {key: _result_of(task, key in some_failed) for key, task in unique.items()}
    _check_there([chosen[task.key] for task in pending], work)
    return Done(tasks, [chosen[task.key] for task in tasks], what)


def _result_of(task: Task, failed: bool) -> str:
    """Return the file with the result of a chunk: where items failed here, that of a driver where none did, if any."""
    return failed_path(task.path) if failed and not partial.is_whole(task.path) else task.path


def contents(done: Done) -> Iterator[tuple[Task, Any]]:
    """Yield the result of each chunk, in order.

    Raises:
      FarmError: If an item failed and the job was to stop.
    """
    for task, path in zip(done.tasks, done.paths, strict=True):
        found = content(path)
        if found["failed"] and task.job.stop:
            number, text = next(iter(found["failed"].items()))
            _raise("tape", text, task.items[number].name, "", done.what)
        yield task, found


def content(path: str) -> Any:
    """Return the result of a chunk.

    Raises:
      FarmError: If the file was removed or damaged since it was written.
    """
    try:
        return partial.read(path)
    except partial.DamagedError as error:
        raise FarmError(
            f"The partial result {path!r} was removed or damaged since it was written",
            "Call again with the same `work=`: it is computed anew.",
        ) from error


def _raise(kind: str, text: str, name: str, trace: str, what: str) -> NoReturn:
    if kind == "shape":
        raise ShapeMismatchError(text)
    cause = RemoteError(f"\n{trace}") if trace else None
    if kind == "farm":
        raise FarmError(text, "The traceback is above.") from cause
    raise FarmError(
        f"{name} failed: {text}",
        f'To leave out {what} that fail, and have them listed in `failed`: `on_error="continue"`.',
        {name: text},
    ) from cause


def _check_there(paths: Sequence[str], work: Work) -> None:
    for path in paths:
        if not os.path.exists(path):
            raise FarmError(
                f"Workers have written results to {work.path!r}, and this process does not see them there",
                "Give a folder that all of them share: `work=`.",
            )


class Failures:
    """Collects the errors of items from the very contents that are returned or summed.

    Attributes:
      texts: The error of each item that failed, by name, in order.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._failed = self._all = 0

    def add(self, task: Task, failed: Mapping[int, str]) -> None:
        """Add those of a chunk."""
        self._failed += len(failed)
        self._all += len(task.items)
        self.texts.update((task.items[number].name, text) for number, text in failed.items())

    def raise_if_all(self, what: str) -> None:
        """Raise if there is nothing that did not fail."""
        if self._failed and self._failed == self._all:
            name, text = next(iter(self.texts.items()))
            raise FarmError(
                f"All {self._failed} {what} failed; the first, {name}: {text}", "Correct that first.", self.texts
            )
