"""`retrotape report`: a page about a saved tape, or about two."""

from __future__ import annotations

import os
from typing import Any

import click

from retrotape.cli._start import start_tensorflow
from retrotape.cli._tape import open_saved
from retrotape.cli._text import print_json, printable, show_lines, size
from retrotape.cli._verbs import TapePath, json_option, tape_argument
from retrotape.cli.completion import complete_name


@click.command()
@tape_argument()
@click.argument("other", type=TapePath(), metavar="[FILE2]", required=False)
@click.option("-o", "--output", type=click.Path(), help="Where to write it; beside FILE, as FILE.html, by default.")
@click.option(
    "--loss", "losses", multiple=True, shell_complete=complete_name, help="What to differentiate; repeatable."
)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
@click.option("--isolate", is_flag=True, help="Run the tape in a separate process, for an untrusted file.")
@json_option
def report(
    file: str, other: str | None, output: str | None, losses: tuple[str, ...], show: bool, isolate: bool, as_json: bool
) -> None:
    """Write a page about a tape: findings, gradient flow, layers, program, memory.

    The page is one HTML file that needs nothing else. With FILE2, another run of the same program, it also says where
    the two diverge. Without --loss, a tensor called "loss" is differentiated, or else the last scalar that no op used
    and that depends on a trainable variable.
    """
    target = output if output is not None else f"{os.path.splitext(file.rstrip('/'))[0]}.html"
    folder = os.path.dirname(os.path.abspath(target))
    if not os.path.isdir(folder):
        raise click.UsageError(f"There is no folder {folder!r}. Create it first.")
    for path in filter(None, (file, other)):
        if os.path.exists(target) and os.path.exists(path) and os.path.samefile(path, target):
            raise click.UsageError(f"{target!r} is the tape itself. Give another file: `-o report.html`.")
    with open_saved(file) as saved:
        named = {name: saved.find(name).name for name in losses}
    start_tensorflow()
    from retrotape.cli._reports import compared, report_of, save

    found = report_of(file, list(named.values()), isolate)
    difference = (
        None if other is None else compared(file, other, found, report_of(other, list(named.values()), isolate))
    )
    save(found, difference, target)
    if as_json:
        print_json({**_finite(found.to_json()), "difference": difference and difference["about"], "output": target})
    else:
        problems = f"{len(found.findings)} findings" if len(found.findings) != 1 else "1 finding"
        show_lines(f"{printable(target)}: {problems}, {size(os.path.getsize(target))}")
    if show:
        click.launch(target)


def _finite(value: Any) -> Any:
    """Return a JSON value in which NaN and infinities are text."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value - value != 0.0 else value
