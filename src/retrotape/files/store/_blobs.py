"""The store of a tape that is a folder: every piece of data is a file named by its sha256.

    store/9f/9f86d081884c7d65...

Tapes that hold the same tensor share the file. No file is ever changed or removed here, so a reader never sees one
disappear; and `tape.json` is written last, so that what it names is there. A file that is not what its name says is
damaged, and a new one takes its place. No link is followed, neither to read nor to write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys

from retrotape.errors import TapeWriteError
from retrotape.files.store._files import READ, kind_of, open_file, read_at
from retrotape.files.store._format import PIECE, TAPE, shown
from retrotape.files.store._replace import Replacement, explained, sweep, sync_directory
from retrotape.files.store._where import Where

_UP = 16  # how many folders up a store may lie


class BlobWriter:
    """Puts data into a store."""

    def __init__(self, path: str, store: str) -> None:
        self.written = 0
        self._path, self._store = path, store
        self._touched: set[str] = set()
        self._there: set[str] = set()  # digests whose files this writer has made or compared
        with explained(path):
            sweep(store)

    def put(self, data: memoryview) -> str:
        """Return the digest of `data`, which is in the store now."""
        digest = hashlib.sha256(data).hexdigest()
        target = place(self._store, digest)
        folder = os.path.dirname(target)
        if digest in self._there:
            return digest
        with explained(self._path):
            if make_folder(folder):
                self._touched.add(self._store)
            elif _holds(target, data):
                self._there.add(digest)
                return digest
        with Replacement(target, about=self._path, temporary_in=self._store) as output:
            for start in range(0, len(data), PIECE):
                output.write(data[start : start + PIECE])
            output.commit(sync=False)
        self._there.add(digest)
        self._touched.add(folder)
        self.written += len(data)
        return digest

    def commit(self) -> None:
        """Put the names on the disk too."""
        with explained(self._path):
            for folder in sorted(self._touched):
                sync_directory(folder)
            sync_directory(os.path.dirname(os.path.abspath(self._store)))


def place(store: str, digest: str) -> str:
    """Return the file of a digest."""
    return os.path.join(store, digest[:2], digest)


def make_folder(path: str, *, links: bool = False) -> bool:
    """Make a folder in one that exists; return whether it was not there. A link to one does only with `links`."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR((os.stat if links else os.lstat)(path).st_mode):
            what = "link" if os.path.islink(path) else "file"
            raise NotADirectoryError(20, f"a {what} is in the way of the folder {path!r}") from None
        return False
    return True


def remove_if_empty(path: str) -> None:
    """Remove a folder unless something is in it."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def relative(path: str, store: str) -> str:
    """Return the way from a tape to its store, as it stands in `tape.json`."""
    here, there = os.path.realpath(path), os.path.realpath(store)
    try:
        way = os.path.relpath(there, here).replace(os.sep, "/")
    except ValueError:  # two drives of Windows
        way = ""
    if not _is_way(way):
        problem = f"the store {store!r} cannot be named from there"
        raise TapeWriteError(path, problem, f"Put it near, for example into {os.path.dirname(here)!r}.")
    return way


def locate(where: Where, way: str) -> str:
    """Return the store that a tape names. It has to be a folder, found by going up, then down."""
    if not _is_way(way):
        raise where.unsafe(f"{TAPE} places the store at {shown(way)}, which is no relative path")
    store = os.path.join(where.path, *way.split("/"))
    if not os.path.isdir(store):
        remedy = "A tape that is a folder has to be moved together with its store."
        raise where.corrupt(f"the store {shown(way)} beside it is not there", remedy)
    at = where.path
    for step in way.split("/"):
        at = os.path.join(at, step)
        if step != "..":
            kind_of(where, at)  # which refuses links: the writer names folders as they are
    return store


def open_blob(where: Where, store: str, digest: str) -> tuple[int, int]:
    """Return the descriptor and the size of the file of a digest; neither it nor its folder may be a link."""
    path = place(store, digest)
    kind_of(where, os.path.dirname(path))
    return open_file(where, path)


def _is_way(way: str) -> bool:
    steps = way.split("/")
    down = [step for step in steps if step != ".."]
    return (
        len(way) <= 4096
        and bool(down)
        and steps == [".."] * (len(steps) - len(down)) + down
        and len(steps) - len(down) <= _UP
        and all(_is_name(step) for step in down)
    )


def _is_name(step: str) -> bool:
    forbidden = set("\\:") if sys.platform == "win32" else {"\\"}  # a colon names a drive there
    return step not in ("", ".") and step.isprintable() and not forbidden & set(step) and len(step) <= 255


def _holds(path: str, data: memoryview) -> bool:
    """Say whether a file holds these bytes, all of them. A link, or what is no file, holds nothing."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size != len(data):
            return False
        descriptor = os.open(path, READ)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and all(
            read_at(descriptor, start, PIECE) == data[start : start + PIECE] for start in range(0, len(data), PIECE)
        )
    finally:
        os.close(descriptor)
