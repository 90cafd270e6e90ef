"""Why a target or a source is not on a tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrotape.diagnose.why._explanation import Explanation, Step
from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._left import Left
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.record import EagerSession
from retrotape.tf.core import EagerTensor
from retrotape.tf.nests import VARIABLES
from retrotape.tf.version import Version

_UNNAMED = "Variable:0"  # what TensorFlow calls every variable without a name


def absent(session: EagerSession, targets: Sequence[Any], source: Any, said: tuple[str, str]) -> Explanation | None:
    """Return an explanation where a target or the source is not on the tape."""
    found = next(
        (found for found in (_missing(session, target, said) for target in targets) if found is not None), None
    )
    if found is not None:
        return found
    variable = source.variable if isinstance(source, Version) else source
    if isinstance(variable, VARIABLES):
        return None if session.history(variable) is not None else _unread(session, targets, variable, said)
    if not _is_new(session, source):
        return None
    reason, remedy = session.why_absent(source) or ("no op used it", "Use it inside the block.")
    detail, twin = _sentence(reason), _twin(session, source)
    if twin is not None:
        var, user = twin
        history = session.trace.facts.history_of.get(var)
        if history is not None:
            detail += f" The variable {session.trace.name_of(history)}, which has the same values, was used."
            remedy = "Pass the variable as the source."
        else:
            detail += f" Another tensor with the same values was used by {user}."
            remedy = "Make it before the block, use it inside, and pass that same object as the source."
    return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail=detail, remedy=remedy)


def _missing(session: EagerSession, target: Any, said: tuple[str, str]) -> Explanation | None:
    """Return why a target is not on the tape; None if it is."""
    if isinstance(target, VARIABLES):
        if session.history(target) is not None:
            return None
        reason, remedy = "no op on the tape has read or assigned it", "Read it inside the block."
    elif not _is_new(session, target):
        return None
    else:
        reason, remedy = session.why_absent(target) or (
            "it was made while the tape was recording, but not by an op on this tape: by Python, on another "
            "thread, or before the tape was reset",
            "Compute it with TensorFlow ops, on the thread that records.",
        )
    return Explanation(Verdict.TARGET_NOT_RECORDED, *said, detail=_sentence(reason), remedy=remedy)


def _unread(session: EagerSession, targets: Sequence[Any], variable: Any, said: tuple[str, str]) -> Explanation:
    twins = [other for other in session.variables() if other.name == variable.name != _UNNAMED]
    if any(other.shape == variable.shape and other.dtype == variable.dtype for other in twins):
        return Explanation(Verdict.SAME_NAME, *said)
    histories = [session.history(target) if isinstance(target, VARIABLES) else None for target in targets]
    known = [
        session.find(target) if history is None else history.current
        for target, history in zip(targets, histories, strict=True)
    ]
    between = Between(session.trace, [var for var in known if var is not None], [], False, None)
    detail = " ".join(("No op on the tape has read it.", *Left(session, between).unmade()))
    remedy = "Read it inside the block: move the code that uses it there, or check that its layer is called."
    return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail=detail, remedy=remedy)


def _is_new(session: EagerSession, tensor: Any) -> bool:
    """Return whether no op of the tape has made or used a tensor; an earlier query may have given it a var."""
    var = session.find(tensor)
    if var is None:
        return True
    builder = session.trace.program
    if builder.producers[var] >= 0 or var in session.trace.facts.history_of:
        return False
    return not any(var in eqn.inputs for eqn in builder.eqns)


def _twin(session: EagerSession, tensor: Any) -> tuple[int, Step] | None:
    """Return another tensor, or a variable's value, of the same type and values, and the first op that uses it."""
    if not isinstance(tensor, EagerTensor) or tensor.shape.num_elements() < 2:
        return None
    trace, wanted = session.trace, tensor.numpy()
    producers = trace.program.producers
    for eqn in trace.program.eqns:
        for var in eqn.inputs:
            value: Any = trace.values.get(var)
            alike = producers[var] < 0 and isinstance(value, EagerTensor) and value.dtype == tensor.dtype
            if alike and value.shape == tensor.shape and np.array_equal(value.numpy(), wanted):
                return var, Step(
                    eqn.op, trace.program.frame_of(eqn), saved_code=trace.frames.saved_code(eqn.frame) or ""
                )
    return None


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
