"""Errors about gradients of several losses that are combined."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from retrotape.errors._base import RetrotapeError


class NonfiniteRowError(RetrotapeError, ArithmeticError):
    """The gradient of a loss is infinite or not a number, so it cannot be combined with others.

    Attributes:
      names: The names of the losses.
    """

    def __init__(self, names: Sequence[Hashable]) -> None:
        self.names = tuple(names)
        shown = ", ".join(map(repr, names))
        one = len(names) == 1
        which = f"gradient of the loss {shown} is" if one else f"gradients of the losses {shown} are"
        lost = "its square is" if one else "their squares are"
        super().__init__(
            f"The {which} not finite, or {lost} out of the range of float64, so nothing was combined. Find the op that "
            "made it: `print(tape.first_nonfinite(loss))`, or scale the loss. With a LossScaleOptimizer, which skips "
            'such steps, give `nonfinite="keep"`.'
        )


class CombinationOverflowError(RetrotapeError, OverflowError):
    """The gradients of all losses are finite, but what was made of them is too large for its dtype."""

    def __init__(self) -> None:
        super().__init__(
            "The gradients of all losses are finite, but their combination is too large for their dtype, so nothing "
            "was combined. Scale the losses down, or compute in float32. With a LossScaleOptimizer, which skips such "
            'steps, give `nonfinite="keep"`.'
        )


class AggregationWarning(UserWarning):
    """The weights of a method were not found, and a fallback is used; `converged` of the result is False."""

    def __init__(self, method: str, fallback: str, lacks_scipy: bool = False) -> None:
        self.method = method
        remedy = ' SciPy has a solver for such cases: `pip install "retrotape[aggregate]"`.' if lacks_scipy else ""
        super().__init__(
            f"{method} did not converge for these gradients, and {fallback}. "
            f"The result says so: `combined.converged` is False.{remedy}"
        )


class MethodStateError(RetrotapeError, RuntimeError):
    """The state of an aggregation method does not fit the gradients, or the place, that it is used for."""
