"""Find constants made by Python while recording: a value that left TensorFlow comes back as one of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from types import CodeType
from typing import Any

import numpy as np

from retrotape.record._trace import Trace
from retrotape.tf.core import EagerTensor, identity_of

_FEW = 64  # elements that may have been typed as literals


def python_constants(
    trace: Trace, origin: Trace, among: Collection[int] | None = None, unrecorded_only: bool = False
) -> dict[int, float]:
    """Return the floating-point leaves that are newer than the first op, each with the moment it was made.

    Moments are on the clock of `HostRead.moment`. Literals in the code that uses them are omitted: their origin is
    known.

    Args:
      trace: The trace to search.
      origin: The trace that it was flattened from, which does not have the constants of functions.
      among: The vars to consider; all if None.
      unrecorded_only: Return only those made while nothing was recorded, instead of only those made while recording.
    """
    if origin.python_constants is not None and not unrecorded_only:
        return origin.python_constants if trace is origin else _moved(origin.python_constants, origin, trace)
    producers = trace.program.producers
    first = min(
        (identity for identity, var in origin.tensors.items() if origin.program.producers[var] >= 0), default=None
    )
    if first is None or (unrecorded_only and not origin.facts.unrecorded_spans):
        return {}
    found: dict[int, float] = {}
    seen: set[int] = set()
    spans = _Spans(origin.facts.unrecorded_spans)
    literals: dict[tuple[int, Any], set[Any]] = {}  # by code and dtype
    for eqn in trace.program.eqns:
        for var in eqn.inputs:
            if producers[var] >= 0 or var in seen or (among is not None and var not in among):
                continue
            seen.add(var)
            value = trace.values.get(var)
            if (
                not isinstance(value, EagerTensor)
                or identity_of(value) <= first
                or origin.tensors.get(identity_of(value)) is None
            ):
                continue
            if var in trace.facts.history_of or var in trace.facts.discrete:
                continue
            unrecorded = spans.cover(identity_of(value))
            place = trace.frames.place(eqn.frame)
            if unrecorded == unrecorded_only and not (type(place) is tuple and _is_literal(value, place[0], literals)):
                found[var] = identity_of(value)
    return found


class _Spans:
    """Time spans, indexed for fast lookup."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self._begins = [begin for begin, _ in ordered]
        self._ends = list(accumulate((end for _, end in ordered), max))  # running maximum

    def cover(self, moment: int) -> bool:
        """Return whether a moment lies inside a span."""
        begun = bisect_left(self._begins, moment)
        return begun > 0 and moment < self._ends[begun - 1]


def _moved(constants: dict[int, float], origin: Trace, trace: Trace) -> dict[int, float]:
    """Return the constants keyed by their vars in `trace`, matched by value identity."""
    vars_now = {id(value): var for var, value in trace.values.items()}
    pairs = ((vars_now.get(id(origin.values.get(var))), moment) for var, moment in constants.items())
    return {var: moment for var, moment in pairs if var is not None}


def _is_literal(value: Any, code: CodeType, known: dict[tuple[int, Any], set[Any]]) -> bool:
    """Return whether every element is a literal in the code."""
    if value.shape.num_elements() > _FEW:
        return False
    array = value.numpy()
    key = id(code), array.dtype
    if key not in known:
        with np.errstate(all="ignore"):
            known[key] = {array.dtype.type(number).item() for number in _numbers(code.co_consts)}
    return known[key].issuperset(array.ravel().tolist())


def _numbers(consts: Any) -> Iterator[float]:
    for const in consts:
        if isinstance(const, tuple):
            yield from _numbers(const)
        elif isinstance(const, (int, float)):
            yield from (const, -const)  # unary minus may be a separate instruction
