"""FORMAT.md describes what the code does."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import retrotape as rt
import retrotape.files.store
from helpers.workers_in_turn import as_on_a_worker
from retrotape.files import store
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
    fields = re.findall(r"^\| (`[a-z0-9_]+`(?:, `[a-z0-9_]+`)*) \| [^|]", PAGE, re.MULTILINE)
    assert {name for row in fields for name in re.findall(r"`(\w+)`", row)} >= OWN


# ------------------------------------------------------------------ the fields of a file that was saved


@tf.custom_gradient
def inner(x: tf.Tensor) -> Any:
    return tf.sin(x), lambda upstream: upstream * tf.cos(x)


@tf.custom_gradient
def outer(x: tf.Tensor) -> Any:
    return tf.sin(x), lambda upstream: upstream * inner(x)


def save_every_field(path: Path) -> store.Container:
    """Return a saved tape in which each list of objects has an item, and each object its optional fields."""
    x, step = tf.constant([[0.5, 2.0]]), tf.Variable(1.0, name="step")
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    layer.trainable = False
    with rt.Tape() as tape:
        y = outer(layer(x))
        if tf.reduce_sum(y) < 100.0:
            step.assign_add(1.0)
        loss = tf.reduce_sum(y) * step
    prepared = as_on_a_worker(tape._snapshot(tape._eager("save"), {"x": x, "loss": loss})).prepare()
    shard = {"run": "0" * 32, "worker": 0, "workers": 2}
    prepared.with_fields({"features": ["shards"], "shard": shard}).write(path, overwrite=True, store_in=None)
    return store.open_tape(path)


def fields_on_page() -> dict[str, set[str]]:
    """Return the fields of `tape.json` that the page lists for the program, with the names in braces of each."""
    section = PAGE.partition("## What the program and the fields mean")[2].partition("## The folder")[0]
    found = {}
    for row in re.findall(r"^\| `.*\|$", section, re.MULTILINE):
        _, names, meaning, _ = row.split("|")
        braces = re.match(r" (?:list of )?\{([a-z_, ]+)\}", meaning)
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), set(braces[1].split(", ")) if braces else set())
    return found


def keys_of(field: Any) -> set[str]:
    """Return the keys of an object, or those of all objects in a list."""
    rows = [row for row in field if isinstance(row, dict)] if isinstance(field, list) else [field]
    return {key for row in rows if isinstance(row, dict) for key in row}


def test_the_fields_are_those_of_a_saved_file(tmp_path):
    container = save_every_field(tmp_path / "a.tape")
    saved = {name: keys_of(field) for name, field in container.meta.items() if name not in OWN}
    names = saved.pop("names")
    assert {"x", "loss"} <= names  # the user's: not names of fields
    assert {kind for what in container.meta["names"].values() for kind in what} == {"var", "variable"}
    listed = fields_on_page()
    assert listed.pop("names") == set()
    assert saved == listed


def test_the_fields_of_functions_are_those_of_a_saved_file(tmp_path):
    functions = save_every_field(tmp_path / "a.tape").document("functions.json")
    (listed,) = re.findall(r"`functions\.json` is \{key: \{([a-z_, ]+)\}\}", PAGE)
    assert functions
    assert all(set(function) == set(listed.split(", ")) for function in functions.values())
    uses = [use for function in functions.values() for use in function["backward_functions"]]
    assert uses
    assert all(set(use) == fields_on_page()["backward_functions"] for use in uses)


def test_the_container_imports_nothing_but_numpy():
    """And that only inside functions, so that showing a program does not wait for it."""
    for path in Path(retrotape.files.store.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                ours = name.startswith(
                    ("retrotape.errors", "retrotape._locks", "retrotape.io", "retrotape.ir", "retrotape.files.store")
                )
                assert ours or top in sys.stdlib_module_names or top == "numpy", f"{path.name}: {name}"
                assert top != "numpy" or node not in tree.body
