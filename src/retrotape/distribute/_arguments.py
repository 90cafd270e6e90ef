"""The arguments that all farms have, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrotape.distribute._executors import Way, way_of
from retrotape.distribute._processes import own_processes
from retrotape.files.saved import Path
from retrotape.files.urls import is_url
from retrotape.tf.core import tf


class Options(NamedTuple):
    """The options that all farms have, checked."""

    way: Way
    chunk: int
    work: Path | None
    stop: bool
    progress: bool | None
    load: dict[str, Any]


def checked_options(
    executor: Any, chunk: Any, work: Any, on_error: Any, progress: Any, load: Mapping[str, Any] | None
) -> Options:
    """Return the options.

    Raises:
      ValueError, TypeError: If one of them is none.
    """
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ValueError(f"chunk= takes a number of tapes, 1 or more; got {chunk!r}.")
    if on_error not in ("stop", "continue"):
        raise ValueError(f"on_error= must be 'stop' or 'continue', got {on_error!r}.")
    if progress not in (None, True, False):
        raise ValueError(f"progress= must be True, False or None, got {progress!r}.")
    if work is not None and not isinstance(work, (str, os.PathLike)):
        raise TypeError(f"work= takes the path of a folder, got {type(work).__name__}.")
    if work is not None and is_url(os.fsdecode(work)):
        raise ValueError(
            f"work= takes a folder of a file system that all workers share, got the URL {os.fsdecode(work)!r}: "
            '`work="/shared/farm"`.'
        )
    if load is not None and not isinstance(load, Mapping):
        raise TypeError(f'load= takes options for `rt.load`, `{{"isolate": True}}`; got {type(load).__name__}.')
    given = {name: tuple(sorted(v)) if isinstance(v, (list, set, frozenset)) else v for name, v in (load or {}).items()}
    return Options(_way(executor), chunk, work, on_error == "stop", progress, given)


def _way(executor: Any) -> Way:
    is_number = isinstance(executor, int) and not isinstance(executor, bool)
    return own_processes(executor) if is_number and executor > 0 else way_of(executor)


def checked_name(target: Any) -> str:
    """Return the name of a target."""
    if not isinstance(target, str):
        raise TypeError(f'target= takes a name on each tape, "loss"; got {type(target).__name__}.')
    return target


def checked_names(wrt: Any) -> tuple[str, ...] | None:
    """Return the names of sources, each once; None for every trainable variable."""
    if wrt is None:
        return None
    given = tf.nest.flatten(wrt)
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f'wrt= takes names on each tape, ["dense/kernel"]; got {type(name).__name__}.')
    if not given:
        raise ValueError('wrt= is empty; give names, ["dense/kernel"], or None for every trainable variable.')
    return tuple(dict.fromkeys(given))
