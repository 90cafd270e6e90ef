"""The store of a tape that is a folder: every entry and tensor is a file named by its sha256.

    store/9f/9f86d081884c7d65...

Tapes that hold the same tensor share the file. No file is ever changed or removed here, so a reader never sees one
disappear; and `tape.json` is written last, so all files that it names exist. A file whose bytes do not have the digest
in its name is damaged, and is replaced. No link is followed, neither to read nor to write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from functools import partial

from retrotape.errors import TapeWriteError
from retrotape.files.store._errors import TapeErrors, explained
from retrotape.files.store._files import READ, kind_of, open_file, read_at
from retrotape.files.store._format import PIECE, TAPE, quoted
from retrotape.io import Replacement, sweep, sync_directory

_UP = 16  # how many folders up a store may be


class BlobWriter:
    """Writes data into a store."""

    def __init__(self, path: str, store: str) -> None:
        self.written = 0
        self._path, self._store, self._explain = path, store, partial(explained, path)
        self._touched: set[str] = set()
        self._present: set[str] = set()  # digests whose files this writer has made or compared
        with explained(path):
            sweep(store)

    def put(self, data: memoryview) -> str:
        """Put `data` into the store and return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        target = place(self._store, digest)
        folder = os.path.dirname(target)
        if digest in self._present:
            return digest
        with explained(self._path):
            if make_folder(folder):
                self._touched.add(self._store)
            elif _holds(target, data):
                self._present.add(digest)
                return digest
        with Replacement(target, temporary_in=self._store, explain=self._explain) as output:
            for start in range(0, len(data), PIECE):
                output.write(data[start : start + PIECE])
            output.commit(sync=False)
        self._present.add(digest)
        self._touched.add(folder)
        self.written += len(data)
        return digest

    def commit(self) -> None:
        """Flush the names of the new files to the disk too."""
        with explained(self._path):
            for folder in sorted(self._touched):
                sync_directory(folder)
            sync_directory(os.path.dirname(os.path.abspath(self._store)))


def place(store: str, digest: str) -> str:
    """Return the file of a digest."""
    return os.path.join(store, digest[:2], digest)


def make_folder(path: str, *, links: bool = False) -> bool:
    """Make a folder in one that exists; return whether it is new. A link to a folder is accepted only with `links`."""
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
    """Return the relative path from a tape to its store, for `tape.json`."""
    here, there = os.path.realpath(path), os.path.realpath(store)
    try:
        path_to = os.path.relpath(there, here).replace(os.sep, "/")
    except ValueError:  # two drives of Windows
        path_to = ""
    if not _is_allowed(path_to):
        problem = f"there is no relative path to the store {store!r} that readers accept"
        raise TapeWriteError(path, problem, f"Choose a closer one, for example in {os.path.dirname(here)!r}.")
    return path_to


def locate(errors: TapeErrors, path_to: str) -> str:
    """Return the store that a tape names. It has to be a folder, found by going up, then down."""
    if not _is_allowed(path_to):
        raise errors.unsafe(f"{TAPE} places the store at {quoted(path_to)}, which is not an allowed relative path")
    store = os.path.join(errors.path, *path_to.split("/"))
    if not os.path.isdir(store):
        remedy = "A tape that is a folder has to be moved together with its store."
        raise errors.corrupt(f"its store {quoted(path_to)} does not exist", remedy)
    at = errors.path
    for step in path_to.split("/"):
        at = os.path.join(at, step)
        if step != "..":
            kind_of(errors, at)  # which refuses links: the writer names folders as they are
    return store


def open_blob(errors: TapeErrors, store: str, digest: str) -> tuple[int, int]:
    """Return the descriptor and the size of the file of a digest; neither it nor its folder may be a link."""
    path = place(store, digest)
    kind_of(errors, os.path.dirname(path))
    return open_file(errors, path)


def _is_allowed(path_to: str) -> bool:
    steps = path_to.split("/")
    down = [step for step in steps if step != ".."]
    return (
        len(path_to) <= 4096
        and bool(down)
        and steps == [".."] * (len(steps) - len(down)) + down
        and len(steps) - len(down) <= _UP
        and all(_is_name(step) for step in down)
    )


def _is_name(step: str) -> bool:
    forbidden = set("\\:") if sys.platform == "win32" else {"\\"}  # a colon names a drive there
    return step not in ("", ".") and step.isprintable() and not forbidden & set(step) and len(step) <= 255


def _holds(path: str, data: memoryview) -> bool:
    """Return whether a regular file at `path` holds exactly these bytes."""
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
