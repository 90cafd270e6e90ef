"""Joins the traces of all workers of a job into the trace of the whole job.

Workers run the same code on different data and meet at collective ops. So the traces are copied in turns, up to the
next collective op, whose inputs on all workers are then known: an all-reduce becomes an ordinary sum, which has an
ordinary gradient.

What every worker computes alike, from mirrored variables and results of collective ops, is one value of the whole job:
it is copied once, from the first worker. If all updates of a mirrored variable are such values, it is one variable of
the whole job. Otherwise, like the statistics of a BatchNormalization that is not synchronized, its copies may differ,
and each worker has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from retrotape.errors import ShardMismatchError
from retrotape.ir import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    Attr,
    BackwardFunction,
    DType,
    Eqn,
    FunctionProgram,
    TensorType,
    meetings,
    replicas_of,
)
from retrotape.record import TRAINABLE, Trace, is_deterministic, next_time
from retrotape.tf.core import identity_of, tf
from retrotape.transform._join import Joiner, all_times
from retrotape.transform._shard_checks import Shard, content, digest, homes, named_vars
from retrotape.transform._shard_names import names_of_job
from retrotape.transform._times import order_times
from retrotape.transform._twins import Twins

_SMALL = 16  # elements of a shape, of axes and the like
_INT32 = TensorType(3, ())


def join_shards(shards: Sequence[Shard]) -> tuple[Trace, dict[str, Any]]:
    """Return the trace of a whole job, and its names.

    A name that refers to one value of the whole job stays as it is; any other gets the prefix `shard_0/`, `shard_1/`
    and so on.

    Raises:
      ShardMismatchError: If the shards do not belong to one run.
    """
    while True:
        joiner = _ShardJoiner(shards)
        joiner.run()
        if not joiner.diverged:
            return joiner.joined, joiner.names()
        shards = [_without_mirrored(shard, joiner.diverged) for shard in shards]


class _ShardJoiner(Joiner):
    def __init__(self, shards: Sequence[Shard]) -> None:
        super().__init__([shard.trace for shard in shards])
        self._shards = shards
        self._homes = homes(shards)
        self._named = [named_vars(shard) for shard in shards]
        self._twins = Twins(self._named)
        # By var of the joined trace: what identifies its value, where that is not the var itself.
        self._numbers: dict[int, Any] = {}
        self._sent: set[int] = set()  # inputs of broadcasts
        self._signatures: dict[int, str] = {}  # of backward functions, by id
        self.diverged: set[str] = set()  # mirrored variables whose copies are not proved to be equal

    def run(self) -> None:
        """Copy all equations, in lockstep."""
        places = meetings([trace.program for trace in self._traces])
        moved = self._common_clock(places)
        starts = [0] * len(self._traces)
        for at in range(len(places[0]) + 1):
            for which, trace in enumerate(self._traces):
                end = places[which][at] if at < len(places[which]) else len(trace.program.eqns)
                for index in range(starts[which], end):
                    self.add(which, index, moved[which][trace.facts.times[index]])
                starts[which] = end + 1
            if at < len(places[0]):
                self._meet(at, [own[at] for own in places], moved)
        for which, trace in enumerate(self._traces):
            self.finish(which, trace, moved[which])
        self._order_reads(moved)
        order_times(self.builder.facts, list(self.builder.facts.times))  # some have the same: make them unique

    def _common_clock(self, places: Sequence[Sequence[int]]) -> list[dict[int, int]]:
        """Return, for each trace, a map from its times to common ones, in the order in which equations are copied."""
        moved: list[dict[int, int]] = [{} for _ in self._traces]
        waiting = [iter(sorted(all_times(trace.facts))) for trace in self._traces]
        for at in range(len(places[0]) + 1):
            for which, trace in enumerate(self._traces):
                end = trace.facts.times[places[which][at]] if at < len(places[which]) else None
                for time in waiting[which]:
                    moved[which][time] = next_time()
                    if time == end:
                        break
        return moved

    # ------------------------------------------------------------------ equations

    def add(self, which: int, index: int, time: int) -> None:
        """Copy an equation, unless the first worker has computed the same from the same values."""
        trace = self._traces[which]
        eqn = trace.program.eqns[index]
        if eqn.op == "IdentityN":
            self._add_identities(which, eqn, time)
            return
        if is_deterministic(eqn.op):
            key = self._key(which, index, eqn)
            if which == 0:
                super().add(which, index, time)
                self._twins.add(key, self.builder.eqns[-1], eqn.outputs)
                self._follow_copy(self.builder.eqns[-1])
                return
            twin = self._twins.take(which, key, eqn.outputs)
            if twin is not None:
                for var, same in zip(eqn.outputs, twin.outputs, strict=True):
                    self._connect(which, var, same)
                return
        self._check_updates(which, eqn)
        super().add(which, index, time)

    def _add_identities(self, which: int, eqn: Eqn, time: int) -> None:
        """Copy an equation whose outputs are its inputs, one by one: each may be the same on all workers or not."""
        for var, made in zip(eqn.inputs, eqn.outputs, strict=True):
            kind = self._traces[which].program.types[made]
            attrs = (("T", DType(kind.dtype)),)
            key = "Identity", attrs, (self._number(which, var),), (None,), None
            twin = self._twins.take(which, key, (made,)) if which else None
            if twin is None:
                out = self._append("Identity", (self._present(which, var),), attrs, kind, (which, eqn), time)
                if which == 0:
                    self._twins.add(key, self.builder.eqns[-1], (made,))
            self._connect(which, made, out if twin is None else twin.outputs[0])

    def _follow_copy(self, eqn: Eqn) -> None:
        """Identify a copy of what was sent with what others receive: the sender goes on with the copy."""
        if eqn.op == "Identity" and eqn.inputs[0] in self._sent:
            self._numbers[eqn.outputs[0]] = eqn.inputs[0]

    def _key(self, which: int, index: int, eqn: Eqn) -> Any:
        """Return what an equation computes: the op, its inputs, and which values of variables it makes."""
        facts = self._traces[which].facts
        inputs = tuple(self._number(which, var) for var in eqn.inputs)
        versions = []
        for var in eqn.outputs:
            history = facts.history_of.get(var)
            name = None if history is None else self._shards[which].mirrored.get(history.key, (which, history.key))
            versions.append(None if history is None else (name, history.versions.index(var)))
        back = facts.backward_functions.get(index)
        function = None if back is None else self._signature(which, back)
        return eqn.op, eqn.attrs, inputs, tuple(versions), function

    def _number(self, which: int, var: int) -> Any:
        """Return what identifies the value of an input: its var; its content, for a constant; what was sent."""
        found = self._present(which, var)
        return self._numbers.get(found, found)

    def _signature(self, which: int, back: BackwardFunction) -> Any:
        captures = tuple(self._number(which, var) for var in back.captures)
        assert isinstance(back.function, FunctionProgram)  # every function of a file is one
        return content(back.function, self._signatures), captures

    def _check_updates(self, which: int, eqn: Eqn) -> None:
        """Note mirrored variables that an equation updates from values that the first worker does not have."""
        trace, names = self._traces[which], self._shards[which].mirrored
        for var in eqn.outputs if which else ():
            history = trace.facts.history_of.get(var)
            if history is not None and history.key in names:
                self.diverged.add(names[history.key])

    def _leaf(self, which: int, var: int) -> int:
        new = super()._leaf(which, var)
        kind = self._traces[which].program.types[var]
        if var not in self._named[which] and _is_constant(kind):
            found = digest(self._traces[which], var)
            if found is not None:
                self._numbers[new] = kind, found
        return new

    # ------------------------------------------------------------------ collective ops

    def _meet(self, at: int, places: Sequence[int], moved: Sequence[Mapping[int, int]]) -> None:
        """Copy the collective op that all workers ran next, as an op on the values of all of them."""
        eqns = [trace.program.eqns[place] for trace, place in zip(self._traces, places, strict=True)]
        first, attrs = eqns[0], dict(eqns[0].attrs)
        inputs = [self._present(which, var) for which, eqn in enumerate(eqns) for var in eqn.inputs]
        expected = 1 if first.op == BROADCAST else replicas_of(first)
        if len(inputs) != expected:
            raise ShardMismatchError(
                f"collective op {at}, {first.op} at {self._traces[0].program.frame_of(first)}, has {expected} inputs, "
                f"and the shards have {len(inputs)}"
            )
        kind = self._traces[0].program.types[first.outputs[0]]
        time = max(moved[which][trace.facts.times[places[which]]] for which, trace in enumerate(self._traces))
        out = self._combine(first, attrs, inputs, kind, time)
        if first.op == BROADCAST:
            self._sent.add(inputs[0])
            self._numbers[out] = inputs[0]
        for which, eqn in enumerate(eqns):
            self._connect(which, eqn.outputs[0], out)

    def _combine(self, eqn: Eqn, attrs: Mapping[str, Any], inputs: list[int], kind: TensorType, time: int) -> int:
        dtype = ("T", DType(kind.dtype))
        if eqn.op == ALL_GATHER:
            axis = self._constant(tf.constant(attrs["axis"]), _INT32)
            gathered = (("N", len(inputs)), dtype, ("Tidx", DType(_INT32.dtype)))
            return self._append("ConcatV2", (*inputs, axis), gathered, kind, (0, eqn), time)
        if eqn.op != ALL_REDUCE:
            return self._append("Identity", tuple(inputs), (dtype,), kind, (0, eqn), time)
        total = self._append("AddN", tuple(inputs), (("N", len(inputs)), dtype), kind, (0, eqn), time)
        if attrs["reduction"] == b"SUM":
            return total
        count = self._constant(tf.constant(len(inputs), kind.dtype), TensorType(kind.dtype, ()))
        return self._append("RealDiv", (total, count), (dtype,), kind, (0, eqn), time)

    def _append(
        self,
        op: str,
        inputs: tuple[int, ...],
        attrs: tuple[Attr, ...],
        kind: TensorType,
        source: tuple[int, Eqn],
        time: int,
    ) -> int:
        """Add an equation in place of one of a worker; return its output."""
        builder, (which, eqn) = self.builder, source
        (out,) = builder.define([kind])
        if kind.dtype not in TRAINABLE:
            builder.facts.discrete.add(out)
        frame = self.joined.frames.number(self._traces[which].frames.place(eqn.frame))
        builder.append(op, inputs, (out,), attrs, frame)
        builder.facts.times.append(time)
        return out

    def _constant(self, value: Any, kind: TensorType) -> int:
        leaf = self.builder.leaf(kind)
        self.joined.values[leaf] = value
        self.joined.tensors.alias(identity_of(value), leaf)
        if kind.dtype not in TRAINABLE:
            self.builder.facts.discrete.add(leaf)
        return leaf

    # ------------------------------------------------------------------ variables

    def _present(self, which: int, var: int) -> int:
        return self._var(which, var)  # exactly that version: another worker may be ahead

    def _var(self, which: int, var: int) -> int:
        found = self.maps[which].get(var)
        history = self._traces[which].facts.history_of.get(var)
        name = None if history is None else self._shards[which].mirrored.get(history.key)
        if found is not None or history is None or name is None:
            return super()._var(which, var)
        home, ours = self._homes[name]
        if home == which:
            return super()._var(which, var)
        version = ours.versions[history.versions.index(var)]
        found = self.maps[home].get(version)
        if found is None:
            if self._traces[home].program.producers[version] >= 0:
                raise ShardMismatchError(
                    f"worker {which} has updated {name!r} before a value of worker {home} is known"
                )
            found = super()._var(home, version)
        self._connect(which, var, found)
        return found

    def names(self) -> dict[str, Any]:
        """Return what the names of the whole job refer to."""
        return names_of_job(
            self.joined, self._shards, self.maps, {name: home for name, (home, _) in self._homes.items()}
        )

    def finish(self, which: int, trace: Trace, moved: Mapping[int, int] = {}) -> None:
        """Copy facts that belong to no equation."""
        super().finish(which, trace, moved)
        for key, name in self._shards[which].mirrored.items():
            if self._homes[name][0] != which:
                self.joined.variables.pop(key, None)

    def _order_reads(self, moved: Sequence[Mapping[int, int]]) -> None:
        """Number the host reads of all workers, and say between which of them a constant was made by Python."""
        facts, joined = self.builder.facts, self.joined
        facts.host_reads.sort(key=lambda read: read.time)
        numbers = {read.time: number for number, read in enumerate(facts.host_reads)}
        facts.host_reads[:] = [read._replace(moment=number) for number, read in enumerate(facts.host_reads)]
        joined.python_constants = {}
        for which, trace in enumerate(self._traces):
            own = {read.moment: numbers[moved[which].get(read.time, read.time)] for read in trace.facts.host_reads}
            for var, moment in (trace.python_constants or {}).items():
                before = own.get(int(moment - 0.5), -1)
                joined.python_constants[self._var(which, var)] = before + 0.5


def _without_mirrored(shard: Shard, names: Collection[str]) -> Shard:
    """Return a shard in which some variables count as those of one worker."""
    return shard._replace(mirrored={key: name for key, name in shard.mirrored.items() if name not in names})


def _is_constant(kind: TensorType) -> bool:
    """Return whether a leaf is a constant of the code, equal on all workers, and not data: a number, or a few integers.

    Equal data of two workers stay two values, each with its own share of a gradient.
    """
    count = prod(size or 0 for size in kind.shape or ())
    return kind.shape == () or (count <= _SMALL and kind.dtype not in TRAINABLE)
