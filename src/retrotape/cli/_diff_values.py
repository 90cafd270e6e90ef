"""Recomputes the values of two tapes side by side and compares them; loads TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from retrotape._types import Tensor
from retrotape.cli._diff_align import Alignment, Pair, Suspects
from retrotape.cli._tape import SavedTape
from retrotape.execute import ForwardPass
from retrotape.files.load import read
from retrotape.ir import slice_to

_CHUNK = 2**16  # elements compared at once, to fit caches and to avoid widening large arrays as a whole


class Distance(NamedTuple):
    """The distance between two arrays of the same shape."""

    max_abs: float  # NaN if a number is compared with NaN
    max_rel: float  # relative to the larger of the two numbers
    elements: int  # how many differ at all
    beyond: int  # how many differ by more than the tolerance
    size: int


def distance(first: np.ndarray, second: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> Distance:
    """Compare two arrays of any dtype. NaN equals NaN; the tolerance is atol + rtol times the larger number."""
    one, other = np.ravel(first), np.ravel(second)
    found = [(0.0, 0.0, 0, 0)]
    for at in range(0, one.size, _CHUNK):
        a, b = one[at : at + _CHUNK], other[at : at + _CHUNK]
        different = ~((a == b) | ((a != a) & (b != b)))
        if different.any():
            found.append(_distance(a[different], b[different], rtol, atol))
    max_abs, max_rel, elements, beyond = zip(*found, strict=True)
    return Distance(float(np.max(max_abs)), float(np.max(max_rel)), sum(elements), sum(beyond), one.size)


def _distance(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> tuple[float, float, int, int]:
    """Compare arrays that differ in every element."""
    if a.dtype.kind in "OSU":
        return np.nan, np.nan, a.size, a.size
    least = 1.0 if a.dtype.kind in "iu" else 0.0  # large integers that differ may be equal as floats
    a, b = (array.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for array in (a, b))
    with np.errstate(all="ignore"):
        apart, larger = np.maximum(np.abs(a - b), least), np.maximum(np.abs(a), np.abs(b))
        share = np.where(np.isinf(larger), 1.0, apart / larger)
        beyond = ~(apart <= atol + rtol * larger) | np.isinf(larger)
    return apart.max(), share.max(), a.size, int(beyond.sum())


def compare_values(
    first: SavedTape, second: SavedTape, alignment: Alignment, suspects: Suspects, rtol: float = 0.0, atol: float = 0.0
) -> dict[Pair, Distance | None]:
    """Return the distance for each pair of values that may differ; None if one of them is unknown."""
    one, other = (read(tape.container.path).trace for tape in (first, second))
    reads = [a for index in suspects.eqns for a, _ in alignment.eqns[index][0]]
    indices = sorted(suspects.eqns.union(slice_to(one.program, reads, one.values)))

    def values() -> Iterator[tuple[Pair, Tensor, Tensor]]:
        for a, b in suspects.differ.intersection(alignment.leaves):
            yield (a, b), one.value(a), other.value(b)
        sides = [ForwardPass(trace, indices, lost=tape.lost).run() for trace, tape in ((one, first), (other, second))]
        for ours, theirs in zip(*sides, strict=True):
            if ours.number in suspects.eqns:
                yield from zip(alignment.eqns[ours.number][1], ours.outputs, theirs.outputs, strict=True)
            del ours, theirs

    return {
        pair: None if a is None or b is None else distance(a.numpy(), b.numpy(), rtol, atol) for pair, a, b in values()
    }
