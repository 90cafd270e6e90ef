"""Run a function op by op, so that each of its ops is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

from retrotape._types import Tensor
from retrotape.errors import OpaqueUpdateError, ReplicaError
from retrotape.record._frames import is_moments
from retrotape.tf import core, functions, replicas
from retrotape.tf.core import tf
from retrotape.tf.stock import stop_stock_tapes


class Runner(Protocol):
    """The part of a thread's stack that records what runs."""

    place: Any

    def add_choice(self, tensor: Tensor) -> None:
        """Record that a value decided what runs next."""

    def add_moments(self, tensor: Tensor) -> None:
        """Record that `tf.nn.moments` stopped the gradient of a tensor."""

    def emit(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Record `backward` as the backward function from `outputs` to `inputs`."""


class _Step(NamedTuple):
    op: str
    spec: Any  # its NodeDef
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[Any, ...]


class _Body(NamedTuple):
    arguments: tuple[str, ...]
    steps: tuple[_Step, ...]
    results: tuple[str, ...]
    listed: tuple[str, ...]  # node names, in the order of the definition


def run_op_by_op(
    stack: Runner, name: str, given: Sequence[Tensor], graph: Any, *, effects: bool = False
) -> list[Tensor]:
    """Run a function op by op, so that every op is recorded, and return its results.

    Args:
      stack: Records what runs.
      name: The name of the function.
      given: Its inputs.
      graph: The graph it was traced into; None if that is gone.
      effects: Whether to run its prints and assertions: not if it is rerun.
    """
    body = _body(name)
    operations = _operations_of(body, graph)
    env = dict(zip(body.arguments, given, strict=True))
    call_site = stack.place
    for number, step in enumerate(body.steps):
        inputs = [env[ref] for ref in step.inputs]
        stack.place = operations.get(step.spec.name, call_site)  # the line inside the function, if known
        custom = "_gradient_op_type" in step.spec.attr and step.op not in _CALLS
        # The ops of a `tf.recompute_grad` are recorded instead: the effect is the same, and random ops are not
        # rerun. Likewise for a reduction over replicas.
        custom = custom and not (functions.is_recomputed(step.spec) or replicas.is_reduced(step.spec))
        with stop_stock_tapes() if custom else nullcontext():  # they get the custom gradient instead
            outputs = _run_step(stack, step, inputs, graph, effects)
        if step.op == "StopGradient" and _is_of_moments(step, body, operations.get(step.spec.name)):
            stack.add_moments(outputs[0])
            if core.accumulating():
                core.pass_tangents(inputs[0], outputs[0])
        if custom:
            _emit_custom(stack, step, inputs, outputs, _Position(body, number, graph, env))
        env.update(zip(step.outputs, outputs, strict=False))
    stack.place = call_site
    return [env[ref] for ref in body.results]


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def _run_step(stack: Runner, step: _Step, inputs: list[Tensor], graph: Any, effects: bool) -> list[Tensor]:
    attr = step.spec.attr

    def run(name: str, given: list[Tensor]) -> list[Tensor]:
        return run_op_by_op(stack, name, given, functions.inner_graph(graph, name), effects=effects)

    match step.op:
        case "Const":
            return [tf.constant(tf.make_ndarray(attr["value"].tensor))]
        case "NoOp":
            return []
        case "Assert" | "PrintV2" if not effects:
            return []
        case "PartitionedCall" | "StatefulPartitionedCall":
            return run(attr["f"].func.name, inputs)
        case "If" | "StatelessIf":
            chosen = "then_branch" if _truth(stack, inputs[0]) else "else_branch"
            return run(attr[chosen].func.name, inputs[1:])
        case "Case" | "StatelessCase":
            branches = attr["branches"].list.func
            stack.add_choice(inputs[0])
            number = int(inputs[0])
            return run(branches[number if 0 <= number < len(branches) else -1].name, inputs[1:])
        case "While" | "StatelessWhile":
            while _truth(stack, run(attr["cond"].func.name, inputs)[0]):
                inputs = run(attr["body"].func.name, inputs)
            return inputs
    if step.op.startswith("Collective"):  # it would wait for other replicas, which do not run this query
        raise ReplicaError.on_path(f"{step.op} in a tf.function, which communicates between replicas")
    if core.op_def(step.op) is None:
        return run(step.op, inputs)
    return core.run(step.op, inputs, step.attrs, len(step.outputs))


def _is_of_moments(step: _Step, body: _Body, operation: Any) -> bool:
    """Return whether a step is the `stop_gradient` of `tf.nn.moments`: by its traceback or, without one, by its use."""
    if operation is not None:
        return any(is_moments(line.filename, line.name) for line in operation.traceback)
    users = {other.op for other in body.steps if step.outputs[0] in other.inputs}
    return "moments" in step.spec.name.split("/") and users == {"SquaredDifference"}


class _Position(NamedTuple):
    """The position of a custom gradient in a body, and the values computed so far."""

    body: _Body
    number: int
    graph: Any
    env: dict[str, Tensor]


def _emit_custom(stack: Runner, step: _Step, inputs: list[Tensor], outputs: list[Tensor], position: _Position) -> None:
    """Record the custom gradient registered for a step as its backward function.

    That gradient is code that reads tensors of the traced graph. It is traced in turn, and run on the values that
    these tensors have here.
    """
    graph, env = position.graph, position.env
    if graph is None:
        raise OpaqueUpdateError(f"{step.op} with a custom gradient inside a nested function", "a value", step.spec.name)
    operations = _operations_of(position.body, graph)
    if not operations:
        raise OpaqueUpdateError("a custom gradient in a function whose graph has changed", "a value", graph.name)

    def backward(*given: Any) -> list[Any]:
        grads = [tf.convert_to_tensor(grad) for grad in given]  # densifies tf.IndexedSlices
        traced = functions.trace_rule(graph, operations[step.spec.name], grads)
        inside = [_inside(graph, tensor, step) for tensor in traced.captures]
        captured = [env[_reference(position.body, operations, tensor)] for tensor in inside]
        found = iter(traced.run([*grads, *captured]))
        return [next(found) if connected else None for connected in traced.connected]

    stack.emit(f"gradient of {step.spec.name}", outputs, inputs, backward)
    core.record_on_stock_tapes("CustomGradient", outputs, inputs, backward)


def _operations_of(body: _Body, graph: Any) -> dict[str, Any]:
    """Return the graph operation of each step, matched by order: TensorFlow renames some nodes in a definition.

    Empty if the graph is gone or does not match the definition.
    """
    if graph is None:
        return {}
    inputs = {tensor.op for tensor in graph.inputs}
    traced = [operation for operation in graph.get_operations() if operation not in inputs][: len(body.listed)]
    kinds = {step.spec.name: step.op for step in body.steps}
    if [kinds[name] for name in body.listed] != [operation.type for operation in traced]:
        return {}
    return dict(zip(body.listed, traced, strict=True))


def _inside(graph: Any, tensor: Tensor, step: _Step) -> Tensor:
    """Return the tensor of `graph` that stands for one of an outer function."""
    if tensor.graph is graph:
        return tensor
    for outer, inner in graph.captures:
        if outer is tensor:
            return inner
    raise OpaqueUpdateError("a custom gradient that reads a tensor from outside its function", "a value", step.op)


def _reference(body: _Body, operations: dict[str, Any], tensor: Tensor) -> str:
    """Return the reference by which a body names a tensor of its graph."""
    for argument, placeholder in zip(body.arguments, tensor.graph.inputs, strict=False):
        if placeholder is tensor:
            return argument
    name = next(name for name, operation in operations.items() if operation is tensor.op)
    step = next(step for step in body.steps if step.spec.name == name)
    return step.outputs[tensor.value_index]


def _truth(stack: Runner, value: Tensor) -> bool:
    stack.add_choice(value)
    return bool(value) if value.shape.rank == 0 else bool(tf.size(value) > 0)


def _body(name: str) -> _Body:
    definition = functions.function_def(name)
    arguments = tuple(argument.name for argument in definition.signature.input_arg)
    steps = tuple(_step(spec) for spec in _in_order(definition))
    results = tuple(definition.ret[result.name] for result in definition.signature.output_arg)
    return _Body(arguments, steps, results, tuple(spec.name for spec in definition.node_def))


def _in_order(definition: Any) -> list[Any]:
    """Sort the nodes topologically, including control dependencies."""
    pending = {spec.name: spec for spec in definition.node_def}
    ordered = []
    for first in list(pending):
        path = [first]
        while path:
            spec = pending.get(path[-1])
            if spec is None:
                path.pop()
                continue
            waiting = (ref.lstrip("^").split(":")[0] for ref in spec.input)
            next_one = next((name for name in waiting if name in pending and name != spec.name), None)
            if next_one is None:
                ordered.append(pending.pop(path.pop()))
            else:
                path.append(next_one)
    return ordered


def _step(spec: Any) -> _Step:
    inputs = tuple(ref for ref in spec.input if not ref.startswith("^"))
    definition = core.op_def(spec.op)
    if definition is None:
        results = functions.function_def(spec.op).signature.output_arg
        return _Step(spec.op, spec, inputs, tuple(f"{spec.name}:{result.name}:0" for result in results), ())
    outputs = tuple(
        f"{spec.name}:{arg.name}:{position}"
        for arg in definition.output_arg
        for position in range(functions.output_count(arg, spec.attr))
    )
    attrs = tuple(
        part
        for attr in definition.attr
        if attr.name in spec.attr
        for part in (attr.name, functions.attr_value(spec.attr[attr.name]))
    )
    return _Step(spec.op, spec, inputs, outputs, attrs)
