"""`retrotape check`: verifies that a file is intact and well-formed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from retrotape.cli._shards import check_shards, print_checked
from retrotape.cli._tape import SavedTape, open_saved
from retrotape.cli._text import console, count, one_line, print_json, printable, size
from retrotape.cli._verbs import json_option, tape_argument
from retrotape.cli._wellformed import check_meaning
from retrotape.errors import CorruptTapeError, ShardMismatchError, TapeVersionError, UnsafeTapeError
from retrotape.files import store

_LONG = 2**26  # bytes above which a progress bar is worth showing


@click.command()
@tape_argument()
@json_option
@click.pass_context
def check(ctx: click.Context, file: str, as_json: bool) -> None:
    """Verify a saved tape.

    Verifies every checksum, the program, the names, and that every op is one that a tape may run. For a folder of
    shards, verifies each, and that all workers ran the same collective ops.

    Exit code 0 if the tape is valid, 1 if it is damaged or unsafe; --json then prints an object with "ok": false.
    Checksums detect damage, not malice.
    """
    sharded = store.is_sharded(file)
    try:
        found = check_shards(file) if sharded else _check(file)
    except (CorruptTapeError, ShardMismatchError, TapeVersionError, UnsafeTapeError) as error:
        if not as_json:
            raise
        print_json({"path": file, "ok": False, "kind": type(error).__name__, "problem": one_line(str(error))})
        ctx.exit(1)
    if as_json:
        print_json({"path": file, "ok": True, **found})
        return
    if sharded:
        print_checked(file, found)
        return
    click.echo(
        f"ok: {printable(file)} has {count(found['equations'], 'equation')} of {count(found['ops'], 'op')}, "
        f"{count(found['names'], 'name')} and {count(found['tensors'], 'kept value')} of {size(found['bytes'])}; "
        "every checksum matches and every op is allowed."
    )


def _check(file: str) -> dict[str, int]:
    with open_saved(file) as tape:
        with _progress(tape) as seen:
            tape.container.verify(seen)
        check_meaning(tape)
        return _summary(tape)


def _summary(tape: SavedTape) -> dict[str, int]:
    kept = tape.container.tensors.values()
    return {
        "equations": len(tape.program.eqns),
        "ops": len({eqn.op for eqn in tape.program.eqns}),
        "functions": len(tape.functions),
        "names": len(tape.names),
        "tensors": len(kept),
        "bytes": sum(info.nbytes for info in kept),
    }


@contextmanager
def _progress(tape: SavedTape) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr if it is a terminal and the file is large."""
    out = console(stderr=True)
    if not out.is_terminal or sum(info.nbytes for info in tape.container.tensors.values()) < _LONG:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
