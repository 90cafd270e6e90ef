"""Statistics of kept values: least, mean, largest. Reads tensors, but does not need TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from retrotape.cli._tape import SavedTape
from retrotape.cli._text import number, size, table
from retrotape.ir import LEAF

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

_WIDTHS = {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}
_PLAIN = {f"{kind}{bits}" for kind, widths in _WIDTHS.items() for bits in widths}
_NUMBERS = ("bytes", "least", "mean", "largest", "not finite")


def rows(tape: SavedTape) -> Iterator[dict[str, Any]]:
    """Yield the statistics of each kept value, as JSON."""
    program = tape.program
    for var, kind in enumerate(program.types):
        info = tape.kept(var)
        if info is None:
            continue
        producer = program.producers[var]
        yield {
            "var": var,
            "name": tape.var_names.get(var),
            "made_by": None if producer == LEAF else program.eqns[producer].op,
            "type": str(kind),
            "bytes": info.nbytes,
            **_numbers(_array(tape, var, info.dtype)),
        }


def _array(tape: SavedTape, var: int, dtype: str) -> np.ndarray:
    """Return a verified value as an array; an empty one if NumPy has no such dtype."""
    import numpy as np

    if dtype not in _PLAIN and dtype not in ("bool", "bfloat16"):
        return np.zeros(0)
    array = tape.container.tensor(f"v/{var}")
    if dtype == "bool":
        return array
    if dtype == "bfloat16":  # the upper half of a float32
        return (array.view("<u2").astype("<u4") << 16).view("<f4")
    return array.view(np.dtype(dtype).newbyteorder("<"))


def _numbers(array: np.ndarray) -> dict[str, Any]:
    import numpy as np

    finite = np.isfinite(array)
    some = array if finite.all() else array[finite]
    values = (some.min(), some.mean(dtype=np.float64), some.max()) if some.size else ()
    least, mean, largest = [number(value.item()) for value in values] or [None] * 3
    return {"least": least, "mean": mean, "largest": largest, "nonfinite": array.size - some.size}


def as_table(found: list[dict[str, Any]]) -> Table:
    """Return the table of kept values."""
    columns = ("value", "name", "made by", "type", *_NUMBERS)
    return table(columns, [_cells(row) for row in found], numbers=_NUMBERS)


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = ["" if row[key] is None else f"{row[key]:.4g}" for key in ("least", "mean", "largest")]
    what = [f"%{row['var']}", row["name"] or "", row["made_by"] or "leaf", row["type"], size(row["bytes"])]
    return [*what, *numbers, str(row["nonfinite"] or "")]
