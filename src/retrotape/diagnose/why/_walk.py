"""The gradient itself, computed with a note of what each op was given and passed on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from retrotape.errors import NoRuleError, RetrotapeError
from retrotape.execute import Plan, RuleVjp, add, walk
from retrotape.ir import CUSTOM, Eqn
from retrotape.record import Trace
from retrotape.tf.core import tf

# Up to so many equations the gradient is computed; beyond, one equation of each kind is asked.
LIMIT = 3_000


class Walked:
    """What came of a walk.

    Attributes:
      arrived: The gradient by each source that it reached.
      seen: By equation, what it was given and what it passed on.
      dead: Edges, equation and input, along which a rule gave None.
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
            self._ask_one_of_each(trace)
            return
        try:
            self.arrived = dict(walk(plan, seeds, self._noted))
        except RetrotapeError as error:
            self.problem = str(error)

    def passed(self, index: int, var: int) -> Any:
        """Return what an equation passed on to one of its inputs, all its places together; None if nothing."""
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

    def _noted(self, index: int, grads: list[Any], plan: Plan) -> Sequence[Any]:
        given, eqn = list(grads), plan.eqns[index]
        try:
            found = self._pull(index, grads, plan)
        except NoRuleError:
            self.refused.add(index)
            found = [None] * len(eqn.inputs)
        if all(grad is None for grad in given):  # nothing arrived here: that nothing goes on is no wonder
            return found
        self.seen[index] = (given, found)
        self._bury(index, eqn, found)
        return found

    def _bury(self, index: int, eqn: Eqn, found: Sequence[Any]) -> None:
        passed = {var for var, grad in zip(eqn.inputs, found, strict=True) if grad is not None}
        self.dead.update((index, var) for var in eqn.inputs if var in self._plan.reached and var not in passed)

    def _ask_one_of_each(self, trace: Trace) -> None:
        """Find out which rules give None by asking one equation of each kind; for what values, does not matter."""
        answers: dict[Any, list[int]] = {}
        for index in self._plan.indices:
            eqn = self._plan.eqns[index]
            kind = (
                eqn.op,
                eqn.attrs if eqn.op == CUSTOM else (),
                tuple([var in self._plan.reached for var in eqn.inputs]),
            )
            if kind not in answers:
                answers[kind] = self._silent(index, eqn, trace)
            self.dead.update((index, eqn.inputs[position]) for position in answers[kind])

    def _silent(self, index: int, eqn: Eqn, trace: Trace) -> list[int]:
        """Return the inputs for which the rule of an equation gives None."""
        types = trace.program.types
        try:
            given = [
                tf.zeros(types[var].shape, types[var].dtype) if var in self._plan.reached else None
                for var in eqn.outputs
            ]
            self._noted(index, given, self._plan)
        except (RetrotapeError, TypeError, ValueError, tf.errors.OpError):
            return []  # it cannot be asked in this way
        return [position for position, var in enumerate(eqn.inputs) if (index, var) in self.dead]


def is_zero(grad: Any) -> bool:
    """Say whether a gradient is zero everywhere; of a list of tensors, that nobody can look into, that it is not."""
    return grad.dtype != tf.variant and not bool(tf.reduce_any(_values(grad) != 0))


def norm(grads: Sequence[Any]) -> float:
    """Return the norm of some gradients together; NaN where a list of tensors, as loops have them, is one of them."""
    total = 0.0
    for grad in grads:
        if grad is not None and grad.dtype == tf.variant:
            return math.nan
        if grad is not None:
            total += float(tf.reduce_sum(tf.square(tf.cast(tf.abs(_values(grad)), tf.float64))))
    return total**0.5


def _values(grad: Any) -> Any:
    """Return the elements of a gradient; rows that are named several times are added first."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    rows, places = tf.unique(grad.indices)
    return tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
