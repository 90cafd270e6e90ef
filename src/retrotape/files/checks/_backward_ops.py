"""Ops that compute gradients of others: what they are given has to be what the other op makes.

Their kernels take the shape of a gradient for granted, and read beyond it where it is smaller. So the shape function of
the other op is asked what its result is like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from retrotape.files.checks._call import Call, Dims
from retrotape.ir import Eqn, TensorType
from retrotape.record import default_attrs
from retrotape.tf import core


class Forward(NamedTuple):
    """The op that an op goes back through.

    Attributes:
      op: Its name; it has the attributes of the same names.
      inputs: Where its inputs are: a position; below zero, `~position` of an input whose value is the shape.
      results: The positions of what has the shape of its first result.
      alike: The positions of what has the shape of its first input.
    """

    op: str
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    alike: tuple[int, ...] = ()


FORWARD_OPS: Mapping[str, Forward] = {
    "AvgPoolGrad": Forward("AvgPool", (~0,), (1,)),
    "AvgPool3DGrad": Forward("AvgPool3D", (~0,), (1,)),
    "MaxPoolGrad": Forward("MaxPool", (0,), (1, 2)),
    "MaxPool3DGrad": Forward("MaxPool3D", (0,), (1, 2)),
    "MaxPoolGradGrad": Forward("MaxPool", (0,), (1,), (2,)),
    "MaxPool3DGradGrad": Forward("MaxPool3D", (0,), (1,), (2,)),
    "MaxPoolGradWithArgmax": Forward("MaxPoolWithArgmax", (0,), (1, 2)),
    "Conv2DBackpropInput": Forward("Conv2D", (~0, 1), (2,)),
    "Conv2DBackpropFilter": Forward("Conv2D", (0, ~1), (2,)),
    "Conv3DBackpropInputV2": Forward("Conv3D", (~0, 1), (2,)),
    "Conv3DBackpropFilterV2": Forward("Conv3D", (0, ~1), (2,)),
    "DepthwiseConv2dNativeBackpropInput": Forward("DepthwiseConv2dNative", (~0, 1), (2,)),
    "DepthwiseConv2dNativeBackpropFilter": Forward("DepthwiseConv2dNative", (0, ~1), (2,)),
    "Dilation2DBackpropInput": Forward("Dilation2D", (0, 1), (2,)),
    "Dilation2DBackpropFilter": Forward("Dilation2D", (0, 1), (2,)),
}


def mismatch(call: Call, infer: Callable[[Eqn, tuple[TensorType, ...]], list[Dims]]) -> str | None:
    """Return what does not fit the op that a call goes back through; None where all does.

    Args:
      call: The call.
      infer: Returns the shapes that an equation makes of inputs of some types.
    """
    forward = FORWARD_OPS.get(call.op)
    if forward is None:
        return None
    dtype = call.kinds[forward.results[-1]].dtype
    shapes = [tuple(call.numbers(~at)) if at < 0 else call.shape(at) for at in forward.inputs]
    if any(size < 0 for shape in shapes for size in shape):
        return "a shape with negative sizes"
    names = [attr.name for attr in core.op_def(forward.op).attr]  # type: ignore[union-attr]
    said = {**dict(default_attrs(forward.op)), **{name: call.attrs[name] for name in names if name in call.attrs}}
    count = len(core.op_def(forward.op).output_arg)  # type: ignore[union-attr]
    eqn = Eqn(forward.op, tuple(range(len(shapes))), tuple(range(count)), tuple(sorted(said.items())), 0)
    made = infer(eqn, tuple(TensorType(dtype, shape) for shape in shapes))[0]
    for wanted, positions in ((made, forward.results), (shapes[0], forward.alike)):
        for position in positions:
            if call.shape(position) != wanted:
                return f"a gradient of shape {list(call.shape(position))} where {forward.op} has {wanted}"
    return None
