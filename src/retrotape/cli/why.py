"""`retrotape why`: why there is a gradient, or none, on a saved tape."""

from __future__ import annotations

from dataclasses import replace

import click

from retrotape.cli._start import start_tensorflow
from retrotape.cli._tape import open_saved
from retrotape.cli._text import print_json, show_lines
from retrotape.cli._verbs import json_option, tape_argument
from retrotape.cli.completion import complete_name


@click.command()
@tape_argument()
@click.argument("target", shell_complete=complete_name)
@click.argument("source", shell_complete=complete_name)
@json_option
def why(file: str, target: str, source: str, as_json: bool) -> None:
    """Explain why TARGET has a gradient with respect to SOURCE, or none.

    TARGET and SOURCE are names on the tape, or unique endings of them. The explanation names the op that cuts the path,
    the line that ran it, and what to do.
    """
    with open_saved(file) as saved:
        found = [saved.find(name) for name in (target, source)]
        names = [one.name for one in found]
        labels = [f"{one.name!r} ({saved.type_of(one.var)})" for one in found]
    start_tensorflow()
    from retrotape.tape.loaded import load  # takes seconds: a wrong name has been refused by now

    explanation = replace(load(file).why(*names), target=labels[0], source=labels[1])
    if as_json:
        print_json(explanation.to_json())
    else:
        show_lines(*str(explanation).split("\n"))
