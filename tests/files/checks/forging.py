"""Tapes written by hand, and what comes of loading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import retrotape as rt
from files.mutations import Parts
from retrotape.errors import RetrotapeError
from retrotape.files import store

FRAME = '@0 = "a.py":1 in "f"'
FIELDS: dict[str, Any] = {
    "names": {},
    "redacted": [],
    "variables": [],
    "assigned": [],
    "unrecorded_updates": [],
    "moments": [],
    "host_reads": [],
    "backward_functions": [],
}


def forge(path: Path, program: str, values: dict[int, Any] | None = None, names: dict[str, int] | None = None) -> Path:
    """Write a tape by hand."""
    tensors = []
    for var, value in (values or {}).items():
        if isinstance(value, (bytes, str)):
            tensors.append(
                store.Stored(f"v/{var}", "string", (), [value if isinstance(value, bytes) else value.encode()])
            )
        else:
            array = np.asarray(value)
            tensors.append(store.Stored(f"v/{var}", str(array.dtype), array.shape, array.tobytes()))
    named = {name: {"var": var} for name, var in (names or {"y": 1}).items()}
    entries = {"program.txt": f"{program}\n{FRAME}".encode(), "functions.json": b"{}", "opdefs.pb": b""}
    store.write(path, entries, tensors, {**FIELDS, "names": named})
    return path


def attempt(parts: Parts, path: Path) -> RetrotapeError | None:
    """Load and ask; return the error of ours that comes out, if any. Others come out as they are."""
    try:
        loaded = rt.load(parts.write(path))
        loaded.gradient("y", ["x", "w"], through_updates=True)
    except RetrotapeError as error:
        return error
    return None
