"""`retrotape diff`: where two runs of the same program part."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from retrotape.cli import _report
from retrotape.cli._distance import distance
from retrotape.cli._pairing import pair
from retrotape.cli._start import start_tensorflow
from retrotape.cli._suspects import suspects
from retrotape.cli._tape import open_saved, sense
from retrotape.cli._text import print_json
from retrotape.cli._verbs import as_json as json_option
from retrotape.cli._verbs import tape_argument
from retrotape.cli._wellformed import check_meaning

_TOLERANCE = click.FloatRange(min=0.0)


@click.command()
@tape_argument("first")
@tape_argument("second")
@click.option("--rtol", type=_TOLERANCE, default=0.0, show_default=True, help="As a share of the larger number.")
@click.option("--atol", type=_TOLERANCE, default=0.0, show_default=True, help="In any case.")
@json_option
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, rtol: float, atol: float, as_json: bool) -> None:
    """Find the first op whose value differs between two tapes of the same program.

    Compares the programs, then what they started from, then every value in the order in which it was computed.
    Values that a tape keeps are taken as they were; all others are computed again, here. A difference counts if it
    is larger than ATOL + RTOL times the larger of the two numbers.

    Exit code 0 if nothing differs, 1 if something does, 2 for trouble: as diff has it.
    """
    with open_saved(first) as one, open_saved(second) as other:
        for tape in (one, other):
            with sense(tape.container.path):
                check_meaning(tape)
        pairing = pair(one.program, other.program)
        found = suspects(one, other, pairing)
        rerun: Any = None
        steps: list[Any] = []
        if found.differ:
            start_tensorflow()
            from retrotape.cli._rerun import Rerun  # which takes seconds; equal check sums need none

            rerun = Rerun(one, other, pairing, found, partial(distance, rtol=rtol, atol=atol))
            steps = list(rerun.steps())
        distances = rerun.distances if rerun else dict.fromkeys(found.unknown)
        about = _report.describe(one, other, pairing, distances, steps)
    if as_json:
        print_json(about)
    else:
        _report.show(about)
    ctx.exit(0 if about["same"] else 1)
