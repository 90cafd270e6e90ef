"""Whether queries are compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import local
from typing import Any, ClassVar

_MODES = {"0": "never", "1": "warm", "always": "always"}


class Settings(local):
    """The settings of this process, and those of a block on this thread.

    Attributes:
      block: The mode in a block of `rt.config` on this thread; None outside of one.
    """

    block: str | None = None
    _process: ClassVar[list[str]] = ["warm"]

    @property
    def mode(self) -> str:
        """When queries are compiled: "warm", once they have been seen before; "never"; "always", for tests."""
        return self.block or self._process[0]

    def set(self, mode: str) -> str:
        """Set the mode of the process, and return the one before."""
        before, self._process[0] = self._process[0], mode
        return before


def mode_in(environment: Mapping[str, str]) -> str:
    """Return the mode that the environment variable `RETROTAPE_COMPILE` sets."""
    given = environment.get("RETROTAPE_COMPILE", "1")
    if given not in _MODES:
        raise ValueError(f"RETROTAPE_COMPILE must be 0, 1 or always, got {given!r}.")
    return _MODES[given]


settings = Settings()
settings.set(mode_in(os.environ))


class config:
    """Change settings of this process; as a context manager, those of this thread for one block.

    Args:
      compile: Whether queries that come again are compiled. The results are the same either way, to the bit where the
        same kernels compute them. `"always"` compiles them the first time, which costs time and is meant for tests. The
        environment variable `RETROTAPE_COMPILE` (0, 1 or always) sets it for a whole process.

    >>> with rt.config(compile=False):
    ...     with rt.Tape() as tape:
    ...         y = tf.constant(3.0) ** 2
    """

    def __init__(self, *, compile: Any) -> None:
        modes = {False: "never", True: "warm", "always": "always"}
        if not isinstance(compile, (bool, str)) or compile not in modes:
            raise ValueError(f'compile= must be True, False or "always", got {compile!r}.')
        self._mode = modes[compile]
        self._process, self._block = settings.set(self._mode), settings.block

    def __enter__(self) -> config:
        """Begin a block in which the setting holds, on this thread only."""
        settings.set(self._process)
        self._block, settings.block = settings.block, self._mode
        return self

    def __exit__(self, *_: Any) -> None:
        """End the block: the setting is what it was before."""
        settings.block = self._block
