"""How far two arrays are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from retrotape.cli._text import number

if TYPE_CHECKING:
    import numpy as np

_PIECE = 2**20  # elements looked at together, so that large arrays are not widened as a whole


class Distance(NamedTuple):
    """What differs between two arrays of one shape.

    Attributes:
      max_abs: The largest difference; NaN where a number meets something that is none.
      max_rel: The largest difference as a share of the larger of the two numbers.
      elements: How many elements differ at all.
      beyond: How many differ by more than was allowed.
      size: How many elements there are.
    """

    max_abs: float
    max_rel: float
    elements: int
    beyond: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self._asdict(), "max_abs": number(self.max_abs), "max_rel": number(self.max_rel)}


def distance(first: np.ndarray, second: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> Distance:
    """Compare two arrays; NaN equals NaN.

    Args:
      first: An array of anything.
      second: Another of the same shape.
      rtol: How large a share of the larger number a difference may be.
      atol: How large a difference may be in any case.
    """
    import numpy as np

    one, other = np.ravel(first), np.ravel(second)
    found = Distance(0.0, 0.0, 0, 0, one.size)
    for at in range(0, one.size, _PIECE):
        found = _joined(found, _piece(one[at : at + _PIECE], other[at : at + _PIECE], rtol, atol))
    return found


def _piece(one: np.ndarray, other: np.ndarray, rtol: float, atol: float) -> tuple[float, float, int, int]:
    import numpy as np

    different = ~((one == other) | ((one != one) & (other != other)))
    count = int(different.sum())
    if not count:
        return 0.0, 0.0, 0, 0
    if one.dtype == object or one.dtype.kind in "SU":
        return np.nan, np.nan, count, count
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one[different].astype(wide), other[different].astype(wide)
    with np.errstate(all="ignore"):
        apart, larger = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
        if one.dtype.kind in "iu":
            apart = np.maximum(apart, 1.0)  # large whole numbers may be the same as floats
        share = np.where(np.isinf(larger), 1.0, apart / np.where(larger == 0, 1.0, larger))
        beyond = ~(apart <= atol + rtol * larger) | np.isinf(larger)
    return float(apart.max()), float(share.max()), count, int(beyond.sum())


def _joined(found: Distance, more: tuple[float, float, int, int]) -> Distance:
    import numpy as np

    return Distance(
        float(np.maximum(found.max_abs, more[0])),
        float(np.maximum(found.max_rel, more[1])),
        found.elements + more[2],
        found.beyond + more[3],
        found.size,
    )
