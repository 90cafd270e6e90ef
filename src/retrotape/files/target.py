"""Where a tape is saved, and where it is loaded from: a local path, or a URL."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from retrotape.errors import TapeWriteError
from retrotape.files import store as containers
from retrotape.files.background import finish
from retrotape.files.urls import (
    check_upload,
    is_url,
    local_copy,
    local_path,
    upload,
)

Path = str | os.PathLike[str]


class Target:
    """The place of a file, checked when it is given: by then nothing has been computed.

    Attributes:
      path: The file, or the folder of a tape with a store; or a URL.
      store: The store; None for one file.
      overwrite: Whether an existing tape may be replaced.
      key: The same for two targets that are the same file.

    >>> Target("a.tape").key == Target("./a.tape").key
    True
    """

    __slots__ = ("key", "overwrite", "path", "store")

    def __init__(self, path: Path, *, overwrite: bool = True, store: Path | None = None) -> None:
        """Check where a tape is to be saved.

        Raises:
          TapeWriteError: If it cannot be saved there.
        """
        self.path, self.overwrite = _here(path), overwrite
        self.store = None if store is None else _here(store)
        if self.store is not None and (is_url(self.path) or is_url(self.store)):
            url = self.path if is_url(self.path) else self.store
            problem = "a tape with a store is a folder of links to other files, which a URL cannot hold"
            raise TapeWriteError(url, problem, "Save one file there, without `store=`.")
        if is_url(self.path):
            check_upload(self.path, overwrite=overwrite)
        else:
            containers.check_target(self.path, overwrite=overwrite, store=self.store)
        self.key = _key(self.path)

    def absolute(self) -> Target:
        """Return the same place by absolute paths: the working directory may change before it is written."""
        if is_url(self.path):
            return self
        store = None if self.store is None else os.path.abspath(self.store)
        return Target(os.path.abspath(self.path), overwrite=self.overwrite, store=store)

    def write(self, write: Callable[[str, bool], int]) -> int:
        """Write the tape there.

        Args:
          write: Takes a local path and whether to overwrite what is there, writes a tape, and returns its size.
        """
        if not is_url(self.path):
            return write(self.path, self.overwrite)
        with tempfile.TemporaryDirectory(prefix="retrotape-") as folder:
            path = os.path.join(folder, "tape")
            size = write(path, True)
            upload(path, self.path, overwrite=self.overwrite)
        return size


def local(path: Path) -> Path:
    """Return the local path of a tape to open: of a URL, that of a copy.

    What this process saves there in the background is complete by then.
    """
    here = _here(path) if is_url(path) else path
    finish(lambda: _key(os.fsdecode(here)))
    if not is_url(here):
        return here
    return local_copy(os.fsdecode(here))


def _here(path: Path) -> str:
    """Return a local path for a `file://` URL; other paths and URLs unchanged."""
    found = local_path(path) if isinstance(path, str) and is_url(path) else None
    return os.fsdecode(path) if found is None else found


def _key(path: str) -> str:
    return path if is_url(path) or "\0" in path else os.path.realpath(path)
