"""The gradient itself, with a record of what each op received and passed on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrotape.errors import NoRuleError, RetrotapeError
from retrotape.execute import Plan, RuleVjp, add, walk
from retrotape.ir import Eqn
from retrotape.record import Trace
from retrotape.tf.core import tf


class Size(NamedTuple):
    """How large a gradient is: enough to explain it, without holding it in memory."""

    square: float  # of its norm; NaN if it is a list of tensors, as in loops
    zero: bool  # everywhere


class Seen(NamedTuple):
    """What the backward pass of an equation received and passed on; None where there was no gradient.

    Attributes:
      given: For each output.
      found: For each input.
      passed: For each var that the source leads to, summed over all inputs that are this var.
    """

    given: tuple[Size | None, ...]
    found: tuple[Size | None, ...]
    passed: dict[int, Size | None]


class Walked:
    """The result of a reverse walk.

    Attributes:
      arrived: The gradient with respect to each source that it reached.
      seen: For each equation, what it received and what it passed on.
      dead: Edges, equation and input, along which a rule returned None.
      refused: Equations for which TensorFlow has no rule.
      vanishing: The last equation that turned a gradient into zeros, and what the first of its outputs received.
      problem: Why the gradient was not computed; "" where it was.
    """

    def __init__(self, trace: Trace, plan: Plan, seeds: dict[int, list[Any]]) -> None:
        self.arrived: dict[int, Any] = {}
        self.seen: dict[int, Seen] = {}
        self.dead: set[tuple[int, int]] = set()
        self.refused: set[int] = set()
        self.vanishing: tuple[int, Any] = -1, None
        self.problem = ""
        self._plan, self._pull = plan, RuleVjp(trace)
        try:
            self.arrived = dict(walk(plan, seeds, self._record))
        except RetrotapeError as error:
            self.problem = str(error)

    def idle(self) -> set[tuple[int, int]]:
        """Return the edges, equation and input, along which nothing but zeros or None is passed on."""
        zeros = {
            (index, var)
            for index, seen in self.seen.items()
            for var, size in seen.passed.items()
            if size is None or size.zero
        }
        return self.dead | zeros

    def vanishes_at(self, index: int) -> bool:
        """Return whether an equation turned a gradient into zeros."""
        seen, reached = self.seen[index], self._plan.reached
        inputs = self._plan.eqns[index].inputs
        on = [size for var, size in zip(inputs, seen.found, strict=True) if var in reached and size is not None]
        return any(map(is_some, seen.given)) and bool(on) and not any(map(is_some, on))

    def _record(self, index: int, grads: list[Any], plan: Plan) -> Sequence[Any]:
        given, eqn = list(grads), plan.eqns[index]
        try:
            found = self._pull(index, grads, plan)
        except NoRuleError:
            self.refused.add(index)
            found = [None] * len(eqn.inputs)
        if all(grad is None for grad in given):  # nothing arrived here, so nothing can be passed on
            return found
        sizes = [measure(grad) if var in plan.reached else None for var, grad in zip(eqn.inputs, found, strict=True)]
        self.seen[index] = Seen(tuple(map(measure, given)), tuple(sizes), self._passed(eqn, found, sizes))
        if index > self.vanishing[0] and self.vanishes_at(index):
            self.vanishing = index, given[0]
        self._mark_dead(index, eqn, found)
        return found

    def _passed(self, eqn: Eqn, found: Sequence[Any], sizes: Sequence[Size | None]) -> dict[int, Size | None]:
        terms: dict[int, list[int]] = {}
        for position, var in enumerate(eqn.inputs):
            if var in self._plan.reached:
                terms.setdefault(var, []).extend([position] if found[position] is not None else [])
        return {
            var: sizes[own[0]]
            if len(own) == 1
            else measure(add([found[position] for position in own]) if own else None)
            for var, own in terms.items()
        }

    def _mark_dead(self, index: int, eqn: Eqn, found: Sequence[Any]) -> None:
        passed = {var for var, grad in zip(eqn.inputs, found, strict=True) if grad is not None}
        self.dead.update((index, var) for var in eqn.inputs if var in self._plan.reached and var not in passed)


def measure(grad: Any) -> Size | None:
    """Return the size of a gradient, or None for None."""
    if grad is None:
        return None
    if grad.dtype == tf.variant:  # a list of tensors, which cannot be read
        return Size(math.nan, False)
    values = _values(grad).numpy()
    wide = np.ravel(values).astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    return Size(float(np.vdot(wide, wide).real), not wide.any())


def is_some(size: Size | None) -> bool:
    """Return whether there is a gradient that is not zero everywhere."""
    return size is not None and not size.zero


def is_zero(grad: Any) -> bool:
    """Return whether a gradient is zero everywhere; False for a list of tensors, which cannot be read."""
    size = measure(grad)
    return size is not None and size.zero


def norm(sizes: Iterable[Size | None]) -> float:
    """Return the norm of some gradients together; NaN if one is a list of tensors, as in loops."""
    return math.sqrt(sum(size.square for size in sizes if size is not None))


def _values(grad: Any) -> Any:
    """Return the elements of a gradient; rows with the same index are added first."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    rows, places = tf.unique(grad.indices)
    return tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
