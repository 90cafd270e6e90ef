"""A writer of tapes that can be told to lie. It follows FORMAT.md and shares no code with the library."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENTRIES = {"program.txt": b"%0 : float32[2,3]", "opdefs.pb": b"\x0a\x03Neg"}
LEAF = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
FLAGS = b"\x00\x01\x01"
OFFSETS = struct.pack("<4q", 0, 2, 2, 5)
LETTERS = b"abcde"
Parts = Mapping[str, tuple[str, list[int], bytes]]
PARTS: dict[str, tuple[str, list[int], bytes]] = {
    "flags": ("bool", [3], FLAGS),
    "leaf": ("float32", [2, 3], LEAF),
    "s/dat/words": ("uint8", [5], LETTERS),
    "s/off/words": ("int64", [4], OFFSETS),
}
STRINGS = {"words": [3]}
DTYPES = {"bool": "BOOL", "float32": "F32", "uint8": "U8", "int64": "I64"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def seal(rest: bytes, begin: bytes = b'{"format":"tape/1","check":"') -> bytes:
    """Return `tape.json` with a valid checksum; `rest` follows it, whatever it is."""
    return begin + sha256(begin + b"0" * 64 + rest).encode() + rest


def as_rest(fields: Mapping[str, Any]) -> bytes:
    lines = [f',\n"{key}":{json.dumps(fields[key])}' for key in fields]
    return ('"' + "".join(lines) + "\n}\n").encode()


def fields(**changed: Any) -> dict[str, Any]:
    """Return the fields of a good tape, some of them changed; those that are None are left out."""
    good: dict[str, Any] = {
        "features": [],
        "entries": {name: [len(data), sha256(data)] for name, data in ENTRIES.items()},
        "tensors": {name: [dtype, shape, sha256(data)] for name, (dtype, shape, data) in PARTS.items()},
        "strings": STRINGS,
        "note": "a good tape",
    }
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def entry_table(**changed: Any) -> dict[str, Any]:
    """Return the table of entries of a good tape with some rows changed."""
    return {**fields()["entries"], **changed}


def tensor_table(**changed: Any) -> dict[str, Any]:
    """Return the table of tensors of a good tape with some rows changed."""
    return {**fields()["tensors"], **changed}


def _rows(tape: bytes, entries: Mapping[str, bytes], parts: Parts) -> list[tuple[str, str, list[int], bytes]]:
    rows = [(name, "U8", [len(data)], data) for name, data in {"tape.json": tape, **entries}.items()]
    return rows + [(name, DTYPES[parts[name][0]], *parts[name][1:]) for name in sorted(parts)]


def header(tape: bytes | None = None, entries: Mapping[str, bytes] = ENTRIES, parts: Parts = PARTS) -> bytes:
    """Return the text of the header, without the spaces at its end."""
    items, at, pads = [], 0, 0
    for name, dtype, shape, data in _rows(good_tape() if tape is None else tape, entries, parts):
        if gap := -at % 64:
            items.append(f'"pad/{pads}":{{"dtype":"U8","shape":[{gap}],"data_offsets":[{at},{at + gap}]}}')
            at, pads = at + gap, pads + 1
        dims = ",".join(map(str, shape))
        items.append(f'"{name}":{{"dtype":"{dtype}","shape":[{dims}],"data_offsets":[{at},{at + len(data)}]}}')
        at += len(data)
    return ("{" + ",".join(items) + "}").encode()


def padded(text: bytes) -> bytes:
    """Return a header with spaces up to a multiple of 64."""
    return text + b" " * (-(len(text) + 8) % 64)


def file(
    tape: bytes | None = None,
    *,
    text: bytes | None = None,
    length: int | None = None,
    entries: Mapping[str, bytes] = ENTRIES,
    parts: Parts = PARTS,
    fill: bytes = b"\0",
) -> bytes:
    """Return a whole tape; `text` and `length` take the place of the header and of its length, `fill` pads."""
    tape = good_tape() if tape is None else tape
    text = padded(header(tape, entries, parts)) if text is None else text
    data = b""
    for _, _, _, content in _rows(tape, entries, parts):
        data += fill * (-len(data) % 64) + content
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def good_tape() -> bytes:
    return seal(as_rest(fields()))


def folder(path: Path, *, store: Any = "blobs", **more: Any) -> Path:
    """Make a tape that is a folder; return its path."""
    path.mkdir(exist_ok=True)
    pieces = [*ENTRIES.values(), *(data for _, _, data in PARTS.values())]
    for data in pieces:
        blob = path / "blobs" / sha256(data)[:2] / sha256(data)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
    (path / "tape.json").write_bytes(seal(as_rest(fields(**{"features": ["blobs"], "store": store, **more}))))
    return path


def blob(path: Path, data: bytes) -> Path:
    """Return where a piece of data lies in the folder that `folder` made."""
    return path / "blobs" / sha256(data)[:2] / sha256(data)
