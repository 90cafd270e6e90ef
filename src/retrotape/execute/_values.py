"""The values that a question looks at: kept ones as they are, others computed again from what is kept."""

from __future__ import annotations

import warnings
from collections import ChainMap, Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar

from retrotape.errors import LostValueError
from retrotape.execute._heap import trim
from retrotape.execute._running import announce
from retrotape.ir import LEAF, Eqn, bytes_of, slice_to
from retrotape.record import CUSTOM, SEGMENT, Recording, current_stack, for_execution, for_rule, is_away, looked_at
from retrotape.rules import FORWARD, new_values
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.scopes import setting
from retrotape.tf.stock import stop_stock_tapes

if TYPE_CHECKING:
    from retrotape.execute._plan import Plan

Tensor = Any
_Result = TypeVar("_Result")
TRIM_EVERY = 3  # segments: more often saves little memory and costs time, for pages must be had again


class Values:
    """Looks up values by var, for as long as one question lasts.

    What was computed again is let go as soon as the walk has passed everything that looks at it, so that no more
    than one segment of a long chain is in memory. Letting go too much costs time, never a wrong number.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._kept = recording.values
        self._again: dict[int, Tensor] = {}
        self._plan: Plan | None = None
        self._passed: set[int] = set()
        self._segments = 0
        self._limit = 0  # bytes, of the largest segment so far: one that was cut to it is not cut again
        self._tensors: dict[int, list[int]] | None = None
        self._others: list[Recording] | None = None  # who hears what runs, while nobody does
        self._looks: Counter[int] | None = None  # how many equations, not yet passed, look at each var
        self._ahead: set[int] = set()  # equations that have to run again for what is still looked at, and have not
        self._uses: Counter[int] = Counter()  # how many of them take each var

    def __call__(self, var: int) -> Tensor:
        """Return the value of `var`."""
        value = self._kept.get(var)
        if value is None or is_away(value):
            value = self._again.get(var)
        if value is None:
            (self._fetch if var in self._kept else self._recompute)(var)
            value = self._again[var]
        return value

    # ------------------------------------------------------------------ what is still to come

    def follow(self, plan: Plan) -> None:
        """Take notice of the walk that looks."""
        if plan is not self._plan:
            self._plan, self._passed, self._looks = plan, set(), None

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
        if value is None or self._kept.get(self._origin(var)) is value or current_stack().hearing():
            return
        if self._recording.known(value._id) == var:
            self._recording.forget(value._id)

    def _origin(self, var: int) -> int:
        """Return the var whose value a var has: a custom gradient hands on the tensors that were made inside of it."""
        builder = self._recording.builder
        while builder.producers[var] >= 0 and builder.eqns[builder.producers[var]].op == CUSTOM:
            eqn = builder.eqns[builder.producers[var]]
            var = eqn.inputs[len(eqn.inputs) - len(eqn.outputs) + eqn.outputs.index(var)]
        return var

    def _still_looked_at(self) -> Counter[int] | None:
        """Count the looks to come; None where nobody can say."""
        if self._looks is None and self._plan is not None:
            to_come = (index for index in self._plan.indices if index not in self._passed)
            self._looks = Counter(var for index in to_come for var in self._looks_of(index))
            eqns = self._recording.builder.eqns
            self._ahead = set(slice_to(self._recording.builder, self._looks, self._kept))
            self._uses = Counter(var for index in self._ahead for var in eqns[index].inputs)
        return self._looks

    def _looks_of(self, index: int) -> list[int]:
        back = self._recording.backwards.get(index)
        assert self._plan is not None
        return [*looked_at(self._plan.eqns[index]), *(back.captures if back else ())]

    # ------------------------------------------------------------------ values that are not there

    def _fetch(self, var: int) -> None:
        away = self._kept[var]
        self._still_looked_at()
        fetched, others = self._unheard(lambda others: (self._recording.value(var), others))
        assert fetched is not None
        self._again[var] = fetched
        for recording in (self._recording, *others):
            recording.recognise(fetched._id, [away.identity, *self._identities().get(var, ())])

    def _recompute(self, var: int) -> None:
        recording = self._recording
        eqns, held = recording.builder.eqns, ChainMap(self._kept, self._again)
        indices = slice_to(recording.builder, [var], held)
        wanted = self._worth_keeping(indices)
        to_use = Counter(used for index in indices for used in eqns[index].inputs)
        to_use[var] += 1
        made: set[int] = set()

        def compute(others: list[Recording]) -> None:
            for index in indices:
                outputs = self._evaluate(eqns[index])
                for out, value in zip(eqns[index].outputs, outputs, strict=False):
                    if out not in held:
                        self._again[out] = value
                        made.add(out)
                        recording.alias(value._id, out)
                        for other in others:
                            other.recognise(value._id, self._identities().get(out, ()))
                del outputs  # or the last ones would live on in this frame
                to_use.subtract(eqns[index].inputs)
                done = self._has_run(index)
                for used in (*eqns[index].inputs, *eqns[index].outputs):
                    held_for_this = used in done or (used in made and wanted is not None and used not in wanted)
                    if held_for_this and to_use[used] <= 0:
                        self._let_go(used)

        # Nobody writes these ops down: what they make has been made before, and whoever heard that knows it by then.
        self._unheard(compute)
        if var not in self._again:
            raise LostValueError(self._describe(var), "Read the variable inside the block before it is changed.")

    def _has_run(self, index: int) -> list[int]:
        """Return what was held for an equation that has now run again, and for nothing else."""
        if index not in self._ahead:
            return []
        self._ahead.discard(index)
        inputs = self._recording.builder.eqns[index].inputs
        self._uses.subtract(inputs)
        return [var for var in inputs if self._uses[var] <= 0 and not (self._looks and self._looks[var] > 0)]

    def _unheard(self, run: Callable[[list[Recording]], _Result]) -> _Result:
        """Run ops that nobody writes down; `run` is told who would have. One value may need another one."""
        if self._others is not None:
            return run(self._others)
        others = current_stack().open_besides(self._recording)
        self._warn_of_stock_tapes()
        with setting(self, _others=others), current_stack().unheard(), self._hidden(), self._eager():
            return run(others)

    def _hidden(self) -> AbstractContextManager[None]:
        """Let no stock tape hear what is computed again because the tape drops values: what it knew has stayed."""
        return stop_stock_tapes() if self._recording.drops else nullcontext()

    def _warn_of_stock_tapes(self) -> None:
        """Warn: a stock tape that began after the ops had run cannot be told which tensors the new ones stand for.

        Of a forward accumulator there is nothing to say: what has tangents was kept.
        """
        if self._recording.drops and core.stock_tape_listens() and not core.accumulates_only(self._known_tensors()):
            warnings.warn(
                "A tf.GradientTape is open while values that this tape did not keep are computed again; it takes them "
                "as constants. Open it before they are recorded, or use rt.Tape in its place, or keep='needed'.",
                stacklevel=2,
            )

    def _known_tensors(self) -> list[Tensor]:
        return [value for value in self._kept.values() if not is_away(value)]

    def _eager(self) -> AbstractContextManager[None]:
        """Compute values, not parts of a graph that is built around the question, as for a Jacobian."""
        return nullcontext() if self._recording.symbolic or tf.executing_eagerly() else tf.init_scope()

    def _identities(self) -> dict[int, list[int]]:
        """Return, for each var, the identities of the tensors that it was: by these other recordings know it."""
        if self._tensors is None:
            self._tensors = {}
            for identity, var in self._recording.identities():
                self._tensors.setdefault(var, []).append(identity)
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
        eqns, types = self._recording.builder.eqns, self._recording.builder.types
        now = Counter(var for index in indices if index in self._ahead for var in eqns[index].inputs)
        outputs = (var for index in indices for var in eqns[index].outputs)
        sizes = {var: bytes_of(types[var]) for var in outputs if looks[var] > 0 or self._uses[var] > now[var]}
        total = sum(sizes.values())
        if total >= SEGMENT:
            self._segments += 1
            if self._segments % TRIM_EVERY == 0:
                trim()
        largest = max(sizes.values(), default=0)
        limit = max(self._limit, SEGMENT if self._recording.segments is None else 2 * self._recording.segments.size)
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

    def _evaluate(self, eqn: Eqn) -> list[Tensor]:
        return evaluate(self._recording, eqn, [self(var) for var in eqn.inputs])

    def _describe(self, var: int) -> str:
        recording = self._recording
        cell = recording.cell_of.get(var)
        if cell is not None:
            number = cell.versions.index(var)
            return f"Value number {number} of {recording.name_of(cell)} was overwritten before the tape saw it"
        if recording.builder.producers[var] == LEAF:
            return f"The value of %{var} is no longer there"
        eqn = recording.builder.eqns[recording.builder.producers[var]]
        return f"The value of %{var}, made by {eqn.op}, was not kept and cannot be computed again"


def evaluate(recording: Recording, eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
    """Compute the outputs of an equation of a recording; one of a file is checked before and after it runs."""
    if recording.guard is None:
        return run_eqn(eqn, inputs)
    announce(eqn)  # a check can fail as badly as the op
    return recording.guard.run(eqn, inputs, recording.builder.types)


def run_eqn(eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
    """Compute the outputs of an equation."""
    announce(eqn)
    if eqn.op == CUSTOM:
        return inputs[len(inputs) - len(eqn.outputs) :]
    if eqn.op in FORWARD:
        attrs = {name: for_rule(value) for name, value in eqn.attrs}
        # Tensors of their own, so that each can stand for its var and no other.
        return [tf.identity(value) for value in new_values(eqn.op, attrs, inputs)]
    if eqn.op == "ResourceGather":
        return [tf.gather(*inputs, batch_dims=dict(eqn.attrs).get("batch_dims", 0))]
    if eqn.op == "ResourceGatherNd":
        return [tf.gather_nd(*inputs)]
    return core.run(eqn.op, inputs, for_execution(eqn.attrs), len(eqn.outputs))
