"""Weights from uncertainties that are learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrotape._types import Gradient
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._state import Stateful
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(eq=False)
class UncertaintyWeighting(Stateful, Weighting):
    """Weigh each loss by a variance that is learned: half the sum of exp(-s) loss + s, for log-variances s.

    Kendall, Gal and Cipolla, Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and Semantics,
    2018 (arXiv:1705.07115).

    The log-variances are a variable, which starts at zero. Its gradient is part of the result, so that your optimizer
    trains it: give `method.build(count)` to the optimizer with the variables of your model, or let
    `combined.apply(optimizer)` build it. The weights are those of losses: they hold for the variables that only one
    loss depends on, too.

    >>> method, w = rt.aggregate.UncertaintyWeighting(), tf.Variable(1.0)
    >>> with rt.Tape() as tape:
    ...     losses = [3.0 * w, 5.0 * w]
    >>> combined = method(tape.backward_each(losses))
    >>> float(combined[w]), combined[method.log_variances].numpy().tolist()
    (4.0, [-1.0, -2.0])
    """

    needs_losses = True
    needs_gramian = False
    weighs_own = True
    trained = ("log_variances",)

    def start(self, size: int) -> Mapping[str, np.ndarray]:
        """Return the log-variances."""
        return {"log_variances": np.zeros(size, np.float32)}

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        return Solution(0.5 * tf.exp(-tf.cast(problem.state[0], tf.float64)), tf.constant(True), problem.state)

    def _extra(self, given: dict[str, Any]) -> Sequence[tuple[Any, Gradient]]:
        (variances,) = given["state"]
        grad = 0.5 * (1.0 - tf.exp(-tf.cast(variances, tf.float64)) * given["losses"])
        return [(self.log_variances, tf.cast(grad, variances.dtype))]
