"""Where the path from a source to a target stops passing a gradient on, and what kind of op stops it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from retrotape.diagnose.why._explanation import Explanation, Step
from retrotape.diagnose.why._graph import SHAPES, Between
from retrotape.diagnose.why._inside import find_cut_inside
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.diagnose.why._walk import Walked
from retrotape.diagnose.why._zero import CHOICE, STRAIGHT
from retrotape.errors import UnseenUpdateError
from retrotape.execute import Plan
from retrotape.ir import CUSTOM
from retrotape.tf.core import tf

_STEPS = frozenset(("Round", "Rint", "Floor", "Ceil", "FloorDiv", "Sign"))
# Discrete choices and samples, which have a well-known smooth replacement.
_CHOICES = frozenset(("ArgMax", "ArgMin", "Multinomial", "StatelessMultinomial", "TopK", "TopKV2", "InTopKV2"))
_COMPARED = frozenset(("Less", "LessEqual", "Greater", "GreaterEqual"))
_FEW = 4  # ops between a random number and the comparison
_NAMED = 3  # other cuts that are listed
_NUMBERS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)
_REMOVE = "remove both, or use a tensor computed after them as the source."


class Kind(NamedTuple):
    """What kind of cut it is; an empty remedy stands for the remedy of the verdict."""

    verdict: Verdict
    detail: str = ""
    remedy: str = ""


class Cuts:
    """The cuts between a source and a target.

    Args:
      between: What lies between them.
      plan: The plan of the backward pass.
      walked: The result of the backward pass; None where the plan does not reach the target.
      source_is_variable: Whether the source is a variable, not one of its values.
      probe: Whether gradient functions may be called to find out which of them return None.
    """

    def __init__(
        self, between: Between, plan: Plan, walked: Walked | None, source_is_variable: bool, probe: bool = True
    ) -> None:
        self._between, self._plan, self._walked = between, plan, walked
        self._source_is_variable = source_is_variable
        self.flowing = between.flowing(plan, walked.dead if walked else ())
        self.found = between.cuts(self.flowing)
        if probe and walked is None and self.found:
            self._probe_before()
        if self._walked is not None and self._walked.refused:
            refused = self._walked.refused
            self.found.sort(key=lambda index: index not in refused)

    def _probe_before(self) -> None:
        """Run the rules of the ops before the cuts, too: one may return None, and then the path ends there."""
        between = self._between
        types = between.trace.program.types
        inputs = {var for index in self.found for var in between.eqns[index].inputs if var in self.flowing}
        ends = sorted(var for var in inputs if tf.as_dtype(types[var].dtype) in _NUMBERS)
        seeds = {var: [tf.ones(types[var].shape, types[var].dtype)] for var in ends}
        walked = Walked(between.trace, self._plan, seeds)
        if not walked.dead:
            return
        flowing = between.flowing(self._plan, walked.dead)
        found = between.cuts(flowing)
        if found:
            self._walked, self.flowing, self.found = walked, flowing, found

    def explain(self, said: tuple[str, str]) -> Explanation:
        """Return an explanation of the first cut."""
        between, flowing, index = self._between, self.flowing, self._main(self.found[0])
        eqn, step = between.eqns[index], between.step(index)
        verdict, detail, remedy = self.kind(index)
        detail += self._others(index)
        if verdict is Verdict.INSIDE_FUNCTION:
            ins = [position for position, var in enumerate(eqn.inputs) if var in flowing]
            outs = [position for position, var in enumerate(eqn.outputs) if var in between.needed]
            found = find_cut_inside(between.trace.facts.calls[index].function, ins, outs)
            if found is not None:
                verdict, step, detail = found.verdict, found.step, found.detail + detail
        before = between.path(between.sources, [var for var in eqn.inputs if var in flowing], within=flowing)
        after = between.path([var for var in eqn.outputs if var not in flowing], between.targets)
        return Explanation(verdict, *said, step, between.steps(before), between.steps(after), detail.strip(), remedy)

    def _main(self, index: int) -> int:
        """Return the main op of a call in which several ops cut the path: `ops.argmin` compares too."""
        eqns, frame = self._between.eqns, self._between.eqns[index].frame
        inside = (other for other in self.found if eqns[other].frame == frame and eqns[other].op in _CHOICES)
        return next(inside, index)

    def _others(self, index: int) -> str:
        """Return which ops cut other paths; ops that only read shapes count if there is no other."""
        between, mine = self._between, self._between.step(index)
        real = [other for other in self.found if between.eqns[other].op not in SHAPES] or self.found
        real = [index, *(other for other in real if other != index and not self._same_call(mine, other))]
        if len(real) == 1:
            return ""
        steps = Counter(str(between.step(other)) for other in real[1:])
        named = [step if times == 1 else f"{step} {times} times" for step, times in list(steps.items())[:_NAMED]]
        rest = len(steps) - _NAMED
        more = f" and {rest} other{'s' if rest > 1 else ''}" if rest > 0 else ""
        return f" {len(real) - 1} more on other paths: {', '.join(named)}{more}."

    def _same_call(self, mine: Step, other: int) -> bool:
        step = self._between.step(other)
        return bool(mine.called) and (step.called, step.frame) == (mine.called, mine.frame)

    def kind(self, index: int) -> Kind:
        """Return what kind of cut an equation is."""
        between, walked = self._between, self._walked
        eqn, trace = between.eqns[index], between.trace
        if walked is not None and index in walked.refused:
            detail = f"TensorFlow has no gradient registered for {between.step(index).name}; `gradient` raises."
            return Kind(Verdict.NO_GRADIENT, detail, CHOICE if "Random" in eqn.op else "")
        if index in trace.facts.calls:
            return Kind(Verdict.INSIDE_FUNCTION)
        if eqn.op == "StopGradient":
            return Kind(Verdict.STOP_GRADIENT)
        if eqn.op in SHAPES:
            detail = f"The target depends on a shape alone: {eqn.op} does not read the values."
            return Kind(Verdict.NO_GRADIENT, detail, Verdict.NO_PATH.remedy)
        cut = [var for var in eqn.outputs if var in between.needed and var not in self._plan.reached]
        if any(var in self._plan.stops for var in cut):
            return self._assigned(cut)
        if walked is not None and any((index, var) in walked.dead for var in eqn.inputs):
            if eqn.op == CUSTOM:
                return Kind(
                    Verdict.RULE_RETURNED_NONE, "", "Return a gradient for this input from the custom gradient."
                )
            steps = eqn.op in _STEPS
            detail = f"{between.step(index).name} is piecewise constant." if steps else ""
            return Kind(Verdict.RULE_RETURNED_NONE, detail, STRAIGHT if steps else "")
        if cut and all(var in trace.facts.discrete for var in cut):
            dtype = tf.as_dtype(trace.program.types[cut[0]].dtype).name
            remedy = CHOICE if eqn.op in _CHOICES or self._draws(index) else ""
            return Kind(Verdict.INTEGER, f"{between.step(index).name} returns {dtype} here.", remedy)
        if cut and all(var in trace.facts.discrete or var in trace.facts.nondifferentiable for var in cut):
            return Kind(Verdict.NO_GRADIENT, f"TensorFlow declares {between.step(index).name} non-differentiable.")
        return Kind(Verdict.UNKNOWN)

    def _draws(self, index: int) -> bool:
        """Return whether a comparison is with a random number, which samples with that probability."""
        between = self._between
        if between.eqns[index].op not in _COMPARED:
            return False
        pending = [var for var in between.eqns[index].inputs if var not in self.flowing]
        for _ in range(_FEW):  # a uniform number is scaled and shifted
            makers = [between.producers[var] for var in pending if between.producers[var] >= 0]
            if any("Random" in between.eqns[maker].op for maker in makers):
                return True
            pending = [var for maker in makers for var in between.eqns[maker].inputs]
        return False

    def _assigned(self, outputs: Sequence[int]) -> Kind:
        between = self._between
        trace = between.trace
        histories = [trace.facts.history_of[var] for var in outputs if var in trace.facts.history_of]
        name = trace.name_of(histories[0]) if histories else "A variable"
        detail = f"{name} is assigned here."
        if between.through_updates:
            return Kind(Verdict.SINCE, detail)
        sources = between.sources
        history = trace.facts.history_of.get(sources[0]) if self._source_is_variable else None
        entry = [history.versions[0]] if history is not None else sources
        try:
            plan = Between(trace, between.targets, entry, True, None).plan()
        except UnseenUpdateError as error:
            detail = f"{name} is assigned here, and {error.variable} was assigned while the tape was not recording."
            return Kind(Verdict.UNSEEN_UPDATE, detail)
        if plan.reached.isdisjoint(between.targets):
            return Kind(Verdict.ASSIGNMENT, detail, "There is another cut after it: " + _REMOVE)
        return Kind(Verdict.ASSIGNMENT, detail)
