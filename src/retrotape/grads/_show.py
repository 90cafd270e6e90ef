"""Gradients as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._tf import tf
from retrotape.grads import _sparse as sparse

Gradient = Any


def name_of(key: Any) -> str:
    """Return what to call a key: a Keras variable's path, a variable's name, or what a tensor looks like."""
    if isinstance(key, tf.Tensor):
        return f"tensor {key.dtype.name}{list(key.shape)}"
    name = getattr(key, "path", None) or getattr(key, "name", None)
    return name.removesuffix(":0") if isinstance(name, str) else repr(key)


def rows(pairs: Sequence[tuple[Gradient, Any]]) -> list[tuple[str, str, str, str]]:
    """Return name, shape, norm and share of each gradient."""
    squares = [
        0.0 if grad is None else float(tf.norm(tf.cast(sparse.values_of(grad), tf.float32))) ** 2 for grad, _ in pairs
    ]
    total = sum(squares)
    table = []
    for (grad, key), square in zip(pairs, squares, strict=True):
        shape = "x".join(str(size) for size in key.shape) or "scalar"
        norm = "missing" if grad is None else f"{square**0.5:.4g}" + (" sparse" if sparse.is_sparse(grad) else "")
        share = f"{100 * square / total:.0f} %" if total else "0 %"
        table.append((name_of(key), shape, norm, share))
    return table


def render(pairs: Sequence[tuple[Gradient, Any]]) -> str:
    """Return the table as text."""
    values = [grad.values if sparse.is_sparse(grad) else grad for grad, _ in pairs]
    if not all(value is None or hasattr(value, "numpy") for value in values):
        return f"<Gradients of {len(pairs)} variables, symbolic>"
    header = ("variable", "shape", "norm", "share")
    lines = [header, *rows(pairs)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
