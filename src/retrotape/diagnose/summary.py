"""The program by layer and line: what ran, how often, and which values are kept."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from retrotape import _html
from retrotape.diagnose.layers import Layers
from retrotape.diagnose.memory import human
from retrotape.diagnose.why import title_of
from retrotape.ir import Frame, bytes_of
from retrotape.record import NO_QUERY, Trace, is_offloaded
from retrotape.tf.core import identity_of

if TYPE_CHECKING:
    from rich.table import Table

_HEADER = ("layer", "line", "ops", "last output", "total", "kept", "bytes")
_NUMBERS = ("total", "kept", "bytes")
_FEW = 3  # names of ops per row
_NAMED = 6  # frozen variables
_PASSING = frozenset(("Identity", "ReadVariableOp", "Shape", "StridedSlice"))  # not the main op of a line


class Row(NamedTuple):
    """A layer at a line of the user's code.

    Attributes:
      layer: The path of the Keras layer that it ran in; outside Keras, the layer whose variables were last read on
        this line. Empty if there is none.
      frame: The line.
      ops: How many times each op ran, most frequent first.
      output: The type of the output of the last op.
      kept: How many values of these ops the tape keeps.
      bytes: Their size.
      calls: The number of calls of the layer; 0 if that is not known.
    """

    layer: str
    frame: Frame
    ops: dict[str, int]
    output: str
    kept: int
    bytes: int
    calls: int = 0

    @property
    def total(self) -> int:
        """How many ops ran."""
        return sum(self.ops.values())

    def __repr__(self) -> str:
        where = f"{self.layer}, {self.frame}" if self.layer else str(self.frame)
        return f"<{where}: {_names(self.ops)}; {self.total:,} ops, {self.kept:,} values kept, {human(self.bytes)}>"


class Summary(NamedTuple):
    """What a tape has recorded, by layer and line, in the order in which each first ran; printing it gives a table.

    Attributes:
      rows: One for each layer and line; ops that ran many times share a row.
      ops: How many ops ran in all.
      kept: How many values the tape keeps in all, including inputs.
      bytes: Their size; the memory of variables and inputs is shared with their other owners.
      frozen: The variables that were read and that Keras marks as not trainable.
      not_compiled: Why the last query ran op by op; None if it was compiled.
    """

    rows: tuple[Row, ...]
    ops: int
    kept: int
    bytes: int
    frozen: tuple[str, ...] = ()
    not_compiled: str | None = NO_QUERY

    def __str__(self) -> str:
        lines = [_HEADER, *map(_cells, self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
        shown = ["  ".join(map(_justified, line, _HEADER, widths)).rstrip() for line in lines]
        return "\n".join([*shown, self._footer()])

    def __repr__(self) -> str:
        return str(self)

    def _footer(self) -> str:
        lines = [f"{self.ops:,} ops, {self.kept:,} values kept, {human(self.bytes)}"]
        if self.frozen:
            more = f", … {len(self.frozen) - _NAMED} more" if len(self.frozen) > _NAMED else ""
            lines.append(f"frozen: {', '.join(self.frozen[:_NAMED])}{more}")
        if self.not_compiled != NO_QUERY:
            lines.append(f"last query: {'compiled' if self.not_compiled is None else f'op by op; {self.not_compiled}'}")
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=box.SIMPLE_HEAD, caption=Text(self._footer()), caption_justify="left")
        for title in _HEADER:
            shown.add_column(title, justify="right" if title in _NUMBERS else "left")
        for row in self.rows:
            shown.add_row(*map(Text, _cells(row)))  # `Text`, so that brackets are not parsed as markup
        return shown

    def _repr_html_(self) -> str:
        return _html.plain_table(_HEADER, map(_cells, self.rows), _NUMBERS, self._footer())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "rows": [
                {
                    "layer": row.layer,
                    "calls": row.calls,
                    "file": row.frame.file,
                    "line": row.frame.line,
                    "function": row.frame.function,
                    "ops": dict(row.ops),
                    "output": row.output,
                    "total": row.total,
                    "kept": row.kept,
                    "bytes": row.bytes,
                }
                for row in self.rows
            ],
            "ops": self.ops,
            "kept": self.kept,
            "bytes": self.bytes,
            "frozen": list(self.frozen),
            "not_compiled": self.not_compiled,
        }


def summarize(trace: Trace) -> Summary:
    """Return a trace by layer and line."""
    program = trace.program
    places: dict[tuple[str, Frame], list[int]] = {}
    layers = Layers(trace).of
    for index, (eqn, layer) in enumerate(zip(program.eqns, layers, strict=True)):
        places.setdefault((layer.path, program.frame_of(eqn)), []).append(index)
    sizes = sizes_of(trace)
    rows = []
    for (path, frame), indices in places.items():
        eqns = [program.eqns[index] for index in indices]
        held = [sizes[var] for eqn in eqns for var in eqn.outputs if var in sizes]
        last = next((eqn for eqn in reversed(eqns) if eqn.op not in _PASSING and eqn.outputs), eqns[-1])
        output = str(program.types[last.outputs[0]]) if last.outputs else ""
        ops = dict(Counter(title_of(trace, index) for index in indices).most_common())
        calls = {layers[index].call for index in indices} - {0}
        rows.append(Row(path, frame, ops, output, len(held), sum(held), len(calls)))
    frozen = [trace.path_of(one) for one in trace.variables.values() if trace.is_frozen(one)]
    return Summary(tuple(rows), len(program.eqns), len(sizes), sum(sizes.values()), tuple(frozen), trace.not_compiled)


def sizes_of(trace: Trace) -> dict[int, int]:
    """Return the size of each kept value, each tensor once: several vars may share it."""
    found: dict[int, int] = {}
    seen: set[int | None] = set()
    for var, value in sorted(trace.values.items()):
        identity = value.identity if is_offloaded(value) else identity_of(value)
        if identity is None or identity not in seen:
            seen.add(identity)
            found[var] = value.nbytes if is_offloaded(value) else bytes_of(trace.program.types[var])
    return found


def _cells(row: Row) -> tuple[str, ...]:
    line = f"{os.path.basename(row.frame.file)}:{row.frame.line}"
    layer = f"{row.layer}, {row.calls} calls" if row.calls > 1 else row.layer
    return layer, line, _names(row.ops), row.output, f"{row.total:,}", f"{row.kept:,}", human(row.bytes)


def _names(ops: dict[str, int]) -> str:
    """Return the most frequent ops; reads of variables only if there is nothing else."""
    work = [name for name in ops if name not in _PASSING] or list(ops)
    more = [f"… {len(work) - _FEW} more"] if len(work) > _FEW else []
    return ", ".join([*work[:_FEW], *more])


def _justified(cell: str, title: str, width: int) -> str:
    return cell.rjust(width) if title in _NUMBERS else cell.ljust(width)
