"""Joins that come again: of traces that followed the same templates, and share tensors and variables in the same way.

The program of such a join is known. It is built when somebody reads it, as that of a trace which followed a template.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, NamedTuple

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.ir import BackwardFunction
from retrotape.record import EQUATIONS, Run, Template, Trace, can_follow, settings, trace_of
from retrotape.tf.buffers import share_buffer
from retrotape.tf.core import EagerTensor

JOINS = 64  # most that are remembered
TOTAL = 200_000  # equations of all that are remembered
_lock = new_lock()  # garbage collection may run anywhere and close tapes
_known: OrderedDict[Hashable, KnownJoin | None] = OrderedDict()  # None: one that has to be copied each time
_seen: OrderedDict[int, None] = OrderedDict()  # hashes of keys that appeared once


class Sharing(NamedTuple):
    """Traces to be joined, with what they have in common.

    Attributes:
      traces: The traces, in the order given.
      runs: The same as runs.
      order: Their positions, in the order in which they ran.
      times: When each equation ran.
      slots: The variables of all runs in order of first use, by identity of the handle.
      key: What the joined program depends on.
    """

    traces: Sequence[Trace]
    runs: Sequence[Run]
    order: list[int]
    times: list[int]
    slots: dict[int, int]
    key: Hashable


def sharing(traces: Sequence[Trace]) -> Sharing | None:
    """Return traces as runs that can be joined by a known program; None if they have to be copied.

    They have to be if one did not follow a template, if two of them ran at the same time (an op may be on both), or if
    a variable changed between two of them.
    """
    runs: list[Run] = []
    for trace in traces:
        run = trace.run() if settings.mode != "never" else None
        if run is None:
            return None
        runs.append(run)
    order = sorted(range(len(runs)), key=lambda which: runs[which].times[0])
    times = [*chain.from_iterable(runs[which].times for which in order)]
    if times != sorted(set(times)):
        return None
    slots, tensors = _shared_variables([runs[which] for which in order]), _shared_tensors(runs)
    if slots is None or tensors is None:
        return None
    templates = tuple([run.template.serial for run in runs])
    variables = tuple([slots[key] for run in runs for key in run.slots])
    return Sharing(traces, runs, order, times, slots, (templates, tuple(order), variables, tensors))


def _shared_tensors(runs: Sequence[Run]) -> Hashable | None:
    """Return which vars are the same tensors; None if a var of one trace is several tensors of others."""
    seen: set[int] = set()
    shared: set[int] = set()
    for run in runs:
        shared.update(seen.intersection(run.tensors))
        seen.update(run.tensors)
    if not shared:
        return ()
    identities = sorted(shared)  # in the order in which they were made
    rows = [list(map(run.tensors.get, identities)) for run in runs]
    if any(len(set(row)) != len(row) - max(row.count(None) - 1, 0) for row in rows):
        return None
    return tuple(map(tuple, rows))


def _shared_variables(runs: Sequence[Run]) -> dict[int, int] | None:
    """Number the variables of all runs; None if one changed between two of them, or may have changed."""
    slots: dict[int, int] = {}
    held: dict[int, Tensor | None] = {}
    for run in runs:
        histories, values = run.template.histories, run.values
        for key, slot in run.slots.items():
            versions = histories[slot].versions
            value = values.get(versions[0])
            if key not in slots:
                slots[key], held[key] = len(slots), value
            elif value is not None and not _same_buffer(held[key], value):
                return None
            if len(versions) > 1:
                held[key] = values.get(versions[-1])
    return slots


def _same_buffer(left: Any, right: Any) -> bool:
    return isinstance(left, EagerTensor) and isinstance(right, EagerTensor) and share_buffer(left, right)


class KnownJoin:
    """The program of a join, and where the vars of each run are in it. It holds neither tensors nor variables.

    Attributes:
      size: The number of its equations.
    """

    def __init__(self, joined: Trace, maps: Sequence[dict[int, int]]) -> None:
        self._template = Template(joined)
        self.size = len(self._template.eqns)
        self._vars = [[known[var] for var in range(len(known))] for known in maps]

    def join(self, given: Sharing) -> Trace:
        """Return the join of other traces with the same key, whose program is not built."""
        values: dict[int, Any] = {}
        tensors: dict[int, int] = {}
        handles: dict[int, Any] = {}
        backward: dict[int, BackwardFunction] = {}
        slots, count = given.slots, 0
        for which in given.order:
            run, var_of = given.runs[which], self._vars[which].__getitem__
            tensors.update(zip(run.tensors, map(var_of, run.tensors.values()), strict=True))
            for key, slot in run.slots.items():
                handles.setdefault(slots[key], run.handles[slot])
            for index, back in run.backward_functions.items():
                inputs, outputs, captures = (tuple(map(var_of, own)) for own in back[1:])
                backward[count + index] = BackwardFunction(back.function, inputs, outputs, captures)
            count += len(run.times)
        for which in reversed(given.order):  # what an earlier trace kept takes precedence
            run, var_of = given.runs[which], self._vars[which].__getitem__
            values.update(zip(map(var_of, run.values), run.values.values(), strict=True))
        reads = [read for run in given.runs for read in run.host_reads]
        moments = set().union(*[run.moments for run in given.runs])
        calls = {begin: call for run in given.runs for begin, call in run.layer_calls.items()}
        own = slots, handles, given.times, reads, backward, moments, calls
        trace = trace_of(Run(self._template, values, tensors, *own))
        for one in given.traces:
            for identity, variable in one.variables.items():
                trace.variables.setdefault(identity, variable)
            trace.owners.update(one.owners)
            trace.wholes.update(one.wholes)
        return trace


def known_join(given: Sharing) -> Trace | None:
    """Return the join of some traces, if its program is known."""
    with _lock:
        found = _known.get(given.key)
        if found is not None:
            _known.move_to_end(given.key)
    return None if found is None else found.join(given)


def learn_join(given: Sharing, joined: Trace, maps: Sequence[dict[int, int]]) -> None:
    """Remember the program of a join that comes for the second time.

    Args:
      given: The traces.
      joined: Their join.
      maps: For each of them, its vars as vars of the join.
    """
    if not _is_worth_it(given, joined):
        return
    known = None
    if can_follow(joined) and all(
        len(own) == len(run.template.types) for own, run in zip(maps, given.runs, strict=True)
    ):
        known = KnownJoin(joined, maps)
        if not is_same(known.join(given), joined):
            known = None
    with _lock:
        _known[given.key] = known
        while len(_known) > JOINS or sum(one.size for one in _known.values() if one is not None) > TOTAL:
            _known.popitem(last=False)


def _is_worth_it(given: Sharing, joined: Trace) -> bool:
    mark = hash(given.key)
    with _lock:
        if given.key in _known or len(joined.program.eqns) > EQUATIONS:
            return False
        if mark in _seen or settings.mode == "always":
            return True
        _seen[mark] = None
        if len(_seen) > 4 * JOINS:
            _seen.popitem(last=False)
        return False


def is_same(left: Trace, right: Trace) -> bool:
    """Return whether two traces have the same data: a known join must give what copying gives."""
    if left.tensors.by_identity != right.tensors.by_identity or left.values.keys() != right.values.keys():
        return False
    if any(left.values[var] is not value for var, value in right.values.items()):
        return False
    return _data(left) == _data(right)


def _data(trace: Trace) -> list[Any]:
    program, facts = trace.program, trace.facts
    histories = [(key, id(own.handle), own.versions, own.made_by) for key, own in facts.histories.items()]
    lines = [trace.frames.place(eqn.frame) for eqn in program.eqns]
    others = [getattr(facts, one.name) for one in fields(facts) if one.name not in ("histories", "history_of")]
    columns = [
        list(program.types),
        list(program.producers),
        list(program.eqns),
        lines,
        histories,
        facts.history_of.keys(),
    ]
    return [*columns, others, trace.variables, trace.owners, trace.wholes]


def forget_joins() -> None:
    """Forget all joins."""
    with _lock:
        _known.clear()
        _seen.clear()
