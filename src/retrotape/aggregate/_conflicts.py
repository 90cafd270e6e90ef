"""Which losses pull in opposite directions: a table, and a heat map."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from html import escape
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retrotape.errors import MissingPackageError

if TYPE_CHECKING:
    from rich.console import RenderableType

_MANY = 16  # losses, above which a table would not fit


class Conflict(NamedTuple):
    """Two losses whose gradients point in opposite directions, as far as the cosine says."""

    first: Hashable
    second: Hashable
    cosine: float


class Conflicts:
    """The norms of the gradients of several losses, and the cosines of the angles between them.

    Attributes:
      names: The names of the losses.
      norms: The norms, as an array.
      cosines: The cosines, as a matrix; zero for a gradient of zeros.
      pairs: The pairs with a negative cosine, the most negative first.
    """

    def __init__(self, names: Sequence[Hashable], gramian: np.ndarray) -> None:
        self.names = tuple(names)
        self.norms = np.sqrt(np.diag(gramian))
        scale = np.where(self.norms > 0, self.norms, 1.0)
        self.cosines = np.clip(gramian / scale[:, None] / scale[None, :], -1.0, 1.0)
        pairs = [Conflict(names[i], names[j], self.cosines[i, j]) for i, j in combinations(range(len(names)), 2)]
        self.pairs = sorted((pair for pair in pairs if pair.cosine < 0), key=lambda pair: pair.cosine)

    def __len__(self) -> int:
        return len(self.pairs)

    def plot(self, ax: Any = None) -> Any:
        """Draw the cosines as a heat map with matplotlib, red where losses conflict; return the axes.

        Args:
          ax: The axes to draw on; new ones by default.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise MissingPackageError("A heat map", "matplotlib", "plot") from None

        shown, count = list(map(str, self.names)), len(self.names)
        if ax is None:
            size = 2.0 + 0.5 * count
            _, ax = plt.subplots(figsize=(size + 1.0, size), layout="constrained")
        image = ax.imshow(self.cosines, cmap="RdBu", vmin=-1.0, vmax=1.0)
        ax.figure.colorbar(image, ax=ax, label="cosine")
        ax.set_xticks(range(count), shown, rotation=45, ha="right")
        ax.set_yticks(range(count), shown)
        for i in range(count if count <= _MANY else 0):
            for j in range(count):
                strong = abs(self.cosines[i, j]) > 0.6
                text = f"{self.cosines[i, j]:.2f}"
                ax.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if strong else "black")
        ax.set_title("cosines between gradients")
        return ax

    # ------------------------------------------------------------------ as text

    def summary(self) -> str:
        """Return one sentence on how many pairs conflict."""
        count = len(self.names) * (len(self.names) - 1) // 2
        bad = [str(name) for name, norm in zip(self.names, self.norms, strict=True) if not np.isfinite(norm)]
        if bad:
            return f"not finite: the gradients of {', '.join(bad)}; `print(tape.first_nonfinite(loss))` finds the op"
        if len(self.names) > 1 and not self.norms.any():
            return "the losses have no variable in common, or all gradients are zero"
        if not self.pairs:
            return f"none of {count} pairs conflict" if count else "one loss has nothing to conflict with"
        worst = self.pairs[0]
        which = f"the worst is {worst.first} and {worst.second}, with a cosine of {worst.cosine:.2f}"
        return f"{len(self.pairs)} of {count} pairs conflict; {which}"

    def _cells(self) -> list[list[str]]:
        """Return the table: a header, then a line for each loss; of many losses, the worst pairs."""
        if len(self.names) > _MANY:
            worst = [[str(one.first), str(one.second), f"{one.cosine:.2f}"] for one in self.pairs[:_MANY]]
            return [["loss", "conflicts with", "cosine"], *worst]
        shown = list(map(str, self.names))
        lines = [["loss", "norm", *shown]]
        for i, name in enumerate(shown):
            row = ["·" if i == j else f"{cosine:.2f}" for j, cosine in enumerate(self.cosines[i])]
            lines.append([name, f"{self.norms[i]:.4g}", *row])
        return lines

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
            lines.append("  ".join([*left, *right]).rstrip())
        return "\n".join([*lines, self.summary()])

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        header, *lines = self._cells()
        table = Table(box=box.SIMPLE_HEAD, caption=Text(self.summary()), caption_justify="left")
        for number, title in enumerate(header):
            table.add_column(Text(title), justify="left" if number == 0 else "right")
        for line in lines:
            table.add_row(*(Text(cell, style="red" if _cosine(n, cell) < 0 else "") for n, cell in enumerate(line)))
        return table

    def _repr_html_(self) -> str:
        header, *lines = self._cells()
        style = "text-align:right;padding:2px 12px 2px 0;border:0"
        head = "".join(f'<th style="{style}">{escape(cell)}</th>' for cell in header)
        body = "".join(
            '<tr style="background:transparent;color:inherit">'
            + "".join(f'<td style="{style};{_shade(n, cell)}">{escape(cell)}</td>' for n, cell in enumerate(line))
            + "</tr>"
            for line in lines
        )
        table = f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return f"{table}<p>{escape(self.summary())}</p>"


def _cosine(column: int, cell: str) -> float:
    """Return the number in a cell; zero where there is none, as in the columns of names and norms."""
    return 0.0 if column < 2 or cell in ("·", "nan") else float(cell)


def _shade(column: int, cell: str) -> str:
    """Return a background for a negative cosine, stronger where it is more negative; it works on light and dark."""
    cosine = _cosine(column, cell)
    return f"background:rgba(200,40,40,{-0.6 * cosine:.2f})" if cosine < 0 else ""
