"""Replays a program on other values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import LostValueError, NotRecordedError, ReplayError, ReplicaError, TapeUseError
from retrotape.execute import Values, evaluator, run_steps
from retrotape.ir import COLLECTIVES, Builder, Eqn, TensorType, bytes_of, replicas_of
from retrotape.record import (
    RESOURCE,
    Trace,
    current_stack,
    histories_in,
    is_deterministic,
    new_trace,
    python_constants,
    read_by_rule,
    same,
)
from retrotape.rules import allowed
from retrotape.tf import core
from retrotape.tf.core import identity_of
from retrotape.tf.nests import describe, is_variable
from retrotape.tf.replicas import differs_by_replica
from retrotape.transform._portable import portable
from retrotape.transform._seeds import new_seeds


def replay(trace: Trace, given: Sequence[tuple[Any, Tensor]], resample: bool, trust: bool) -> Trace:
    """Return the trace of the same program with new values for some leaves.

    Args:
      trace: The trace.
      given: Pairs of a tensor or variable and its new value.
      resample: Whether to draw new random numbers.
      trust: Whether to continue if a value that Python read has changed.
    """
    whole = portable(trace)
    leaves: dict[int, Tensor] = {}
    for part, value in given:
        for leaf in _leaves(whole, part):
            if leaf in leaves:
                raise TapeUseError(
                    f"replay got two new values for {describe(part)}, which is one tensor. Give one of them."
                )
            leaves[leaf] = value
    if resample:
        leaves = {**new_seeds(whole), **leaves}
    if whole.guard is not None:
        whole.guard.extend(sum(bytes_of(_type_of(new)) for new in leaves.values()))
    constants = python_constants(whole, trace)  # while both hold the same values: those of a file are loaded below
    with whole.explained():
        found = _Replay(whole, leaves, resample, trust).run()
    found.python_constants = constants
    return found


def _type_of(tensor: Tensor) -> TensorType:
    return TensorType(core.eager_dtype(tensor), core.shape_of(tensor))


def _leaves(trace: Trace, part: Any) -> list[int]:
    """Return the leaves that a new value replaces: for a variable of a strategy, one for each device."""
    histories = histories_in(trace, part) if is_variable(part) else []
    if len(histories) > 1 and differs_by_replica(part):
        raise ReplicaError(
            f"{describe(part)} has a value of its own in each replica",
            "Give a new value for each part: `strategy.experimental_local_results(variable)`.",
        )
    var = None if is_variable(part) else trace.tensors.find(part)
    found = [history.versions[0] for history in histories] if var is None else [var]
    if not found:
        raise NotRecordedError(describe(part), "it was not used in what was recorded", "Use it inside the block.")
    if any(trace.program.producers[var] >= 0 for var in found):
        raise TapeUseError(
            f"{describe(part)} was computed on this tape, so it cannot get a new value. "
            "Give new values for what the tape started from."
        )
    return found


class _Env(dict[int, Tensor]):
    """The values that changed; all others come from the old trace."""

    def __init__(self, given: Mapping[int, Tensor], old: Values) -> None:
        super().__init__(given)
        self._old = old

    def __missing__(self, var: int) -> Tensor:
        return self._old(var)


class _Replay:
    def __init__(self, old: Trace, given: Mapping[int, Tensor], resample: bool, trust: bool) -> None:
        self._old, self._old_values = old, Values(old)
        self._resample, self._trust = resample, trust
        self._env = _Env(given, self._old_values)
        self._reads: dict[int, list[tuple[int, int, str]]] = {}
        for identity, time, frame, method, _ in old.facts.host_reads:
            var = old.tensors.get(identity)
            if var is not None:
                self._reads.setdefault(bisect_left(old.facts.times, time), []).append((var, frame, method))

    def run(self) -> Trace:
        """Run the equations that depend on a new value, in recorded order."""
        evaluate = evaluator(self._old, resized=True)
        with current_stack().unrecorded():
            for _, eqn in run_steps(self._old.program, self._env, self._indices(), evaluate):
                self._check_sizes(eqn)
            return self._trace()

    def _indices(self) -> Iterator[int]:
        """Yield the equations that depend on a new value, in order; raise if a host read would differ."""
        for index, eqn in enumerate(self._old.program.eqns):
            self._check_reads(index)
            depends = any(var in self._env for var in eqn.inputs)
            if depends if is_deterministic(eqn.op) else self._is_drawn_again(eqn, depends):
                yield index
        self._check_reads(len(self._old.program.eqns))

    def _is_drawn_again(self, eqn: Eqn, depends: bool) -> bool:
        if eqn.op in COLLECTIVES and depends:
            where = self._old.program.frame_of(eqn)
            raise ReplicaError(
                f"An {eqn.op} of {replicas_of(eqn)} replicas (at {where}) depends on the new values, and on "
                "those of the other workers, which this tape does not have",
                "Save the tape on every worker, `tape.save('job/', names)`, and replay the whole: `rt.load('job/')`.",
            )
        if eqn.op in allowed():  # it draws random numbers
            return self._resample
        types = self._old.program.types
        if depends and (eqn.outputs or any(types[var].dtype == RESOURCE for var in eqn.inputs)):  # else it only prints
            where = self._old.program.frame_of(eqn)
            raise TapeUseError(
                f"{eqn.op} at {where} depends on the new values and cannot run again: it uses a table, a queue or the "
                "like, or something outside TensorFlow. Record again with the new inputs."
            )
        return False

    def _check_sizes(self, eqn: Eqn) -> None:
        """Raise if a result has a new size: Python may have used the old one, and such reads are not recorded."""
        types = self._old.program.types
        for var in eqn.outputs if not self._trust else ():
            before, now = types[var].shape, core.shape_of(self._env[var]) if var in self._env else None
            if now is not None and before is not None and before != now:
                size = (
                    f"{eqn.op} gave shape {list(before)} and now gives {list(now)}, and Python may have used the size"
                )
                raise ReplayError(str(self._old.program.frame_of(eqn)), "shape", size)

    def _check_reads(self, index: int) -> None:
        for var, frame, method in self._reads.get(index, ()) if not self._trust else ():
            if var not in self._env:
                continue
            where = str(self._old.program.frames[frame])
            try:
                before = self._old_values(var)
            except LostValueError as lost:  # it may have changed
                raise ReplayError(where, f"{method.strip('_')}; its old value was left out of the file") from lost
            if not same(self._env[var], before):
                raise ReplayError(where, method.strip("_"))

    def _trace(self) -> Trace:
        """Return a trace of the same program with the values that gradient rules read."""
        old, env = self._old, self._env
        types = [_type_of(env[var]) if var in env else kind for var, kind in enumerate(old.program.types)]
        builder = Builder(replace(old.program, types=types), old.frames.copy())  # sizes may depend on values
        new = new_trace(builder, old.guard)
        new.variables.update(old.variables)
        new.owners.update(old.owners)
        new.wholes.update(old.wholes)
        new.replicas.update(old.replicas)
        new.tensors = old.tensors.copy()
        new.values.update((var, value) for var, value in old.values.items() if var not in env)
        needed = {var for eqn in old.program.eqns for var in read_by_rule(eqn)}
        for var, value in env.items():
            if var in needed or var in old.values:
                new.values[var] = value
                new.tensors.alias(identity_of(value), var)
        return new
