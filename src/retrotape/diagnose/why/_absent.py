"""Why a target or a source is not on a tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrotape.diagnose.why._explanation import Explanation, Step
from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._left import Left
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.record import EagerLog
from retrotape.tf.core import EagerTensor
from retrotape.tf.nests import is_variable
from retrotape.tf.version import Version

_UNNAMED = "Variable:0"  # what TensorFlow calls every variable without a name


def absent(log: EagerLog, targets: Sequence[Any], source: Any, said: tuple[str, str]) -> Explanation | None:
    """Return an explanation where a target or the source is not on the tape."""
    found = next((found for found in (_missing(log, target, said) for target in targets) if found is not None), None)
    if found is not None:
        return found
    variable = source.variable if isinstance(source, Version) else source
    if is_variable(variable):
        return None if log.cell(variable) is not None else _unread(log, targets, variable, said)
    if not _is_new(log, source):
        return None
    reason, remedy = log.why_absent(source) or ("no op used it", "Use it inside the block.")
    detail, twin = _sentence(reason), _twin(log, source)
    if twin is not None:
        var, user = twin
        cell = log.recording.cell_of.get(var)
        if cell is not None:
            detail += f" The variable {log.recording.name_of(cell)} took part, and has the same values."
            remedy = "Ask for the variable."
        else:
            detail += f" Another tensor with the same values took part: it is used by {user}."
            remedy = "Make it before the block, use it inside, and ask for the very same object."
    return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail=detail, remedy=remedy)


def _missing(log: EagerLog, target: Any, said: tuple[str, str]) -> Explanation | None:
    """Return why a target is not on the tape; None if it is."""
    if is_variable(target):
        if log.cell(target) is not None:
            return None
        reason, remedy = "no op on the tape has read or assigned it", "Read it inside the block."
    elif not _is_new(log, target):
        return None
    else:
        reason, remedy = log.why_absent(target) or (
            "it was made while recording, but by no op that is on this tape: by Python, on another thread, or "
            "before the tape was reset",
            "Make it with TensorFlow ops, on the thread that records.",
        )
    return Explanation(Verdict.TARGET_NOT_RECORDED, *said, detail=_sentence(reason), remedy=remedy)


def _unread(log: EagerLog, targets: Sequence[Any], variable: Any, said: tuple[str, str]) -> Explanation:
    twins = [other for other in log.variables() if other.name == variable.name != _UNNAMED]
    if any(other.shape == variable.shape and other.dtype == variable.dtype for other in twins):
        return Explanation(Verdict.SAME_NAME, *said)
    cells = [log.cell(target) if is_variable(target) else None for target in targets]
    known = [log.find(target) if cell is None else cell.current for target, cell in zip(targets, cells, strict=True)]
    between = Between(log.recording, [var for var in known if var is not None], [], False, None)
    detail = " ".join(("No op on the tape has read it.", *Left(log, between).unmade()))
    remedy = "Read it inside the block: move what is computed from it there, or see whether its layer is called at all."
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


def _twin(log: EagerLog, tensor: Any) -> tuple[int, Step] | None:
    """Return another tensor, or a variable's value, of the same type and values, and the first op that uses it."""
    if not isinstance(tensor, EagerTensor) or tensor.shape.num_elements() < 2:
        return None
    recording, wanted = log.recording, tensor.numpy()
    producers = recording.builder.producers
    for eqn in recording.builder.eqns:
        for var in eqn.inputs:
            value: Any = recording.values.get(var)
            alike = producers[var] < 0 and isinstance(value, EagerTensor) and value.dtype == tensor.dtype
            if alike and value.shape == tensor.shape and np.array_equal(value.numpy(), wanted):
                return var, Step(eqn.op, recording.program().frame_of(eqn))
    return None


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
