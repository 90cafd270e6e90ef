"""Where a tape is saved, and where it is loaded from."""

from __future__ import annotations

import os

from retrotape.files import store as containers
from retrotape.files.background import finish


class Target:
    """The place of a file, checked when it is given: by then nothing has been computed.

    Attributes:
      path: The file, or the folder of a tape with a store.
      store: The store; None for one file.
      overwrite: Whether an existing tape may be replaced.
      key: The same for two targets that are the same file.

    >>> Target("a.tape").key == Target("./a.tape").key
    True
    """

    __slots__ = ("key", "overwrite", "path", "store")

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool = True, store: str | os.PathLike[str] | None = None
    ) -> None:
        """Check where a tape is to be saved.

        Raises:
          TapeWriteError: If it cannot be saved there.
        """
        containers.check_target(path, overwrite=overwrite, store=store)
        self.path, self.store = os.fsdecode(path), None if store is None else os.fsdecode(store)
        self.overwrite, self.key = overwrite, key_of(path)

    def absolute(self) -> Target:
        """Return the same place by absolute paths: the working directory may change before it is written."""
        store = None if self.store is None else os.path.abspath(self.store)
        return Target(os.path.abspath(self.path), overwrite=self.overwrite, store=store)


def local(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path of a tape to open, once what this process saves there in the background is complete."""
    finish(key_of(path))
    return path


def key_of(path: str | os.PathLike[str]) -> str:
    """Return what is the same for two paths of one file."""
    return os.path.realpath(os.fsdecode(path))
