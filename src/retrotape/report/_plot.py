"""The gradient flow as a figure of Matplotlib."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from retrotape.grads.plot import BACKWARD, FORWARD, draw_bars, height_of_bars, new_figure, saved, tidy
from retrotape.report._charts import shown_places
from retrotape.report._data import Stats
from retrotape.report._report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS = 40  # names below the axis


def plot_report(report: Report, path: str | os.PathLike[str] | None = None) -> Figure:
    """Return a figure with two parts: the flow by layer, and the gradients by variable."""
    norms = [(one.name, None if one.gradient is None else _norm(one.gradient)) for one in report.weights]
    figure = new_figure(2, [3.6, height_of_bars(len(norms))])
    _draw_flow(figure.axes[0], report)
    draw_bars(figure.axes[1], norms, "Gradients with respect to weights")
    return saved(figure, path)


def _draw_flow(axes: Axes, report: Report) -> None:
    shown, _ = shown_places(report.places, report.flow)
    for name, kind, color in (("returned", "forward", FORWARD), ("gradient", "backward", BACKWARD)):
        values = [_rms(getattr(one, kind)) for one in shown]
        axes.plot(range(len(shown)), values, "o-", color=color, label=name, markersize=4)
    if any(value > 0.0 for one in shown for value in (_rms(one.forward), _rms(one.backward))):
        axes.set_yscale("log")
    if len(shown) <= _LABELS:
        titles = [report.places[one.place].title for one in shown]
        axes.set_xticks(range(len(shown)), titles, rotation=40, ha="right", fontsize=8)
    axes.set_title("What each layer returns, and its gradient", fontsize=10, loc="left")
    axes.set_ylabel("root mean square", fontsize=8)
    if shown:
        axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def _rms(stats: Stats | None) -> float:
    """Return what is drawn: nothing for zero, which a logarithmic scale does not have, nor for what is not finite."""
    return math.nan if stats is None or stats.nonfinite or stats.rms == 0.0 else stats.rms


def _norm(stats: Stats) -> float:
    return math.nan if stats.nonfinite else stats.norm
