"""`retrotape nan`: which op made the first NaN or infinity on a saved tape."""

from __future__ import annotations

from typing import Any

import click

from retrotape.cli._start import start_tensorflow
from retrotape.cli._tape import open_saved
from retrotape.cli._text import print_json, show_lines
from retrotape.cli._verbs import json_option, tape_argument
from retrotape.cli.completion import complete_name


@click.command()
@tape_argument()
@click.argument("target", required=False, shell_complete=complete_name)
@json_option
@click.pass_context
def nan(ctx: click.Context, file: str, target: str | None, as_json: bool) -> None:
    """Find the op that made the first NaN or infinity.

    With TARGET, a name on the tape, checks the values that it depends on, and if these are finite, its gradient.
    Without it, checks all values, and the gradients of all floating scalars that have a name or that no op uses.

    Exit code 0 if everything is finite, 1 if something is not, 2 for trouble.
    """
    with open_saved(file) as saved:
        goal = None if target is None else saved.find(target).name
    start_tensorflow()
    from retrotape.tape.loaded import load  # takes seconds: a wrong name has been refused by now

    tape = load(file)
    found = tape.first_nonfinite(goal)
    backward = goal is not None or _has_scalars(tape)
    if as_json:
        about = {"path": file, "target": goal, "backward": backward}
        print_json({**about, "found": None if found is None else found.to_json()})
    elif found is None:
        show_lines("everything is finite" if backward else _FORWARD_ONLY)
    else:
        show_lines(*str(found).split("\n"))
    ctx.exit(0 if found is None else 1)


def _has_scalars(tape: Any) -> bool:
    from retrotape.diagnose.nonfinite import results, scalars

    trace = tape._recorded().trace
    return bool(scalars(trace, results(trace, tape._named_tensors())))


_FORWARD_ONLY = "every value is finite; no gradient was checked, as the tape has no floating scalar: name a TARGET"
