"""The progress of a farm: a bar with a rate on stderr, removed at the end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Task
    from rich.text import Text

AFTER = 2.0  # seconds before a bar is shown


class Progress:
    """Counts items, and shows a bar: at once (True), never (False), or if it takes a moment in a terminal (None).

    Args:
      shown: Whether to show it.
      total: How many items there are.
      what: What they are called: "tapes".
    """

    def __init__(self, shown: bool | None, total: int, what: str) -> None:
        self._shown, self._total, self._what = shown, total, what
        self._done, self._start = 0, time.monotonic()
        self._stack = ExitStack()
        self._update: Callable[..., None] | None = None

    def __enter__(self) -> Progress:
        """Return itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Remove the bar."""
        self._stack.close()

    def advance(self, count: int) -> None:
        """Count some items."""
        self._done += count
        waited = time.monotonic() - self._start > AFTER
        if self._update is None and (self._shown or (self._shown is None and waited)):
            self._update = _bar(self._stack, self._total, self._what, bool(self._shown))
        if self._update is not None:
            self._update(completed=self._done)


def _bar(stack: ExitStack, total: int, what: str, always: bool) -> Callable[..., None]:
    from rich import progress as rich  # imported late: most farms in tests and scripts show no bar
    from rich.console import Console

    class Rate(rich.ProgressColumn):
        def render(self, task: Task) -> Text:
            return rich.Text(f"{task.speed or 0.0:.3g} {what}/s", style="progress.data.speed")

    console = Console(stderr=True)
    parts: list[Any] = ["[progress.description]{task.description}", rich.BarColumn(), rich.MofNCompleteColumn()]
    parts += [Rate(), rich.TimeRemainingColumn()]
    hidden = not always and not console.is_terminal
    bar = stack.enter_context(rich.Progress(*parts, console=console, transient=not always, disable=hidden))
    return partial(bar.update, bar.add_task(what, total=total))
