"""DWA: larger weights for losses that fall slowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._state import Stateful
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import as_is, tf


@dataclass(eq=False)
class DWA(Stateful, Weighting):
    """Weigh losses by how slowly they fall from one epoch to the next.

    Liu, Johns and Davison, End-to-End Multi-Task Learning with Attention, 2019 (arXiv:1803.10704).

    Losses are averaged over the calls of an epoch. Mark its end by `end_epoch` or by `steps_per_epoch`; until two
    epochs have ended, all weights are one. `rt.keras.multi_task` ends the epochs of `fit`. The weights are those of
    losses: they hold for the variables that only one loss depends on, too.

    Args:
      temperature: The larger, the more equal weights are.
      steps_per_epoch: After how many calls an epoch ends by itself; None for never.

    >>> method = rt.aggregate.DWA(steps_per_epoch=1)
    >>> for losses in ([1.0, 1.0], [0.5, 0.9], [0.5, 0.9]):
    ...     weights = method.weights([[1.0, 0.0], [0.0, 1.0]], losses)
    >>> weights.numpy().round(3).tolist()
    [0.9, 1.1]
    """

    temperature: float = 2.0
    steps_per_epoch: int | None = None

    needs_losses = True
    needs_positive_losses = True
    needs_gramian = False
    weighs_own = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0.0:
            raise ValueError(f"temperature= takes a positive number, got {self.temperature!r}: `DWA(temperature=2.0)`.")
        if self.steps_per_epoch is not None and self.steps_per_epoch < 1:
            raise ValueError(
                f"steps_per_epoch= takes a number of calls, 1 or more, got {self.steps_per_epoch!r}. For epochs that "
                "`method.end_epoch()` ends, use `DWA(steps_per_epoch=None)`."
            )

    def start(self, size: int) -> Mapping[str, np.ndarray]:
        """Return the losses of the current epoch, summed, its calls, the means of the two before, and their number."""
        number = np.zeros([], np.int64)
        return {
            "total": np.zeros(size),
            "calls": number,
            "last": np.ones(size),
            "before": np.ones(size),
            "ended": number,
        }

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        total, calls, last, before, ended = problem.state
        assert problem.losses is not None
        ratios = tf.where(ended > 1, last / before, tf.ones_like(last))
        weights = problem.size * tf.nn.softmax(ratios / self.temperature)
        state = total + problem.losses, calls + 1, last, before, ended
        if self.steps_per_epoch is not None:
            is_over = state[1] >= self.steps_per_epoch
            state = tuple(tf.where(is_over, new, old) for new, old in zip(_rotated(state), state, strict=True))
        return Solution(weights, tf.constant(True), state)

    @as_is
    def end_epoch(self) -> None:
        """End an epoch; nothing happens if there was no call since the last one."""
        if self.is_built:
            self._write(_rotated(self._read(self._losses)))


def _rotated(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    total, calls, last, _, ended = state
    mean = total / tf.cast(tf.maximum(calls, tf.ones_like(calls)), tf.float64)
    new = tf.zeros_like(total), tf.zeros_like(calls), mean, last, ended + 1
    return tuple(tf.where(calls > 0, one, old) for one, old in zip(new, state, strict=True))
