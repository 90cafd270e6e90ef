"""What keeps a recorder from recording, such as a full disk: it warns once, and training goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from retrotape.errors import RetrotapeError
from retrotape.tf.core import tf


class Trouble:
    """Runs what a recorder does, until that fails for the first time.

    Attributes:
      reason: Why nothing is recorded any more; None if all is well.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._is_told = False

    def attempt(self, action: Callable[[], None]) -> None:
        """Run an action of the recorder, unless one has failed."""
        if self.reason is None:
            try:
                action()
            except (OSError, RetrotapeError, tf.errors.OpError) as error:
                self.reason = str(error).strip().partition("\n")[0]
        if self.reason is not None and not self._is_told:
            self._is_told = True
            text = f"The flight recorder has stopped, and training goes on without it: {self.reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
