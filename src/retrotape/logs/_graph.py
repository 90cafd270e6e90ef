"""The program as a graph that TensorBoard draws: ops by layer, without values."""

from __future__ import annotations

import re
from typing import Any

from retrotape.diagnose.layers import Layers, name_of
from retrotape.ir import TensorType
from retrotape.record import Trace
from retrotape.tf.core import tf

_OTHER = re.compile(r"[^A-Za-z0-9_./>-]")  # what the name of a node may not have


def graph_of(trace: Trace, layers: Layers) -> Any:
    """Return a `GraphDef` that is drawn, but cannot be run: it has no values and only the shapes of attributes."""
    program, graph = trace.program, tf.compat.v1.GraphDef()
    places: dict[int, str] = {}  # var → its node, and which output of it

    def add(name: str, op: str, inputs: Any, outputs: tuple[int, ...]) -> None:
        node = graph.node.add(name=name, op=op, input=[places[var] for var in inputs])
        shapes = [_shape(program.types[var]) for var in outputs]
        node.attr["_output_shapes"].list.shape.extend(shapes)
        places.update({var: f"{name}:{number}" if number else name for number, var in enumerate(outputs)})

    for index, eqn in enumerate(program.eqns):
        path = layers.of[index].path
        for var in eqn.inputs:
            if var not in places:  # a leaf, beside what first uses it
                variable = name_of(trace, var)
                kind = "Variable" if variable else "Input"
                add(_node(variable or path, kind, var), "VariableV2" if variable else "Placeholder", (), (var,))
        add(_node(path, eqn.op, index), eqn.op, eqn.inputs, eqn.outputs)
    for var in program.leaves():
        if var not in places:
            add(_node("", "Input", var), "Placeholder", (), (var,))
    return graph


def _node(scope: str, op: str, number: int) -> str:
    """Return a name that no other node has: leaves are numbered by var, and their kinds are not names of ops."""
    name = f"{scope}/{op}_{number}" if scope else f"{op}_{number}"
    return _OTHER.sub("_", name).lstrip("_/.>-")


def _shape(kind: TensorType) -> Any:
    if kind.shape is None:
        return tf.TensorShape(None).as_proto()
    return tf.TensorShape(kind.shape).as_proto()
