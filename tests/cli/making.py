"""Tapes that were tampered with, and a way to call the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from retrotape.cli import main
from retrotape.files import store

FIELDS: dict[str, Any] = {
    "retrotape": "0.1",
    "tensorflow": "2.21.0",
    "keras": None,
    "names": {"x": {"var": 0}, "y": {"var": 1}},
    "redacted": [],
    "variables": [],
    "assigned": [],
    "unrecorded_updates": [],
    "moments": [],
    "host_reads": [],
    "backward_functions": [],
}
PROGRAM = '%0 : float32[2]\n%1 : float32[2] = Neg{T=float32}(%0) @0\n@0 = "steps.py":7 in "step"'


class Done(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the one object on stdout."""
        assert self.err == ""
        return json.loads(self.out)

    def failure(self) -> str:
        """Return the one line on stderr."""
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        assert self.err.rstrip("\n").isprintable()
        return self.err


class Runner:
    """Calls the command line in this process."""

    def __call__(self, *args: object, **env: str) -> Done:
        found = CliRunner().invoke(main, [str(arg) for arg in args], env=env, prog_name="retrotape")
        return Done(found.exit_code, found.stdout, found.stderr)


def spawn(*args: object, after: str = "") -> Done:
    """Run the command line in a process of its own, then a line of Python in there."""
    code = f"import sys\nfrom retrotape.cli import main\ntry:\n    main({[str(arg) for arg in args]!r}, 'retrotape')\n"
    code += f"finally:\n    {after or 'pass'}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ})
    return Done(done.returncode, done.stdout, done.stderr)


def write(path: Path, program: str = PROGRAM, functions: str = "{}", **fields: Any) -> Path:
    """Write a tape that says whatever it is told to; a field that is None is left out."""
    tensors = [store.Stored("v/0", "float32", (2,), bytes(8))] if program == PROGRAM else []
    entries = {"program.txt": program.encode(), "functions.json": functions.encode(), "opdefs.pb": b""}
    said = {name: value for name, value in {**FIELDS, **fields}.items() if value is not None or name == "keras"}
    store.write(path, entries, tensors, said)
    return path


def tamper(source: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a copy of a tape with its fields changed, and checksums that hold."""
    with store.open_tape(source) as tape:
        fields = json.loads(json.dumps(tape.meta))
        entries = {name: tape.entry(name) for name in tape.names() if name != "tape.json"}
        parts = {"fields": fields, "functions": json.loads(entries["functions.json"])}
        parts["program"] = entries["program.txt"].decode()
        change(parts)
        entries["functions.json"] = json.dumps(parts["functions"]).encode()
        entries["program.txt"] = parts["program"].encode()
        tensors = [
            store.Stored(name, info.dtype, info.shape, tape.tensor(name).tobytes())
            for name, info in tape.tensors.items()
        ]
        store.write(path, entries, tensors, parts["fields"])
    return path


def flip(source: Path, path: Path, part: str, offset: int = -1) -> Path:
    """Write a copy of a tape with one bit of a part changed: an entry, the last tensor ("tensors") or the "header"."""
    data = bytearray(source.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    spans = {name: (begin + item["data_offsets"][0], begin + item["data_offsets"][1]) for name, item in header.items()}
    last = max(spans, key=lambda name: spans[name])
    start, end = {**spans, "tensors": spans[last], "header": (8, begin)}[part]
    data[start + offset % (end - start)] ^= 1
    path.write_bytes(data)
    return path
