"""Tapes that say in every byte which version they are, so that a mixture of two is noticed."""

from __future__ import annotations

from pathlib import Path

from files.store.reading import read_all
from retrotape.files.store import Stored, write


def save(path: Path, version: int, size: int = 10_000, **form) -> int:
    """Save a tape all of whose pieces say which version they are."""
    letter = bytes([version])
    tensors = [Stored(f"x{n}", "uint8", (size,), letter * size) for n in range(3)]
    tensors.append(Stored("words", "string", (2,), [letter, letter * 2]))
    return write(path, {"program.txt": letter * 100, "opdefs.pb": letter}, tensors, {"version": version}, **form)


def version_of(path: Path) -> int:
    """Return the version of a tape, having compared all of it."""
    found = read_all(path)
    version = found["meta"]["version"]
    values = [*found["entries"].values(), *(found["values"][f"x{n}"] for n in range(3)), *found["values"]["words"]]
    assert {letter for value in values for letter in value} == {version}
    return version


def left_behind(folder: Path) -> list[str]:
    """Return the files in a folder that belong to no finished tape."""
    return [path.name for path in folder.rglob("*") if path.name.startswith(".retrotape")]
