"""Merges the parts of mirrored variables: a variable of a strategy that has one value, with a copy on each device.

A tape around the replicas records each copy as a variable of its own. Here version k of all copies becomes one version
of one variable, so that a gradient with respect to it counts what all replicas read. That the copies were assigned the
same value is proved, not assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from retrotape.errors import ReplicaError
from retrotape.execute import Values
from retrotape.ir import LEAF, Builder, DType, Eqn, GrowingFacts, VariableHistory
from retrotape.record import Kind, Trace, new_trace, same, traits
from retrotape.tf.core import whole_behind
from retrotape.tf.replicas import differs_by_replica, part_number
from retrotape.transform._numbering import Numbering


class _Copies(NamedTuple):
    """A mirrored variable, and the histories of its copies."""

    whole: Any
    histories: Sequence[VariableHistory]

    def versions(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each number with the versions that have it."""
        for number in range(max(len(history.versions) for history in self.histories)):
            yield number, [one.versions[number] for one in self.histories if number < len(one.versions)]


def merge_mirrored(trace: Trace, apart: Collection[int] = ()) -> Trace:
    """Return the same trace with one history for each mirrored variable.

    A variable that has a value of its own in each replica keeps its histories, each of a variable with its own name.

    Args:
      trace: The trace, without calls.
      apart: Vars that a query may ask for: equal values do not make them the same.

    Raises:
      ReplicaError: If the copies of a variable are not proved to be equal.
    """
    groups = _groups(trace)
    if not groups:
        return trace
    numbering = Numbering(trace, _versions_in(groups), apart)
    merged: list[_Copies] = []
    others: list[_Copies] = []
    for group in groups:
        number = None if differs_by_replica(group.whole) else _first_unproved(trace, group, numbering)
        if number is not None and not _differ(trace, group, number):
            raise _not_proved(trace, group, number)
        differs = number is not None or differs_by_replica(group.whole)
        (others if differs else merged).append(group)
    return _Merged(trace, merged, others).trace()


def check_mirrored(trace: Trace, whole: Any) -> None:
    """Raise unless the copies of a mirrored variable are proved to be equal, version by version."""
    groups = [group for group in _groups(trace) if group.whole is whole]
    numbering = Numbering(trace, _versions_in(groups))
    for group in groups:
        number = _first_unproved(trace, group, numbering)
        if number is not None:
            raise _not_proved(trace, group, number)


def _groups(trace: Trace) -> list[_Copies]:
    by_whole: dict[int, tuple[Any, list[VariableHistory]]] = {}
    for history in trace.facts.histories.values():
        whole = whole_behind(history.handle)
        if whole is not None:
            by_whole.setdefault(id(whole), (whole, []))[1].append(history)
    return [_Copies(whole, histories) for whole, histories in by_whole.values() if len(histories) > 1]


# ---------------------------------------------------------------------- proof


def _versions_in(groups: Sequence[_Copies]) -> list[int]:
    return [var for group in groups for history in group.histories for var in history.versions]


def _first_unproved(trace: Trace, group: _Copies, numbering: Numbering) -> int | None:
    """Return the first version that is not proved to be the same for all copies; None if all are."""
    for number, versions in group.versions():
        if len({numbering.number(var) for var in versions}) > 1 or _is_missed(trace, group, number):
            return number
    return None


def _is_missed(trace: Trace, group: _Copies, number: int) -> bool:
    """Return whether a copy lacks a version, unless that is an unrecorded update after which the copy was not used."""
    there = [history for history in group.histories if number < len(history.versions)]
    last = {history.current for history in group.histories if number >= len(history.versions)}
    if not last:
        return False
    made = min(history.made_by[number] for history in there)
    later = any(not last.isdisjoint(eqn.inputs) for eqn in trace.program.eqns[made + 1 :])
    return later or any(trace.program.producers[history.versions[number]] != LEAF for history in there)


def _differ(trace: Trace, group: _Copies, number: int) -> bool:
    """Return whether the copies have different values, as the statistics of a layer may have."""
    versions, load = dict(group.versions())[number], Values(trace)
    return len(versions) == len(group.histories) and not all(same(load(versions[0]), load(var)) for var in versions)


