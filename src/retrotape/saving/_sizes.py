"""How large the results of an op will be, before it runs: a file of a few bytes can ask for terabytes.

TensorFlow can tell without running anything: it is asked about a graph of that one op. The ops of everyday that cannot
make more than they are given are not asked about, and no question is asked twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from retrotape import _tf
from retrotape._tf import tf
from retrotape.ir import AttrValue, DType, Eqn, Proto, Shape

Tensor = Any
Dims = tuple[int | None, ...] | None
_SMALL = 2**12  # elements of all inputs multiplied, up to which no plain op makes much: none makes more than the square
_DIGITS = 2**10  # as which one number may be written
_CONSTANT = 2**12  # elements of whole numbers that may say how large a result is
_INTEGERS = frozenset((3, 4, 5, 6, 9, 17, 22, 23))
_SIZED = frozenset(("int", "list(int)", "shape", "list(shape)"))
# Take whole numbers, but make no more of what they are given.
_SHRINKING = frozenset(
    (
        *("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"),
        *("Gather", "GatherNd", "GatherV2", "Slice", "Split", "SplitV", "StridedSlice", "Unpack", "TensorListGetItem"),
        *("Concat", "ConcatV2", "Pack", "Cumsum", "ReverseV2", "TensorListSetItem"),
        *("ExpandDims", "Reshape", "Squeeze", "Transpose"),
    )
)


@cache
def _is_plain(op: str) -> bool:
    """Say whether no number that an op is given, as input or attribute, can say how much it makes."""
    if op in _SHRINKING:
        return True
    if op in _ELEMENTS:
        return False
    definition = _tf.op_def(op)
    kinds = {attr.name: attr for attr in definition.attr}  # type: ignore[union-attr]
    counts = {arg.number_attr for arg in (*definition.input_arg, *definition.output_arg)}  # type: ignore[union-attr]
    if any(attr.type in _SIZED and name not in counts for name, attr in kinds.items()):
        return False
    for arg in definition.input_arg:  # type: ignore[union-attr]
        allowed = kinds[arg.type_attr].allowed_values.list.type if arg.type_attr else [arg.type]
        if allowed and _INTEGERS.issuperset(allowed):
            return False
    return True


class Sizes:
    """Tells how many elements the results of ops will have; remembers what it was asked."""

    def __init__(self) -> None:
        self._known: dict[Any, list[Dims]] = {}

    def of(self, eqn: Eqn, inputs: Sequence[Tensor]) -> list[Dims]:
        """Return the shapes of what an op will make, None where they are unknown or cannot be large.

        Raises:
          ValueError: If the op cannot run on these inputs.
        """
        if eqn.op in _LISTS:
            length = int(np.max(inputs[_LISTS[eqn.op]].numpy(), initial=0))
            if length > LONGEST_LIST:
                raise ValueError(f"a list of {length} tensors is longer than {LONGEST_LIST}")
        elif eqn.op in _ELEMENTS:
            return [(_ELEMENTS[eqn.op](inputs),)]
        elif eqn.op == "AsString" and max(dict(eqn.attrs).get(name, 0) for name in ("precision", "width")) > _DIGITS:  # type: ignore
            raise ValueError(f"numbers of more than {_DIGITS} digits")
        if _is_plain(eqn.op) and math.prod(max(1, _elements(tensor)) for tensor in inputs) <= _SMALL:
            return []
        key = (eqn.op, eqn.attrs, tuple(map(_given, inputs)))
        if key not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            self._known[key] = _inferred(eqn, inputs)
        return self._known[key]


def _elements(tensor: Tensor) -> int:
    return math.prod(tensor._shape_tuple())


def _given(tensor: Tensor) -> Any:
    """Return what of an input can say how large a result is."""
    kind = (_tf.eager_dtype(tensor), tensor._shape_tuple())
    return (*kind, tensor.numpy().tobytes()) if _says_numbers(tensor) else kind


def _says_numbers(tensor: Tensor) -> bool:
    return _tf.eager_dtype(tensor) in _INTEGERS and _elements(tensor) <= _CONSTANT


def _inferred(eqn: Eqn, inputs: Sequence[Tensor]) -> list[Dims]:
    graph = tf.Graph()
    with graph.as_default():
        given = [
            tf.constant(tensor.numpy())
            if _says_numbers(tensor)
            else tf.compat.v1.placeholder(tensor.dtype, tensor._shape_tuple())
            for tensor in inputs
        ]
        kinds = {attr.name: attr.type for attr in _tf.op_def(eqn.op).attr}  # type: ignore[union-attr]
        attrs = {name: _as_proto(kinds[name], value) for name, value in eqn.attrs}
        operation = graph.create_op(eqn.op, given, [tf.float32] * len(eqn.outputs), attrs=attrs)
        return [
            None if found.rank is None else tuple(found.as_list()) for found in (t.shape for t in operation.outputs)
        ]


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


_FIELDS = {
    "type": "type", "int": "i", "bool": "b", "float": "f", "string": "s", "shape": "shape", "tensor": "tensor"
}  # fmt: skip


# ------------------------------------------------------------------ where TensorFlow cannot tell


def _stitched(inputs: Sequence[Tensor]) -> int:
    count = len(inputs) // 2
    row = inputs[count]._shape_tuple()[inputs[0].shape.rank :]
    return max(_largest(ids) for ids in inputs[:count]) * math.prod(row)


def _segments(inputs: Sequence[Tensor]) -> int:
    return _largest(inputs[-1]) * math.prod(inputs[0]._shape_tuple()[1:])


def _largest(ids: Tensor) -> int:
    return int(np.max(ids.numpy(), initial=-1)) + 1


def _reduced(inputs: Sequence[Tensor]) -> int:
    shape, axes = (part.numpy().reshape(-1).tolist() for part in inputs[2:])
    gone = {axis % max(1, len(shape)) for axis in axes}
    return math.prod(size for axis, size in enumerate(shape) if axis not in gone)


def _ranges(inputs: Sequence[Tensor]) -> int:
    starts, limits, deltas = (part.numpy().astype(np.float64) for part in inputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.ceil((limits - starts) / deltas)
    return int(np.nan_to_num(steps, nan=0.0, posinf=2.0**62).clip(0).sum())


def _stacked(inputs: Sequence[Tensor]) -> int:
    length = int(tf.raw_ops.TensorListLength(input_handle=inputs[0]))
    held = tf.raw_ops.TensorListElementShape(input_handle=inputs[0], shape_type=tf.int64)
    sizes = [dims.numpy().reshape(-1).tolist() for dims in (inputs[1], held)]
    return length * max(math.prod(max(1, size) for size in dims) for dims in sizes)


_ELEMENTS: dict[str, Callable[[Sequence[Tensor]], int]] = {
    "DynamicStitch": _stitched,
    "ParallelDynamicStitch": _stitched,
    "RaggedRange": _ranges,
    "Range": _ranges,
    "SparseFillEmptyRows": lambda inputs: int(np.max(inputs[2].numpy(), initial=0)),
    "SparseReduceMax": _reduced,
    "SparseReduceSum": _reduced,
    "TensorListStack": _stacked,
    **{f"Segment{how}": _segments for how in ("Max", "Mean", "Min", "Prod", "Sum")},
    **{f"SparseSegment{how}": _segments for how in ("Mean", "SqrtN", "Sum")},
}
LONGEST_LIST = 2**24
# Which input says how long a list of tensors becomes.
_LISTS = {"TensorListReserve": 1, "TensorListResize": 1, "TensorListScatterV2": 3, "TensorListSetItem": 1}
