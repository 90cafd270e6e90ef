"""Run many steps: several of them in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrotape.playback._step import Step


def run_many(step: Step, dataset: Iterable[Any], steps: int, progress: bool) -> Any:
    """Run a step on each element of a dataset; see `CompiledStep.run`."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}.")
    raise NotImplementedError
