"""Gradients as a flat dictionary of numbers, for whatever collects metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from retrotape._types import Gradient
from retrotape.errors import TapeUseError
from retrotape.grads import _sparse as sparse
from retrotape.grads._table import is_symbolic, name_of
from retrotape.tf.core import tf


def metrics(pairs: Sequence[tuple[Gradient, Any]], prefix: str) -> dict[str, float]:
    """Return the norms of gradients that have values, and how many are missing, zero or not finite."""
    if is_symbolic(pairs):
        raise TapeUseError(
            "metrics are Python numbers, and inside a tf.function gradients have no values. Return the gradients from "
            "the function and call `metrics` outside, or return `grads.norm()`, which is a tensor."
        )
    head = f"{prefix}/" if prefix else ""
    found: dict[str, float] = {}
    norms, nonfinite = [], 0
    for name, (grad, _) in zip(distinct(name_of(key) for _, key in pairs), pairs, strict=True):
        if grad is not None:
            elements = sparse.elements(grad)
            norms.append(float(tf.norm(elements)))
            nonfinite += sparse.count_nonfinite(elements)
            found[f"{head}{name}/norm"] = norms[-1]
    found[f"{head}norm"] = math.nan if any(map(math.isnan, norms)) else math.hypot(*norms)
    found[f"{head}nonfinite"] = float(nonfinite)
    found[f"{head}zero"] = float(norms.count(0.0))
    found[f"{head}missing"] = float(len(pairs) - len(norms))
    return found


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names with a number after each that was there before: two variables may have the same name.

    >>> distinct(["w", "w", "b", "w", "w_2"])
    ['w', 'w_3', 'b', 'w_4', 'w_2']
    """
    given = list(names)
    taken, seen, found = set(given), set[str](), []
    for name in given:
        number, label = 1, name
        while label in seen or (label != name and label in taken):
            number += 1
            label = f"{name}_{number}"
        seen.add(label)
        found.append(label)
    return found
