"""Finding tensors on a tape afterwards, by what made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from retrotape._layers import is_part, layers_of, name_of
from retrotape._nests import is_variable
from retrotape.execute import Values
from retrotape.ir import DTYPE_NAMES, Eqn, Frame, Program, TensorType
from retrotape.record import Recording
from retrotape.why import title_of

Tensor = Any
_WITHOUT_VALUE = ("resource", "variant")
_SHOWN = 20


class Found(NamedTuple):
    """A tensor that was found.

    Attributes:
      op: What made it.
      type: Its dtype and shape.
      frame: The line of the user's code that ran the op.
      layer: The layer that the op is counted to; empty where there is none.
      var: Its number in the program.
    """

    op: str
    type: TensorType
    frame: Frame
    layer: str
    var: int

    def __str__(self) -> str:
        return f"{self.op}  {self.type}  {self.frame}{'  ' + self.layer if self.layer else ''}"


class Tensors(Sequence[Any]):
    """The tensors that were found, in the order in which they were made; each is had from the tape when it is taken.

    Attributes:
      found: What is known of each of them.
    """

    def __init__(self, found: Sequence[Found], value: Callable[[int], Tensor]) -> None:
        self.found = tuple(found)
        self._value = value

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Tensors: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Tensors(self.found[index], self._value)
        if not self.found:
            raise IndexError("No tensor was found. `print(tape.summary())` shows which ops and layers there are.")
        return self._value(self.found[index].var)

    def __repr__(self) -> str:
        rows = [
            f"{len(self)} tensor{'' if len(self) == 1 else 's'}",
            *(f"  [{number}]  {one}" for number, one in enumerate(self.found[:_SHOWN])),
        ]
        return "\n".join([*rows, *([f"  … {len(self) - _SHOWN} more"] if len(self) > _SHOWN else [])])


def find(recording: Recording, wanted: Wanted, names: Mapping[str, Any]) -> list[Found]:
    """Return what is known of the tensors that ops made, of those that are wanted."""
    program = recording.program()
    layers = layers_of(recording)
    named = None if wanted.name is None else set(_named(recording, wanted.name, names))
    return list(_matching(recording, program, layers, wanted, named))


class Wanted(NamedTuple):
    """What to look for; None stands for anything."""

    op: str | None
    layer: str | None
    name: str | None
    line: int | str | None


def _matching(
    recording: Recording, program: Program, layers: list[str], wanted: Wanted, named: set[int] | None
) -> Iterator[Found]:
    for index, (eqn, layer) in enumerate(zip(program.eqns, layers, strict=True)):
        if not _fits(eqn, layer, program, wanted):
            continue
        frame = program.frame_of(eqn)
        for var in eqn.outputs:
            kind = program.types[var]
            has_value = DTYPE_NAMES.get(kind.dtype) not in _WITHOUT_VALUE and var not in recording.cell_of
            if has_value and (named is None or var in named):
                yield Found(title_of(recording, index), kind, frame, layer, var)


def _fits(eqn: Eqn, layer: str, program: Program, wanted: Wanted) -> bool:
    if wanted.op is not None and eqn.op.lower() != wanted.op.lower():
        return False
    if wanted.layer is not None and not is_part(wanted.layer, layer):
        return False
    return wanted.line is None or _is_at(program.frame_of(eqn), wanted.line)


def _is_at(frame: Frame, line: int | str) -> bool:
    if isinstance(line, int):
        return frame.line == line
    return str(frame) == line or str(frame).endswith("/" + line)


def _named(recording: Recording, name: str, names: Mapping[str, Any]) -> Iterator[int]:
    """Yield the vars that go by a name: of a tensor, or what was read from a variable."""
    for known, what in names.items():
        var = None if is_variable(what) or not is_part(name, known) else recording.known(what._id)
        if var is not None:
            yield var
    for eqn in recording.builder.eqns:
        if any(is_part(name, name_of(recording, var)) for var in eqn.inputs if var in recording.cell_of):
            yield from eqn.outputs


def value_of(recording: Recording, var: int) -> Tensor:
    """Return the tensor that stands for a var: the one that was recorded, or the same computed again."""
    with recording.explained():
        value = Values(recording)(var)
    recording.alias(value._id, var)
    return value
