"""Kept values in numbers: the least, the mean, the largest. Reads tensors, but needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from retrotape.cli._tape import SavedTape
from retrotape.cli._text import number, size, table
from retrotape.ir import LEAF

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

_PLAIN = frozenset(
    f"{kind}{bits}"
    for kind, widths in {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}.items()
    for bits in widths
)
_NUMBERS = ("bytes", "least", "mean", "largest", "not finite")


def rows(tape: SavedTape) -> Iterator[dict[str, Any]]:
    """Yield what is known of each kept value, as JSON."""
    program = tape.program
    for var in range(len(program.types)):
        info = tape.kept(var)
        if info is None:
            continue
        made = program.producers[var]
        yield {
            "var": var,
            "name": tape.called.get(var),
            "made_by": None if made == LEAF else program.eqns[made].op,
            "type": str(program.types[var]),
            "bytes": info.nbytes,
            **_numbers(_array(tape, var, info.dtype)),
        }


def _array(tape: SavedTape, var: int, dtype: str) -> np.ndarray | None:
    """Return a value as an array, verified; None where numpy has no such numbers."""
    import numpy as np

    name = f"v/{var}"
    if dtype == "bool":
        return tape.container.tensor(name)
    if dtype == "bfloat16":  # the upper half of a float32
        return (tape.container.tensor(name).view("<u2").astype("<u4") << 16).view("<f4")
    return tape.container.tensor(name).view(np.dtype(dtype).newbyteorder("<")) if dtype in _PLAIN else None


def _numbers(array: np.ndarray | None) -> dict[str, Any]:
    import numpy as np

    if array is None or not array.size:
        return {"least": None, "mean": None, "largest": None, "nonfinite": 0}
    finite = np.isfinite(array)
    some = array if finite.all() else array[finite]
    told = (some.min(), some.mean(dtype=np.float64), some.max()) if some.size else (None,) * 3
    least, mean, largest = (None if value is None else number(value.item()) for value in told)
    return {"least": least, "mean": mean, "largest": largest, "nonfinite": int(array.size - finite.sum())}


def as_table(found: list[dict[str, Any]]) -> Table:
    """Return the table of kept values."""
    columns = ("value", "name", "made by", "type", *_NUMBERS)
    return table(columns, [_cells(row) for row in found], numbers=_NUMBERS)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    told = ["" if row[key] is None else f"{row[key]:.4g}" for key in ("least", "mean", "largest")]
    made = row["made_by"] or "leaf"
    return (
        f"%{row['var']}",
        row["name"] or "",
        made,
        row["type"],
        size(row["bytes"]),
        *told,
        str(row["nonfinite"] or ""),
    )
