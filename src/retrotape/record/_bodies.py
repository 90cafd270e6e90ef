"""The definition of a function as data: its steps, in an order in which they can run."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from retrotape._types import Tensor
from retrotape.tf import core, functions


class Step(NamedTuple):
    """One node of a function."""

    op: str
    spec: Any  # its NodeDef
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    after: tuple[str, ...]  # names of the nodes that have to run before it
    attrs: tuple[Any, ...]


class Body(NamedTuple):
    """A function."""

    arguments: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    listed: tuple[str, ...]  # node names, in the order of the definition


_known: WeakKeyDictionary[Any, dict[str, Body]] = WeakKeyDictionary()  # by graph, and by name


def body_of(name: str, graph: Any = None) -> Body:
    """Return the body of a function that is registered with the runtime, remembered as long as its graph exists."""
    if graph is None:
        return _parsed(name)
    bodies = _known.setdefault(graph, {})
    if name not in bodies:
        bodies[name] = _parsed(name)
    return bodies[name]


def _parsed(name: str) -> Body:
    definition = functions.function_def(name)
    arguments = tuple(argument.name for argument in definition.signature.input_arg)
    steps = tuple(_step(spec) for spec in _in_order(definition))
    results = tuple(definition.ret[result.name] for result in definition.signature.output_arg)
    return Body(arguments, steps, results, tuple(spec.name for spec in definition.node_def))


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


def _step(spec: Any) -> Step:
    inputs = tuple(ref for ref in spec.input if not ref.startswith("^"))
    after = tuple(ref.lstrip("^").split(":")[0] for ref in spec.input)
    definition = core.op_def(spec.op)
    if definition is None:
        results = functions.function_def(spec.op).signature.output_arg
        return Step(spec.op, spec, inputs, tuple(f"{spec.name}:{result.name}:0" for result in results), after, ())
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
    return Step(spec.op, spec, inputs, outputs, after, attrs)


def operations_of(body: Body, graph: Any) -> dict[str, Any]:
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


def reference_to(body: Body, operations: dict[str, Any], tensor: Tensor) -> str:
    """Return the reference by which a body names a tensor of its graph."""
    for argument, placeholder in zip(body.arguments, tensor.graph.inputs, strict=False):
        if placeholder is tensor:
            return argument
    name = next(name for name, operation in operations.items() if operation is tensor.op)
    step = next(step for step in body.steps if step.spec.name == name)
    return step.outputs[tensor.value_index]
