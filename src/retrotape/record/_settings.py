"""Whether queries are compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import local
from typing import Any, ClassVar
from weakref import ref

from retrotape._locks import new_lock
from retrotape.tf import threads

_lock = new_lock()  # an exception may keep it locked on this thread
_MODES = {"0": "never", "1": "warm", "always": "always"}


class Settings(local):
    """The settings of this process, and those of blocks on this thread.

    Attributes:
      blocks: The modes in the blocks of `rt.config` on this thread, the innermost last.
    """

    # Who set a mode of the process, and which; the last one holds. Taking one back leaves those of other threads.
    _process: ClassVar[list[tuple[ref[Any] | None, str]]] = [(None, "warm")]

    def __init__(self) -> None:
        self.blocks: list[str] = []

    @property
    def mode(self) -> str:
        """When queries are compiled: "warm", once they have been seen before; "never"; "always", for tests."""
        if threads.gone:
            return "never"
        return self.blocks[-1] if self.blocks else self._process[-1][1]

    def set(self, mode: str, owner: Any = None) -> None:
        """Set the mode of the process; the owner, if there is one, may take it back."""
        with _lock:
            final = [position for position, entry in enumerate(self._process) if _owner(entry) is None][-1:]
            kept = [
                entry for position, entry in enumerate(self._process) if position in final or _owner(entry) is not None
            ]
            self._process[:] = [*kept, (None if owner is None else ref(owner), mode)]

    def take_back(self, owner: Any) -> None:
        """Undo `set` by an owner."""
        with _lock:
            self._process[:] = [entry for entry in self._process if _owner(entry) is not owner]


def _owner(entry: tuple[ref[Any] | None, str]) -> Any:
    """Return who may take a setting back; None if nobody can."""
    return None if entry[0] is None else entry[0]()


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
        settings.set(self._mode, self)

    def __enter__(self) -> config:
        """Begin a block in which the setting holds, on this thread only."""
        settings.blocks.append(self._mode)
        settings.take_back(self)
        return self

    def __exit__(self, *_: Any) -> None:
        """End the block: the setting is what it was before."""
        settings.blocks.pop()
