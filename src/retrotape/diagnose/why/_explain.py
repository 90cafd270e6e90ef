"""The search for an explanation. Every verdict has a witness in the trace; without one it is UNKNOWN."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Any

from retrotape.diagnose.why._absent import absent
from retrotape.diagnose.why._apart import apart
from retrotape.diagnose.why._change import largest_change, live_path
from retrotape.diagnose.why._cuts import Cuts
from retrotape.diagnose.why._explanation import Explanation
from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._left import CONDITION
from retrotape.diagnose.why._partly import Partly
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.diagnose.why._walk import Walked, is_zero, measure, norm
from retrotape.diagnose.why._zero import find_vanishing
from retrotape.errors import UnseenUpdateError
from retrotape.execute import Plan, add
from retrotape.record import TRAINABLE, EagerSession, Trace, current_stack, histories_in
from retrotape.tf.core import identity_of, tf
from retrotape.tf.nests import VARIABLES, describe
from retrotape.tf.version import Version
from retrotape.transform import flatten_if_possible

Said = tuple[str, str]


def explain(
    session: EagerSession,
    targets: Sequence[Any],
    source: Any,
    *,
    through_updates: bool = False,
    since: int | None = None,
    words: Said | None = None,
) -> Explanation:
    """Return why the sum of `targets` has a gradient with respect to `source`, or none.

    Args:
      session: The session that recorded.
      targets: Tensors or variables.
      source: A tensor, a variable, or a value that a variable had.
      through_updates: As for `gradient`.
      since: As for `gradient`.
      words: What to call the target and the source.
    """
    said = words or (" + ".join(describe(part) for part in targets), _describe(source))
    for part, role in (*((target, "target") for target in targets), (source, "source")):
        if part.dtype.base_dtype.as_datatype_enum not in TRAINABLE:
            detail, remedy = _about_dtype(part.dtype, role)
            return Explanation(Verdict.INTEGER, *said, detail=detail, remedy=remedy)
    with current_stack().unrecorded():  # what is computed here must not be recorded on any tape
        found = absent(session, targets, source, said)
        if found is not None:
            return found
        through_updates = through_updates or isinstance(source, Version)
        with nullcontext() if session.trace.guard is None else session.trace.explained():
            return _Inquiry(session, targets, source, through_updates, since, said).explain()


def _about_dtype(dtype: Any, role: str) -> tuple[str, str]:
    return f"The {role} is {dtype.name}.", f"Make the {role} floating point."


def dtype_problem(target: Any) -> str:
    """Return one line about a target whose dtype is not differentiable."""
    return " ".join([Verdict.INTEGER.sentence, *_about_dtype(target.dtype, "target")])


def _describe(source: Any) -> str:
    return repr(source) if isinstance(source, Version) else describe(source)


class _Inquiry:
    def __init__(
        self, session: EagerSession, targets: Sequence[Any], source: Any, through: bool, since: int | None, said: Said
    ) -> None:
        self._session, self._said = session, said
        self._given, self._source, self._through, self._since = targets, source, through, since
        self._between = self._in(session.trace)

    def _in(self, trace: Trace) -> Between:
        targets = [_var(trace, target) for target in self._given]
        return Between(trace, targets, self._sources(trace), self._through, self._since)

    def _sources(self, trace: Trace) -> list[int]:
        source = self._source
        if isinstance(source, Version):
            return [histories_in(trace, source.variable)[0].versions[source.number]]
        if not isinstance(source, VARIABLES):
            return [_var(trace, source)]
        histories = histories_in(trace, source)
        if self._through:
            return [history.number(self._since or 0) for history in histories]
        return [version for history in histories for version in history.versions]

    def explain(self) -> Explanation:
        """Return the explanation."""
        try:
            plan = self._between.plan()
        except UnseenUpdateError as error:
            return Explanation(Verdict.UNSEEN_UPDATE, *self._said, detail=str(error))
        walked = self._walked(self._between, plan)
        if walked is not None and walked.arrived and not walked.refused:
            return self._arrived(plan, walked)
        if walked is not None and walked.problem and self._gets_through(self._between, plan, walked):
            detail = f"The gradient itself was not computed: {walked.problem}."
            return self._connected(self._between, plan, detail, walked)
        return self._missing(plan, walked)

    def _walked(self, between: Between, plan: Plan) -> Walked | None:
        if plan.reached.isdisjoint(between.targets):
            return None
        seeds: dict[int, list[Any]] = {}
        for var, target in zip(between.targets, self._given, strict=True):
            seeds.setdefault(var, []).append(tf.ones(target.shape, target.dtype))
        return Walked(between.trace, plan, seeds)

    def _gets_through(self, between: Between, plan: Plan, walked: Walked) -> bool:
        return not walked.dead or not between.flowing(plan, walked.dead).isdisjoint(between.targets)

    # ------------------------------------------------------------------ there is a path

    def _inside(self) -> Between | None:
        """Return the same query with functions inlined, where that is possible."""
        trace = flatten_if_possible(self._session.trace)
        parts = (*self._given, self._source)
        tensors = [part for part in parts if not isinstance(part, Version) and not isinstance(part, VARIABLES)]
        if trace is self._session.trace or any(trace.tensors.get(identity_of(tensor)) is None for tensor in tensors):
            return None
        return self._in(trace)

    def _arrived(self, plan: Plan, walked: Walked) -> Explanation:
        between, inside = self._between, self._inside()
        total = add(list(walked.arrived.values()))  # for a variable, over all its values
        is_nothing = is_zero(total)
        if inside is not None:  # prefer the ops inside functions, if they agree
            inner = inside.plan()
            again = self._walked(inside, inner)
            if again is not None and again.arrived:
                between, plan, walked = inside, inner, again
            elif is_nothing and (again is None or not again.problem):
                return self._nothing_inside(inside, inner, again)
        if not is_nothing:
            return self._connected(between, plan, f"The norm of the gradient is {norm([measure(total)]):.3g}.", walked)
        found = find_vanishing(between, plan, walked)
        detail, remedy = found.detail, found.remedy
        if found.eqn in between.trace.facts.calls:
            detail, remedy = _OPAQUE, Verdict.INSIDE_FUNCTION.remedy
        if found.others:
            detail += f" The same happens on {found.others} more paths."
        cut = None if found.eqn is None else between.step(found.eqn)
        path = live_path(between, plan, walked, found.eqn)
        return Explanation(Verdict.ZERO, *self._said, cut, between.steps(path), detail=detail, remedy=remedy)

    def _nothing_inside(self, inside: Between, plan: Plan, walked: Walked | None) -> Explanation:
        """Return an explanation where TensorFlow returns zeros for a function, and the ops inside it no gradient."""
        if not inside.is_touched():
            detail = "The path goes through a function, and no op that ran inside it connects the source to the target."
            choice = next((read for read in inside.trace.facts.host_reads if read.method == CONDITION), None)
            if choice is not None:
                detail += f" A branch or a loop decided what ran, at {inside.frame(choice.frame)}."
            path = self._between.path(self._between.sources, self._between.targets)
            calls = [index for index in path if index in self._between.trace.facts.calls]
            cut = self._between.step(calls[0]) if calls else None
            return Explanation(Verdict.ZERO, *self._said, cut, self._between.steps(path), detail=detail, remedy=_CHECK)
        found = self._cut(inside, plan, walked)
        detail = f"It is cut inside a function, for which TensorFlow returns zeros: {found.verdict.reason}."
        return Explanation(
            Verdict.ZERO,
            *self._said,
            found.cut,
            found.reached,
            found.leading,
            f"{detail} {found.detail}".strip(),
            found.remedy or found.verdict.remedy,
        )

    def _connected(self, between: Between, plan: Plan, detail: str, walked: Walked) -> Explanation:
        path = live_path(between, plan, walked)
        detail += " Call `tape.gradient`." if walked.problem else largest_change(between, walked, path)
        finite = all(isfinite(norm([measure(grad)])) for grad in walked.arrived.values())
        part, remedy = Partly(self._session, between).part()
        detail += part
        if not finite:
            remedy = "The gradient is not finite: `tape.first_nonfinite(target)` finds the op that caused it."
        return Explanation(Verdict.CONNECTED, *self._said, reached=between.steps(path), detail=detail, remedy=remedy)

    # ------------------------------------------------------------------ there is none

    def _missing(self, plan: Plan, walked: Walked | None) -> Explanation:
        between, inside = self._between, self._inside()
        if inside is not None:
            between, plan = inside, inside.plan()
            walked = self._walked(between, plan)
        if not between.is_touched():
            return apart(self._session, between, self._said, isinstance(self._source, VARIABLES))
        return self._cut(between, plan, walked)

    def _cut(self, between: Between, plan: Plan, walked: Walked | None) -> Explanation:
        cuts = Cuts(between, plan, walked, isinstance(self._source, VARIABLES))
        if cuts.found:
            return cuts.explain(self._said)
        leading = between.steps(between.leading)
        return Explanation(Verdict.UNKNOWN, *self._said, None, between.reached_elsewhere(), leading)


_CHECK = Verdict.NO_PATH.remedy
_OPAQUE = "The gradient of the function as a whole is zero, and which op inside makes it zero cannot be determined."


def _var(trace: Trace, part: Any) -> int:
    if isinstance(part, VARIABLES):
        return histories_in(trace, part)[0].current
    found = trace.tensors.get(identity_of(part))
    assert found is not None
    return found
