"""The output shapes of an op, before it runs: a file of a few bytes can require terabytes.

TensorFlow's own shape functions infer them, for a graph of one op. Results are cached by types and attributes, and,
where sizes depend on values, by the values of the inputs that determine them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.errors import LostValueError
from retrotape.files.checks._call import Dims
from retrotape.ir import AttrValue, DType, Eqn, Proto, Shape, TensorType
from retrotape.tf import core
from retrotape.tf.core import tf

Kinds = tuple[TensorType, ...]
REMEMBERED = 4096  # results of inference
_GRAPH_SIZE = 1024  # ops in one graph: it only ever grows
_CONSTANT = 2**12  # elements of an integer input that may determine the size of a result
_INTEGERS = frozenset((3, 4, 5, 6, 9, 17, 22, 23))
_RANGES = frozenset(("Range", "LinSpace"))  # the only ops whose sizes depend on floating-point values


class _Analysis(NamedTuple):
    """What follows from the types and attributes of a call.

    Attributes:
      shapes: Of the results, as far as they follow from types and attributes alone.
      wanted: The positions of the inputs whose values determine the shapes further.
      useful: The positions of all inputs whose values might do so.
    """

    shapes: list[Dims]
    wanted: tuple[int, ...] = ()
    useful: tuple[int, ...] = ()


class Shapes:
    """Infers the shapes of results."""

    def __init__(self) -> None:
        self._analyses: dict[Any, _Analysis] = {}
        self._known: dict[Any, list[Dims]] = {}
        self._graph = _Scratch()

    def of(self, eqn: Eqn, kinds: Kinds, fetch: Callable[[int], Tensor]) -> list[Dims]:
        """Return the shapes of the results, None where a rank or a size is not known.

        Args:
          eqn: The equation.
          kinds: The types of its inputs.
          fetch: Returns the value of an input, given its position.

        Raises:
          ValueError: If the op cannot run on these inputs.
        """
        key = (eqn.op, eqn.attrs, kinds)
        analysis = self._analyses.get(key)
        if analysis is None:
            if len(self._analyses) >= REMEMBERED:
                self._analyses.clear()
            analysis = self._analyses[key] = self._analyze(eqn, kinds, fetch)
        if not analysis.wanted:
            return analysis.shapes
        values = _values(analysis.wanted, fetch)
        if values is None:
            return analysis.shapes
        given = (key, *(value.tobytes() for value in values.values()))
        shapes = self._known.get(given)
        if shapes is None:
            shapes = self._graph.infer(eqn, kinds, values)
            if not is_known(shapes) and analysis.useful != analysis.wanted:
                return self._graph.infer(eqn, kinds, _values(analysis.useful, fetch) or values)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[given] = shapes
        return shapes

    def wanted(self, eqn: Eqn, kinds: Kinds) -> tuple[int, ...]:
        """Return the inputs whose values determine the shapes, if these were inferred before."""
        analysis = self._analyses.get((eqn.op, eqn.attrs, kinds))
        return () if analysis is None else analysis.wanted

    def _analyze(self, eqn: Eqn, kinds: Kinds, fetch: Callable[[int], Tensor]) -> _Analysis:
        useful = tuple(position for position, kind in enumerate(kinds) if _may_hold_sizes(eqn.op, kind))
        shapes = self._try(eqn, kinds, {}) if useful else self._graph.infer(eqn, kinds, {})
        if not useful or (shapes is not None and is_known(shapes)):
            return _Analysis(shapes or [])
        unknown: list[Dims] = shapes or [None for _ in eqn.outputs]
        values = _values(useful, fetch)
        if values is None:
            return _Analysis(unknown, useful, useful)
        best = self._graph.infer(eqn, kinds, values)
        for position in useful:  # others do not belong to the key: indices differ in every step
            fewer = {other: value for other, value in values.items() if other != position}
            if self._try(eqn, kinds, fewer) == best:
                values = fewer
        return _Analysis(unknown, tuple(values), useful)

    def _try(self, eqn: Eqn, kinds: Kinds, values: dict[int, Any]) -> list[Dims] | None:
        """Return the shapes; None where TensorFlow rejects the op, or needs more values."""
        try:
            return self._graph.infer(eqn, kinds, values)
        except ValueError:
            return None


def is_known(shapes: Sequence[Dims]) -> bool:
    """Return whether all ranks and sizes are known."""
    return all(dims is not None and None not in dims for dims in shapes)


def _may_hold_sizes(op: str, kind: TensorType) -> bool:
    size = math.prod(kind.shape)  # type: ignore[arg-type]
    return (kind.dtype in _INTEGERS and size <= _CONSTANT) or (op in _RANGES and size == 1 and kind.dtype in (1, 2))


def _values(positions: Sequence[int], fetch: Callable[[int], Tensor]) -> dict[int, Any] | None:
    try:
        return {position: fetch(position).numpy() for position in positions}
    except LostValueError:  # it was left out of the file
        return None


class _Scratch:
    """A graph that is never run. Its inputs are reused, because making them is most of the work."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._graph, self._inputs, self._count = tf.Graph(), {}, 0  # type: ignore[var-annotated]

    def infer(self, eqn: Eqn, kinds: Kinds, values: dict[int, Any]) -> list[Dims]:
        """Return the shapes of the results as far as they follow from types and some values."""
        self._count += 1
        if self._count + len(self._inputs) > _GRAPH_SIZE:
            self._renew()
        with tf.init_scope(), self._graph.as_default():
            given = [self._input(kind, values.get(position)) for position, kind in enumerate(kinds)]
            named = {attr.name: attr.type for attr in core.op_def(eqn.op).attr}  # type: ignore[union-attr]
            attrs = {name: _as_proto(named[name], value) for name, value in eqn.attrs}
            operation = self._graph.create_op(eqn.op, given, [tf.float32] * len(eqn.outputs), attrs=attrs)
            found = [tensor.shape for tensor in operation.outputs]
        return [None if shape.rank is None else tuple(shape.as_list()) for shape in found]

    def _input(self, kind: TensorType, value: Any) -> Tensor:
        key = kind if value is None else (kind, value.tobytes())
        found = self._inputs.get(key)
        if found is None:
            if value is None:
                found = tf.compat.v1.placeholder(tf.as_dtype(kind.dtype), kind.shape)
            else:
                found = tf.constant(value, tf.as_dtype(kind.dtype))
            self._inputs[key] = found
        return found


_FIELDS = {
    "type": "type", "int": "i", "bool": "b", "float": "f", "string": "s", "shape": "shape", "tensor": "tensor"
}  # fmt: skip


def _as_proto(kind: str, value: AttrValue) -> Any:
    if kind.startswith("list("):
        items = [_as_proto(kind[5:-1], item) for item in value]  # type: ignore[union-attr, arg-type]
        field = _FIELDS[kind[5:-1]]
        return tf.compat.v1.AttrValue(list={field: [getattr(item, field) for item in items]})
    plain: Any = value
    match value:
        case DType(number):
            plain = number
        case Shape(dims):
            plain = tf.TensorShape(None if dims is None else [None if d < 0 else d for d in dims]).as_proto()
        case Proto(data):
            plain = tf.compat.v1.TensorProto.FromString(data)
    return tf.compat.v1.AttrValue(**{_FIELDS[kind]: plain})
