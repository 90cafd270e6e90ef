"""The vector-Jacobian product of one equation: its backward rule, applied to recorded values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retrotape._types import Cotangent, Tensor
from retrotape.errors import NoRuleError, ReplicaError, UnrepairableError
from retrotape.execute import _run
from retrotape.execute._calls import call_vjp
from retrotape.execute._function_program import apply_function
from retrotape.execute._inline import inline
from retrotape.execute._op_view import LazyTensors, OpView
from retrotape.execute._past import PastVariables
from retrotape.execute._plan import Plan, plan_between
from retrotape.execute._refusals import (
    refuse_communication,
    refuse_draws,
    refuse_opaque,
    refuse_unrepairable,
    refuse_wrong_tangents,
)
from retrotape.execute._values import Values, releasing
from retrotape.execute._walk import add, walk
from retrotape.ir import COLLECTIVES, BackwardFunction, Eqn, FunctionProgram, replicas_of
from retrotape.record import (
    TRAINABLE,
    Trace,
    current_stack,
    for_rule,
    function_traits,
    is_repeatable,
)
from retrotape.rules import (
    ACCEPTS_NONE,
    FORWARD,
    RULES,
    NoGradient,
    Rule,
    gathered,
    lookup,
    lookup_operation,
    variable_vjp,
)
from retrotape.tf import core, functions, hooks, replicas, tangents
from retrotape.tf.after_replicas import after_replicas
from retrotape.tf.core import identity_of, tf, zeros

_STRING, _RESOURCE, _VARIANT = 7, 20, 21


class RuleVjp:
    """Applies backward rules to equations, with the values that were recorded.

    Args:
      trace: The trace with the values.
      operations: In a graph, the operations themselves, which hold more than a trace does.
      releases: Whether no other query is expected: values that can be recomputed are released as the walk goes.
    """

    def __init__(self, trace: Trace, operations: Sequence[Any] | None = None, releases: bool = False) -> None:
        self._trace, self._operations, self._kept = trace, operations, trace.values
        self._program, self._facts = trace.program, trace.facts
        self._values = releasing(trace) if releases else None  # if None, created when a value is missing
        self._plan: Plan | None = None
        self._passed: list[int] = []
        self._depth = 0  # nested walks, through inlined calls

    def __call__(self, index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        """Return the cotangents of the inputs of equation `index`, given those of its outputs."""
        if self._depth:
            return self._apply(index, grads, plan)
        self._follow(plan)
        self._depth += 1
        try:
            return self._apply(index, grads, plan)
        finally:
            self._depth -= 1
            self._passed.append(index)
            if self._values is not None:
                self._values.passed(index)

    def _follow(self, plan: Plan) -> None:
        if plan is not self._plan:
            self._plan, self._passed = plan, []
            if self._values is not None:
                self._values.follow(plan)

    def skip(self, indices: Iterable[int], plan: Plan, known: int) -> None:
        """Continue after equations that another way may have passed; `known` tensors were known before them."""
        self._follow(plan)
        if self._values is not None:
            self._values.forget(known)
        done = set(self._passed)
        for index in indices:
            if index not in done:
                self._passed.append(index)
                if self._values is not None:
                    self._values.passed(index)

    def _value(self, var: int) -> Tensor:
        """Return a value: kept, loaded or recomputed."""
        value = self._kept.get(var)
        return value if isinstance(value, tf.Tensor) else self._load(var)

    def _load(self, var: int) -> Tensor:
        if self._values is None:
            self._values = Values(self._trace)
            if self._plan is not None:
                self._values.follow(self._plan, self._passed)
        return self._values(var)

    def _apply(self, index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        eqn = plan.eqns[index]
        if all(grad is None for grad in grads):
            return [None] * len(eqn.inputs)
        if _run.observer is not None:
            _run.observer(eqn, True)
        if index in self._facts.foreign and self._depth == 1:
            raise ReplicaError.on_path(f"{eqn.op} of a merge_call or of another replica (at {self._where(eqn)})")
        if self._trace.guard is not None and self._operations is None:
            self._trace.guard.check_rule(eqn, grads, self._program.types, self._value)
        backward = self._facts.backward_functions.get(index)
        call = self._facts.calls.get(index)
        if call is not None:
            refuse_communication(self._trace, eqn, call, backward is None or plan.through_updates)
            sides = self._uses_side_outputs(eqn, call, grads)
            if call.function in tangents.made:
                refuse_wrong_tangents(self._trace, eqn, call, grads)
            if sides or self._must_inline(index, eqn, call, plan) or self._has_tangents(eqn, call, grads):
                if call.function in tangents.made:
                    asked = [position for position, grad in enumerate(grads) if grad is not None]
                    call = tangents.without_tangents(call, max(asked) + 1)
                return self._apply_inlined(eqn, call, grads, sides, plan.through_updates)
        if self._facts.opaque:
            refuse_opaque(self._trace, eqn, grads)
        if backward is not None:
            if self._operations is not None:
                refuse_unrepairable(self._trace, eqn, self._operations, index, plan)
            return self._apply_backward(index, eqn, backward, grads)
        if eqn.op == "ReadVariableOp" or (eqn.op == "StopGradient" and eqn.outputs[0] in plan.repaired):
            return grads
        if eqn.op in FORWARD:
            attrs = {name: for_rule(value) for name, value in eqn.attrs}
            return variable_vjp(eqn.op, attrs, LazyTensors(eqn.inputs, self._kept, self._load), grads)
        if eqn.op in ("ResourceGather", "ResourceGatherNd"):
            return [self._apply_gather(eqn, grads[0]), None]
        operation = None if self._operations is None else self._operations[index]
        rule = (RULES.get(eqn.op) or lookup(eqn.op)) if operation is None else lookup_operation(operation)
        if isinstance(rule, NoGradient):
            return [None] * len(eqn.inputs)
        if eqn.op in COLLECTIVES:
            raise ReplicaError.across_workers(eqn.op, replicas_of(eqn), self._where(eqn))
        if eqn.op.startswith("Collective"):
            raise ReplicaError.on_path(f"{eqn.op} (at {self._where(eqn)}), by which replicas communicate")
        if not isinstance(rule, Rule):
            raise NoRuleError(eqn.op, self._where(eqn))
        if operation is not None and eqn.op == "IdentityN" and replicas.is_elsewhere(rule.function):
            return grads
        if operation is not None:
            refuse_unrepairable(self._trace, eqn, self._operations, index, plan)
            if eqn.op.endswith("PartitionedCall") and core.accumulating():
                name, kinds = operation.get_attr("f").name, functions.operations_called(operation)
                refuse_draws(name, all(map(is_repeatable, kinds)))
                found = functions.differentiate_call(operation, grads[: len(operation.outputs)])
                return [*found, *[None] * (len(eqn.inputs) - len(found))]
            grads = grads[: len(operation.outputs)]  # drop the new values of variables
        reached = plan.reached
        skip = tuple([position for position, var in enumerate(eqn.inputs) if var not in reached]) or None
        if skip and eqn.op.endswith("While"):  # skips the outputs too: values that a loop kept for its derivative
            skip = tuple([position for position in skip if position >= len(grads) or grads[position] is None])
        if len(grads) > 1:
            self._fill_missing(eqn, grads, ACCEPTS_NONE.get(eqn.op, ()))
        if operation is None:
            return _flat(rule.function(OpView(eqn, self._kept, self._load, skip), *grads))
        identical = eqn.op == "IdentityN"
        with after_replicas(operation.graph, complete=False) if identical else nullcontext():
            return _flat(core.apply_rule(rule.function, operation, grads, skip))

    def _fill_missing(self, eqn: Eqn, grads: list[Cotangent | None], may_be_none: tuple[int, ...]) -> None:
        for position, grad in enumerate(grads):
            if grad is None and position not in may_be_none:
                grads[position] = self._zeros(eqn.outputs[position])

    def _zeros(self, var: int) -> Cotangent | None:
        dtype, shape = self._program.types[var]
        if dtype in (_STRING, _RESOURCE):
            return None
        if self._operations is not None:
            return tf.zeros_like(self._value(var)) if dtype in TRAINABLE else None
        if dtype != _VARIANT:
            return zeros(shape, dtype)
        value = self._value(var)
        if self._trace.guard is not None:
            self._trace.guard.check_zeros(value)
        return tf.zeros_like(value)

    def _apply_gather(self, eqn: Eqn, grad: Cotangent) -> Cotangent:
        version, indices = eqn.inputs
        shape = self._program.types[version].shape
        full = shape is not None and None not in shape
        params = tf.constant(shape, tf.int32) if full else tf.shape(self._value(version))
        if eqn.op == "ResourceGather":
            return gathered(self._value(indices), grad, params)
        at = self._value(indices)
        if at.shape.rank == 2 and at.shape[-1] == 1:
            return tf.IndexedSlices(grad, tf.squeeze(at, -1), params)
        return tf.scatter_nd(at, grad, tf.cast(params, at.dtype))

    def _apply_backward(
        self, index: int, eqn: Eqn, backward: BackwardFunction, grads: list[Cotangent | None]
    ) -> Sequence[Cotangent | None]:
        by_var = dict(zip(eqn.outputs, grads, strict=True))
        if any(grad is not None and var not in backward.outputs for var, grad in by_var.items()):
            raise NoRuleError(f"a side output of {eqn.op}", self._where(eqn))
        given = [self._zeros(var) if by_var[var] is None else by_var[var] for var in backward.outputs]
        call = self._facts.calls.get(index)
        if call is not None:
            sides = eqn.outputs[len(functions.output_types(call.function)) :]
            if function_traits(call.function).wrong_second and any(by_var[var] is not None for var in sides):
                # With random ops inside, it cannot be recomputed: only TensorFlow's backward function is left.
                raise UnrepairableError(eqn.op, self._where(eqn))
            past = PastVariables(self._trace, index, self._value)
            with hooks.variables_as(past):
                found = call_vjp(self._trace, eqn, call, backward, given, self._value, past)
        else:
            with replicas.in_its_replica(backward.function, lambda: self._where(eqn)):
                found = self._run_custom(index, backward, given)
            self._check_rows(eqn, backward, found)
        return [*found, *[None] * (len(eqn.inputs) - len(found))]

    def _must_inline(self, index: int, eqn: Eqn, call: hooks.FunctionCall, plan: Plan) -> bool:
        """Return whether TensorFlow's derivative of a call is not the one requested."""
        trace = self._trace
        if plan.through_updates and any(
            var in trace.facts.assigned and var not in trace.facts.discrete for var in eqn.outputs
        ):
            return True  # its outputs may depend on values that it assigned
        known, backward = function_traits(call.function), trace.facts.backward_functions.get(index)
        if backward is None and known.deterministic:
            return True  # TensorFlow has none
        if backward is not None and known.writes:
            written = {identity_of(handle) for handle in call.written()}
            if any(identity_of(tensor) in written for tensor in functions.captured_by(backward.function)):
                return True  # user code in it reads a variable that the call assigned
        # TensorFlow gets a second derivative of these wrong, or refuses it. A call that computes tangents is a
        # derivative already.
        refused, wide = known.wrong_second or known.recomputes, call.function in tangents.made
        return refused and known.deterministic and (wide or _is_differentiated_again())

    def _uses_side_outputs(self, eqn: Eqn, call: hooks.FunctionCall, grads: list[Cotangent | None]) -> bool:
        """Return whether a derivative to be differentiated again uses intermediates that a call kept for its own one.

        That is so if a stock tape inside the block differentiated the call. TensorFlow's gradient of the function, on
        which higher derivatives are built, does not have those values.
        """
        count, histories = len(functions.output_types(call.function)), self._facts.history_of
        sides = [grad for var, grad in zip(eqn.outputs[count:], grads[count:], strict=True) if var not in histories]
        there = any(grad is not None for grad in sides)
        return there and _is_differentiated_again() and function_traits(call.function).deterministic

    def _has_tangents(self, eqn: Eqn, call: hooks.FunctionCall, grads: list[Cotangent | None]) -> bool:
        """Return whether forward accumulators differentiate the gradient of a call.

        They have no tangents for the intermediates that the call kept for its own derivative.
        """
        if not core.accumulating():
            return False
        histories = [self._facts.history_of.get(var) for var in eqn.inputs]
        handles = [history.handle for history in histories if history is not None]
        flowing = [tf.convert_to_tensor(grad) for grad in grads if grad is not None]
        if tangents.tangents_of([*flowing, *handles, *map(self._value, eqn.inputs)]) is None:
            return False
        refuse_draws(eqn.op, function_traits(call.function).deterministic)
        return True

    def _apply_inlined(
        self, eqn: Eqn, call: hooks.FunctionCall, grads: list[Cotangent | None], sides: bool, through_updates: bool
    ) -> list[Cotangent | None]:
        trace = self._trace
        body = inline(trace, eqn, call, self._value, sides)
        by_var = dict(zip(eqn.outputs, grads, strict=True))
        seeds: dict[int, list[Cotangent]] = {}
        for made, var in body.pairs(trace.facts, eqn.outputs):
            if by_var[made] is not None:
                seeds.setdefault(var, []).append(by_var[made])
        # An assignment inside ends paths as one outside does: reads after it count towards the variable.
        assigned = body.assigned(trace.facts) if not through_updates else []
        stops = (*eqn.inputs, *(var for versions in assigned for var in versions))
        arrived = dict(walk(plan_between(trace, seeds, stops), seeds, self))
        found = []
        for position, var in enumerate(eqn.inputs):
            versions = assigned[position] if position < len(assigned) else ()
            terms = [arrived.pop(one) for one in (*reversed(versions), var) if one in arrived]
            found.append(add(terms) if terms else None)
        return found

    def _run_custom(
        self, index: int, backward: BackwardFunction, grads: list[Cotangent | None]
    ) -> list[Cotangent | None]:
        """Run the user's backward function as of the time of the call: variables have the values that they had then."""
        with self._as_of(index):
            function = backward.function
            if isinstance(function, FunctionProgram):
                captured = [self._value(var) for var in backward.captures]
                found = apply_function(function, captured, grads, self._trace.guard)
            else:
                found = function(*grads)
        return _gradients_of(found)

    def _check_rows(self, eqn: Eqn, backward: BackwardFunction, found: Sequence[Cotangent | None]) -> None:
        """Raise if a backward function from a file returns slices whose dense shape is wrong: they may be densified."""
        guard, types = self._trace.guard, self._program.types
        for var, grad in zip(backward.inputs, found, strict=False):
            if guard is not None and isinstance(grad, tf.IndexedSlices):
                guard.check_gradient(eqn.op, types[var], grad)

    def _as_of(self, index: int) -> AbstractContextManager[None]:
        """Give reads of variables the values that these had when an equation ran."""
        trace = self._trace
        return hooks.variables_as(PastVariables(trace, index, self._value)) if trace.facts.histories else nullcontext()

    def _where(self, eqn: Eqn) -> str:
        return str(self._program.frame_of(eqn))


def _gradients_of(found: Any) -> list[Cotangent | None]:
    """Return the result of a backward function as tensors: Python numbers and arrays are valid gradients too."""
    grads = list(found) if isinstance(found, (list, tuple)) else [found]
    return [
        grad if grad is None or isinstance(grad, (tf.Tensor, tf.IndexedSlices)) else tf.convert_to_tensor(grad)
        for grad in grads
    ]


def _is_differentiated_again() -> bool:
    """Return whether an open tape or forward accumulator will differentiate what is computed now."""
    return current_stack().recording() or core.accumulating()


def _flat(result: Any) -> Sequence[Cotangent | None]:
    if not isinstance(result, (list, tuple)):
        return [result]
    if any(isinstance(item, (list, tuple)) for item in result):  # the rules of ConcatV2 and Pack return nested lists
        return tf.nest.flatten(result)
    return result
