"""File systems for tests, registered with fsspec: with versions and without, cutting files short, failing."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import tensorflow as tf
from fsspec.implementations.memory import MemoryFileSystem

import retrotape as rt
from retrotape.files import store

_numbers = itertools.count(1)


class Versioned(MemoryFileSystem):
    """Gives every file an ETag, as object stores do, and counts downloads."""

    protocol = "versioned"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    downloads = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace(f"{cls.protocol}://", "memory://", 1))

    def unstrip_protocol(self, name: str) -> str:
        return f"{self.protocol}://{name}"

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path, **options)
        found.pop("created", None)
        if found["type"] == "file":
            file = self.store[self._strip_protocol(path)]
            if not hasattr(file, "number"):
                file.number = next(_numbers)
            found["ETag"] = f'"{file.number}"'
        return found

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **options: Any) -> None:
        type(self).downloads += 1
        data = self.cat_file(rpath)  # the file in memory has one position, which threads would share
        with open(lpath, "wb") as out:
            for at in range(0, len(data), self.blocksize):
                sent = out.write(data[at : at + self.blocksize])
                if callback is not None:
                    callback.relative_update(sent)


class Unversioned(Versioned):
    """Says nothing about versions."""

    protocol = "unversioned"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path, **options)
        found.pop("ETag", None)
        return found


class Truncating(Versioned):
    """Ends every download early, without an error."""

    protocol = "truncating"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        with open(lpath, "wb") as out:
            out.write(self.cat_file(rpath)[:-10])


class Failing(Versioned):
    """Fails in the middle of every upload, and wherever it is told to."""

    protocol = "failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    error: Exception | None = None

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        with open(lpath, "rb") as file:
            self.pipe_file(rpath, file.read()[:100])
        raise self.error or ConnectionError("the connection was reset")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return super().info(path, **options)


KINDS = (Versioned, Unversioned, Truncating, Failing)


def register() -> None:
    """Make the file systems known, empty."""
    for kind in KINDS:
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
        kind.downloads = 0
    Failing.error = None
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def small(at: float = 3.0) -> tuple[rt.Tape, tf.Tensor, tf.Tensor]:
    """Return a tape of a square, with what it starts from and ends with."""
    x = tf.constant(at)
    with rt.Tape() as tape:
        y = x * x
    return tape, x, y


def put(url: str, at: float = 3.0) -> int:
    """Save such a tape; return its size."""
    tape, x, y = small(at)
    return tape.save(url, x=x, y=y)


def sharded(url: str, **changes: Any) -> dict[str, bytes]:
    """Put a folder of two shards there, which are no tapes; `changes` are made to both in the manifest."""
    files, path = fsspec.core.url_to_fs(url)
    run = "0123456789abcdef" * 2
    contents = {store.shard_name(number, 2, run): bytes([number]) * 1000 for number in range(2)}
    rows = [
        {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
        for name, data in contents.items()
    ]
    for name, data in contents.items():
        files.pipe_file(f"{path}/{name}", data)
    written = {"format": "tape-shards/1", "run": run, "shards": rows}
    files.pipe_file(f"{path}/manifest.json", json.dumps(written).encode())
    return contents


def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty the file systems, set an empty cache, and return the path of its entries."""
    register()
    monkeypatch.setenv("RETROTAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tapes-v1"
