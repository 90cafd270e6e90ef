"""Which axis of an activation has its units: the last one, or the second where channels come first."""

from __future__ import annotations

from retrotape.ir import LEAF, Eqn, Program

_FARTHEST = 32  # ops before an activation
_UNITS_LAST = frozenset(("MatMul", "BatchMatMulV2", "Einsum", "Reshape"))  # a dense layer ends with one of these
_MOVING = frozenset(("Squeeze", "ExpandDims"))  # a convolution over one dimension is one over two in TensorFlow


def unit_axis(program: Program, index: int) -> int | None:
    """Return the axis of the units of what an equation returns; None if that cannot be told.

    The ops before it are searched for one that says where the channels are: by its `data_format`, or by an operand that
    is broadcast to all but one axis, as a bias or a scale is.
    """
    kind = program.types[program.eqns[index].outputs[0]]
    if kind.shape is None or len(kind.shape) < 2:
        return None
    for _ in range(_FARTHEST):
        eqn = program.eqns[index]
        axis = _axis(program, eqn)
        if axis is not None:
            return axis
        if eqn.op in _UNITS_LAST:
            return -1
        before = _source(program, eqn)
        if before is None or program.producers[before] == LEAF:
            break
        index = program.producers[before]
    return -1 if len(kind.shape) == 2 else None


def _axis(program: Program, eqn: Eqn) -> int | None:
    """Return the axis that an op treats as channels: 1 or -1."""
    form = dict(eqn.attrs).get("data_format")
    if isinstance(form, bytes):
        return 1 if form.startswith(b"NC") else -1
    made = program.types[eqn.outputs[0]].shape or ()
    for shape in (program.types[var].shape or () for var in eqn.inputs):
        wide = [axis - len(shape) for axis, size in enumerate(shape) if size != 1]  # broadcasting aligns the ends
        if shape == made or len(wide) != 1:
            continue
        if wide[0] == -1:
            return -1
        if wide[0] == 1 - len(made) and len(made) > 3:  # of three axes, the one in the middle may be time
            return 1
    return None


def _source(program: Program, eqn: Eqn) -> int | None:
    """Return the input that has the same axes as the result."""
    if eqn.op in _MOVING:
        return eqn.inputs[0]
    if eqn.op == "Transpose":  # the shape may be the same, the axes are not
        return None
    made = program.types[eqn.outputs[0]].shape
    return next((var for var in eqn.inputs if program.types[var].shape == made), None)
