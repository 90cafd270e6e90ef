"""Several tapes as one."""

from __future__ import annotations

from threading import RLock
from typing import Any

from retrotape._asking import Answers
from retrotape.errors import TapeUseError
from retrotape.files import Filed
from retrotape.ir import Program
from retrotape.record import EagerLog, merge
from retrotape.tape import Tape


class JoinedTape(Filed):
    """What several tapes have recorded, as one tape that answers every question; `rt.join` makes it."""

    def __init__(self, logs: list[EagerLog]) -> None:
        self._log = EagerLog.of(logs, merge([log.recording for log in logs]))
        self._answers = Answers()
        self._lock = RLock()

    @property
    def program(self) -> Program:
        """Everything that the tapes have recorded, in the order in which it ran."""
        return self._log.recording.program()

    def _asked(self) -> EagerLog:
        self._log.refresh()
        return self._log


def join(*tapes: Tape | JoinedTape) -> JoinedTape:
    """Return one tape over several, in the order in which they ran, whatever the order given.

    Shared tensors and variables connect them, and an op that two of them recorded counts once. The tapes stay as
    they are; what they record later is not part of the joined one.

    Args:
      *tapes: Tapes that were recorded in eager code.

    Raises:
      TapeUseError: If there is no tape, one that is empty, or one that was recorded inside a tf.function.

    >>> x = tf.constant(1.0)
    >>> with rt.Tape() as first:
    ...     y = x ** 2
    >>> with rt.Tape() as second:
    ...     z = tf.sin(y)
    >>> round(float(rt.join(second, first).gradient(z, x)), 4)
    1.0806
    """
    if not tapes:
        raise TapeUseError("join takes one or more tapes, got none: `rt.join(first, second)`.")
    return JoinedTape([_log_of(tape) for tape in tapes])


def _log_of(tape: Any) -> EagerLog:
    if not isinstance(tape, (Tape, JoinedTape)):
        raise TapeUseError(f"join takes tapes, got {type(tape).__name__}: `rt.join(first, second)`.")
    log = tape._asked()
    if not isinstance(log, EagerLog):
        raise TapeUseError(
            "join takes tapes that were recorded in eager code, and one was recorded inside a tf.function. "
            "There, one tape over everything does the same."
        )
    return log
