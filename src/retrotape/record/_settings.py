"""Whether queries are compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_MODES = {"0": "never", "1": "warm", "always": "always"}


class Settings:
    """The settings of this process.

    Attributes:
      mode: "warm", queries are compiled once they have been seen before; "never"; "always", from the first time, which
        is meant for tests.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        given = environment.get("RETROTAPE_COMPILE", "1")
        if given not in _MODES:
            raise ValueError(f"RETROTAPE_COMPILE must be 0, 1 or always, got {given!r}.")
        self.mode = _MODES[given]


settings = Settings(os.environ)


class config:
    """Change settings of this process; as a context manager, for one block.

    Args:
      compile: Whether queries that come again are compiled. The results are the same either way. `"always"` compiles
        them the first time, which costs time and is meant for tests. The environment variable `RETROTAPE_COMPILE` (0,
        1 or always) sets it for a whole process.

    >>> with rt.config(compile=False):
    ...     with rt.Tape() as tape:
    ...         y = tf.constant(3.0) ** 2
    """

    def __init__(self, *, compile: Any) -> None:
        modes = {False: "never", True: "warm", "always": "always"}
        if not isinstance(compile, (bool, str)) or compile not in modes:
            raise ValueError(f'compile= must be True, False or "always", got {compile!r}.')
        self._before, settings.mode = settings.mode, modes[compile]

    def __enter__(self) -> config:
        """Begin a block in which the setting holds."""
        return self

    def __exit__(self, *_: Any) -> None:
        """End the block: the setting is what it was before."""
        settings.mode = self._before
