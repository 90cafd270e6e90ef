"""A thread that writes, so that a step need not wait for the copy of its batch."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread

_WAITING = 4  # writes at most: with a slow disk, steps wait


class Writer:
    """Runs writes in order, on a thread of its own.

    Attributes:
      error: What a write has raised; later ones are not run.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._queue: Queue[Callable[[], None] | None] = Queue(_WAITING)
        self._thread: Thread | None = None

    def put(self, write: Callable[[], None]) -> None:
        """Run a write as soon as those before it are done."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="retrotape flight recorder", daemon=True)
            self._thread.start()
        self._queue.put(write)

    def flush(self) -> None:
        """Wait until everything is written, or raise what a write has raised."""
        self._queue.join()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the thread, after all writes."""
        if self._thread is not None and self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        while (write := self._queue.get()) is not None:
            try:
                if self.error is None:
                    write()
            except Exception as error:  # any: it is raised where somebody can handle it
                self.error = error
            finally:
                self._queue.task_done()
        self._queue.task_done()
