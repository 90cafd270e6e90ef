"""FORMAT.md says what the code does."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import retrotape.files.store
from retrotape.files.store import Limits, Stored, write
from retrotape.files.store import _format as format_
from retrotape.files.store._tables import OWN

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "FORMAT.md").read_text(encoding="utf-8")


def example(path: Path) -> str:
    """Return what the page shows at its end."""
    program = '%0 : float32[2,3]\n%1 : float32[2,3] = Neg(%0) @0\n@0 = "mlp.py":3 in "step"'
    tensors = [
        Stored("leaf_0", "float32", (2, 3), bytes(range(24))),
        Stored("v/1", "complex128", (), bytes(16)),
        Stored("names", "string", (2,), [b"a", b"bc"]),
    ]
    write(path, {"program.txt": program.encode(), "opdefs.pb": b"\x0a\x05\x0a\x03Neg"}, tensors, {})
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = data[8:begin].decode().rstrip()
    tape = data[begin : begin + json.loads(header)["tape.json"]["shape"][0]].decode()
    lines = [re.sub(r"([0-9a-f]{8})[0-9a-f]{56}", r"\1…", line) for line in tape.splitlines()]
    return "\n".join([*header.replace("},", "},\n").splitlines(), "", *lines])


def test_the_example_is_real(tmp_path):
    assert f"```\n{example(tmp_path / 'a.tape')}\n```" in PAGE


def test_the_limits_are_those_of_the_code():
    limits = Limits()
    assert f"{limits.json_memory >> 20} MiB of memory for `tape.json` or `functions.json`" in PAGE
    assert f"{limits.json_depth} levels in them" in PAGE
    assert limits.program_bytes == limits.functions_bytes
    assert f"{limits.program_bytes >> 20} MiB of `program.txt`, of `functions.json`" in PAGE
    assert f"{limits.entry_bytes >> 20} MiB of another" in PAGE
    assert f"{limits.entries} entries; {limits.header_bytes // 10**6} MB of header; {limits.tensors:,} tensors" in PAGE


def test_the_dtypes_are_those_of_the_code():
    rows = re.findall(r"^\| ([a-z0-9_, ()]*?) \| ([A-Z0-9_, ]+)(, with one more dimension.*)? \|$", PAGE, re.MULTILINE)
    said = {}
    for names, stored, opaque in rows:
        names = re.sub(r" \(.*?\)", "", names).split(", ")
        kinds = [None] * len(names) if opaque else stored.split(", ")
        said |= dict(zip(names, kinds, strict=True))
    assert said == {name: kind for name, (_, kind) in format_._DTYPES.items()}


def test_the_names_are_those_of_the_code():
    assert format_.ENTRY_NAME.pattern.replace("(?:", "(") in PAGE
    assert format_.TENSOR_NAME.pattern in PAGE
    assert f"Features of this version: {', '.join(f'`{name}`' for name in sorted(format_.FEATURES))}." in PAGE
    fields = re.findall(r"^\| (`[a-z0-9]+`(?:, `[a-z0-9]+`)*) \| [^|]", PAGE, re.MULTILINE)
    assert {name for row in fields for name in re.findall(r"`(\w+)`", row)} >= OWN


def test_the_container_imports_nothing_but_numpy():
    """And that only inside functions, so that showing a program does not wait for it."""
    for path in Path(retrotape.files.store.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                ours = name.startswith(("retrotape.errors", "retrotape.ir", "retrotape.files.store"))
                assert ours or top in sys.stdlib_module_names or top == "numpy", f"{path.name}: {name}"
                assert top != "numpy" or node not in tree.body
