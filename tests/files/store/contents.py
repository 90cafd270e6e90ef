"""A small tape of everything: what the tests of the writer write."""

from __future__ import annotations

import numpy as np

from retrotape.files.store import Stored

ENTRIES = {"program.txt": b"%0 : float32[]", "functions.json": b"f" * 100, "opdefs.pb": b"o"}
META = {"leaves": [{"name": "kernel", "shape": [2, None]}], "ratio": 0.1, "text": "größer\n", "none": None}
LEAF = np.arange(6, dtype=np.float32).reshape(2, 3)


def some_tensors() -> list[Stored]:
    """Return tensors of several kinds."""
    return [
        Stored("leaf_0", "float32", (2, 3), LEAF),
        Stored("v/0:1", "int8", (), b"\x07"),
        Stored("words", "string", (2, 2), [b"", b"a\0b", "größer".encode(), b"z" * 100]),
        Stored("none", "float64", (0, 5), b""),
    ]
