"""A writer of tapes that can be told to lie. It follows FORMAT.md and shares no code with the library."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ENTRIES = {"program.txt": b"%0 : float32[2,3]", "opdefs.pb": b"\x0a\x03Neg"}
LEAF = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
FLAGS = b"\x00\x01\x01"
OFFSETS = struct.pack("<4q", 0, 2, 2, 5)
LETTERS = b"abcde"
PARTS: dict[str, tuple[str, list[int], bytes]] = {
    "flags": ("bool", [3], FLAGS),
    "leaf": ("float32", [2, 3], LEAF),
    "s/dat/words": ("uint8", [5], LETTERS),
    "s/off/words": ("int64", [4], OFFSETS),
}
STRINGS = {"words": [3]}
DTYPES = {"bool": "BOOL", "float32": "F32", "uint8": "U8", "int64": "I64"}
FULL = 0xFFFFFFFF


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def seal(rest: bytes, begin: bytes = b'{"format":"tape/1","check":"') -> bytes:
    """Return `tape.json` with a valid check sum; `rest` follows it, whatever it is."""
    return begin + sha256(begin + b"0" * 64 + rest).encode() + rest


def as_rest(fields: Mapping[str, Any]) -> bytes:
    lines = [f',\n"{key}":{json.dumps(fields[key])}' for key in fields]
    return ('"' + "".join(lines) + "\n}\n").encode()


def fields(**changed: Any) -> dict[str, Any]:
    """Return the fields of a good tape, some of them changed; those that are None are left out."""
    good: dict[str, Any] = {
        "features": [],
        "sha256": {name: sha256(data) for name, data in ENTRIES.items()},
        "tensors": {name: [dtype, shape, sha256(data)] for name, (dtype, shape, data) in PARTS.items()},
        "strings": STRINGS,
        "note": "a good tape",
    }
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def tensor_table(**changed: Any) -> dict[str, Any]:
    """Return the table of tensors of a good tape with some rows changed."""
    return {**fields()["tensors"], **changed}


def header(parts: Mapping[str, tuple[str, list[int], bytes]] = PARTS) -> bytes:
    """Return the text of the header of safetensors, padded."""
    items, at, pads = [], 0, 0
    for name in sorted(parts):
        if gap := -at % 64:
            items.append(f'"pad/{pads}":{{"dtype":"U8","shape":[{gap}],"data_offsets":[{at},{at + gap}]}}')
            at, pads = at + gap, pads + 1
        dtype, shape, data = parts[name]
        dims = ",".join(map(str, shape))
        end = at + len(data)
        items.append(f'"{name}":{{"dtype":"{DTYPES[dtype]}","shape":[{dims}],"data_offsets":[{at},{end}]}}')
        at = end
    text = ("{" + ",".join(items) + "}").encode()
    return text + b" " * (-(len(text) + 8) % 64)


def safetensors(
    text: bytes | None = None, parts: Mapping[str, tuple[str, list[int], bytes]] = PARTS, fill: bytes = b"\0"
) -> bytes:
    text = header(parts) if text is None else text
    data = b""
    for name in sorted(parts):
        data += fill * (-len(data) % 64) + parts[name][2]
    return len(text).to_bytes(8, "little") + text + data


@dataclass
class Entry:
    """One entry of a zip. `local` and `central` are what its two headers say instead of the truth."""

    name: bytes
    data: bytes
    extra: bytes | None = None
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)
    before: bytes = b""


def zip64(*values: int) -> bytes:
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def padding(start: int, name: bytes, alignment: int = 64) -> bytes:
    gap = -(start + 30 + len(name) + 6) % alignment
    return struct.pack("<HHH", 0xD935, 2 + gap, alignment) + bytes(gap)


def archive(entries: list[Entry], *, before_directory: bytes = b"", **end: Any) -> bytes:
    """Return a zip. `end` is what its last record says instead of the truth; `record64` is put before that."""
    data, directory = b"", b""
    for entry in entries:
        data += entry.before
        start = len(data)
        truth = {"flags": 0, "method": 0, "crc": zlib.crc32(entry.data), "size": len(entry.data), "name": entry.name}
        local = {**truth, "packed": len(entry.data), "extra": entry.extra, **entry.local}
        if local["extra"] is None:
            local["extra"] = padding(start, local["name"])
        numbers = (45, local["flags"], local["method"], 0, 33, local["crc"], local["packed"], local["size"])
        data += struct.pack("<4sHHHHHIIIHH", b"PK\3\4", *numbers, len(local["name"]), len(local["extra"]))
        data += local["name"] + local["extra"] + entry.data
        said = {**truth, "packed": len(entry.data), "extra": b"", "comment": b"", "disk": 0, "start": start}
        said |= entry.central
        numbers = (said["flags"], said["method"], 0, 33, said["crc"], said["packed"], said["size"])
        lengths = (len(said["name"]), len(said["extra"]), len(said["comment"]))
        directory += struct.pack("<4sHHHHHHIIIHHH", b"PK\1\2", 45, 45, *numbers, *lengths)
        directory += struct.pack("<HHII", said["disk"], 0, 0o100644 << 16, said["start"])
        directory += said["name"] + said["extra"] + said["comment"]
    data += before_directory
    truth = {"disk": 0, "count": len(entries), "length": len(directory), "start": len(data), "comment": b""}
    told = {**truth, "record64": b"", **end}
    data += directory + told["record64"]
    numbers = (told["disk"], 0, told["count"], told["count"], told["length"], told["start"], len(told["comment"]))
    return data + struct.pack("<4sHHHHIIH", b"PK\5\6", *numbers) + told["comment"]


def entries(tape: bytes | None = None, tensors: bytes | None = None, **more: bytes) -> list[Entry]:
    """Return the entries of a good tape; `tape` and `tensors` take the place of the last two."""
    tape = seal(as_rest(fields())) if tape is None else tape
    tensors = safetensors() if tensors is None else tensors
    found = {**ENTRIES, **more, "tensors.safetensors": tensors, "tape.json": tape}
    return [Entry(name.encode(), data) for name, data in found.items()]


def file(tape: bytes | None = None, tensors: bytes | None = None) -> bytes:
    """Return a whole tape."""
    return archive(entries(tape, tensors))


def changed(name: str, **what: Any) -> bytes:
    """Return a good tape whose entry `name` is changed."""
    return archive([replace(e, **what) if e.name == name.encode() else e for e in entries()])


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
