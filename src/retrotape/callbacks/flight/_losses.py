"""The loss of one step, compiled and in eager code: only if they agree is a tape what ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from retrotape.tf.core import tf

_CLOSE, _CLOSE_HALF = 1e-3, 3e-2  # relative differences that rounding may make; in float16 and bfloat16
_LOW = ("float16", "bfloat16")
_ROUNDING = 8 * float(np.finfo(np.float32).eps)


class StepLoss(NamedTuple):
    """The loss of one step.

    Attributes:
      value: The loss; None if it is not known.
      rounding: How far it may be off, as it was computed from sums.
    """

    value: float | None
    rounding: float = 0.0


def measured(model: Any, run: Callable[[], Mapping[str, float] | None]) -> StepLoss:
    """Run a step, which returns its logs, and return its loss: logs have the mean over an epoch."""
    total, count = _sums(model)
    logs = run()
    new_total, new_count = _sums(model)
    if new_count == count:  # nothing keeps a mean
        return StepLoss((logs or {}).get("loss"))
    size = new_count - count
    return StepLoss((new_total - total) / size, _ROUNDING * abs(new_total) / size if isfinite(new_total) else 0.0)


def _sums(model: Any) -> tuple[float, float]:
    """Return the sum of the losses of this epoch, and how many there were."""
    metric = next((one for one in model.metrics if one.name == "loss" and isinstance(one, tf.keras.metrics.Mean)), None)
    return (0.0, 0.0) if metric is None else (float(metric.total.numpy()), float(metric.count.numpy()))


def difference(model: Any, run: StepLoss, eager: StepLoss) -> str:
    """Return how the loss of a step in eager code differs from that of the run, as a sentence; "" if it does not."""
    if run.value is None or eager.value is None or not (isfinite(run.value) or isfinite(eager.value)):
        return ""
    low = any(getattr(layer, "compute_dtype", "") in _LOW for layer in (model, *model.layers))
    if np.isclose(eager.value, run.value, rtol=_CLOSE_HALF if low else _CLOSE, atol=run.rounding + 1e-30):
        return ""
    return f"In eager code, op by op, its loss is {eager.value:.6g}, and in the run it was {run.value:.6g}"
