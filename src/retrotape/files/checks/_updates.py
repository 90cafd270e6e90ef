"""The output shapes of reads and updates of variables, as TensorFlow's kernels require them.

A program has values in place of variables, and `rules` computes updates with other ops. These are the conditions
under which those ops are equivalent to the update.
"""

from __future__ import annotations

import math

from retrotape.files.checks._call import Call, Dims
from retrotape.ir import DTYPE_NUMBERS, Eqn
from retrotape.record import Kind, traits
from retrotape.tf import core

_RESOURCE = DTYPE_NUMBERS["resource"]
Size = tuple[int, ...]


def update_shapes(call: Call) -> list[Dims]:
    """Return the shapes of the values that an op reads or assigns.

    Raises:
      ValueError: If the op cannot run on inputs of these shapes.
    """
    op = call.op
    shapes = [call.shape(position) for position in range(len(call.kinds))]
    if op in ("ReadVariableOp", "AssignVariableOp"):
        return [shapes[0]]
    if op in ("AssignAddVariableOp", "AssignSubVariableOp"):
        _same(op, shapes[0], shapes[1])
        return [shapes[0]]
    if op == "ResourceGather":
        return [_gathered(call)]
    if op == "ResourceGatherNd":
        return [shapes[1][:-1] + _slice(op, shapes[0], shapes[1])]
    if op.startswith("ResourceScatterNd"):
        _same(op, shapes[1][:-1] + _slice(op, shapes[0], shapes[1]), shapes[2])
        return [shapes[0]]
    if op.startswith("ResourceScatter"):
        if not shapes[0]:
            raise ValueError(f"{op} of rows of a scalar")
        if shapes[2]:
            _same(op, shapes[1] + shapes[0][1:], shapes[2])
        return [shapes[0]]
    return _stepped(op, shapes)


def as_plain(eqn: Eqn) -> Eqn | None:
    """Return the equivalent op without variables; None for an update that has none."""
    if traits(eqn.op).kind is Kind.PLAIN:
        return eqn
    return eqn._replace(op="TensorStridedSliceUpdate") if eqn.op == "ResourceStridedSliceAssign" else None


def workspace(call: Call) -> int:
    """Return how many bytes an update needs besides its result: overwriting compares all pairs of rows."""
    if call.op not in ("ResourceScatterUpdate", "ResourceScatterNdUpdate"):
        return 0
    width = call.shape(1)[-1] if call.op == "ResourceScatterNdUpdate" else 1
    rows = call.size(1) // max(1, width)
    return rows * rows * (16 + width)


def _same(op: str, wanted: Size, got: Size) -> None:
    if wanted != got:
        raise ValueError(f"{op} with shape {list(got)} where {list(wanted)} is needed")


def _slice(op: str, shape: Size, indices: Size) -> Size:
    if not indices or indices[-1] > len(shape):
        raise ValueError(f"{op} with indices of shape {list(indices)} into shape {list(shape)}")
    return shape[indices[-1] :]


def _gathered(call: Call) -> Size:
    shape, indices, count = call.shape(0), call.shape(1), int(call.attrs["batch_dims"])
    if not 0 <= count < len(shape) or count > len(indices) or shape[:count] != indices[:count]:
        raise ValueError(f"ResourceGather with {count} batch dimensions of {list(indices)} from {list(shape)}")
    return indices + shape[count + 1 :]


def _stepped(op: str, shapes: list[Size]) -> list[Dims]:
    """Return the output shapes of an optimizer step: those of its slots, which equal that of the variable."""
    definition = core.op_def(op)
    names = {arg.name: shape for arg, shape in zip(definition.input_arg, shapes, strict=True)}  # type: ignore[union-attr]
    slots = [arg.name for arg in definition.input_arg if arg.type == _RESOURCE]  # type: ignore[union-attr]
    shape = names[slots[0]]
    rows = names.get("indices")
    if rows is not None and (len(rows) != 1 or not shape):
        raise ValueError(f"{op} with rows of shape {list(rows)} of a variable of shape {list(shape)}")
    for name, got in names.items():
        if name in slots:
            _same(op, shape, got)
        elif name in ("grad", "delta"):
            _same(op, shape if rows is None else rows + shape[1:], got)
        elif name != "indices" and math.prod(got) != 1:
            raise ValueError(f"{op} with {name} of shape {list(got)}, which is not a scalar")
    return [shape for _ in slots]
