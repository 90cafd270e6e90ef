"""`retrotape show`: the contents of a file, without TensorFlow and without reading its tensors."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import click

from retrotape.cli import _listing, _statistics
from retrotape.cli._shards import describe_shards, print_shards
from retrotape.cli._tape import Named, SavedTape, open_saved
from retrotape.cli._text import count, print_json, printable, show_lines, size, table
from retrotape.cli._verbs import json_option, tape_argument
from retrotape.files import store
from retrotape.ir import bytes_of

_FEW = 12  # rows of ops and lines; --json has all


@click.command()
@tape_argument()
@json_option
@click.option("--ops", is_flag=True, help="Also show the program; repetitions are shown once.")
@click.option("--values", is_flag=True, help="Also show statistics of the kept values, each read and verified.")
def show(file: str, as_json: bool, ops: bool, values: bool) -> None:
    """Show what a saved tape holds.

    Reads the program but no tensors, so it is fast however large the tape is. It detects damage to what it reads;
    `retrotape check` verifies everything.
    """
    if store.is_sharded(file) and not (ops or values):
        shards = describe_shards(file)
        (print_json if as_json else print_shards)(shards)
        return
    with open_saved(file) as tape:
        about = {**describe(tape), "path": file}  # a URL, where the tape itself is a copy
        if ops and as_json:
            about["program"] = str(tape.program).split("\n")
        if values:
            about["values"] = list(_statistics.rows(tape))
        if as_json:
            print_json(about)
            return
        _print(about)
        if ops:
            _listing.print_program(tape)


def describe(tape: SavedTape) -> dict[str, Any]:
    """Return the contents of a tape, as JSON."""
    program, kept = tape.program, tape.container.tensors.values()
    folder = os.path.isdir(tape.container.path)
    lines = Counter(program.frames[eqn.frame] for eqn in program.eqns)
    return {
        "path": tape.path,
        "format": tape.format,
        "form": "folder" if folder else "file",
        "bytes": None if folder else os.path.getsize(tape.container.path),
        "features": list(tape.container.features),
        "written_by": {name: _text(tape.fields.get(name)) for name in ("retrotape", "tensorflow", "keras")},
        "equations": len(program.eqns),
        "vars": len(program.types),
        "custom_gradients": sum(eqn.op == "custom_gradient" for eqn in program.eqns),
        "kept": {"tensors": len(kept), "bytes": sum(info.nbytes for info in kept)},
        "names": sorted((_row(tape, named) for named in tape.names), key=_order),
        "ops": dict(Counter(eqn.op for eqn in program.eqns).most_common()),
        "lines": [
            {"file": frame.file, "line": frame.line, "function": frame.function, "equations": number}
            for frame, number in lines.most_common()
        ],
    }


def _row(tape: SavedTape, named: Named) -> dict[str, Any]:
    kind = tape.type_of(named.var)
    row = {
        "name": named.name,
        "kind": tape.kind(named),
        "type": str(kind),
        "dtype": str(kind).partition("[")[0],
        "shape": None if kind.shape is None else list(kind.shape),
        "bytes": bytes_of(kind),
        "redacted": named.name in tape.redacted,
    }
    if named.variable is not None:
        row.update(
            trainable=named.variable.trainable, frozen=named.variable.frozen, values=len(named.variable.versions)
        )
    return row


def _order(row: dict[str, Any]) -> tuple[int, bool, str]:
    return ("input", "target", "variable").index(row["kind"]), not row.get("trainable"), row["name"]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _print(about: dict[str, Any]) -> None:
    where = f"{size(about['bytes'])} in one file" if about["form"] == "file" else "a folder and its store"
    by = about["written_by"]
    known = [f"{title} {by[name]}" for name, title in _TITLES.items() if by[name]]
    kept = about["kept"]
    show_lines(
        f"{printable(about['path'])}: {printable(about['format'])}, {where}",
        f"written by {printable(', '.join(known)) or 'an unknown version'}",
        f"{count(about['equations'], 'equation')}, {count(about['custom_gradients'], 'custom gradient')}, "
        f"{count(len(about['names']), 'name')}, {count(kept['tensors'], 'kept value')} of {size(kept['bytes'])}",
        table(("name", "kind", "type", "bytes"), [_cells(row) for row in about["names"]], numbers=("bytes",)),
        table(("op", "equations"), _first(about["ops"].items()), numbers=("equations",)),
        table(
            ("line", "in", "equations"),
            _first((f"{row['file']}:{row['line']}", row["function"], row["equations"]) for row in about["lines"]),
            numbers=("equations",),
        ),
    )
    if "values" in about:
        show_lines(_statistics.as_table(about["values"]))


_TITLES = {"retrotape": "retrotape", "tensorflow": "TensorFlow", "keras": "Keras"}


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    kind = row["kind"]
    if kind == "variable":
        kind += ", trainable" if row["trainable"] else ", frozen" if row["frozen"] else ""
        kind += f", {row['values']} values" if row["values"] > 1 else ""
    return row["name"], f"{kind}, redacted" if row["redacted"] else kind, row["type"], size(row["bytes"])


def _first(rows: Any) -> list[tuple[str, ...]]:
    """Return the first rows as text, and a line that counts the rest."""
    found = [tuple(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) for row in rows]
    rest = len(found) - _FEW
    if rest <= 1:
        return found
    return [*found[:_FEW], (f"... and {rest} more", *[""] * (len(found[0]) - 1))]
