"""`retrotape grad`: gradients of a saved tape, by name."""

from __future__ import annotations

import os

import click

from retrotape.cli._arrays import write_arrays
from retrotape.cli._start import start_tensorflow
from retrotape.cli._tape import Named, SavedTape, open_saved
from retrotape.cli._text import number, print_json, printable, show_lines, size
from retrotape.cli._verbs import check_output, json_option, tape_argument
from retrotape.cli.completion import complete_name


@click.command()
@tape_argument()
@click.argument("target", shell_complete=complete_name)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", shell_complete=complete_name)
@click.option("-o", "--output", type=click.Path(), callback=check_output, help="Write to a .npz or .safetensors.")
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
    from retrotape.cli._gradients import dense, gradients_of, print_gradients, row_of

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
    print_gradients(gradients, goal, rows)
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
