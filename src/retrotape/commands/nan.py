"""`retrotape nan`: which op made the first NaN or infinity on a saved tape."""

from __future__ import annotations

import os

import click

from retrotape.commands._tape import open_saved
from retrotape.commands._text import print_json, show_lines
from retrotape.commands._verbs import as_json as json_option
from retrotape.commands._verbs import tape_argument
from retrotape.commands.completion import complete_name
from retrotape.commands.grad import find


@click.command()
@tape_argument()
@click.argument("target", required=False, shell_complete=complete_name)
@json_option
def nan(file: str, target: str | None, as_json: bool) -> None:
    """Find the op that made the first NaN or infinity.

    With TARGET, a name on the tape, only what it depends on is looked at, and if that is finite, its gradient.
    """
    with open_saved(file) as saved:
        goal = None if target is None else find(saved, target).name
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is loaded
    from retrotape.loaded import load  # which takes seconds: a wrong name has been refused by now

    found = load(file).first_nonfinite(goal)
    if as_json:
        print_json({"path": file, "target": goal, "found": None if found is None else found.to_json()})
    elif found is None:
        show_lines("everything is finite")
    else:
        show_lines(*str(found).split("\n"))
