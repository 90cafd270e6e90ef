"""Stop or open stock tapes (TensorFlow's own) for one block."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.tf.core import is_trainable, pywrap_tfe
from retrotape.tf.scopes import Scope


class stop_stock_tapes(Scope):
    """Stop the stock tapes of this thread for one block."""

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
    """Watch `tensors` with a stock tape, so that TensorFlow builds the backward functions of calls in the block."""

    def __init__(self, tensors: Sequence[Tensor], persistent: bool) -> None:
        self._tensors, self._persistent = tensors, persistent
        self._tapes: list[Any] = [None]

    # Not a tf.GradientTape: an interrupt between pushing and storing the tape would leave it open. Here TensorFlow's
    # tape set and the list change atomically, since `map` and `iter` run no Python code in between.

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
