"""Reports of saved tapes, and two of them side by side; loads TensorFlow."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from typing import Any

from retrotape.cli import _diff_report
from retrotape.cli._diff_align import align, find_suspects
from retrotape.cli._diff_values import compare_values
from retrotape.cli._tape import open_saved
from retrotape.cli._wellformed import check_meaning
from retrotape.report import Report, Stats, render, text_of, write_page
from retrotape.tape.loaded import load

_ROWS = 400


def report_of(file: str, losses: list[str], isolate: bool) -> Report:
    """Return the report of a saved tape."""
    chosen: dict[str, Any] = {"losses": {name: name for name in losses}} if len(losses) > 1 else {}
    if len(losses) == 1:
        chosen = {"loss": losses[0]}
    with ExitStack() as stack:
        tape: Any = stack.enter_context(load(file, isolate=True)) if isolate else load(file)
        return tape.report(title=os.path.basename(file.rstrip("/")), **chosen)


def compared(first: str, second: str, report: Report, other: Report) -> dict[str, Any]:
    """Return where two tapes differ: as JSON, in sentences, and by gradient."""
    with open_saved(first) as one, open_saved(second) as two:
        for tape in (one, two):
            check_meaning(tape)
        alignment = align(one.program, two.program)
        suspects = find_suspects(one, two, alignment)
        distances = compare_values(one, two, alignment, suspects) if suspects.differ else {}
        about = _diff_report.describe(one, two, alignment, suspects.unknown, distances)
    return {
        "about": about,
        "first": report.title,
        "second": other.title,
        "lines": _diff_report.sentences(about),
        "rows": _gradients(report, other)[:_ROWS],
        "findings": other.findings,
    }


def _gradients(report: Report, other: Report) -> list[dict[str, str]]:
    """Return the norms of gradients that both have, those that differ most first."""
    theirs = {one.name: one.gradient for one in other.weights if one.gradient is not None}
    rows = []
    for one in report.weights:
        if one.gradient is not None and one.name in theirs:
            first, second = one.gradient, theirs[one.name]
            ratio = _ratio(first, second)
            texts = {"first": text_of(first, "norm"), "second": text_of(second, "norm"), "ratio": f"{ratio:.3g}"}
            rows.append((abs(math.log(ratio)) if 0.0 < ratio < math.inf else math.inf, {"name": one.name, **texts}))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _ratio(first: Stats, second: Stats) -> float:
    """Return how many times larger the second is; NaN if one of them is not finite."""
    if first.nonfinite or second.nonfinite:
        return math.nan
    if not first.norm:
        return math.inf if second.norm else 1.0
    return second.norm / first.norm


def save(report: Report, difference: dict[str, Any] | None, path: str) -> None:
    """Write the page."""
    write_page(path, render(report, difference))
