"""The gradient itself, with a record of what each op received and passed on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from retrotape.errors import NoRuleError, RetrotapeError
from retrotape.execute import Plan, RuleVjp, add, walk
from retrotape.ir import CUSTOM, Eqn
from retrotape.record import Trace
from retrotape.tf.core import tf

# Up to this many equations the gradient is computed; beyond that, one equation of each kind is probed.
LIMIT = 3_000


class Walked:
    """The result of a reverse walk.

    Attributes:
      arrived: The gradient with respect to each source that it reached.
      seen: For each equation, what it received and what it passed on.
      dead: Edges, equation and input, along which a rule returned None.
      refused: Equations for which TensorFlow has no rule.
      problem: Why the gradient was not computed; "" where it was.
    """

    def __init__(self, trace: Trace, plan: Plan, seeds: dict[int, list[Any]]) -> None:
        self.arrived: dict[int, Any] = {}
        self.seen: dict[int, tuple[list[Any], Sequence[Any]]] = {}
        self.dead: set[tuple[int, int]] = set()
        self.refused: set[int] = set()
        self.problem = ""
        self._plan, self._pull = plan, RuleVjp(trace)
        if len(plan.indices) > LIMIT:
            self.problem = f"the backward pass would run {len(plan.indices):,} ops".replace(",", " ")
            self._probe_one_of_each(trace)
            return
        try:
            self.arrived = dict(walk(plan, seeds, self._record))
        except RetrotapeError as error:
            self.problem = str(error)

    def passed(self, index: int, var: int) -> Any:
        """Return what an equation passed on to a var, summed over all inputs that are this var; None if nothing."""
        terms = [
            grad
            for other, grad in zip(self._plan.eqns[index].inputs, self.seen[index][1], strict=True)
            if other == var and grad is not None
        ]
        return add(terms) if terms else None

    def idle(self) -> set[tuple[int, int]]:
        """Return the edges, equation and input, along which nothing but zeros or None is passed on."""
        found = set(self.dead)
        for index in self.seen:
            for var in self._plan.reached.intersection(self._plan.eqns[index].inputs):
                passed = self.passed(index, var)
                if passed is None or is_zero(passed):
                    found.add((index, var))
        return found

    def _record(self, index: int, grads: list[Any], plan: Plan) -> Sequence[Any]:
        given, eqn = list(grads), plan.eqns[index]
        try:
            found = self._pull(index, grads, plan)
        except NoRuleError:
            self.refused.add(index)
            found = [None] * len(eqn.inputs)
        if all(grad is None for grad in given):  # nothing arrived here, so nothing can be passed on
            return found
        self.seen[index] = (given, found)
        self._mark_dead(index, eqn, found)
        return found

    def _mark_dead(self, index: int, eqn: Eqn, found: Sequence[Any]) -> None:
        passed = {var for var, grad in zip(eqn.inputs, found, strict=True) if grad is not None}
        self.dead.update((index, var) for var in eqn.inputs if var in self._plan.reached and var not in passed)

    def _probe_one_of_each(self, trace: Trace) -> None:
        """Find out which rules return None by running one equation of each kind; the values do not matter."""
        results: dict[Any, list[int]] = {}
        for index in self._plan.indices:
            eqn = self._plan.eqns[index]
            kind = (
                eqn.op,
                eqn.attrs if eqn.op == CUSTOM else (),
                tuple([var in self._plan.reached for var in eqn.inputs]),
            )
            if kind not in results:
                results[kind] = self._inputs_without_gradient(index, eqn, trace)
            self.dead.update((index, eqn.inputs[position]) for position in results[kind])

    def _inputs_without_gradient(self, index: int, eqn: Eqn, trace: Trace) -> list[int]:
        """Return the inputs for which the rule of an equation returns None."""
        types = trace.program.types
        try:
            given = [
                tf.zeros(types[var].shape, types[var].dtype) if var in self._plan.reached else None
                for var in eqn.outputs
            ]
            self._record(index, given, self._plan)
        except (RetrotapeError, TypeError, ValueError, tf.errors.OpError):
            return []  # it cannot be probed in this way
        return [position for position, var in enumerate(eqn.inputs) if (index, var) in self.dead]


def is_zero(grad: Any) -> bool:
    """Return whether a gradient is zero everywhere; False for a list of tensors, which cannot be read."""
    return grad.dtype != tf.variant and not bool(tf.reduce_any(_values(grad) != 0))


def norm(grads: Sequence[Any]) -> float:
    """Return the norm of some gradients together; NaN if one is a list of tensors, as in loops."""
    total = 0.0
    for grad in grads:
        if grad is not None and grad.dtype == tf.variant:
            return math.nan
        if grad is not None:
            total += float(tf.reduce_sum(tf.square(tf.cast(tf.abs(_values(grad)), tf.float64))))
    return total**0.5


def _values(grad: Any) -> Any:
    """Return the elements of a gradient; rows with the same index are added first."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    rows, places = tf.unique(grad.indices)
    return tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
