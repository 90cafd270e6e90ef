"""The folder that the workers of a job save their shards in: a local one, or behind a URL."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from retrotape.errors import RetrotapeError, TapeWriteError
from retrotape.files import store
from retrotape.files.places import here, key_of
from retrotape.files.remote import file_system, is_there, read_at_most, without_secrets, writing
from retrotape.files.urls import is_url, upload

_POLL, _PATIENCE = 0.25, 4.0  # seconds: network disks show a new file after a moment


class ShardFolder(ABC):
    """A folder of shards, to which tapes are added.

    Attributes:
      path: The folder, or its URL.
      key: The same for two folders that are the same.
    """

    def __init__(self, path: str) -> None:
        self.path, self.key = path, key_of(path)

    @abstractmethod
    def check(self, overwrite: bool) -> None:
        """Raise if it cannot take shards; create it if it is not there."""

    @abstractmethod
    def put(self, name: str, write: Callable[[str], int]) -> store.ShardFile:
        """Add a file; `write` writes it to a local path."""

    @abstractmethod
    def publish(self, manifest: store.Manifest, overwrite: bool) -> None:
        """Make the shards of a manifest the tape in this folder."""

    @abstractmethod
    def run(self) -> str | None:
        """Return the run of the tape in the folder; None if there is none."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files in it."""

    @abstractmethod
    def size_of(self, name: str) -> int | None:
        """Return the size of a file; None if it is not there. Raises if that cannot be known: access is denied, say."""

    def clean(self, manifest: store.Manifest, runs: Collection[str]) -> None:
        """Remove the shards of tapes that were replaced, or never published; not those of `runs`, under way."""
        with contextlib.suppress(OSError, RetrotapeError):  # nothing depends on it
            for name in store.other_shards(self.names(), manifest, runs):
                self.remove(name)

    def check_visible(self, shards: Collection[store.ShardFile], worker: int) -> None:
        """Raise if a shard that another worker has written is not there."""
        for shard in shards:
            until = time.monotonic() + _PATIENCE
            while not self._is_visible(shard, worker, is_last=time.monotonic() > until):
                time.sleep(_POLL)

    def _is_visible(self, shard: store.ShardFile, worker: int, *, is_last: bool) -> bool:
        """Return whether a shard is there; on the last attempt raise if it is not."""
        try:
            if self.size_of(shard.file) == shard.bytes:
                return True
        except TapeWriteError:  # a connection may come back
            if is_last:
                raise
        if is_last:
            problem = f"worker {worker} does not see {shard.file}, which another worker has written"
            raise TapeWriteError(without_secrets(self.path), problem, "Save to a folder that all workers share.")
        return False


def shard_folder(path: str | os.PathLike[str]) -> ShardFolder:
    """Return the folder at a path or URL."""
    place = here(path)
    return _RemoteFolder(place.rstrip("/")) if is_url(place) else _LocalFolder(os.path.abspath(place))


class _LocalFolder(ShardFolder):
    def check(self, overwrite: bool) -> None:
        store.check_folder(self.path, overwrite)

    def put(self, name: str, write: Callable[[str], int]) -> store.ShardFile:
        path = os.path.join(self.path, name)
        write(path)
        return store.describe_file(path)

    def publish(self, manifest: store.Manifest, overwrite: bool) -> None:
        store.write_manifest(self.path, manifest, overwrite=overwrite)

    def run(self) -> str | None:
        try:
            return store.read_manifest(self.path).run
        except (RetrotapeError, OSError):
            return None

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.path, name))

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def size_of(self, name: str) -> int | None:
        path = os.path.join(self.path, name)
        return os.path.getsize(path) if os.path.isfile(path) else None


class _RemoteFolder(ShardFolder):
    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _files(self, name: str) -> tuple[Any, str]:
        return file_system(self._at(name))

    def check(self, overwrite: bool) -> None:
        with writing(self.path):
            files, path = self._files(store.MANIFEST)
            if not overwrite and is_there(files, path):
                raise FileExistsError(path)

    def put(self, name: str, write: Callable[[str], int]) -> store.ShardFile:
        with tempfile.TemporaryDirectory(prefix="retrotape-") as folder:
            path = os.path.join(folder, name)
            write(path)
            upload(path, self._at(name))
            return store.describe_file(path)

    def publish(self, manifest: store.Manifest, overwrite: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="retrotape-") as folder:
            store.write_manifest(folder, manifest)
            upload(os.path.join(folder, store.MANIFEST), self._at(store.MANIFEST), overwrite=overwrite)

    def run(self) -> str | None:
        try:
            with writing(self.path):
                text = read_at_most(*self._files(store.MANIFEST), store.LARGEST_MANIFEST + 1)
            return store.parse_manifest(text, self.path).run
        except (RetrotapeError, OSError):
            return None

    def remove(self, name: str) -> None:
        with contextlib.suppress(Exception):  # a file system may raise anything, and nothing depends on it
            files, path = self._files(name)
            files.rm_file(path)

    def names(self) -> list[str]:
        with writing(self.path):
            files, path = file_system(self.path)
            return [os.path.basename(found) for found in files.ls(path, detail=False)]

    def size_of(self, name: str) -> int | None:
        with writing(self.path):
            files, path = self._files(name)
            files.invalidate_cache(path)
            return files.size(path) if is_there(files, path) else None
