"""What flows through the places of a trace: the values that they return, and the gradients that come back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from retrotape._types import Cotangent
from retrotape.errors import LostValueError, NoRuleError, OpaqueUpdateError, UnrepairableError
from retrotape.execute import ForwardPass, Plan, Query, RuleVjp, stream
from retrotape.ir import LEAF, Program, slice_to
from retrotape.record import Trace, is_lost
from retrotape.report._data import Stats
from retrotape.report._rounding import RoundingErrors
from retrotape.report._stats import array_of, stats_of, stats_of_array
from retrotape.report._units import unit_axis
from retrotape.tf.core import tf

NO_GRADIENT = (NoRuleError, LostValueError, UnrepairableError, OpaqueUpdateError)
_RELU = frozenset(("Relu", "Relu6"))
_FEWEST = 16  # rows: a unit that is zero for fewer may be so by chance


@dataclass(frozen=True)
class Dead:
    """Units that are zero for the whole batch."""

    eqn: int
    units: int
    dead: int


@dataclass
class Forward:
    """What a forward pass has seen.

    Attributes:
      stats: Of the values that were measured, by var.
      changes: Of the difference of a value of a variable to the one before it, by var.
      dead: Activations with dead units.
    """

    stats: dict[int, Stats] = field(default_factory=dict)
    changes: dict[int, Stats] = field(default_factory=dict)
    dead: list[Dead] = field(default_factory=list)


def forward(trace: Trace, wanted: Collection[int], versions: Sequence[Sequence[int]] = ()) -> Forward:
    """Measure values, kept or recomputed, one equation at a time.

    Args:
      trace: The trace.
      wanted: The vars whose values to measure.
      versions: The values of variables that were assigned, oldest first.
    """
    program = trace.program
    activations = {eqn.outputs[0]: index for index, eqn in enumerate(program.eqns) if eqn.op in _RELU}
    changes = _Changes(versions)
    every = {*wanted, *activations, *changes.vars}
    seen = Forward(changes=changes.stats)

    def measure(var: int, value: Any) -> None:
        stats = None if var in seen.stats else stats_of(value)
        if stats is not None:
            seen.stats[var] = stats
            changes.compare(var, value)
            if var in activations:
                seen.dead += _dead_units(program, activations[var], value)

    lost = {var for var, value in trace.values.items() if is_lost(value)}
    again = ForwardPass(trace, slice_to(program, every, trace.values), lost=lost)
    for var in sorted(var for var in every if program.producers[var] == LEAF or var in trace.values):
        measure(var, again.value(var))
    for _, eqn, _, outputs in again.run():
        for var, value in zip(eqn.outputs, outputs, strict=True):
            if var in every:
                measure(var, value)
    return seen


class _Changes:
    """By how much values of variables differ from those before them; a value is held until both its neighbours came."""

    def __init__(self, versions: Sequence[Sequence[int]]) -> None:
        self._before = {new: old for one in versions for old, new in pairwise(one)}
        self._after = {old: new for new, old in self._before.items()}
        self._held: dict[int, np.ndarray] = {}
        self.vars = {*self._before, *self._after}
        self.stats: dict[int, Stats] = {}

    def compare(self, var: int, value: Any) -> None:
        if var not in self.vars:
            return
        self._held[var] = array_of(value)
        for old, new in ((self._before.get(var, -1), var), (var, self._after.get(var, -1))):
            if old in self._held and new in self._held:
                with np.errstate(invalid="ignore"):  # infinity minus infinity
                    self.stats[new] = stats_of_array(self._held[new] - self._held[old])
        for one in (self._before.get(var), var, self._after.get(var)):
            if one in self._held and all(
                new in self.stats for new in (one, self._after.get(one)) if new in self._before
            ):
                del self._held[one]


def _dead_units(program: Program, index: int, value: Any) -> list[Dead]:
    axis = unit_axis(program, index)
    numbers = array_of(value)
    if axis is None or not numbers.size:
        return []
    rows = np.moveaxis(numbers, axis, -1).reshape(-1, numbers.shape[axis])
    if len(rows) < _FEWEST:
        return []
    return [Dead(index, rows.shape[1], int((rows == 0).all(axis=0).sum()))]


@dataclass
class Backward:
    """What a backward pass has seen.

    Attributes:
      stats: Of the gradients, by var.
      rounding: How large the gradient of a variable may be that is a rounding error, by key of its history.
      unruled: The equations that pass no gradient on, and why: what comes before them has none that is complete.
    """

    stats: dict[int, Stats] = field(default_factory=dict)
    rounding: dict[int, float] = field(default_factory=dict)
    unruled: dict[int, str] = field(default_factory=dict)


def backward(trace: Trace, targets: Sequence[int], wanted: Collection[int]) -> Backward:
    """Walk back from the targets once, and measure the gradients with respect to the wanted vars."""
    program, facts = trace.program, trace.facts
    seeds = tuple(tf.ones(program.types[var].shape, program.types[var].dtype) for var in targets)
    variables = {var: history.key for var, history in facts.history_of.items() if var not in facts.discrete}
    sources = [*wanted, *(var for var in variables if var not in wanted)]
    query = Query(tuple(targets), seeds, tuple((var,) for var in sources), through_updates=False)
    unruled: dict[int, str] = {}
    rule = RuleVjp(trace)

    def vjp(index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        try:
            return rule(index, grads, plan)
        except NO_GRADIENT as error:  # a query about what comes after it has a result
            unruled[index] = str(error)
            return [None] * len(plan.eqns[index].inputs)

    rounding = RoundingErrors(vjp, variables, program)
    seen = Backward(rounding=rounding.bounds, unruled=unruled)
    for position, grad in stream(trace, query, vjp=rounding):
        stats = stats_of(grad)
        if stats is not None:
            seen.stats[sources[position]] = stats
    for index in slice_to(program, [var for one in unruled for var in program.eqns[one].inputs]):
        for var in program.eqns[index].outputs:
            seen.stats.pop(var, None)
    return seen


def later(program: Program, targets: Sequence[int], own: Mapping[int, float], last: bool = False) -> dict[int, float]:
    """Return, for each var, the largest number of those that vars after it have, on its paths to the targets.

    Args:
      program: The program.
      targets: Where the paths end.
      own: The numbers of some vars.
      last: Whether only the last such var of each path counts.
    """
    found: dict[int, float] = {}
    reached = set(targets)
    for index in reversed(slice_to(program, targets)):
        eqn = program.eqns[index]
        numbers = []
        for var in reached.intersection(eqn.outputs):
            after = found.get(var)
            numbers += [] if after is None else [after]
            numbers += [own[var]] if var in own and (after is None or not last) else []
        reached.update(eqn.inputs)
        if numbers:
            for var in eqn.inputs:
                found[var] = max(found.get(var, 0.0), *numbers)
    return found
