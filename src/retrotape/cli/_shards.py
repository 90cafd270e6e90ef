"""`show` and `check` of a folder of shards, without TensorFlow."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrotape.cli._tape import SavedTape, open_saved
from retrotape.cli._text import count, printable, show_lines, size, table
from retrotape.cli._wellformed import check_meaning
from retrotape.errors import ShardMismatchError
from retrotape.files import store
from retrotape.ir import COLLECTIVES, meetings


@contextmanager
def open_shards(folder: str) -> Iterator[Iterator[SavedTape]]:
    """Open the shards of a folder one after another, each until the next; raise if one is missing or was changed."""
    manifest = store.read_manifest(folder)
    store.verify_shards(folder, manifest)

    def each() -> Iterator[SavedTape]:
        for worker, shard in enumerate(manifest.shards):
            with open_saved(os.path.join(folder, shard.file)) as tape:
                expected = {"run": manifest.run, "worker": worker, "workers": len(manifest.shards)}
                if tape.fields.get("shard") != expected:
                    raise ShardMismatchError(f"{shard.file} is not shard {worker} of run {manifest.run}")
                yield tape

    yield each()


def check_shards(folder: str) -> dict[str, int]:
    """Verify every shard, and that the workers ran the same collective ops; return what there is."""
    programs, found = [], Counter[str]()
    with open_shards(folder) as tapes:
        for tape in tapes:
            tape.container.verify()
            check_meaning(tape)
            programs.append(tape.program)
            found.update(shards=1, equations=len(tape.program.eqns), names=len(tape.names))
            found.update(tensors=len(tape.container.tensors))
            found.update(bytes=sum(info.nbytes for info in tape.container.tensors.values()))
    found["collectives"] = len(meetings(programs)[0])
    return dict(found)


def print_checked(folder: str, found: dict[str, int]) -> None:
    """Print the result of `check_shards`."""
    show_lines(
        f"ok: {printable(folder)} has {count(found['shards'], 'shard')} with {count(found['equations'], 'equation')} "
        f"and {count(found['tensors'], 'kept value')} of {size(found['bytes'])}; every checksum matches, every op is "
        f"allowed, and every worker ran the same {count(found['collectives'], 'collective op')}."
    )


def describe_shards(folder: str) -> dict[str, Any]:
    """Return the contents of a folder of shards, as JSON."""
    rows, names, run = [], dict[str, dict[str, Any]](), store.read_manifest(folder).run
    with open_shards(folder) as tapes:
        for worker, tape in enumerate(tapes):
            rows.append(
                {
                    "worker": worker,
                    "file": os.path.basename(tape.container.path),
                    "bytes": os.path.getsize(tape.container.path),
                    "equations": len(tape.program.eqns),
                    "collectives": sum(eqn.op in COLLECTIVES for eqn in tape.program.eqns),
                }
            )
            for named in tape.names:
                about = {"name": named.name, "kind": tape.kind(named), "type": str(tape.type_of(named.var))}
                names.setdefault(named.name, {**about, "workers": []})["workers"].append(worker)
    return {"path": folder, "form": "shards", "run": run, "shards": rows, "names": sorted(names.values(), key=_order)}


def _order(row: dict[str, Any]) -> tuple[str, str]:
    return row["kind"], row["name"]


def print_shards(about: dict[str, Any]) -> None:
    """Print the result of `describe_shards`."""
    rows, everyone = about["shards"], len(about["shards"])
    numbers = ("bytes", "equations", "collective ops")
    show_lines(
        f"{printable(about['path'])}: {count(everyone, 'shard')} of run {about['run'][:8]}, one for each worker",
        table(
            ("worker", "file", *numbers),
            [
                (
                    str(row["worker"]),
                    row["file"],
                    size(row["bytes"]),
                    f"{row['equations']:,}",
                    f"{row['collectives']:,}",
                )
                for row in rows
            ],
            numbers=numbers,
        ),
        table(
            ("name", "kind", "type", "on"),
            [(row["name"], row["kind"], row["type"], _workers(row["workers"], everyone)) for row in about["names"]],
        ),
    )


def _workers(found: list[int], everyone: int) -> str:
    return "every worker" if len(found) == everyone else f"worker {', '.join(map(str, found))}"
