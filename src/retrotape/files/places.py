"""The local path of a tape that is given by a path or a URL. Does not need TensorFlow."""

from __future__ import annotations

import os

from retrotape.files.background import finish
from retrotape.files.download import local_copy
from retrotape.files.store import Limits
from retrotape.files.urls import is_url, local_path


def local(path: str | os.PathLike[str], limits: Limits | None = None) -> str | os.PathLike[str]:
    """Return the local path of a tape to open; for a URL, that of a copy, of which `limits` bound the size.

    What this process saves there in the background is complete by then.
    """
    if is_url(path):
        path = here(path)
    finish(lambda: key_of(os.fsdecode(path)))
    return local_copy(os.fsdecode(path), limits) if is_url(path) else path


def here(path: str | os.PathLike[str]) -> str:
    """Return the local path that a `file://` URL stands for; other paths and URLs unchanged."""
    found = local_path(path) if isinstance(path, str) and is_url(path) else None
    return os.fsdecode(path) if found is None else found


def key_of(path: str) -> str:
    """Return what is the same for two paths of one file, or two URLs that differ in slashes at the end.

    >>> key_of("memory://bucket/job/") == key_of("memory://bucket/job")
    True
    """
    if is_url(path):
        return "::".join(part.rstrip("/") if "://" in part else part for part in path.split("::"))
    return path if "\0" in path else os.path.realpath(path)
