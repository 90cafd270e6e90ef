"""The values that a query reads: kept ones, and others recomputed from them."""

from __future__ import annotations

import warnings
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar

from retrotape._types import Tensor
from retrotape.errors import LostValueError
from retrotape.execute._heap import trim
from retrotape.execute._run import evaluator, run_steps
from retrotape.ir import CUSTOM, LEAF, Eqn, bytes_of, slice_to
from retrotape.record import SEGMENT, Trace, current_stack, is_offloaded, read_by_rule
from retrotape.tf import core
from retrotape.tf.core import identity_of, tf
from retrotape.tf.scopes import setting
from retrotape.tf.stock import stop_stock_tapes

if TYPE_CHECKING:
    from retrotape.execute._plan import Plan

_Result = TypeVar("_Result")
TRIM_EVERY = 3  # segments; trimming more often saves little memory and costs time, as pages must be mapped again


class Values:
    """Looks up values by var, for the duration of one query.

    A recomputed value is released as soon as the walk has passed every equation that reads it, so no more than one
    segment of a long chain is in memory. Releasing too much costs time, but never changes a result.

    Args:
      trace: The trace with the values.
      releases: Whether values that the trace keeps and could recompute are released as well.
    """

    def __init__(self, trace: Trace, releases: bool = False) -> None:
        self._trace, self._releases = trace, releases
        self._kept = trace.values
        self._run_eqn = evaluator(trace)
        self._recomputed: dict[int, Tensor] = {}
        self._plan: Plan | None = None
        self._passed: set[int] = set()
        self._segments = 0
        self._limit = 0  # bytes in the largest segment so far: a segment of that size is not split again
        self._tensors: dict[int, list[int]] | None = None
        self._others: list[Trace] | None = None  # traces that would record, while recording is off
        self._reads: Counter[int] | None = None  # by var: how many equations still to be visited read it
        self._pending: set[int] = set()  # equations that still have to run again for those reads
        self._uses: Counter[int] = Counter()  # by var: how many of these take it as an input

    def __call__(self, var: int) -> Tensor:
        """Return the value of `var`."""
        value = self._kept.get(var)
        if not isinstance(value, tf.Tensor):
            value = self._recomputed.get(var)
        if value is None:
            (self._load if var in self._kept else self._recompute)(var)
            value = self._recomputed[var]
        return value

    # ------------------------------------------------------------------ remaining reads

    def follow(self, plan: Plan, passed: Iterable[int] = ()) -> None:
        """Set the plan of the walk that reads values, and the equations that it has passed."""
        if plan is not self._plan:
            self._plan, self._passed, self._reads = plan, set(passed), None
            if self._releases:
                self._remaining_reads()

    def passed(self, index: int) -> None:
        """Release the values that no equation after `index` reads."""
        self._passed.add(index)
        if self._reads is None or self._plan is None:
            return
        for var in self._reads_of(index):
            self._reads[var] -= 1
            if self._reads[var] == 0:
                self._release(var)

    def _release(self, var: int) -> None:
        value = self._recomputed.pop(var, None)
        if self._releases and self._uses[var] <= 0 and not (self._reads and self._reads[var] > 0):
            self._trace.release(var)
        # A kept value stays known, also if it is kept for another var. And while anything is recording, events that are
        # not yet recorded may still refer to this tensor.
        if value is None or current_stack().observed():
            return
        if any(self._kept.get(same) is value for same in (var, self._origin(var))):
            return
        known, identity = self._trace.tensors, identity_of(value)
        if identity not in known.captured and known.by_identity.get(identity) == var:
            known.by_identity.pop(identity, None)

    def forget(self, count: int) -> None:
        """Forget the tensors of released values, except the first `count` known: ops that used them were observed."""
        known = self._trace.tensors
        held = {identity_of(value) for value in self._known_tensors()}.union(known.captured)
        new = max(0, len(known.by_identity) - count)
        for identity, var in list(islice(reversed(known.by_identity.items()), new)):
            if var not in self._recomputed and identity not in held:
                del known.by_identity[identity]

    def _origin(self, var: int) -> int:
        """Return the var that a var's value comes from: a custom gradient returns the tensors made inside it."""
        program = self._trace.program
        while program.producers[var] >= 0 and program.eqns[program.producers[var]].op == CUSTOM:
            eqn = program.eqns[program.producers[var]]
            var = eqn.inputs[len(eqn.inputs) - len(eqn.outputs) + eqn.outputs.index(var)]
        return var

    def _remaining_reads(self) -> Counter[int] | None:
        """Return how often each var will still be read; None if there is no plan."""
        if self._reads is None and self._plan is not None:
            to_come = (index for index in self._plan.indices if index not in self._passed)
            self._reads = Counter(var for index in to_come for var in self._reads_of(index))
            eqns = self._trace.program.eqns
            self._pending = set(slice_to(self._trace.program, self._reads, self._kept))
            self._uses = Counter(var for index in self._pending for var in eqns[index].inputs)
        return self._reads

    def _reads_of(self, index: int) -> list[int]:
        back = self._trace.facts.backward_functions.get(index)
        assert self._plan is not None
        return [*read_by_rule(self._plan.eqns[index]), *(back.captures if back else ())]

    # ------------------------------------------------------------------ values that are not in memory

    def _load(self, var: int) -> None:
        offloaded = self._kept[var]
        self._remaining_reads()
        loaded, others = self._unrecorded(lambda others: (self._trace.value(var), others))
        assert loaded is not None
        self._recomputed[var] = loaded
        for trace in (self._trace, *others):
            trace.tensors.recognize(identity_of(loaded), [offloaded.identity, *self._identities().get(var, ())])

    def _recompute(self, var: int) -> None:
        trace = self._trace
        eqns, held = trace.program.eqns, ChainMap(self._kept, self._recomputed)
        indices = slice_to(trace.program, [var], held)
        wanted = self._worth_keeping(indices)
        to_use = Counter(used for index in indices for used in eqns[index].inputs)
        to_use[var] += 1
        made: set[int] = set()

        def compute(others: list[Trace]) -> None:
            env = _Recomputed(self, held, made, others)
            for index, eqn in run_steps(trace.program, env, indices, self._evaluate):
                to_use.subtract(eqn.inputs)
                done = self._mark_run(index)
                for used in (*eqn.inputs, *eqn.outputs):
                    held_for_this = used in done or (used in made and wanted is not None and used not in wanted)
                    if held_for_this and to_use[used] <= 0:
                        self._release(used)

        # Not recorded: every trace that has these values recorded them when they were first computed.
        self._unrecorded(compute)
        if var not in self._recomputed:
            raise LostValueError(self._describe(var), "Read the variable inside the block before it is changed.")

    def _evaluate(self, eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
        return self._run_eqn(eqn, inputs)

    def add_recomputed(self, var: int, value: Tensor, others: Iterable[Trace]) -> None:
        """Hold a recomputed value, and identify its var by this tensor from now on."""
        self._recomputed[var] = value
        self._trace.tensors.by_identity[identity_of(value)] = var
        if not self._releases and self._trace.keep == "segments":
            self._trace.restore(var, value)
        if self._trace.base is not None and var < self._trace.base_size:
            self._trace.base.tensors.alias(identity_of(value), var)
        for other in others:
            other.tensors.recognize(identity_of(value), self._identities().get(var, ()))

    def _mark_run(self, index: int) -> list[int]:
        """Mark an equation as run again; return the vars that were held for it alone."""
        if index not in self._pending:
            return []
        self._pending.discard(index)
        inputs = self._trace.program.eqns[index].inputs
        self._uses.subtract(inputs)
        return [var for var in inputs if self._uses[var] <= 0 and not (self._reads and self._reads[var] > 0)]

    def _unrecorded(self, run: Callable[[list[Trace]], _Result]) -> _Result:
        """Run ops without recording them; `run` gets the traces that would have. Calls nest: values need others."""
        if self._others is not None:
            return run(self._others)
        others = current_stack().open_besides(self._trace)
        self._warn_of_stock_tapes()
        with setting(self, _others=others), current_stack().unrecorded(identified=True), self._hidden(), self._eager():
            return run(others)

    def _hidden(self) -> AbstractContextManager[None]:
        """Hide recomputation from stock tapes if the tape drops values: they have recorded the original ops."""
        return stop_stock_tapes() if self._trace.drops_values else nullcontext()

    def _warn_of_stock_tapes(self) -> None:
        """Warn of a stock tape opened after the ops ran: it cannot identify recomputed tensors with the originals.

        Forward accumulators need no warning: tensors with tangents were kept.
        """
        if self._trace.drops_values and core.stock_tape_listens() and not core.accumulates_only(self._known_tensors()):
            warnings.warn(
                "A tf.GradientTape is open while values that this tape did not keep are recomputed; it treats them "
                "as constants. Open it before they are recorded, or use rt.Tape in its place, or keep='needed'.",
                stacklevel=2,
            )

    def _known_tensors(self) -> list[Tensor]:
        return [value for value in self._kept.values() if not is_offloaded(value)]

    def _eager(self) -> AbstractContextManager[None]:
        """Compute eagerly, even if a graph is being built around the query, as for a Jacobian."""
        return nullcontext() if self._trace.symbolic or tf.executing_eagerly() else tf.init_scope()

    def _identities(self) -> dict[int, list[int]]:
        """Return, for each var, the ids of its tensors, by which other traces know it."""
        if self._tensors is None:
            self._tensors = self._trace.tensors.identities()
        return self._tensors

    def _worth_keeping(self, indices: list[int]) -> set[int] | None:
        """Return which of the values about to be computed are worth holding for the walk, None for all.

        These are the values that the walk reads, and those that other such values are computed from: what the walk
        reads may branch off a chain that it does not visit. If they are large, only those of the last segment, which
        the walk visits first, and those that cross from one segment to another.
        """
        reads = self._remaining_reads()
        if reads is None:
            return None
        eqns, types = self._trace.program.eqns, self._trace.program.types
        now = Counter(var for index in indices if index in self._pending for var in eqns[index].inputs)
        outputs = (var for index in indices for var in eqns[index].outputs)
        sizes = {var: bytes_of(types[var]) for var in outputs if reads[var] > 0 or self._uses[var] > now[var]}
        total = sum(sizes.values())
        if total >= SEGMENT:
            self._segments += 1
            if self._segments % TRIM_EVERY == 0:
                trim()
        largest = max(sizes.values(), default=0)
        limit = max(self._limit, self._trace.segment_size() or SEGMENT)
        if total <= limit + largest:  # a segment ends after the value that fills it
            return set(sizes)
        self._limit = limit = max(limit, isqrt(total * largest))
        segment, filled = 0, 0
        made: dict[int, int] = {}  # var → segment
        crossing: set[int] = set()
        for index in indices:
            crossing.update(var for var in eqns[index].inputs if made.get(var, segment) != segment)
            for var in eqns[index].outputs:
                made[var] = segment
                filled += sizes.get(var, 0)
            if filled > limit:
                segment, filled = segment + 1, 0
        last = segment if filled else segment - 1
        return crossing | {var for var in sizes if made[var] == last}

    def _describe(self, var: int) -> str:
        trace = self._trace
        history = trace.facts.history_of.get(var)
        if history is not None:
            number = history.versions.index(var)
            return f"Value number {number} of {trace.name_of(history)} was overwritten before the tape saw it"
        if trace.program.producers[var] == LEAF:
            return f"The value of %{var} is no longer available"
        eqn = trace.program.eqns[trace.program.producers[var]]
        return f"The value of %{var}, made by {eqn.op}, was not kept and cannot be recomputed"


def releasing(trace: Trace) -> Values | None:
    """Return values that a walk releases, also those that the trace keeps; None if it may not, or ops are recorded."""
    is_noticed = current_stack().observed() or core.stock_tape_listens()
    return None if is_noticed or not trace.may_release() else Values(trace, releases=True)


class _Recomputed(MutableMapping[int, Tensor]):
    """The values of a query as an environment to run a program in: outputs are added, and identified in every trace."""

    def __init__(self, values: Values, held: Mapping[int, Any], made: set[int], others: list[Trace]) -> None:
        self._values, self._held, self._made, self._others = values, held, made, others

    def __getitem__(self, var: int) -> Tensor:
        return self._values(var)

    def __setitem__(self, var: int, value: Tensor) -> None:
        if var not in self._held:
            self._made.add(var)
            self._values.add_recomputed(var, value, self._others)

    def __delitem__(self, var: int) -> None:
        raise TypeError("Recomputed values are released by `Values`.")

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
