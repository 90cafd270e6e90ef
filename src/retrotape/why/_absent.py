"""Why a target or a source is not on a tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrotape._nests import is_variable
from retrotape._tf import EagerTensor
from retrotape._versions import Version
from retrotape.record import EagerLog
from retrotape.why._explanation import Explanation, Step
from retrotape.why._verdicts import Verdict

_UNNAMED = "Variable:0"  # what TensorFlow calls every variable without a name


def absent(log: EagerLog, targets: Sequence[Any], source: Any, said: tuple[str, str]) -> Explanation | None:
    """Return an explanation where a target or the source is not on the tape."""
    for target in targets:
        if not is_variable(target) and _is_new(log, target):
            reason, remedy = log.why_absent(target) or (
                "it was made while recording, but by no op that is on this tape: by Python, on another thread, or "
                "before the tape was reset",
                "Make it with TensorFlow ops, on the thread that records.",
            )
            return Explanation(Verdict.TARGET_NOT_RECORDED, *said, detail=_sentence(reason), remedy=remedy)
    variable = source.variable if isinstance(source, Version) else source
    if is_variable(variable):
        return None if log.cell(variable) is not None else _unread(log, variable, said)
    if not _is_new(log, source):
        return None
    reason, remedy = log.why_absent(source) or ("no op used it", "Use it inside the block.")
    detail, twin = _sentence(reason), _twin(log, source)
    if twin is not None:
        detail += f" Another tensor with the same values took part: it is used by {twin}."
        remedy = "Make it before the block, use it inside, and ask for the very same object."
    return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail=detail, remedy=remedy)


def _unread(log: EagerLog, variable: Any, said: tuple[str, str]) -> Explanation:
    twins = [other for other in log.variables() if other.name == variable.name != _UNNAMED]
    if any(other.shape == variable.shape and other.dtype == variable.dtype for other in twins):
        return Explanation(Verdict.SAME_NAME, *said)
    detail = "No op that the tape heard has read it."
    remedy = "Read it inside the block: move what is computed from it there."
    return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail=detail, remedy=remedy)


def _is_new(log: EagerLog, tensor: Any) -> bool:
    """Say whether no op of the tape has made or used a tensor: it may be known only because somebody asked."""
    var = log.find(tensor)
    if var is None:
        return True
    builder = log.recording.builder
    if builder.producers[var] >= 0 or var in log.recording.cell_of:
        return False
    return not any(var in eqn.inputs for eqn in builder.eqns)


def _twin(log: EagerLog, tensor: Any) -> Step | None:
    """Return the first op that uses another tensor of the same type and values."""
    if not isinstance(tensor, EagerTensor) or tensor.shape.num_elements() < 2:
        return None
    recording, wanted = log.recording, tensor.numpy()
    producers = recording.builder.producers
    for eqn in recording.builder.eqns:
        for var in eqn.inputs:
            value: Any = recording.values.get(var)
            alike = producers[var] < 0 and isinstance(value, EagerTensor) and value.dtype == tensor.dtype
            if alike and value.shape == tensor.shape and np.array_equal(value.numpy(), wanted):
                return Step(eqn.op, recording.program().frame_of(eqn))
    return None


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
