"""What an earlier run of a block recorded, without its values: a later run is compared with it, op by op."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable
from itertools import accumulate, count
from typing import Any

from retrotape._types import Place
from retrotape.ir import CUSTOM, Builder, Eqn, GrowingFacts, VariableHistory
from retrotape.record._frames import FrameTable
from retrotape.record._trace import Trace
from retrotape.record._traits import Kind, read_by_rule, traits
from retrotape.tf.core import identity_of

_serials = count()
PLAIN, READ, ACCESS, CUSTOM_STEP, UNKNOWN = range(5)  # kinds of steps
# Kind, op, attributes as TensorFlow gave them, inputs, outputs, shapes of the outputs, place, positions of the outputs
# to keep. A plain tuple, which is read for every op. The attributes are None until an op was compared with the step.
Step = tuple[int, Any, Any, tuple[int, ...], tuple[int, ...], tuple[Any, ...], Place, tuple[int, ...]]
_SETS = ("assigned", "opaque", "discrete", "nondifferentiable")
_NONE_OF = ("calls", "bodies", "foreign", "uninitialized", "unrecorded_updates", "unrecorded_spans", "recomputed")


def can_follow(trace: Trace) -> bool:
    """Return whether a later run can follow a trace: it has nothing that is not compared."""
    facts = trace.facts
    return trace.keep == "needed" and trace.guard is None and not any(getattr(facts, name) for name in _NONE_OF)


class Template:
    """The program of a trace, with what a trace that follows it needs to become a program of its own.

    It holds neither tensors nor handles of variables.

    Attributes:
      types: The types of its vars.
      producers: Their equations.
      eqns: The equations.
      histories: The variables, in order of first use; without handles, for another run may use other variables.
      slots: For each version of a variable, the number of its history.
      moments: The vars whose gradient `tf.nn.moments` stopped.
      structure: What `compile` knows about traces like this one; and what their backward functions depend on.
      queries: Queries by their arguments, as `compile` knows them.
      spans: What `compile` knows about queries inside the block, by where in the program they are asked.
      strayed: How often such a query ran other ops than any template has.
      fixed: Constants that queries inside the block made.
      inside: Queries inside the block by where they are asked and by their arguments, as `compile` knows them.
      reasons: By query, why some of its sources have no gradient.
      serial: A number that no other template has.
    """

    def __init__(self, trace: Trace) -> None:
        program, facts = trace.program, trace.facts
        self.types, self.producers, self.eqns = tuple(program.types), tuple(program.producers), tuple(program.eqns)
        self._frames = trace.frames.copy()
        if facts.host_reads:
            self._number_frames()
        self.histories = [
            VariableHistory(slot, None, history.versions, history.made_by)
            for slot, history in enumerate(facts.histories.values())
        ]
        self.slots = {var: history.key for history in self.histories for var in history.versions}
        self._sets = {name: sorted(getattr(facts, name)) for name in _SETS}
        self.moments = frozenset(trace.stopped_by_moments())
        self.structure: tuple[Any, Any] = None, None
        self.queries: dict[Hashable, Hashable] = {}
        self.spans: dict[Hashable, Any] = {}
        self.strayed: dict[Hashable, int] = {}
        self.fixed: set[int] = set()
        self.inside: dict[Hashable, Any] = {}
        self.reasons: dict[Hashable, list[str]] = {}
        self._steps: list[Step | None] = [None] * len(self.eqns)
        self._kept: Collection[int] | None = None  # None: what gradient rules read
        self._needed_after: frozenset[int] | None = None  # the same, by queries after the block
        self._taken: frozenset[int] | None = None
        self._read: set[int] | None = None
        self._keeps_for_rules = False
        self._frame_counts: list[int] = []
        self.serial = next(_serials)
        self._common: dict[int, int] = {}  # by serial of another template: how many equations are the same

    def _number_frames(self) -> None:
        """Leave out the places where Python read a value, which it may not do the next time."""
        frames = FrameTable()
        self.eqns = tuple(eqn._replace(frame=frames.number(self._place(eqn))) for eqn in self.eqns)
        self._frames = frames

    def _wanted(self) -> Collection[int]:
        return self._rule_reads() if self._kept is None else self._kept

    def _rule_reads(self) -> set[int]:
        if self._read is None:
            self._read = {var for eqn in self.eqns for var in read_by_rule(eqn)}
        return self._read

    # ------------------------------------------------------------------ steps

    def step(self, index: int) -> Step:
        """Return an equation as an event of the next run is compared with it."""
        found = self._steps[index]
        if found is None:
            found = self._steps[index] = self._make_step(self.eqns[index])
        return found

    def steps(self) -> list[Step | None]:
        """Return the steps made so far, by equation."""
        return self._steps

    def set_given_attrs(self, index: int, op: Any, attrs: Any) -> None:
        """Remember how TensorFlow gave the name and the attributes of an op, so that they need not be converted."""
        kind, _, _, *rest = self.step(index)
        self._steps[index] = (kind, op, attrs, *rest)

    def keep_only(self, variables: frozenset[int] | None) -> None:
        """Set which values queries after the block take; None: what rules read."""
        self._needed_after = variables
        self.choose_kept()

    def keep_needed(self) -> None:
        """Let all later runs keep what rules read: a query is computed op by op."""
        self._keeps_for_rules = True
        self.choose_kept()

    def choose_kept(self) -> None:
        """Decide which values later runs keep: what compiled functions take, if there is one for each query."""
        self._taken = None
        all_compiled = all(span.variants or span.is_empty for span in list(self.spans.values()))
        kept = self.taken() if all_compiled and not self._keeps_for_rules and self._needed_after is not None else None
        if kept != self._kept:
            self._kept = kept
            self._steps = [None] * len(self.eqns)

    def taken(self) -> frozenset[int]:
        """Return the vars whose values queries may take that come later, in the block or after it."""
        found = self._taken
        if found is None:
            after = self._rule_reads() if self._keeps_for_rules or self._needed_after is None else self._needed_after
            found = self._taken = frozenset(after).union(*(span.takes() for span in list(self.spans.values())))
        return found

    def _make_step(self, eqn: Eqn) -> Step:
        features = traits(eqn.op)
        kind = UNKNOWN
        if eqn.op == CUSTOM:
            kind = CUSTOM_STEP
        elif features.kind is Kind.PLAIN:
            kind = PLAIN
        elif eqn.op == "ReadVariableOp":
            kind = READ
        elif features.kind in (Kind.READ, Kind.WRITE) and self._is_update(eqn):
            kind = ACCESS
        shapes = tuple(self.types[var].shape for var in eqn.outputs)
        wanted = self._wanted()
        always = eqn.op != CUSTOM and not features.replayable
        keep = tuple(
            position for position, var in enumerate(eqn.outputs) if (always or var in wanted) and var not in self.slots
        )
        return kind, eqn.op, None, eqn.inputs, eqn.outputs, shapes, self._place(eqn), keep

    def _is_update(self, eqn: Eqn) -> bool:
        """Return whether an op reads or changes variables that existed before it."""
        versions = [var for var in eqn.outputs if var in self.slots]
        return all(self.histories[self.slots[var]].versions[0] != var for var in versions)

    # ------------------------------------------------------------------ other templates

    def agrees(self, other: Template, count: int) -> bool:
        """Return whether the first `count` equations are the same in both."""
        if other.serial not in self._common:
            self._common[other.serial] = other._common[self.serial] = self._count_common(other)
        return self._common[other.serial] >= count

    def forget(self, other: Template) -> None:
        """Forget another template, which was dropped."""
        self._common.pop(other.serial, None)

    def _count_common(self, other: Template) -> int:
        index = 0
        for ours, theirs in zip(self.eqns, other.eqns, strict=False):
            same_vars = all(
                self.types[var] == other.types[var] and self.slots.get(var) == other.slots.get(var)
                for var in (*ours.inputs, *ours.outputs)
                if var < len(other.types)
            )
            if ours != theirs or not same_vars or self._place(ours) != other._place(theirs):
                break
            index += 1
        return index

    # ------------------------------------------------------------------ a program again

    def _place(self, eqn: Eqn) -> Place:
        return self._frames.place(eqn.frame)

    def _used_frames(self) -> list[int]:
        """Return how many places the first equations have, for each number of equations."""
        if not self._frame_counts:
            self._frame_counts = list(accumulate((eqn.frame + 1 for eqn in self.eqns), max, initial=0))
        return self._frame_counts

    def builder(self, eqns: int, count: int, handles: dict[int, Any], facts: GrowingFacts) -> Builder:
        """Return the first equations and vars as a program under construction.

        Args:
          eqns: How many equations.
          count: How many vars.
          handles: The handles of the variables used so far, by slot.
          facts: What belongs to this run: times, layer calls, host reads, backward functions.
        """
        used = len(self._frames) if eqns == len(self.eqns) else self._used_frames()[eqns]
        of_this_run = {name: getattr(facts, name) for name in ("moments", "layer_calls")}  # they go on growing
        builder = Builder(frames=self._frames.copy(used), facts=GrowingFacts(**of_this_run))
        builder.types.extend(self.types[:count])
        builder.producers.extend(self.producers[:count])
        builder.eqns.extend(self.eqns[:eqns])
        ours = builder.facts
        for name, items in self._sets.items():
            getattr(ours, name).update(items[: bisect_left(items, count)])
        for slot, handle in handles.items():
            known = self.histories[slot]
            number = bisect_left(known.versions, count)
            history = VariableHistory(identity_of(handle), handle, known.versions[:number], known.made_by[:number])
            ours.histories[history.key] = history
            ours.history_of.update((var, history) for var in history.versions)
        ours.times.extend(facts.times)
        ours.backward_functions.update(facts.backward_functions)
        return builder
