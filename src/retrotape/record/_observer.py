"""The interface of those that observe a computation in order to compile it."""

from __future__ import annotations

from typing import Protocol

from retrotape._types import Tensor


class Observer(Protocol):
    """Is notified of what its recorder cannot record."""

    def on_gap(self) -> None:
        """Ops are about to run that are not recorded."""

    def on_host_read(self, tensor: Tensor) -> None:
        """Python is about to read the value of a tensor."""
