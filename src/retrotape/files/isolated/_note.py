"""What the process is doing, in shared memory: it can still be read when the process has died."""

from __future__ import annotations

import mmap
import os
import tempfile

SIZE = 1024


def make_note() -> int:
    """Return the descriptor of an empty note."""
    if hasattr(os, "memfd_create"):
        made = os.memfd_create("retrotape")
    else:
        with tempfile.TemporaryFile() as file:
            made = os.dup(file.fileno())
    os.ftruncate(made, SIZE)
    return made


def read_note(descriptor: int) -> str:
    """Return the last note, made safe to print."""
    text = os.pread(descriptor, SIZE, 0).split(b"\0")[0].decode(errors="replace")
    return printable(text)


def printable(text: str, most: int = 300) -> str:
    """Return a text on one line, without terminal control characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= most else shown[:most] + "…"


class Note:
    """The writing side."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)

    def write(self, text: str) -> None:
        """Replace the text of the note."""
        raw = text.encode(errors="replace")[: SIZE - 1] + b"\0"
        self._memory[: len(raw)] = raw