def _not_proved(trace: Trace, group: _Copies, number: int) -> ReplicaError:
    program, name, versions = trace.program, group.whole.name, dict(group.versions())[number]
    made = [program.eqns[program.producers[var]] for var in versions if program.producers[var] != LEAF]
    if not made:
        when = "was updated while nothing was recorded" if number else "began"
        problem = f"{name!r} {when} with a value of its own in each replica"
    else:
        where = program.frame_of(made[-1])
        problem = f"Update {number} of {name!r}, {made[-1].op} at {where}, is not proved to be the same in all replicas"
    return ReplicaError(
        f"This variable cannot be treated as one: {problem}",
        "Assign what is the same in all replicas, `tf.distribute.get_replica_context().all_reduce('MEAN', value)`, or "
        "query its components on the tape itself: `strategy.experimental_local_results(variable)`.",
    )


# ---------------------------------------------------------------------- merging


class _Merged:
    """A trace in which copies are replaced by the versions that they equal. No var or equation is renumbered.

    Args:
      old: The trace.
      groups: The variables whose copies are merged.
      others: Those that have a value of their own in each replica.
    """

    def __init__(self, old: Trace, groups: Sequence[_Copies], others: Sequence[_Copies]) -> None:
        self._old, self._groups, self._others = old, groups, others
        self._twins: dict[int, int] = {}
        self._merged: dict[int, list[int]] = {}
        producers = old.program.producers
        for group in groups:
            # The version that was made first is before all uses of the others.
            firsts = [min(versions, key=lambda var: producers[var]) for _, versions in group.versions()]
            self._merged[group.histories[0].key] = firsts
            for (_, versions), first in zip(group.versions(), firsts, strict=True):
                self._twins.update((var, first) for var in versions if var != first)

    def trace(self) -> Trace:
        """Return the trace."""
        old = self._old
        eqns = tuple(self._replaced(eqn) for eqn in old.program.eqns)
        builder = Builder(replace(old.program, eqns=eqns), old.frames.copy())
        new = new_trace(builder, old.guard)
        self._merge_facts(builder.facts)
        new.values.update(old.values)
        for twin, version in self._twins.items():
            value = new.values.pop(twin, None)
            if value is not None:
                new.values.setdefault(version, value)
        for identity, var in old.tensors.items():
            new.tensors.alias(identity, self._twins.get(var, var))
        new.variables.update(old.variables)
        new.owners.update(old.owners)
        new.stand_ins.update(old.stand_ins)
        new.python_constants = old.python_constants
        for whole, histories in self._groups:
            first, *others = histories
            read = [new.variables.pop(history.key, None) for history in histories]
            if any(variable is not None for variable in read):
                new.variables[first.key] = whole
            new.stand_ins.update((other.key, first.key) for other in others)
        for whole, histories in self._others:
            for history in histories:
                new.replicas[history.key] = part_number(whole, history.handle)
                if history.key in new.variables:
                    new.variables[history.key] = whole
        return new

    def _now(self, variables: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._twins.get(var, var) for var in variables)

    def _replaced(self, eqn: Eqn) -> Eqn:
        """Return an equation with versions replaced; an update of another copy becomes a copy of the first."""
        if eqn.outputs and traits(eqn.op).kind is Kind.WRITE and all(var in self._twins for var in eqn.outputs):
            kinds = tuple(DType(self._old.program.types[var].dtype) for var in eqn.outputs)
            several = len(kinds) > 1
            attrs = (("T", kinds if several else kinds[0]),)
            return Eqn("IdentityN" if several else "Identity", self._now(eqn.outputs), eqn.outputs, attrs, eqn.frame)
        return eqn._replace(inputs=self._now(eqn.inputs))

    def _merge_facts(self, facts: GrowingFacts) -> None:
        for _, histories in self._groups:
            first, *others = histories
            for other in others:
                del facts.histories[other.key]
            versions = self._merged[first.key]
            made_by = self._made_by(histories, versions)
            history = facts.histories[first.key] = VariableHistory(first.key, first.handle, versions, made_by)
            facts.history_of.update(dict.fromkeys(versions, history))
        for twin in self._twins:
            facts.history_of.pop(twin, None)
            for versions_with in (facts.assigned, facts.opaque, facts.unrecorded_updates, facts.uninitialized):
                versions_with.discard(twin)
        for index, back in facts.backward_functions.items():
            facts.backward_functions[index] = back._replace(
                inputs=self._now(back.inputs), captures=self._now(back.captures)
            )

    def _made_by(self, histories: Sequence[VariableHistory], versions: Sequence[int]) -> list[int]:
        made = {var: index for one in histories for var, index in zip(one.versions, one.made_by, strict=True)}
        return [made[var] for var in versions]
