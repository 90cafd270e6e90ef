"""`retrotape grad`: gradients of a saved tape, by name."""

from __future__ import annotations

import os
from typing import Any

import click

from retrotape.cli._arrays import FORMS, write_arrays
from retrotape.cli._start import start_tensorflow
from retrotape.cli._tape import Named, SavedTape, open_saved
from retrotape.cli._text import number, print_json, printable, show_lines, size
from retrotape.cli._verbs import json_option, tape_argument
from retrotape.cli.completion import complete_name


def _check_output(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an unusable output path before any gradient is computed."""
    if value is None:
        return None
    if os.path.splitext(value)[1] not in FORMS:
        raise click.BadParameter(f"{value!r} ends in none of {', '.join(FORMS)}. Give such a file: `-o grads.npz`.")
    folder = os.path.dirname(os.path.abspath(value))
    if not os.path.isdir(folder):
        raise click.BadParameter(f"There is no folder {folder!r}. Create it first.")
    return value


@click.command()
@tape_argument()
@click.argument("target", shell_complete=complete_name)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", shell_complete=complete_name)
@click.option("-o", "--output", type=click.Path(), callback=_check_output, help="Write to a .npz or .safetensors.")
@click.option("--order", type=click.IntRange(1), default=1, show_default=True, help="How often to differentiate.")
@click.option("--through-updates", is_flag=True, help="Let paths pass through assignments of variables.")
@click.option("--isolate", is_flag=True, help="Run the tape in a separate process, for an untrusted file.")
@json_option
def grad(
    file: str,
    target: str,
    sources: tuple[str, ...],
    output: str | None,
    order: int,
    through_updates: bool,
    isolate: bool,
    as_json: bool,
) -> None:
    """Print gradients by name, and write them to a file.

    TARGET and SOURCE are names on the tape, or unique endings of them. Without SOURCE, gradients are taken with respect
    to every trainable variable. Each further order is the gradient of the sum of the previous one with respect to the
    same source. A missing gradient is not written; a sparse one is written as a dense array.
    """
    if output is not None and os.path.exists(output) and os.path.exists(file) and os.path.samefile(file, output):
        raise click.UsageError(f"{output!r} is the tape itself. Give another file: `-o grads.npz`.")
    with open_saved(file) as saved:
        goal = saved.find(target).name
        chosen = list(dict.fromkeys(map(saved.find, sources))) or _trainable(saved)
    start_tensorflow()
    # Takes seconds: all checks that do not need it come first.
    from retrotape.cli._gradients import dense, gradients_of, row_of

    options = {"through_updates": through_updates}
    gradients = gradients_of(saved, goal, chosen, order, isolate, options)
    rows = [row_of(gradients, key) for key in gradients.keys()]
    written = None
    if output is not None:
        written = write_arrays(
            output, {key.on_tape: dense(value) for key, value in gradients.items() if value is not None}
        )
    if as_json:
        about = {"path": file, "target": goal, "order": order, **options}
        norm = number(float(gradients.norm()))
        print_json({**about, "norm": norm, "gradients": rows, "output": output, "bytes": written})
        return
    _print(gradients, goal, rows)
    if output is not None and written is not None:
        show_lines(f"written to {printable(output)}, {size(written)}")


def _trainable(tape: SavedTape) -> list[Named]:
    called: dict[int, Named] = {}
    for named in tape.names:
        if named.variable is not None and named.variable.trainable:
            known = called.setdefault(id(named.variable), named)
            if known.name != named.variable.name:
                called[id(named.variable)] = named  # prefer its own name
    found = [called[id(variable)] for variable in tape.variables if id(variable) in called]
    if not found:
        raise click.UsageError("This tape has no trainable variable. Name a SOURCE: `retrotape show` lists the names.")
    return found


def _print(gradients: Any, target: str, rows: list[dict[str, Any]]) -> None:
    table = gradients.__rich__()
    for column in table.columns:
        column.no_wrap = column.justify == "right"  # a wrapped number would look like two
        column.overflow = "fold"
    values = [row for row in rows if "value" in row]
    show_lines(table, *(f"d {printable(target)} / d {printable(row['name'])} = {row['value']}" for row in values))
