"""Custom gradients inside a function that is run op by op."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from retrotape._types import Tensor
from retrotape.errors import OpaqueUpdateError
from retrotape.record._bodies import Body, Step, reference_to
from retrotape.record._runner import Runner
from retrotape.tf import core, functions
from retrotape.tf.core import tf


class Scene(NamedTuple):
    """A function that is running, and the values computed so far."""

    body: Body
    graph: Any
    operations: dict[str, Any]  # of the graph, by step; empty if they are not known
    env: dict[str, Tensor]


def emit_custom(
    stack: Runner, step: Step, inputs: list[Tensor], outputs: list[Tensor], scene: Scene, later: bool
) -> None:
    """Record the custom gradient registered for a step as its backward function.

    That gradient is code that reads tensors of the traced graph. It is traced in turn, and run on the values that
    these tensors have here. If that cannot be done, this raises; with `later`, the backward function does.
    """
    graph, operations, env = scene.graph, scene.operations, scene.env
    if graph is None:
        problem = OpaqueUpdateError(f"{step.op} with a custom gradient inside a nested function", "a value", step.op)
    elif not operations:
        what = "a custom gradient in a function whose graph has changed"
        problem = OpaqueUpdateError(what, "a value", graph.name)
    else:
        problem = None
    if problem is not None and not later:
        raise problem

    def refuse(*_: Any) -> NoReturn:
        assert problem is not None
        raise problem

    def backward(*given: Any) -> list[Any]:
        grads = [tf.convert_to_tensor(grad) for grad in given]  # densifies tf.IndexedSlices
        traced = functions.trace_rule(graph, operations[step.spec.name], grads)
        inside = [_inside(graph, tensor, step) for tensor in traced.captures]
        captured = [env[reference_to(scene.body, operations, tensor)] for tensor in inside]
        found = iter(traced.run([*grads, *captured]))
        return [next(found) if connected else None for connected in traced.connected]

    function = backward if problem is None else refuse
    stack.emit(f"gradient of {step.spec.name}", outputs, inputs, function)
    core.record_on_stock_tapes("CustomGradient", outputs, inputs, function)


def _inside(graph: Any, tensor: Tensor, step: Step) -> Tensor:
    """Return the tensor of `graph` that stands for one of an outer function."""
    if tensor.graph is graph:
        return tensor
    for outer, inner in graph.captures:
        if outer is tensor:
            return inner
    raise OpaqueUpdateError("a custom gradient that reads a tensor from outside its function", "a value", step.op)
