"""A progress bar for slow work: on stderr, if that is a terminal, and removed at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

AFTER = 2.0  # seconds before a bar is shown
_Item = TypeVar("_Item")


def tracked(items: Iterable[_Item], what: str, total: int | None = None) -> Iterator[_Item]:
    """Yield the items, and show progress if they take longer than two seconds.

    Args:
      items: The items.
      what: What the bar says.
      total: How many there are; by default their length, if they have one.
    """
    start = time.monotonic()
    total = len(items) if total is None and isinstance(items, Sized) else total
    with ExitStack() as stack:
        show: Callable[..., None] | None = None
        for number, item in enumerate(items):
            if show is None and number and time.monotonic() - start > AFTER:
                show = _bar(stack, total, what)
            if show is not None:
                show(completed=number)
            yield item


def _bar(stack: ExitStack, total: int | None, what: str) -> Callable[..., None]:
    from rich.console import Console  # imported late: most queries show no bar
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = stack.enter_context(Progress(console=console, transient=True, disable=not console.is_terminal))
    return partial(bar.update, bar.add_task(what, total=total))
