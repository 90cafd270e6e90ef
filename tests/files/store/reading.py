"""Everything that can be read from a tape, as one value to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrotape.files.store import Limits, open_tape


def read_all(path: Path, *, mmap: bool = False, limits: Limits | None = None, verify: bool = True) -> dict[str, Any]:
    """Open a tape, verify it, and return all that is in it."""
    with open_tape(path, mmap=mmap, limits=limits or Limits()) as tape:
        if verify:
            tape.verify()
        entries = {name: tape.entry(name) for name in tape.names() if name != "tape.json"}
        values: dict[str, Any] = {}
        for name, info in tape.tensors.items():
            values[name] = tape.strings(name) if info.dtype == "string" else tape.tensor(name).tobytes()
        return {"meta": tape.meta, "entries": entries, "tensors": dict(tape.tensors), "values": values}
