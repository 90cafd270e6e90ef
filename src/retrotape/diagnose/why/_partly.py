"""There is a path, but part of it left TensorFlow: a constant that NumPy computed from a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retrotape.diagnose.why._left import COMPARED, LARGE, Left, is_telling

_CONSTANTS = 20  # constants that are compared with tensors
_RANKS = 4  # up to which statistics along one axis are compared
_CLOSE = 2e-6  # relative, for numbers that NumPy computed in single precision
# What is often computed with NumPy and then used as a scale; TensorFlow has all of it.
_STATISTICS: dict[str, tuple[Callable[..., Any], str]] = {
    "norm": (lambda x, **axis: np.sqrt(np.sum(np.square(x), **axis)), "tf.norm"),
    "sum": (np.sum, "tf.reduce_sum"),
    "mean": (np.mean, "tf.reduce_mean"),
    "largest element": (np.max, "tf.reduce_max"),
    "smallest element": (np.min, "tf.reduce_min"),
    "standard deviation": (np.std, "tf.math.reduce_std"),
    "variance": (np.var, "tf.math.reduce_variance"),
}


class Partly(Left):
    """What the trace shows about values that left TensorFlow although there is a path."""

    def part(self) -> tuple[str, str]:
        """Return which constant was computed from a var that the source leads to, and the remedy; "" if none was."""
        compared = 0
        for constant in self._constants[:_CONSTANTS]:
            (mine,) = self._arrays(constant.var) or (None,)
            if mine is None or not is_telling(mine):
                continue
            for var in sorted(self._reached, reverse=True):
                compared += 1
                if compared > COMPARED:
                    return "", ""
                found = self._made_of(mine, var)
                if found is not None:
                    where, what = self._between.step(constant.user), self._between.name_of(var)
                    detail = (
                        f" Part of the path left TensorFlow: no op made the {constant.where} that is used by {where}. "
                        f"It is the {found[0]} of {what}, and no gradient flows through it."
                    )
                    return detail, f"Compute it in TensorFlow too: use `{found[1]}`, or other TensorFlow ops."
        return "", ""

    def _made_of(self, mine: Any, var: int) -> tuple[str, str] | None:
        """Return which statistic of a tensor an array is, and its name in TensorFlow."""
        if var in self._between.trace.facts.discrete or var in self._between.trace.facts.history_of:
            return None
        (seen,) = self._arrays(var) or (None,)
        if seen is None or seen.size < 2 or seen.size > LARGE or seen.ndim > _RANKS:
            return None
        wide = seen.astype(np.complex128 if seen.dtype.kind == "c" else np.float64)
        if mine.shape == seen.shape:
            return ("copy", "tf.identity") if np.array_equal(mine, seen.astype(mine.dtype)) else None
        for name, (function, instead) in _STATISTICS.items():
            for axis in _axes(mine, seen):
                made = np.asarray(function(wide, axis=axis))
                if made.size == mine.size and np.allclose(made.reshape(mine.shape), mine, rtol=_CLOSE, atol=0.0):
                    return name, instead
        return None


def _axes(mine: Any, seen: Any) -> Iterator[int | None]:
    """Yield the axes along which a statistic of one array could be the other."""
    if mine.size == 1:
        yield None
    for axis, size in enumerate(seen.shape):
        if size > 1 and seen.size == mine.size * size:
            yield axis
