"""The interface of a thread's stack for code that runs functions op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from retrotape._types import Tensor


class Runner(Protocol):
    """The part of a thread's stack that records what runs."""

    place: Any

    def add_choice(self, tensor: Tensor) -> None:
        """Record that a value decided what runs next."""

    def add_moments(self, tensor: Tensor) -> None:
        """Record that `tf.nn.moments` stopped the gradient of a tensor."""

    def emit(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Record `backward` as the backward function from `outputs` to `inputs`."""

    def on_collective(
        self, kind: str, size: int, given: Sequence[Tensor], run: Callable[[], Sequence[Tensor]]
    ) -> Sequence[Tensor]:
        """Run and record a collective of `size` replicas, of which those with the values `given` are local."""
