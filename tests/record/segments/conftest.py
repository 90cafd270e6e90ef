"""Segments of a hundred bytes, and what a walk does with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import retrotape as rt
from helpers.recording import set_segment
from record.segments.tools import LAYER, TINY, Watched
from retrotape.execute import _values


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    set_segment(monkeypatch, TINY)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how values that were not in memory were had again."""
    count: Counter[str] = Counter()
    evaluate, fetch = _values.Values._evaluate, _values.Values._load

    def counted_evaluate(self: Any, eqn: Any, inputs: Any) -> Any:
        count["computed"] += 1
        return evaluate(self, eqn, inputs)

    def counted_fetch(self: Any, var: int) -> None:
        count["read"] += 1
        fetch(self, var)

    monkeypatch.setattr(_values.Values, "_evaluate", counted_evaluate)
    monkeypatch.setattr(_values.Values, "_load", counted_fetch)
    return count


@pytest.fixture
def op_by_op() -> Iterator[None]:
    """Compile nothing: what a compiled function computes again is not seen."""
    with rt.config(compile=False):
        yield


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    set_segment(monkeypatch, LAYER)
    return Watched(monkeypatch)
