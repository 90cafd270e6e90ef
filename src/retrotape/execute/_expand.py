"""Replaces calls by the ops that ran inside, where a query is about a value that they assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from retrotape.errors import TapeUseError
from retrotape.execute._calls import is_gradient_of_call
from retrotape.execute._inline import inline
from retrotape.execute._values import Values
from retrotape.ir import LEAF, Body, Eqn, Equations, Program, differentiable_inputs, slice_to
from retrotape.record import Trace

_FIRST = 1 << 40  # indices from here on belong to equations that exist only in a plan

Rank = Callable[[int], Any]


def expand(
    trace: Trace, targets: Sequence[int], wanted: frozenset[int]
) -> tuple[Equations, Mapping[int, int], Rank | None]:
    """Expand the calls that assigned one of the `wanted` values and that lead to the targets by more than these.

    What a call returns may have been read from a variable that the call assigned. From outside the call, no path is
    visible from the assigned value to the result. The same holds for what an earlier walk through the call computed:
    so the calls in `trace.inlined` are expanded for every query.

    Returns:
      The program; for each value that an expanded call left in a variable, its var inside the call; and a function
      from equation index to execution order, None if the index is the order.
    """
    eqns, facts = trace.program.eqns, trace.facts
    assigning = trace.inlined.union(index for index in facts.calls if not wanted.isdisjoint(eqns[index].outputs))
    calls = _needed(trace, targets, wanted, assigning) if assigning else []
    if not calls:
        return trace.program, {}, None
    found: list[tuple[int, Eqn, Body]] = []
    ranks: dict[int, Any] = {}
    for index in calls:
        eqn = eqns[index]
        body = inline(trace, eqn, facts.calls[index], Values(trace))
        ranks.update({inner: (index, 1, inner) for inner in range(*body.span)})
        found.append((index, eqn, body))
    expanded = _Expanded(trace.program)  # includes inlined equations
    renamed: dict[int, int] = {}
    for index, eqn, body in found:
        for made, inner in body.pairs(facts, eqn.outputs):
            ranks[expanded.add(made, inner, eqn.frame)] = (index, 2, 0)
            if made in facts.history_of and trace.program.producers[inner] in range(*body.span):
                renamed[made] = inner
    return expanded, renamed, lambda index: ranks.get(index, (index, 0, 0))


class _Items:
    def __init__(self, get: Callable[[int], Any]) -> None:
        self._get = get

    def __getitem__(self, index: int) -> Any:
        return self._get(index)


class _Expanded:
    """The equations of a program, plus an `Identity` from each value inside a call to the call's output."""

    def __init__(self, program: Program) -> None:
        self._more: list[Eqn] = []
        self._makers: dict[int, int] = {}
        more, makers = self._more, self._makers
        self.eqns: Any = _Items(lambda index: more[index - _FIRST] if index >= _FIRST else program.eqns[index])
        self.producers: Any = _Items(lambda var: makers[var] if var in makers else program.producers[var])

    def add(self, made: int, inner: int, frame: int) -> int:
        """Add an equation that makes `made` an identity of `inner`."""
        index = _FIRST + len(self._more)
        self._more.append(Eqn("Identity", (inner,), (made,), (), frame))
        self._makers[made] = index
        return index


def _refuse_gradients(trace: Trace, calls: Iterable[int], gradients: Sequence[int]) -> None:
    """Raise if a gradient of a call was recorded in the block: it does not show what depends on assigned values."""
    eqns, producers = trace.program.eqns, trace.program.producers

    def sources(index: int) -> set[int]:
        made = [(var, producers[var]) for var in eqns[index].inputs]
        return {eqns[at].inputs[0] if at != LEAF and eqns[at].op == "ReadVariableOp" else var for var, at in made}

    for call in calls if gradients else ():
        if any(sources(call) <= sources(index) for index in gradients):
            where = trace.program.frame_of(eqns[call])
            raise TapeUseError(
                f"The target was computed from the gradient of {eqns[call].op} (called at {where}), which was computed "
                "while the tape was recording. That gradient does not show how it depends on values that the function "
                "assigned to variables. Compute it after the block."
            )


def _needed(trace: Trace, targets: Iterable[int], wanted: frozenset[int], calls: frozenset[int]) -> list[int]:
    """Return the calls that the targets depend on by more than the wanted values: other outputs, or the ops inside."""
    eqns, bodies, targets = trace.program.eqns, trace.facts.bodies, list(targets)
    indices = slice_to(trace.program, targets, (), differentiable=True)
    visited = set(indices)
    used = {var for index in indices for var in differentiable_inputs(eqns[index])}.union(targets)
    _refuse_gradients(trace, calls, [index for index in indices if is_gradient_of_call(eqns[index])])
    found = []
    for index in sorted(calls):
        body = bodies.get((eqns[index].outputs, False))
        inside = body is not None and not visited.isdisjoint(range(*body.span))
        if inside or any(var in used and var not in wanted for var in eqns[index].outputs):
            found.append(index)
    return found
