"""What a tape holds in memory, and which line of user code made it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from retrotape import _html
from retrotape.ir import LEAF, Eqn, Frame, bytes_of
from retrotape.record import Trace, is_offloaded
from retrotape.tf.core import identity_of


class Line(NamedTuple):
    """What the tape holds because of one line of user code."""

    frame: Frame
    bytes: int
    tensors: int

    def __repr__(self) -> str:
        return f"<{self.frame}: {human(self.bytes)} in {self.tensors} tensor{'' if self.tensors == 1 else 's'}>"


class Memory(NamedTuple):
    """The tensors that a tape holds, largest line first.

    Attributes:
      bytes: Total size, without variables.
      variables: Size of the values of variables: shared with the variable until it is assigned.
      lines: `bytes` by line.
      away: Size of the values offloaded to a file.
    """

    bytes: int
    variables: int
    lines: tuple[Line, ...]
    away: int = 0

    def __str__(self) -> str:
        rows = [f"{human(self.bytes):>10}  held, and {human(self.variables)} of variables"]
        if self.away:
            rows.append(f"{human(self.away):>10}  in a file")
        rows += [f"{human(line.bytes):>10}  {line.tensors:4d} tensors  {line.frame}" for line in self.lines]
        return "\n".join(rows)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [(human(line.bytes), f"{line.tensors:,}", str(line.frame)) for line in self.lines]
        held = f"{human(self.bytes)} held, and {human(self.variables)} of variables"
        rest = f"{held}\n{human(self.away)} in a file" if self.away else held
        return _html.plain_table(("bytes", "tensors", "line"), rows, ("bytes", "tensors"), rest)


def measure(trace: Trace) -> Memory:
    """Return what a trace holds."""
    program = trace.program
    users = _first_use(program.eqns)
    sizes: dict[Frame, list[int]] = defaultdict(list)
    variables = away = 0
    seen: set[int] = set()
    for var, tensor in trace.values.items():
        if is_offloaded(tensor):
            away += tensor.nbytes
            continue
        if identity_of(tensor) in seen or program.types[var].shape is None:
            continue
        seen.add(identity_of(tensor))
        size = bytes_of(program.types[var])
        producer = program.producers[var]
        if var in trace.facts.history_of or (producer != LEAF and program.eqns[producer].op == "ReadVariableOp"):
            variables += size
            continue
        index = producer if producer != LEAF else users.get(var)
        sizes[program.frame_of(program.eqns[index]) if index is not None else Frame("<watched>", 0, "?")].append(size)
    lines = sorted((Line(frame, sum(held), len(held)) for frame, held in sizes.items()), key=lambda line: -line.bytes)
    return Memory(sum(line.bytes for line in lines), variables, tuple(lines), away)


def _first_use(eqns: Sequence[Eqn]) -> dict[int, int]:
    users: dict[int, int] = {}
    for index, eqn in enumerate(eqns):
        for var in eqn.inputs:
            users.setdefault(var, index)
    return users


def human(size: float) -> str:
    """Return a number of bytes in readable form."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
