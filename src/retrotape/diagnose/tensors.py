"""Finding tensors on a tape after recording, by what made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from retrotape import _html
from retrotape._types import Tensor
from retrotape.diagnose.layers import Layer, Layers, is_part, name_of
from retrotape.diagnose.why import title_of
from retrotape.execute import Values
from retrotape.ir import DTYPE_NAMES, LEAF, Eqn, Frame, Program, TensorType
from retrotape.record import Trace
from retrotape.tf.core import identity_of
from retrotape.tf.nests import VARIABLES

_WITHOUT_VALUE = ("resource", "variant")
_SHOWN = 20


class Found(NamedTuple):
    """A tensor that was found.

    Attributes:
      op: The op that made it.
      type: Its dtype and shape.
      frame: The line of the user's code that ran the op.
      layer: The path of the layer that the op ran in; empty if there is none.
      var: Its number in the program.
      call: Which call of that layer it was, from 1 on; 0 if that is not known.
    """

    op: str
    type: TensorType
    frame: Frame
    layer: str
    var: int
    call: int = 0

    def __str__(self) -> str:
        called = f", call {self.call}" if self.call > 1 else ""
        return f"{self.op}  {self.type}  {self.frame}{'  ' + self.layer + called if self.layer else ''}"

    def __repr__(self) -> str:
        return f"<{self}>"


class Tensors(Sequence[Any]):
    """The tensors that were found, in the order in which they were made; values are read from the tape on access.

    Attributes:
      found: The description of each of them.
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
        rows = [self._count(), *(f"  [{number}]  {one}" for number, one in enumerate(self.found[:_SHOWN]))]
        return "\n".join([*rows, *([f"  … {len(self) - _SHOWN} more"] if len(self) > _SHOWN else [])])

    def _count(self) -> str:
        return f"{len(self)} tensor{'' if len(self) == 1 else 's'}"

    def _repr_html_(self) -> str:
        titles = ("index", "op", "type", "line", "layer", "call")
        rows = [
            (str(number), one.op, str(one.type), str(one.frame), one.layer, str(one.call or ""))
            for number, one in enumerate(self.found[:_SHOWN])
        ]
        rest = f"… {len(self) - _SHOWN} more of {self._count()}" if len(self) > _SHOWN else self._count()
        return _html.plain_table(titles, rows, ("index", "call"), rest)


class Wanted(NamedTuple):
    """The search criteria; None matches anything."""

    op: str | None
    layer: str | None
    name: str | None
    line: int | str | None
    call: int | None = None


def find(trace: Trace, wanted: Wanted, names: Mapping[str, Any]) -> list[Found]:
    """Return a description of each tensor that an op made and that matches."""
    if wanted.call is not None and wanted.layer is None:
        raise ValueError(f"call= selects a call of a layer, got call={wanted.call} without layer=; pass layer= too.")
    program, layers = trace.program, Layers(trace)
    if wanted.layer is not None:
        layers.check(wanted.layer, wanted.call)
    named = None if wanted.name is None else set(_named(trace, wanted.name, names))
    made = [(index, layer, var) for index, layer in enumerate(layers.of) for var in program.eqns[index].outputs]
    made += _passed_on(trace, layers)
    found = []
    for index, layer, var in made:
        if (named is None or var in named) and _has_value(trace, var):
            eqn = program.eqns[index]
            if _fits(eqn, layer, program, wanted):
                kind = program.types[var]
                frame = program.frame_of(eqn)
                found.append(Found(title_of(trace, index), kind, frame, layer.path, var, layer.call))
    return sorted(found, key=lambda one: one.var)


def _passed_on(trace: Trace, layers: Layers) -> list[tuple[int, Layer, int]]:
    """Return the inputs that layers returned unchanged, as a Dropout that is not training does."""
    found = []
    for layer, scope in layers.called:
        var = trace.tensors.get(scope.returned)
        index = LEAF if var is None else trace.program.producers[var]
        if var is not None and index != LEAF and layer not in layers.of[index].chain():
            found.append((index, layer, var))
    return found


def _has_value(trace: Trace, var: int) -> bool:
    dtype = DTYPE_NAMES.get(trace.program.types[var].dtype)
    return dtype not in _WITHOUT_VALUE and var not in trace.facts.history_of


def _fits(eqn: Eqn, layer: Layer, program: Program, wanted: Wanted) -> bool:
    if wanted.op is not None and eqn.op.lower() != wanted.op.lower():
        return False
    if wanted.layer is not None and not layer.is_inside(wanted.layer, wanted.call):
        return False
    return wanted.line is None or _is_at(program.frame_of(eqn), wanted.line)


def _is_at(frame: Frame, line: int | str) -> bool:
    if isinstance(line, int):
        return frame.line == line
    return str(frame) == line or str(frame).endswith("/" + line)


def _named(trace: Trace, name: str, names: Mapping[str, Any]) -> Iterator[int]:
    """Yield the vars that have a name: of a tensor, or of the variable that they were read from."""
    for known, what in names.items():
        var = None if isinstance(what, VARIABLES) or not is_part(name, known) else trace.tensors.get(identity_of(what))
        if var is not None:
            yield var
    for eqn in trace.program.eqns:
        if any(is_part(name, name_of(trace, var)) for var in eqn.inputs if var in trace.facts.history_of):
            yield from eqn.outputs


def value_of(trace: Trace, var: int) -> Tensor:
    """Return the tensor of a var: recorded, or recomputed."""
    with trace.explained():
        value = Values(trace)(var)
    trace.tensors.alias(identity_of(value), var)
    return value
