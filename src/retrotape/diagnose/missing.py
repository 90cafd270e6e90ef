"""Why a source has no gradient: what the trace proves, in one short text each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from retrotape.diagnose.why import Explanation, Verdict, dtype_problem, first_cuts
from retrotape.errors import NotDifferentiableWarning, UnseenUpdateError
from retrotape.execute import Plan, Request, make_plan
from retrotape.grads import Gradients
from retrotape.ir import slice_to
from retrotape.record import TRAINABLE, Session, Trace, stacklevel
from retrotape.tf.core import tf
from retrotape.tf.nests import VARIABLES, Parts, describe

UNREAD = "it was not read on this tape"
ABSENT = Verdict.SOURCE_NOT_RECORDED.reason
UPDATES = Verdict.ASSIGNMENT.reason
SINCE = Verdict.SINCE.reason
CUT = "the ops between it and the loss pass no gradient on"  # one of several verdicts
NO_OP = Verdict.NO_PATH.reason
Explain = Callable[[Any], Explanation | None]
_MOST = 256  # queries whose reasons are remembered
_EXPLAINED = 3  # sources that get a full explanation, which takes a walk each
_VAGUE = (Verdict.INSIDE_FUNCTION, Verdict.UNKNOWN)


def with_reasons(
    session: Session,
    request: Request,
    sources: Parts,
    found: Sequence[Any],
    explain: Explain | None = None,
    identities: Sequence[Any] | None = None,
) -> Gradients:
    """Return gradients that know why some of them are missing.

    Args:
      session: The session that recorded.
      request: The query.
      sources: The sources of the query, part by part in the order of the request.
      found: The gradient for each item of `sources`, or None.
      explain: Explains one source in full, where the ops alone do not show which of them passes no gradient on.
      identities: What tells the sources apart, if several queries have the same.
    """
    missing = _missing_in(sources, found)
    texts = _reasons(session, request, list(missing.values()), explain) if missing else []
    reasons = dict(zip(missing, texts, strict=True))
    return Gradients.of_query(tf.nest.flatten(sources.nest), found, reasons, identities)


def _missing_in(sources: Parts, found: Sequence[Any]) -> dict[int, tuple[int, Any]]:
    """Return the sources without gradient: the number of the item, with the number of the part and the part."""
    missing: dict[int, tuple[int, Any]] = {}
    position = 0
    for number, (parts, grad) in enumerate(zip(sources.parts, found, strict=True)):
        if grad is None and parts:  # for a ragged or sparse tensor its values, which come first
            missing[number] = position, parts[0]
        position += len(parts)
    return missing


def same_reasons(session: Session, request: Request, sources: Parts, found: Sequence[Any]) -> dict[int, str] | None:
    """Return why sources have no gradient, if it is the same on all traces that equal the one that they follow."""
    missing, template = _missing_in(sources, found), session.trace.followed()
    if not missing or template is None:
        return None if missing else {}
    texts = template.reasons.get(_reasons_key(request, list(missing.values())))
    return None if texts is None else dict(zip(missing, texts, strict=True))


def _reasons_key(request: Request, missing: Sequence[tuple[int, Any]]) -> Hashable:
    kinds = tuple((source, part.dtype, isinstance(part, VARIABLES)) for source, part in missing)
    return request.key(), kinds, tuple(target.dtype for target in request.left_out)


def _reasons(
    session: Session, request: Request, missing: Sequence[tuple[int, Any]], explain: Explain | None
) -> list[str]:
    """Return why each source has no gradient: the same on all traces that equal the one that they follow."""
    template = session.trace.followed()
    key = _reasons_key(request, missing)
    known = None if template is None else template.reasons.get(key)
    if known is not None:
        return known
    search = _Missing(session.trace, request)
    search.plan_through_updates(missing)
    found = [search.reason(source, part) for source, part in missing]
    cut = [number for number, reason in enumerate(found) if reason == CUT]
    found_at = search.where_cut([missing[number] for number in cut], explain) if cut else []
    for number, reason in zip(cut, found_at, strict=True):
        found[number] = reason
    if template is not None and not cut and len(template.reasons) < _MOST:
        template.reasons[key] = found
    return found


def warn_of_targets(request: Request) -> None:
    """Warn about targets that have no gradient because of their dtype, with the text of `tape.why`."""
    for target in request.left_out:
        text = f"The target {describe(target)} has no gradient and is left out. {dtype_problem(target)}"
        warnings.warn(text, NotDifferentiableWarning, stacklevel=stacklevel())


class _Missing:
    def __init__(self, trace: Trace, request: Request) -> None:
        self._trace, self._request = trace, request
        self._targets = list(request.targets)
        program = trace.program
        used = (program.eqns[index].inputs for index in slice_to(program, self._targets))
        self._leading = {var for inputs in used for var in inputs}.union(self._targets)
        self._through: Collection[int] = ()  # vars with a path that runs through updates

    def plan_through_updates(self, missing: Sequence[tuple[int, Any]]) -> None:
        """Plan once, for all of them, what a query through every update would find."""
        entries = [self._entry(source, part) for source, part in missing if self._leads(source, part)]
        if not entries or not self._trace.facts.assigned:
            return
        try:
            plan = make_plan(self._trace, self._targets, entries, through_updates=True)
        except UnseenUpdateError:
            return  # that query would raise
        self._through = _with_path(plan, self._targets)

    def reason(self, source: int, part: Any) -> str:
        """Return why a source has no gradient, given that it has none."""
        if self._request.left_out and not self._targets:
            return f"the target is {self._request.left_out[0].dtype.name}, which has no derivative"
        if part.dtype.base_dtype.as_datatype_enum not in TRAINABLE:
            return f"its dtype {part.dtype.name} has no derivative"
        if not self._request.sources[source]:
            return UNREAD if isinstance(part, VARIABLES) else ABSENT
        if not self._leads(source, part):
            return NO_OP
        if self._entry(source, part) in self._through:
            return SINCE if self._request.through[source] else UPDATES
        return CUT

    def where_cut(self, missing: Sequence[tuple[int, Any]], explain: Explain | None) -> list[str]:
        """Return which op passes no gradient on, for sources that are connected to a target."""
        request = self._request
        found: list[str] = [CUT] * len(missing)
        explained = 0
        for through in (False, True):
            mine = [n for n, (source, _) in enumerate(missing) if request.through[source] is through]
            vars_of = [request.sources[missing[n][0]] for n in mine]
            cuts = first_cuts(self._trace, self._targets, vars_of, through, request.since) if mine else []
            for n, cut in zip(mine, cuts, strict=True):
                found[n] = CUT if cut is None else str(cut)
                if (cut is None or cut.verdict in _VAGUE) and explain is not None and explained < _EXPLAINED:
                    explained += 1
                    explanation = explain(missing[n][1])
                    if explanation is not None and explanation.cut is not None:
                        found[n] = f"{explanation.verdict.reason}: {explanation.cut}"
        return found

    def _leads(self, source: int, part: Any) -> bool:
        """Return whether ops of any kind lead from a source to a target."""
        known = self._request.sources[source]
        return bool(known) and not self._leading.isdisjoint((*known, self._entry(source, part)))

    def _entry(self, source: int, part: Any) -> int:
        """Return the var of a source in a query through updates: for a variable, its value on entry."""
        var = self._request.sources[source][0]
        history = self._trace.facts.history_of.get(var) if isinstance(part, VARIABLES) else None
        return var if history is None else history.versions[0]


def _with_path(plan: Plan, targets: Sequence[int]) -> set[int]:
    """Return the vars that a cotangent could reach, in the reverse order of the plan from the targets."""
    found = plan.reached.intersection(targets)
    for index in reversed(plan.indices):
        eqn = plan.eqns[index]
        if not found.isdisjoint(eqn.outputs):
            found.update(plan.reached.intersection(eqn.inputs))
    return found
