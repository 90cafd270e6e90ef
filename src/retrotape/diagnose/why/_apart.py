"""Both are on the tape, but no op leads from the source to the target: what else the trace shows."""

from __future__ import annotations

from typing import Any

from retrotape.diagnose.why._explanation import Explanation
from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._left import Left
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.ir import reached_from
from retrotape.record import EagerSession

Said = tuple[str, str]


def apart(session: EagerSession, between: Between, said: Said, source_is_variable: bool) -> Explanation:
    """Return an explanation where no op leads from source to target."""
    found = _copied(between, said) or _through_a_dataset(between, said)
    if found is None and not source_is_variable:
        found = _swapped(between, said)
    left: Any = None
    if found is None:
        left = Left(session, between)
        found = left.explain(said)
    if found is not None:
        return found
    leading, elsewhere = between.steps(between.leading), between.reached_elsewhere()
    gap = next((var for var in sorted(between.needed & between.trace.facts.unrecorded_updates)), None)
    if gap is not None:
        detail = f"The variable is {between.name_of(gap)}."
        return Explanation(Verdict.UNSEEN_UPDATE, *said, None, elsewhere, leading, detail=detail)
    return Explanation(Verdict.NO_PATH, *said, None, elsewhere, leading, " ".join(left.facts()), left.remedy())


def _copied(between: Between, said: Said) -> Explanation | None:
    original = between.copied_from()
    if original is None:
        return None
    detail = f"It was copied from {between.name_of(original)}, and the target was not computed from the copy."
    return Explanation(Verdict.COPY, *said, between.step(between.producers[between.sources[0]]), detail=detail)


def _swapped(between: Between, said: Said) -> Explanation | None:
    builder = between.trace.program
    _, reached = reached_from(builder, between.targets, range(len(builder.eqns)))
    if reached.isdisjoint(between.sources):
        return None
    detail = "The roles are reversed: the source was computed from the target."
    remedy = "Swap them: the target comes first, then the source."
    return Explanation(Verdict.NO_PATH, *said, detail=detail, remedy=remedy)


def _through_a_dataset(between: Between, said: Said) -> Explanation | None:
    """Return where the source enters a dataset that the target was read from; an op without outputs connects them."""
    reached = between.reached()
    for eqn in between.eqns:
        if eqn.op != "MakeIterator" or eqn.inputs[0] not in reached or eqn.inputs[1] not in between.needed:
            continue
        path = between.path_anywhere(eqn.inputs[0])
        cut = next((index for index in path if between.eqns[index].op.endswith("Dataset")), path[-1])
        detail = "The source goes into a dataset here, and the target was computed from its elements."
        after = between.path([eqn.inputs[1]], between.targets)
        before = path[: path.index(cut)]
        remedy = "Do not use `tf.data` between them: slice, shuffle and batch with `tf.gather` and `tf.split`."
        return Explanation(
            Verdict.NO_GRADIENT, *said, between.step(cut), between.steps(before), between.steps(after), detail, remedy
        )
    return None
