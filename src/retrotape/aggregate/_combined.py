"""One gradient that was made of those of several losses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from retrotape._types import Gradient, Tensor
from retrotape.grads import Gradients
from retrotape.tf.core import tf

if TYPE_CHECKING:
    from rich.console import RenderableType


class Combined(Gradients):
    """A gradient that was made of those of several losses. It is a `Gradients` that knows how it was made.

    Attributes:
      shared: The variables whose gradients were combined.
      converged: Whether the weights were found; if not, they are a fallback. A tensor inside a tf.function.
      details: What else the method reports, by name.
    """

    __slots__ = ("_method", "_names", "_values", "converged", "details", "shared")

    def __init__(
        self, gradients: Iterable[tuple[Any, Gradient]], reasons: Iterable[tuple[Any, str]] | None = None
    ) -> None:
        super().__init__(gradients, reasons)
        self._method: Any = ""
        self._names: Sequence[Hashable] = ()
        self._values: Tensor | None = None
        self.shared: tuple[Any, ...] = ()
        self.converged: Any = True
        self.details: dict[str, Any] = {}

    def explained(
        self,
        method: Any,
        names: Sequence[Hashable],
        weights: Tensor | None,
        shared: Sequence[Any],
        converged: Any,
        details: dict[str, Any],
        reasons: Iterable[tuple[Any, str]],
    ) -> Combined:
        """Set how it was made, and why variables have no gradient; return it."""
        self._method, self._names, self._values = method, names, weights
        self.shared, self.converged, self.details = tuple(shared), converged, details
        self._add_reasons(reasons)
        return self

    @property
    def method(self) -> str:
        """The method, as it prints."""
        return str(self._method)

    @property
    def weights(self) -> dict[Hashable, Tensor]:
        """The weight of each loss, by name; empty if the method has none, such as `GradDrop`.

        They hold for `shared` variables: the others have the gradient of their own loss.
        """
        return {} if self._values is None else dict(zip(self._names, tf.unstack(self._values), strict=True))

    def _like(self, gradients: Iterable[tuple[Any, Gradient]]) -> Any:
        return Gradients(gradients, self.reasons())  # a part of it, or a multiple, is not what the method made

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self._note()}"

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(super().__rich__(), Text(self._note()))

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<p>{escape(self._note())}</p>"

    def _note(self) -> str:
        """Return how it was made, as a line of text."""
        if self._symbolic():
            return f"{self.method} of {len(self.weights)} losses"
        own = self.details.get("weights")  # of moving averages, for instance
        known = self.weights if own is None else dict(zip(self._names, own, strict=True))
        weights = ", ".join(f"{name}: {float(weight):.4g}" for name, weight in known.items())
        shared = f"{len(self.shared)} of {len(self)} variables are shared"
        fallback = "" if bool(self.converged) else "; not converged, these weights are a fallback"
        return f"{self.method}; weights {weights}; {shared}{fallback}" if weights else f"{self.method}; {shared}"
