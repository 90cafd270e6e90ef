"""Functions that cannot be rerun: where a path ends, as far as their graphs show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.why._explanation import Step
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.ir import Frame
from retrotape.record import FrameTable, traits
from retrotape.tf import functions
from retrotape.tf.core import is_trainable

_PYTHON = frozenset(("PyFunc", "PyFuncStateless"))


class Inside(NamedTuple):
    """Where a path ends inside a function."""

    verdict: Verdict
    step: Step
    detail: str


def find_cut_inside(function: Any, inputs: Sequence[int], outputs: Sequence[int]) -> Inside | None:
    """Return the op at which all paths from some inputs to some outputs end, if there is only one such op."""
    graph = functions.graph_of(function)
    made = [graph.outputs[position] for position in outputs if position < len(graph.outputs)]
    leading: set[Any] = set()
    pending = [tensor.op for tensor in made]
    while pending:
        op = pending.pop()
        if op not in leading:
            leading.add(op)
            pending += [tensor.op for tensor in op.inputs]
    flowing = {graph.inputs[position].ref() for position in inputs if position < len(graph.inputs)}
    cuts = []
    for op in graph.get_operations():  # in the order in which they were made
        if op not in leading or not any(tensor.ref() in flowing for tensor in op.inputs):
            continue
        passes = not traits(op.type).nondifferentiable and op.type not in _PYTHON
        out = [tensor for tensor in op.outputs if passes and is_trainable(tensor.dtype)]
        if out:
            flowing.update(tensor.ref() for tensor in out)
        else:
            cuts.append(op)
    if len(cuts) != 1 or any(tensor.ref() in flowing for tensor in made):
        return None
    op = cuts[0]
    step = Step(op.type, _line_of(op))
    inside = f"Inside the tf.function {graph.name!r}."
    if op.type in _PYTHON:
        return Inside(Verdict.LEFT_TENSORFLOW, step, f"{inside} `tf.numpy_function` passes arrays to Python.")
    if op.type == "StopGradient":
        return Inside(Verdict.STOP_GRADIENT, step, inside)
    if op.outputs and not is_trainable(op.outputs[0].dtype):
        return Inside(Verdict.INTEGER, step, f"{inside} {op.type} returns {op.outputs[0].dtype.name} here.")
    return Inside(Verdict.NO_GRADIENT, step, f"{inside} TensorFlow declares {op.type} non-differentiable.")


def _line_of(op: Any) -> Frame:
    return FrameTable([op])[0]
