"""Ops that compute gradients of other ops: the shapes of their inputs must match those of the forward op.

Their kernels assume the shape of a gradient, and read out of bounds where it is smaller. So the shape function of
the forward op is called to get the expected shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from retrotape.files.checks._call import Call, Dims
from retrotape.ir import Eqn, TensorType
from retrotape.record import default_attrs
from retrotape.tf import core


class Forward(NamedTuple):
    """The forward op that a gradient op belongs to.

    Attributes:
      op: Its name; it has the attributes of the same names.
      inputs: Where its inputs are: a position, or `~position` for an input whose value is the shape.
      results: The positions of inputs with the shape of its first result.
      alike: The positions of inputs with the shape of its first input.
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
    """Return how a call does not fit its forward op; None where it does.

    Args:
      call: The call.
      infer: Returns the output shapes of an equation, given the types of its inputs.
    """
    forward = FORWARD_OPS.get(call.op)
    if forward is None:
        return None
    dtype = call.kinds[forward.results[-1]].dtype
    shapes = [tuple(call.numbers(~at)) if at < 0 else call.shape(at) for at in forward.inputs]
    if any(size < 0 for shape in shapes for size in shape):
        return "a shape with negative sizes"
    names = [attr.name for attr in core.op_def(forward.op).attr]  # type: ignore[union-attr]
    attrs = {**dict(default_attrs(forward.op)), **{name: call.attrs[name] for name in names if name in call.attrs}}
    count = len(core.op_def(forward.op).output_arg)  # type: ignore[union-attr]
    eqn = Eqn(forward.op, tuple(range(len(shapes))), tuple(range(count)), tuple(sorted(attrs.items())), 0)
    made = infer(eqn, tuple(TensorType(dtype, shape) for shape in shapes))[0]
    for wanted, positions in ((made, forward.results), (shapes[0], forward.alike)):
        for position in positions:
            if call.shape(position) != wanted:
                return f"a gradient of shape {list(call.shape(position))} where {forward.op} has {wanted}"
    return None
