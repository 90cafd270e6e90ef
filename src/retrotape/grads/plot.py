"""Gradients as bars of their norms, drawn by Matplotlib."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retrotape.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORWARD, BACKWARD, WEIGHTS, ERROR = "#2563a8", "#b4540a", "#6d4aa8", "#b3261e"
_LONGEST = 40  # characters of a name
_MOST = 80  # bars


def new_figure(rows: int, heights: Sequence[float]) -> Figure:
    """Return a figure with axes below each other, or raise if Matplotlib is not installed.

    It belongs to no window: nothing is shown, and nothing has to be closed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("A plot", "Matplotlib", "plot") from None
    figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
    figure.subplots(rows, 1, height_ratios=list(heights))
    return figure


def height_of_bars(count: int) -> float:
    """Return how many inches bars need."""
    return 0.8 + 0.2 * max(min(count, _MOST), 1)


def draw_bars(axes: Axes, rows: Sequence[tuple[str, float | None]], title: str, color: str = WEIGHTS) -> None:
    """Draw a bar for each norm, the first at the top; None is written as such, and so is a norm that is not finite."""
    shown = list(rows[:_MOST])
    places = range(len(shown))
    known = [norm if norm is not None and 0.0 < norm < math.inf else math.nan for _, norm in shown]
    finite = [norm for norm in known if not math.isnan(norm)]
    axes.barh(list(places), known, color=color, height=0.7)
    axes.set_yticks(list(places), [_short(name) for name, _ in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.5 if shown else 0.5, -0.5)
    if finite:
        axes.set_xscale("log")
        axes.set_xlim(min(finite) / 3.0, max(finite) * 3.0)
    for place, (_, norm) in enumerate(shown):
        if norm is None or not 0.0 < norm < math.inf:
            text = "None" if norm is None else "0" if norm == 0.0 else "not finite"
            axes.annotate(
                text, (0.005, place), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=ERROR
            )
    more = f", {len(rows) - _MOST} more not shown" if len(rows) > _MOST else ""
    axes.set_title(title + more, fontsize=10, loc="left")
    tidy(axes)


def tidy(axes: Axes) -> None:
    """Remove the frame, and draw a light grid."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def saved(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """Write a figure to a file, if one is given, and return it."""
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def plot_norms(rows: Sequence[tuple[str, float | None]], path: Any) -> Figure:
    """Return a figure of norms by name."""
    figure = new_figure(1, [height_of_bars(len(rows))])
    draw_bars(figure.axes[0], rows, "Norm of the gradient")
    return saved(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :]
