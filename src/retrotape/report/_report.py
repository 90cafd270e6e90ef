"""A report as plain data, and how it is written."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from retrotape import _html
from retrotape.io import replace_file
from retrotape.report._data import (
    Cosine,
    Drawing,
    Finding,
    Flow,
    Held,
    History,
    Line,
    Loss,
    Op,
    Place,
    Weight,
)
from retrotape.report._decode import decoded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 8  # names in a line of text
_ROWS = 200  # of a table in a notebook
_NUMBERS = ("norm of the gradient",)


@dataclass(frozen=True, repr=False)
class Report:
    """What a tape has recorded, and what is wrong with it; `tape.report` makes it.

    Attributes:
      title: The name of the page.
      versions: Of retrotape, TensorFlow and Keras.
      findings: The problems that were found.
      checks: What was checked, and what was not and why.
      losses: What gradients are taken of; empty if nothing was found to take them of.
      advice: What to type to get the gradient flow, if it is missing.
      places: Calls of layers, and lines outside of them, in the order in which they first ran.
      flow: What flows through them.
      weights: The gradients with respect to trainable variables.
      cosines: How the gradients of several losses agree.
      drawings: The graph of places, at several depths.
      lines: The lines of user code that ops refer to.
      ops: The ops, in the order in which they ran.
      memory: What the tape holds, by line.
      kept: How many values the tape keeps, and their size, that of variables, and of values in a file.
      histories: The variables that were assigned.
      frozen: The variables that were read and that Keras marks as not trainable.
      notes: What is missing, and why.
    """

    title: str
    versions: dict[str, str]
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    losses: tuple[Loss, ...]
    advice: str
    places: tuple[Place, ...]
    flow: tuple[Flow, ...]
    weights: tuple[Weight, ...]
    cosines: tuple[Cosine, ...]
    drawings: tuple[Drawing, ...]
    lines: tuple[Line, ...]
    ops: tuple[Op, ...]
    memory: tuple[Held, ...]
    kept: dict[str, int]
    histories: tuple[History, ...]
    frozen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = f"{len(self.ops):,} ops, {sum(place.is_layer for place in self.places):,} calls of layers"
        losses = ", ".join(f"{one.name} ({one.how})" for one in self.losses) or "none"
        rows = [f"{self.title}: {counts}; loss: {losses}"]
        for one in self.findings:
            rows += [f"{one.severity}: {one.title}", f"  {one.sentence}", *([f"  {one.detail}"] if one.detail else [])]
            if one.line is not None:
                rows += [f"  at    {one.line}", *([f"        {one.line.code}"] if one.line.code else [])]
            if one.names:
                rows.append(f"  of    {', '.join(one.names[:_NAMED])}{' …' if len(one.names) > _NAMED else ''}")
            rows.append(f"  do    {one.remedy}")
        if not self.findings:
            rows.append(f"nothing wrong was found {self.scope}; checked: {', '.join(self.checks)}")
        return "\n".join([*rows, *filter(None, [self.advice]), *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rest = str(replace(self, findings=())).split("\n")  # with what else there is to say
        found = [
            (one.severity, one.title, f"{one.sentence} {one.detail}".strip(), str(one.line or ""), one.remedy)
            for one in self.findings
        ]
        table = _html.plain_table(("severity", "finding", "what was found", "line", "what to do"), found)
        norms = [
            (one.name, one.shape, "None" if one.gradient is None else f"{one.gradient.norm:.3g}")
            for one in self.weights[:_ROWS]
        ]
        more = f"… {len(self.weights) - _ROWS:,} more" if len(self.weights) > _ROWS else ""
        weights = _html.plain_table(("variable", "shape", "norm of the gradient"), norms, _NUMBERS, more)
        parts = [_html.text(head), table if found else "", _html.text("\n".join(rest[bool(found) :]))]
        return "".join(parts) + (_html.folded("gradients by variable", weights) if norms else "")

    @property
    def scope(self) -> str:
        """Where problems were looked for: other parts of the tape may have some."""
        if not self.losses:
            return "on the tape"
        return f"in what leads to the loss{'es' if len(self.losses) > 1 else ''}"

    def html(self) -> str:
        """Return the page: one HTML document that needs nothing else."""
        from retrotape.report._page import render

        return render(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file; if that fails, what was there before is still there."""
        write_page(path, self.html())

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Return the gradient flow as a figure of Matplotlib, as `tape.plot` does."""
        from retrotape.report._plot import plot_report

        return plot_report(self, path)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Report:
        """Return the report that `to_json` has turned into plain data; everything in it is checked."""
        return decoded(Report, data)


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page as a whole or not at all; one that was there keeps its permissions."""
    whole = os.path.abspath(os.fsdecode(path))
    folder = os.path.dirname(whole)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder!r}. Create it first: `os.makedirs({folder!r})`.")
    replace_file(whole, text.encode("utf-8", "backslashreplace"), sync=False)  # a name may not be text
