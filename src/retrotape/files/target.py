"""Where a tape is saved: a local path or a URL, at once or in the background."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from retrotape.errors import TapeWriteError
from retrotape.files import store as containers
from retrotape.files.background import finish, submit
from retrotape.files.places import here, key_of
from retrotape.files.remote import without_secrets
from retrotape.files.urls import check_upload, is_url, upload
from retrotape.record import current_stack

if TYPE_CHECKING:
    from retrotape.files.save import Prepared, Snapshot


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

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool = True, store: str | os.PathLike[str] | None = None
    ) -> None:
        """Check where a tape is to be saved.

        Raises:
          TapeWriteError: If it cannot be saved there.
        """
        self.path, self.overwrite = here(path), overwrite
        self.store = None if store is None else here(store)
        if self.store is not None and (is_url(self.path) or is_url(self.store)):
            url = self.path if is_url(self.path) else self.store
            problem = "a tape with a store is a folder of links to other files, which a URL cannot hold"
            raise TapeWriteError(without_secrets(url), problem, "Save one file there, without `store=`.")
        if is_url(self.path):
            check_upload(self.path, overwrite=overwrite)
        else:
            containers.check_target(self.path, overwrite=overwrite, store=self.store)
        self.key = key_of(self.path)

    def absolute(self) -> Target:
        """Return the same place by absolute paths: the working directory may change before it is written."""
        if is_url(self.path):
            return self
        store = None if self.store is None else os.path.abspath(self.store)
        return Target(os.path.abspath(self.path), overwrite=self.overwrite, store=store)

    def put(self, prepared: Prepared) -> int:
        """Write a tape there and return its size."""
        if not is_url(self.path):
            return prepared.write(self.path, overwrite=self.overwrite, store_in=self.store)
        with tempfile.TemporaryDirectory(prefix="retrotape-") as folder:
            path = os.path.join(folder, "tape")
            size = prepared.write(path, overwrite=True, store_in=None)
            upload(path, self.path, overwrite=self.overwrite)
        return size


def save_now(snapshot: Snapshot, target: Target) -> int:
    """Save a tape and return its size."""
    finish(lambda: target.key)  # an earlier save in the background must not replace this one
    return target.put(snapshot.prepare())


def save_in_background(snapshot: Snapshot, target: Target) -> Future[int]:
    """Save a tape on another thread."""
    return submit(target.key, partial(_save, snapshot.detached(), target.absolute()))


def _save(snapshot: Snapshot, target: Target) -> int:
    with current_stack().unrecorded():  # without a thread, at exit, this runs on the caller's
        return target.put(snapshot.prepare())
