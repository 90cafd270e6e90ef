"""The values that a query reads: kept ones as they are, others recomputed from what is kept."""

from __future__ import annotations

import warnings
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
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
TRIM_EVERY = 3  # segments: more often saves little memory and costs time, for pages must be had again


class Values:
    """Looks up values by var, for as long as one query lasts.

    What was recomputed is let go as soon as the walk has passed everything that reads it, so that no more than one
    segment of a long chain is in memory. Letting go too much costs time, never a wrong number.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._kept = trace.values
        self._run_eqn = evaluator(trace)
        self._again: dict[int, Tensor] = {}
        self._plan: Plan | None = None
        self._passed: set[int] = set()
        self._segments = 0
        self._limit = 0  # bytes, of the largest segment so far: one that was cut to it is not cut again
        self._tensors: dict[int, list[int]] | None = None
        self._others: list[Trace] | None = None  # who hears what runs, while nobody does
        self._looks: Counter[int] | None = None  # how many equations, not yet passed, look at each var
        self._ahead: set[int] = set()  # equations that have to run again for what is still looked at, and have not
        self._uses: Counter[int] = Counter()  # how many of them take each var

    def __call__(self, var: int) -> Tensor:
        """Return the value of `var`."""
        value = self._kept.get(var)
        if not isinstance(value, tf.Tensor):
            value = self._again.get(var)
        if value is None:
            (self._load if var in self._kept else self._recompute)(var)
            value = self._again[var]
        return value

    # ------------------------------------------------------------------ what is still to come

    def follow(self, plan: Plan, passed: Iterable[int] = ()) -> None:
        """Take notice of the walk that reads values, and of the equations that it has passed."""
        if plan is not self._plan:
            self._plan, self._passed, self._looks = plan, set(passed), None

    def passed(self, index: int) -> None:
        """Let go of what only equation `index` was still going to look at."""
        self._passed.add(index)
        if self._looks is None or self._plan is None:
            return
        for var in self._looks_of(index):
            self._looks[var] -= 1
            if self._looks[var] == 0:
                self._let_go(var)

    def _let_go(self, var: int) -> None:
        value = self._again.pop(var, None)
        # A value that is kept stays known, and so does one that is the value of another var too. And while anything is
        # written down, what has run may still have to be told by which var this value goes.
        if value is None or self._kept.get(self._origin(var)) is value or current_stack().recording():
            return
        if self._trace.tensors.by_identity.get(identity_of(value)) == var:
            self._trace.tensors.by_identity.pop(identity_of(value), None)

    def _origin(self, var: int) -> int:
        """Return the var whose value a var has: a custom gradient hands on the tensors that were made inside of it."""
        program = self._trace.program
        while program.producers[var] >= 0 and program.eqns[program.producers[var]].op == CUSTOM:
            eqn = program.eqns[program.producers[var]]
            var = eqn.inputs[len(eqn.inputs) - len(eqn.outputs) + eqn.outputs.index(var)]
        return var

    def _still_looked_at(self) -> Counter[int] | None:
        """Count the looks to come; None where nobody can say."""
        if self._looks is None and self._plan is not None:
            to_come = (index for index in self._plan.indices if index not in self._passed)
            self._looks = Counter(var for index in to_come for var in self._looks_of(index))
            eqns = self._trace.program.eqns
            self._ahead = set(slice_to(self._trace.program, self._looks, self._kept))
            self._uses = Counter(var for index in self._ahead for var in eqns[index].inputs)
        return self._looks

    def _looks_of(self, index: int) -> list[int]:
        back = self._trace.facts.backward_functions.get(index)
        assert self._plan is not None
        return [*read_by_rule(self._plan.eqns[index]), *(back.captures if back else ())]

    # ------------------------------------------------------------------ values that are not there

    def _load(self, var: int) -> None:
        offloaded = self._kept[var]
        self._still_looked_at()
        loaded, others = self._unrecorded(lambda others: (self._trace.value(var), others))
        assert loaded is not None
        self._again[var] = loaded
        for trace in (self._trace, *others):
            trace.tensors.recognize(identity_of(loaded), [offloaded.identity, *self._identities().get(var, ())])

    def _recompute(self, var: int) -> None:
        trace = self._trace
        eqns, held = trace.program.eqns, ChainMap(self._kept, self._again)
        indices = slice_to(trace.program, [var], held)
        wanted = self._worth_keeping(indices)
        to_use = Counter(used for index in indices for used in eqns[index].inputs)
        to_use[var] += 1
        made: set[int] = set()

        def compute(others: list[Trace]) -> None:
            env = _Recomputed(self, held, made, others)
            for index, eqn in run_steps(trace.program, env, indices, self._evaluate):
                to_use.subtract(eqn.inputs)
                done = self._has_run(index)
                for used in (*eqn.inputs, *eqn.outputs):
                    held_for_this = used in done or (used in made and wanted is not None and used not in wanted)
                    if held_for_this and to_use[used] <= 0:
                        self._let_go(used)

        # Not recorded: what these ops make has been made before, and every trace that has it knows it by then.
        self._unrecorded(compute)
        if var not in self._again:
            raise LostValueError(self._describe(var), "Read the variable inside the block before it is changed.")

    def _evaluate(self, eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
        return self._run_eqn(eqn, inputs)

    def add_recomputed(self, var: int, value: Tensor, others: Iterable[Trace]) -> None:
        """Hold a value that was computed again, as the tensor that stands for its var from now on."""
        self._again[var] = value
        self._trace.tensors.by_identity[identity_of(value)] = var
        for other in others:
            other.tensors.recognize(identity_of(value), self._identities().get(var, ()))

    def _has_run(self, index: int) -> list[int]:
        """Return what was held for an equation that has now run again, and for nothing else."""
        if index not in self._ahead:
            return []
        self._ahead.discard(index)
        inputs = self._trace.program.eqns[index].inputs
        self._uses.subtract(inputs)
        return [var for var in inputs if self._uses[var] <= 0 and not (self._looks and self._looks[var] > 0)]

    def _unrecorded(self, run: Callable[[list[Trace]], _Result]) -> _Result:
        """Run ops that nobody writes down; `run` is told who would have. One value may need another one."""
        if self._others is not None:
            return run(self._others)
        others = current_stack().open_besides(self._trace)
        self._warn_of_stock_tapes()
        with setting(self, _others=others), current_stack().unrecorded(), self._hidden(), self._eager():
            return run(others)

    def _hidden(self) -> AbstractContextManager[None]:
        """Let no stock tape hear what is computed again because the tape drops values: what it knew has stayed."""
        return stop_stock_tapes() if self._trace.drops_values else nullcontext()

    def _warn_of_stock_tapes(self) -> None:
        """Warn: a stock tape that began after the ops had run cannot be told which tensors the new ones stand for.

        Of a forward accumulator there is nothing to say: what has tangents was kept.
        """
        if self._trace.drops_values and core.stock_tape_listens() and not core.accumulates_only(self._known_tensors()):
            warnings.warn(
                "A tf.GradientTape is open while values that this tape did not keep are computed again; it takes them "
                "as constants. Open it before they are recorded, or use rt.Tape in its place, or keep='needed'.",
                stacklevel=2,
            )

    def _known_tensors(self) -> list[Tensor]:
        return [value for value in self._kept.values() if not is_offloaded(value)]

    def _eager(self) -> AbstractContextManager[None]:
        """Compute values, not parts of a graph that is built around the question, as for a Jacobian."""
        return nullcontext() if self._trace.symbolic or tf.executing_eagerly() else tf.init_scope()

    def _identities(self) -> dict[int, list[int]]:
        """Return, for each var, the identities of the tensors that it was: by these other traces know it."""
        if self._tensors is None:
            self._tensors = self._trace.tensors.identities()
        return self._tensors

    def _worth_keeping(self, indices: list[int]) -> set[int] | None:
        """Return which of the values that are about to be computed the walk will look at, None for all.

        Those that others are computed from count too: what the walk looks at may branch off a chain that it passes by.
        Where these are many, only those of the last segment, and what passes from one segment to another: the walk
        comes to the last one first.
        """
        looks = self._still_looked_at()
        if looks is None:
            return None
        eqns, types = self._trace.program.eqns, self._trace.program.types
        now = Counter(var for index in indices if index in self._ahead for var in eqns[index].inputs)
        outputs = (var for index in indices for var in eqns[index].outputs)
        sizes = {var: bytes_of(types[var]) for var in outputs if looks[var] > 0 or self._uses[var] > now[var]}
        total = sum(sizes.values())
        if total >= SEGMENT:
            self._segments += 1
            if self._segments % TRIM_EVERY == 0:
                trim()
        largest = max(sizes.values(), default=0)
        limit = max(self._limit, self._trace.segment_size() or SEGMENT)
        if total <= limit + largest:  # a segment ends behind the value that fills it
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
            return f"The value of %{var} is no longer there"
        eqn = trace.program.eqns[trace.program.producers[var]]
        return f"The value of %{var}, made by {eqn.op}, was not kept and cannot be computed again"


class _Recomputed(MutableMapping[int, Tensor]):
    """The values of a query as what a program runs on: what is made is added, and known to every trace that has it."""

    def __init__(self, values: Values, held: Mapping[int, Any], made: set[int], others: list[Trace]) -> None:
        self._values, self._held, self._made, self._others = values, held, made, others

    def __getitem__(self, var: int) -> Tensor:
        return self._values(var)

    def __setitem__(self, var: int, value: Tensor) -> None:
        if var not in self._held:
            self._made.add(var)
            self._values.add_recomputed(var, value, self._others)

    def __delitem__(self, var: int) -> None:
        raise TypeError("What was recomputed is let go by `Values`.")

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
