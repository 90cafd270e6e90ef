"""A farm in processes of its own, which are restarted if they die; what kills them is found and named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from retrotape.distribute._executors import LostWorkerError, Outcomes, Way, _on_futures
from retrotape.distribute._job import Task
from retrotape.distribute._pool import new_pool
from retrotape.errors import FarmError

_WITHOUT_PROGRESS = 3  # how often processes may die before any chunk is finished
_NAMED = 3  # items of a chunk that an error lists


def own_processes(workers: int) -> Way:
    """Return how to run tasks in some processes."""
    return Way(lambda tasks: in_processes(workers, tasks), False)


def in_processes(workers: int, tasks: Sequence[Task]) -> Outcomes:
    """Run tasks in a pool; if a process dies, which ends a pool, go on with what is left in a new one.

    If that happens again and again, the chunks that were begun are run alone, one after the other: they have more
    memory then, and an item that still kills its process is known.
    """
    left = {task.key: task for task in tasks}
    deaths = 0
    while left:
        try:
            with new_pool(min(workers, len(left))) as pool:
                for outcome in _on_futures(pool, list(left.values())):
                    del left[outcome.key]
                    deaths = 0
                    yield outcome
        except LostWorkerError:
            deaths += 1
        if deaths == _WITHOUT_PROGRESS:
            for key in list(left)[:workers]:
                yield from _alone(left.pop(key))
            deaths = 0


def _alone(task: Task) -> Outcomes:
    """Run a chunk in a process of its own; an item that kills it fails, and is left out in another attempt."""
    with tempfile.TemporaryDirectory(prefix="retrotape-farm-") as folder:
        note = os.path.join(folder, "item")
        while True:
            try:
                with new_pool(1) as pool:
                    yield from _on_futures(pool, [replace(task, note=note)])
                return
            except LostWorkerError as error:
                task = replace(task, deadly=(*task.deadly, _blamed(task, note, error)))


def _blamed(task: Task, note: str, error: LostWorkerError) -> int:
    """Return the item that a process died of.

    Raises:
      FarmError: If it died before the first item, or after the last.
    """
    if os.path.exists(note):
        with open(note, encoding="ascii") as file:
            number = int(file.read() or -1)
        os.unlink(note)
        if number >= 0 and number not in task.deadly:
            return number
    names = [item.name for item in task.items]
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    raise FarmError(
        f"Processes of the farm died {_WITHOUT_PROGRESS + 1} times in a row without finishing a chunk, the last time "
        f"alone with that of {shown}",
        "They may lack memory: give a smaller chunk, `chunk=1`, and a folder to go on in, `work=`. A script that "
        'starts processes needs `if __name__ == "__main__":` around what it runs.',
    ) from error
