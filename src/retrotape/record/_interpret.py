"""Run a function op by op, so that each of its ops is recorded."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from retrotape._types import Place, Tensor
from retrotape.errors import ReplicaError
from retrotape.record._bodies import Body, Step, body_of, operations_of
from retrotape.record._collectives import Member, is_collective, meet
from retrotape.record._custom_steps import Scene, emit_custom
from retrotape.record._frames import is_moments
from retrotape.record._runner import Runner
from retrotape.tf import core, functions, replicas
from retrotape.tf.core import tf
from retrotape.tf.stock import stop_stock_tapes

Running = Generator[list[Member], None, list[Tensor]]  # yields the collectives that it waits for

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NESTED = frozenset((*_CALLS, "If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"))


def run_op_by_op(
    stack: Runner, name: str, given: Sequence[Tensor], graph: Any, *, effects: bool = False
) -> list[Tensor]:
    """Run a function op by op, so that every op is recorded, and return its results.

    Args:
      stack: Records what runs.
      name: The name of the function.
      given: Its inputs.
      graph: The graph it was traced into; None if that is gone.
      effects: Whether it runs for the first time, with its prints, assertions and collectives, each op on its device.
    """
    running = _Function(stack, name, given, graph, effects).run()
    while True:
        try:
            waiting = next(running)
        except StopIteration as done:
            return done.value
        meet(stack, waiting)


class _Suspended(NamedTuple):
    """A step that waits for collectives."""

    step: Step
    inputs: list[Tensor]
    running: Running
    waiting: list[Member]


class _Function:
    """A function that runs op by op. While a step waits for a collective, those that do not need its results run."""

    def __init__(self, stack: Runner, name: str, given: Sequence[Tensor], graph: Any, effects: bool) -> None:
        self._stack, self._graph, self._effects = stack, graph, effects
        self._body = body_of(name, graph)
        self._operations = operations_of(self._body, graph)
        self._env = dict(zip(self._body.arguments, given, strict=True))
        self._call_site = stack.place
        self._suspended: dict[str, _Suspended] = {}

    def run(self) -> Running:
        """Run all steps and return the results."""
        later: Sequence[Step] = self._body.steps
        while True:
            later = self._run_ready(later)
            if not self._suspended:
                break
            yield [member for one in self._suspended.values() for member in one.waiting]
            for one in list(self._suspended.values()):
                if any(member.outputs is not None for member in one.waiting):
                    self._continue(one)
        self._stack.place = self._call_site
        return [self._env[ref] for ref in self._body.results]

    def _run_ready(self, steps: Sequence[Step]) -> list[Step]:
        """Run the steps, in order, that do not depend on one that waits; return the others."""
        blocked = set(self._suspended)
        later = []
        for step in steps:
            if blocked and not blocked.isdisjoint(step.after):
                blocked.add(step.spec.name)
                later.append(step)
                continue
            self._start(step)
            if step.spec.name in self._suspended:
                blocked.add(step.spec.name)
        return later

    def _start(self, step: Step) -> None:
        inputs = [self._env[ref] for ref in step.inputs]
        self._stack.place = self._place_of(step)
        if step.op in _NESTED or is_collective(step.op) or core.op_def(step.op) is None:
            self._continue(_Suspended(step, inputs, self._run_nested(step, inputs), []))
            return
        custom = self._is_custom(step)
        with stop_stock_tapes() if custom else nullcontext():  # they get the custom gradient instead
            outputs = self._run_plain(step, inputs)
        if step.op == "StopGradient" and _is_of_moments(step, self._body, self._operations.get(step.spec.name)):
            self._stack.add_moments(outputs[0])
            if core.accumulating():
                core.pass_tangents(inputs[0], outputs[0])
        self._finish(step, inputs, outputs, custom)

    def _place_of(self, step: Step) -> Place:
        """Return the line inside the function, if it is known; otherwise that of the call."""
        return self._operations.get(step.spec.name, self._call_site)

    def _is_custom(self, step: Step) -> bool:
        # The ops of a `tf.recompute_grad` are recorded instead: the effect is the same, and random ops are not
        # rerun. Likewise for a reduction over replicas.
        return (
            "_gradient_op_type" in step.spec.attr
            and step.op not in _CALLS
            and not (functions.is_recomputed(step.spec) or replicas.is_reduced(step.spec))
        )

    def _continue(self, one: _Suspended) -> None:
        """Run a step until it ends or waits again."""
        name = one.step.spec.name
        self._suspended.pop(name, None)
        try:
            waiting = next(one.running)
        except StopIteration as done:
            self._finish(one.step, one.inputs, done.value, self._is_custom(one.step))
        else:
            self._suspended[name] = one._replace(waiting=waiting)

    def _finish(self, step: Step, inputs: list[Tensor], outputs: list[Tensor], custom: bool) -> None:
        if custom:
            scene = Scene(self._body, self._graph, self._operations, self._env)
            emit_custom(self._stack, step, inputs, outputs, scene, later=self._effects)
        self._env.update(zip(step.outputs, outputs, strict=False))

    def _run_plain(self, step: Step, inputs: list[Tensor]) -> list[Tensor]:
        match step.op:
            case "Const":
                with self._device_of(step):
                    return [tf.constant(tf.make_ndarray(step.spec.attr["value"].tensor))]
            case "NoOp":
                return []
            case "Assert" | "PrintV2" if not self._effects:
                return []
        with self._device_of(step):
            return core.run(step.op, inputs, step.attrs, len(step.outputs))

    def _device_of(self, step: Step) -> AbstractContextManager[Any]:
        return replicas.on_device(step.spec.device) if self._effects else nullcontext()

    def _run_nested(self, step: Step, inputs: list[Tensor]) -> Running:
        """Run a step that calls functions, or that is one, or that waits for other replicas."""
        attr = step.spec.attr
        match step.op:
            case "PartitionedCall" | "StatefulPartitionedCall":
                return (yield from self._call(step, attr["f"].func.name, inputs))
            case "If" | "StatelessIf":
                chosen = "then_branch" if self._truth(inputs[0]) else "else_branch"
                return (yield from self._call(step, attr[chosen].func.name, inputs[1:]))
            case "Case" | "StatelessCase":
                branches = attr["branches"].list.func
                self._stack.add_choice(inputs[0])
                number = int(inputs[0])
                name = branches[number if 0 <= number < len(branches) else -1].name
                return (yield from self._call(step, name, inputs[1:]))
            case "While" | "StatelessWhile":
                while self._truth((yield from self._call(step, attr["cond"].func.name, inputs))[0]):
                    inputs = yield from self._call(step, attr["body"].func.name, inputs)
                return inputs
        if is_collective(step.op):
            return (yield from self._wait(step, inputs))
        return (yield from self._call(step, step.op, inputs))

    def _call(self, step: Step, name: str, given: list[Tensor]) -> Running:
        self._stack.place = self._place_of(step)
        graph = functions.inner_graph(self._graph, name)
        return _Function(self._stack, name, given, graph, self._effects).run()

    def _wait(self, step: Step, inputs: list[Tensor]) -> Running:
        if not self._effects:  # the other replicas do not run this query
            raise ReplicaError.on_path(f"{step.op} in a tf.function, which communicates between replicas")
        member = Member(step, inputs, self._place_of(step))
        while member.outputs is None:
            yield [member]
        return member.outputs

    def _truth(self, value: Tensor) -> bool:
        self._stack.add_choice(value)
        return bool(value) if value.shape.rank == 0 else bool(tf.size(value) > 0)


def _is_of_moments(step: Step, body: Body, operation: Any) -> bool:
    """Return whether a step is the `stop_gradient` of `tf.nn.moments`: by its traceback or, without one, by its use."""
    if operation is not None:
        return any(is_moments(line.filename, line.name) for line in operation.traceback)
    users = {other.op for other in body.steps if step.outputs[0] in other.inputs}
    return "moments" in step.spec.name.split("/") and users == {"SquaredDifference"}
