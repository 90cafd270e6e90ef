"""The interface of those that observe a computation in order to compile it."""

from __future__ import annotations

from typing import Protocol

from retrotape._types import Tensor


class Observer(Protocol):
    """Is notified of what its recorder cannot record.

    Attributes:
      of_query: Whether it observes a query, which assigns nothing and is not differentiated; otherwise any code.
    """

    of_query: bool

    def on_gap(self) -> None:
        """Ops are about to run that are not recorded."""

    def on_gap_end(self) -> None:
        """Ops are recorded again."""

    def on_host_read(self, tensor: Tensor, only_shown: bool) -> None:
        """Python is about to read the value of a tensor, perhaps only to show it."""
