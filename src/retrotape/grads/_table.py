"""Gradients as rows of a table, which is shown as text, in a terminal or in a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape._types import Gradient
from retrotape.grads import _sparse as sparse
from retrotape.tf.core import tf

HEADER = ("variable", "shape", "norm", "share")
LONGEST = 60  # rows; a longer table shows the largest gradients


class Row(NamedTuple):
    """One gradient: everything as text, and the share also as a number, for drawing."""

    name: str
    shape: str
    norm: str  # "missing", with the reason, where there is no gradient
    share: str  # "" where there is no gradient
    part: float  # of the whole, from 0 to 1; 0 where it is not known


class Table(NamedTuple):
    """The rows in the order of the keys, and a line for those that are left out, "" if none is."""

    rows: list[Row]
    rest: str


def name_of(key: Any) -> str:
    """Return what to call a key: a Keras variable's path, a variable's name, or a tensor's dtype and shape."""
    if isinstance(key, tf.Tensor):
        return f"tensor {key.dtype.name}{list(key.shape)}"
    name = getattr(key, "path", None) or getattr(key, "name", None)
    if isinstance(name, str):
        return name.removesuffix(":0")
    is_tensor = hasattr(key, "dtype") and hasattr(key, "shape")  # ragged or sparse; its text would be its values
    return f"{type(key).__name__} {key.dtype.name}{list(key.shape)}" if is_tensor else repr(key)


def norm_of(grad: Gradient) -> float:
    """Return the norm of one gradient as a number, in double precision: squares of small numbers would underflow."""
    if grad is None:
        return 0.0
    return float(tf.norm(sparse.elements(grad)))


def is_symbolic(pairs: Sequence[tuple[Gradient, Any]]) -> bool:
    """Return whether the gradients have no values, being part of a graph."""
    values = [grad.values if sparse.is_sparse(grad) else grad for grad, _ in pairs]
    tensors = [*values, *(key for _, key in pairs if isinstance(key, tf.Tensor))]
    return not all(value is None or hasattr(value, "numpy") for value in tensors)


def tabulate(pairs: Sequence[tuple[Gradient, Any]], reason_of: Callable[[Any], str]) -> Table:
    """Return the table of gradients that have values; `reason_of` returns why a key has none, "" if not known."""
    norms = [norm_of(grad) for grad, _ in pairs]
    parts = _parts(norms)
    shown = sorted(_largest([-1.0 if grad is None else norm for (grad, _), norm in zip(pairs, norms, strict=True)]))
    rows = []
    for place in shown:
        grad, key = pairs[place]
        shape = "x".join(str(size) for size in key.shape) or "scalar"
        if grad is None:
            reason = reason_of(key)
            rows.append(Row(name_of(key), shape, f"missing: {reason}" if reason else "missing", "", 0.0))
            continue
        part = parts[place]
        norm = f"{norms[place]:.4g}" + (" sparse" if sparse.is_sparse(grad) else "")
        share = "?" if math.isnan(part) else f"{100 * part:.0f} %"
        rows.append(Row(name_of(key), shape, norm, share, 0.0 if math.isnan(part) else part))
    left_out = sorted(set(range(len(pairs))).difference(shown))
    return Table(rows, _rest([norms[place] for place in left_out], sum(pairs[p][0] is None for p in left_out)))


def _parts(norms: list[float]) -> list[float]:
    """Return the share of each in the square of the whole norm; NaN for all where that is not finite."""
    largest = max(norms, default=0.0)
    if not all(map(math.isfinite, norms)):
        return [math.nan] * len(norms)
    squares = [(norm / largest) ** 2 if largest else 0.0 for norm in norms]
    total = sum(squares) or 1.0
    return [square / total for square in squares]


def _largest(norms: list[float]) -> list[int]:
    """Return the places of those that are shown; NaN counts as the largest."""
    order = sorted(range(len(norms)), key=lambda place: -math.inf if math.isnan(norms[place]) else -norms[place])
    return order[:LONGEST]


def _rest(norms: list[float], missing: int) -> str:
    if not norms:
        return ""
    suffix = f", {missing} of them missing" if missing else ""
    return f"… and {len(norms)} more, norm {math.hypot(*norms):.4g}{suffix}"
