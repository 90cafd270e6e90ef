"""Which tapes a farm works on: paths, patterns, folders of shards, URLs; and what identifies the content of each."""

from __future__ import annotations

import glob
import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from retrotape.distribute._job import Item
from retrotape.errors import CorruptTapeError, FarmError, NoTapesError, RetrotapeError, UrlError
from retrotape.files import download
from retrotape.files.background import finish_all
from retrotape.files.remote import file_system, read_at_most, reading, without_secrets
from retrotape.files.store import LARGEST_MANIFEST, MANIFEST, Limits, is_shard_name
from retrotape.files.url_cache import known_version
from retrotape.files.urls import expand, is_url, local_path, split

_HEAD = 1 << 16  # bytes: the header of a tape, with the checksums of its tensors
_UNKNOWN = "unknown-"  # begins the stamp of what may have changed without a sign of it


def local_copy(path: str, limits: Limits | None = None) -> str:
    """Return a path that can be opened here; `limits` bound what is downloaded."""
    return download.local_copy(path, limits) if is_url(path) else path


def tapes_in(paths: Any, duplicates: str = "raise") -> list[str]:
    """Return the tapes that were meant, in their order; those of a pattern are sorted.

    Args:
      paths: A path, a pattern or a URL; or several paths.
      duplicates: "raise", or "allow" for tapes that are there more than once.

    Raises:
      NoTapesError: If there is none.
      FarmError: If two of them are one file.
    """
    if duplicates not in ("raise", "allow"):
        raise ValueError(f"duplicates= must be 'raise' or 'allow', got {duplicates!r}.")
    finish_all()  # what this process saves in the background counts too
    tapes = _meant(paths)
    if duplicates == "raise":
        _refuse_duplicates(tapes)
    return tapes


def _refuse_duplicates(tapes: list[str]) -> None:
    seen: dict[str, str] = {}
    for tape in tapes:
        path = tape
        with suppress(UrlError):  # it fails when it is read
            path = (local_path(tape) or tape) if is_url(tape) else tape
        path = path if is_url(path) else os.path.realpath(path)
        if path in seen:
            same = "" if seen[path] == tape else f", as {without_secrets(seen[path])!r} too"
            raise FarmError(
                f"{without_secrets(tape)!r} is given more than once{same}, and would count more than once",
                'Leave one out, or have it counted as often as it is given: `duplicates="allow"`.',
            )
        seen[path] = tape


def _meant(paths: Any) -> list[str]:
    if isinstance(paths, (str, os.PathLike)):
        return _one(os.fsdecode(paths))
    if isinstance(paths, (bytes, Mapping)) or not isinstance(paths, Iterable):
        raise TypeError(f'Got {type(paths).__name__} as paths; give a pattern, "steps/*.tape", or a list of paths.')
    found = [_checked(path) for path in paths]
    finish_all()  # a generator may save what it yields
    if not found:
        raise NoTapesError("Got an empty list of paths", 'Give a pattern, "steps/*.tape", or a list of paths.')
    return found


def _checked(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f'Got {type(path).__name__} among the paths; give text or a Path: `["a.tape", "b.tape"]`.')
    return os.fsdecode(path)


def _one(path: str) -> list[str]:
    is_pattern = glob.has_magic(path) and not os.path.lexists(path)
    if is_pattern:
        found = list(dict.fromkeys(map(_tape_of, expand(path))))
        if not found:
            raise NoTapesError(f"No tape matches {path!r}", f"The current folder is {os.getcwd()!r}.")
        return found
    if is_url(path) or _is_tape(path):
        return [path]
    if os.path.isdir(path):
        raise NoTapesError(
            f"The folder {path!r} is not a tape: it has neither a tape.json nor a {MANIFEST}",
            f"For the tapes in it: `{os.path.join(path, '*.tape')!r}`.",
        )
    raise NoTapesError(f"There is no {path!r}", 'Give what `tape.save` wrote, or a pattern: "steps/*.tape".')


def _is_tape(path: str) -> bool:
    return os.path.isfile(path) or any(os.path.isfile(os.path.join(path, name)) for name in (MANIFEST, "tape.json"))


def _tape_of(path: str) -> str:
    """Return the folder of a shard, which is no tape of its own, and any other path as it is."""
    folder, name = split(path) if is_url(path) else os.path.split(path)
    if folder and (is_shard_name(name) or _has_manifest(path, folder, name)):
        return folder
    return path.rstrip(os.sep) or path


def _has_manifest(path: str, folder: str, name: str) -> bool:
    """Return whether a file is in a folder with a manifest; behind a URL, without a request for each file."""
    return name == MANIFEST if is_url(path) else os.path.isfile(os.path.join(folder, MANIFEST))


def whole(path: str) -> str:
    """Return a path that means the same in another current folder."""
    return path if is_url(path) else os.path.abspath(path)


def unknown_stamp() -> str:
    """Return the stamp of a tape whose versions cannot be told apart, or that is not there: a new one each time."""
    return _UNKNOWN + uuid.uuid4().hex


def stamp(path: str) -> str:
    """Return what changes when the content of a tape does: sizes, times, and a digest of what the file begins with.

    It is a new one each time if that is unknown, as on a file system that has neither versions nor times.

    Raises:
      FileNotFoundError: If there is no such tape.
    """
    digest = hashlib.sha256()
    if is_url(path):
        known = _remote(path)
        if known is None:
            return unknown_stamp()
        digest.update(repr(known).encode())
    elif os.path.isdir(path):
        for folder, inner, names in os.walk(path):
            inner.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                digest.update(repr((os.path.relpath(file, path), _local(file))).encode())
    else:
        digest.update(repr(_local(path)).encode())
    return digest.hexdigest()


def _local(path: str) -> tuple[int, int, str]:
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        return about.st_size, about.st_mtime_ns, hashlib.sha256(file.read(_HEAD)).hexdigest()


def _remote(path: str) -> Any:
    with reading(path):
        system, inner = file_system(path)
        about = system.info(inner)
        if about.get("type") == "directory":  # of shards: the manifest has the digest of each
            return [read_at_most(system, f"{inner.rstrip('/')}/{MANIFEST}", LARGEST_MANIFEST + 1)]
        return known_version(about)


def items_of(tapes: list[str], stop: bool) -> list[Item]:
    """Return each tape with the stamp of its content, or why it has none; if `stop`, raise if one cannot be read."""
    items = []
    for path in tapes:
        known = problem = ""
        try:
            _refuse_special(path)
            known = stamp(path)
        except FileNotFoundError:
            if stop:
                remedy = 'To leave out what is missing: `on_error="continue"`.'
                raise NoTapesError(f"There is no {path!r}", remedy) from None
            problem = f"FileNotFoundError: There was no {path!r} when the farm began."
        except (OSError, RetrotapeError) as error:  # of one path, as a server that does not answer
            if stop:
                raise
            problem = f"{type(error).__name__}: {error}"
        items.append(Item(path, whole(path), known, problem))
    return items


def _refuse_special(path: str) -> None:
    """Raise for a pipe, a socket or a device, which opening would wait for."""
    if not is_url(path) and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise CorruptTapeError(path, "it is neither a file nor a folder")


def has_changed(path: str, known: str) -> bool:
    """Return whether a tape has changed since it got a stamp, as far as can be known."""
    return bool(known) and not known.startswith(_UNKNOWN) and stamp(path) != known
