"""What keeps a recorder from recording, such as a full disk: it warns once, and training goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from retrotape.errors import RetrotapeError
from retrotape.tf.core import tf

_EXPECTED = OSError, RetrotapeError, tf.errors.OpError  # whose texts are meant for users


class Trouble:
    """Runs what a recorder does, until that fails for the first time.

    Attributes:
      reason: Why nothing is recorded any more; None if all is well.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._has_warned = False

    def attempt(self, action: Callable[[], None]) -> None:
        """Run an action of the recorder, unless one has failed."""
        if self.reason is None:
            try:
                action()
            except Exception as error:  # any: a recorder must not end a training
                text = str(error).strip().partition("\n")[0]
                self.reason = text if isinstance(error, _EXPECTED) else f"{type(error).__name__}: {text}"
        if self.reason is not None and not self._has_warned:
            self._has_warned = True
            text = f"The flight recorder has stopped, and training goes on without it: {self.reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
