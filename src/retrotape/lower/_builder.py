"""A function of TensorFlow under construction, as a `FunctionDef`: built node by node, without tracing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from retrotape.ir import Attr, AttrValue, DType, Func, Proto, Shape, TensorType
from retrotape.tf.core import op_def, tf
from retrotape.tf.lowering import FunctionDef, LoweredFunction

_numbers = count(1)


class FunctionBuilder:
    """A function under construction: arguments, constants and nodes, each known by a reference, a string.

    With `in_order`, nodes run one after the other. Otherwise TensorFlow may run those that free memory last.
    """

    def __init__(self, in_order: bool = False) -> None:
        self._in_order, self._latest = in_order, ""
        self._definition = FunctionDef()
        self._definition.signature.name = self.name = f"__retrotape_{next(_numbers)}"
        self._constants = 0

    def argument(self, kind: TensorType) -> str:
        """Add an argument, and return its reference."""
        number = len(self._definition.signature.input_arg)
        arg = self._definition.signature.input_arg.add()
        arg.name, arg.type = f"a{number}", kind.dtype
        _set_shape(self._definition.arg_attr[number].attr["_output_shapes"].list.shape.add(), kind.shape)
        return arg.name

    def constant(self, value: np.ndarray) -> str:
        """Add a constant, and return its reference."""
        node = self._definition.node_def.add()
        node.name, node.op = f"c{self._constants}", "Const"
        proto = node.attr["value"].tensor
        if value.dtype.kind in "OS":  # strings
            proto.CopyFrom(tf.make_tensor_proto(value))
        else:
            proto.dtype, proto.tensor_content = tf.as_dtype(value.dtype).as_datatype_enum, value.tobytes()
            _set_shape(proto.tensor_shape, value.shape)
        node.attr["dtype"].type = proto.dtype
        self._constants += 1
        return f"{node.name}:output:0"

    def node(self, op: str, inputs: Sequence[str], attrs: tuple[Attr, ...], after: Sequence[str] = ()) -> list[str]:
        """Add a node that runs an op, and return the references of its outputs; it runs after the nodes `after`."""
        protos, outputs = _prepared(op, attrs)
        node = self._definition.node_def.add()
        node.name, node.op = f"n{len(self._definition.node_def)}", op
        node.input.extend(inputs)
        node.input.extend(f"^{name}" for name in after)
        if self._in_order:
            node.input.extend([f"^{self._latest}"] if self._latest else [])
            self._latest = node.name
        for name, proto in protos:
            node.attr[name].CopyFrom(proto)
        return [f"{node.name}:{output}" for output in outputs]

    def latest(self) -> str:
        """Return the name of the node that was added last."""
        return self._definition.node_def[-1].name

    def result(self, reference: str, dtype: int) -> None:
        """Add a result."""
        arg = self._definition.signature.output_arg.add()
        arg.name, arg.type = f"r{len(self._definition.ret)}", dtype
        self._definition.ret[arg.name] = reference

    def run_always(self, reference: str) -> None:
        """Run a node even if nothing uses what it returns."""
        node = reference.partition(":")[0]
        self._definition.signature.control_output.append(node)
        self._definition.control_ret[node] = node

    def build(self, single_threaded: bool, stateful: bool = False, jit: bool = False) -> LoweredFunction:
        """Register the function with TensorFlow.

        Args:
          single_threaded: Whether ops run one after the other on one thread.
          stateful: Whether it has an effect besides its results.
          jit: Whether XLA compiles it.
        """
        self._definition.signature.is_stateful = stateful
        if jit:
            self._definition.attr["_XlaMustCompile"].b = True
        return LoweredFunction(self._definition, single_threaded)


@lru_cache(4096)
def _prepared(op: str, attrs: tuple[Attr, ...]) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return the attributes of an op as protos, and the names of its outputs."""
    definition = op_def(op)
    assert definition is not None
    kinds = {attr.name: attr.type for attr in definition.attr}
    protos = {name: _proto(kinds[name], value) for name, value in attrs if name in kinds}
    outputs = []
    for arg in definition.output_arg:
        number = 1
        if arg.number_attr:
            number = protos[arg.number_attr].i
        elif arg.type_list_attr:
            number = len(protos[arg.type_list_attr].list.type)
        outputs += [f"{arg.name}:{index}" for index in range(number)]
    return list(protos.items()), outputs


def _proto(kind: str, value: AttrValue) -> Any:
    proto = tf.compat.v1.AttrValue()
    if kind.startswith("list("):
        proto.list.SetInParent()
        assert isinstance(value, tuple)
        for item in value:
            _add(proto.list, kind[5:-1], item)
        return proto
    match value:
        case DType(number):
            proto.type = number
        case Shape(dims):
            _set_shape(proto.shape, dims)
        case Func(name):
            proto.func.name = name
        case Proto(data):
            proto.tensor.ParseFromString(data)
        case bool():
            proto.b = value
        case int():
            proto.i = value
        case float():
            proto.f = value
        case bytes():
            proto.s = value
    return proto


_LISTS = {"int": "i", "bool": "b", "float": "f", "string": "s"}


def _add(found: Any, kind: str, item: Any) -> None:
    if kind == "type":
        found.type.append(item.number)
    elif kind == "shape":
        _set_shape(found.shape.add(), item.dims)
    elif kind == "func":
        found.func.add().name = item.name
    else:
        getattr(found, _LISTS[kind]).append(item)


def _set_shape(proto: Any, dims: Sequence[int | None] | None) -> None:
    if dims is None:
        proto.unknown_rank = True
        return
    proto.SetInParent()
    for size in dims:
        proto.dim.add().size = -1 if size is None else size
