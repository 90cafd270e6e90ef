"""`retrotape diff`: where two runs of the same program diverge."""

from __future__ import annotations

from typing import Any

import click

from retrotape.cli import _diff_report
from retrotape.cli._diff_align import align, find_suspects
from retrotape.cli._start import start_tensorflow
from retrotape.cli._tape import open_saved
from retrotape.cli._text import print_json
from retrotape.cli._verbs import json_option, tape_argument
from retrotape.cli._wellformed import check_meaning

_TOLERANCE = click.FloatRange(min=0.0)


@click.command()
@tape_argument("first")
@tape_argument("second")
@click.option("--rtol", type=_TOLERANCE, default=0.0, show_default=True, help="Relative to the larger number.")
@click.option("--atol", type=_TOLERANCE, default=0.0, show_default=True, help="Absolute.")
@json_option
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, rtol: float, atol: float, as_json: bool) -> None:
    """Find the first op whose value differs between two tapes of the same program.

    Compares the programs, then their inputs, then every value in the order in which it was computed. Values that a
    tape keeps are used; all others are recomputed on this machine. A difference counts if it is larger than ATOL + RTOL
    times the larger of the two numbers.

    Exit code 0 if nothing differs, 1 if something does, 2 for trouble, as in diff.
    """
    with open_saved(first) as one, open_saved(second) as other:
        for tape in (one, other):
            check_meaning(tape)
        alignment = align(one.program, other.program)
        suspects = find_suspects(one, other, alignment)
        distances: dict[Any, Any] = {}
        if suspects.differ:  # if all checksums are equal, TensorFlow need not be loaded
            start_tensorflow()
            from retrotape.cli._diff_values import compare_values

            distances = compare_values(one, other, alignment, suspects, rtol, atol)
        about = _diff_report.describe(one, other, alignment, suspects.unknown, distances)
    (print_json if as_json else _diff_report.show)(about)
    ctx.exit(0 if about["same"] else 1)
