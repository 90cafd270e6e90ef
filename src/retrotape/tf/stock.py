"""Stock tapes, those of TensorFlow: stopped for a while, or open for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.tf.core import is_trainable, pywrap_tfe
from retrotape.tf.scopes import Scope


class stop_stock_tapes(Scope):
    """Let no stock tape of this thread hear what runs meanwhile."""

    _stopped = True

    def enter(self) -> None:
        """Begin the block."""
        self._stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
        if not self._stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()

    def leave(self) -> None:
        """End the block."""
        if not self._stopped:
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()


class watching(Scope):
    """Let TensorFlow believe that somebody watches `tensors`, so that a function tells how it goes back."""

    def __init__(self, tensors: Sequence[Tensor], persistent: bool) -> None:
        self._tensors, self._persistent = tensors, persistent
        self._tapes: list[Any] = [None]

    # Not by tf.GradientTape: it may be interrupted when TensorFlow has the tape and it does not know that. Here what
    # TensorFlow has and what is in the list change in one step, for `map` and `iter` run no Python code in between.

    def enter(self) -> None:
        """Begin the block."""
        self._tapes.extend(map(pywrap_tfe.TFE_Py_TapeSetNew, (self._persistent,), (False,)))
        for tensor in self._tensors:
            if is_trainable(tensor):
                pywrap_tfe.TFE_Py_TapeWatch(self._tapes[-1], tensor)

    def leave(self) -> None:
        """End the block."""
        if self._tapes:
            deque(map(pywrap_tfe.TFE_Py_TapeSetRemove, iter(self._tapes.pop, None)), 0)  # all down to the None
