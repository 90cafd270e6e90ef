"""Results of one chunk as a file: written under a temporary name, renamed when whole, verified when read.

Two processes that write the same file write the same bytes, and a rename replaces the file at once: so a chunk may be
computed twice, for example by two drivers on one folder, and no reader sees half of a file. The checksum is of the name
too, which is the digest of all that the result depends on: the file of one chunk is none of another.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from retrotape.distribute._codec import decode, encode
from retrotape.io import replace_file

_MAGIC = b"retrotape farm, format 2\n"
_DIGEST = hashlib.sha256().digest_size


class DamagedError(Exception):
    """A file is not what was written."""


def write(path: str, content: Any) -> None:
    """Write a nest with its checksum."""
    data = _MAGIC + encode(content)
    replace_file(path, data + _digest(path, data), temporary_in=os.path.dirname(path))  # the driver has swept


def read(path: str) -> Any:
    """Return the nest in a file.

    Raises:
      DamagedError: If it is not there, or not whole.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise DamagedError(path) from None
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not body.startswith(_MAGIC) or _digest(path, body) != digest:
        raise DamagedError(path)
    return decode(body[len(_MAGIC) :])


def _digest(path: str, data: bytes) -> bytes:
    return hashlib.sha256(os.path.basename(path).encode() + b"\n" + data).digest()


def is_whole(path: str) -> bool:
    """Return whether a file is there, undamaged, and no item of it failed: a failed one is tried again."""
    try:
        return os.path.exists(path) and not read(path)["failed"]
    except DamagedError:
        return False
