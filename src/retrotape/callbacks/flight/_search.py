"""Finds the very step that went wrong: the steps since the last snapshot run again, and are compared with the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from retrotape._types import Tensor

# Why a replay may not be what ran.
CAUSES = (
    "The likeliest causes: random numbers without a seed (`tf.random.normal` or NumPy in a layer); a callback, or code "
    "between steps, that changes variables, also the learning rate; anything else that a step depends on besides "
    "variables and the batch; TensorFlow itself, which need not compute the same twice (it does with "
    "`tf.config.experimental.enable_op_determinism()`)."
)
CLOSE = 1e-4  # relative difference up to which a replay counts as the same run


class Call(NamedTuple):
    """A call of the train function: some steps, and what it returned.

    Attributes:
      first: Its first step.
      end: The step after its last.
      logs: What it returned, which is not looked at unless it has to be; None if it raised.
    """

    first: int
    end: int
    logs: Any


class Ran(NamedTuple):
    """A step that ran again.

    Attributes:
      logs: What it returned, as numbers; None if it raised.
      is_finite: Whether the state after it is finite.
      dropped: Whether the loss scale is lower after it.
      error: What it raised.
    """

    logs: Mapping[str, float] | None
    is_finite: bool
    dropped: bool
    error: Exception | None

    @property
    def is_bad(self) -> bool:
        """Whether it made the state or the loss not finite."""
        return not self.is_finite or not self.is_loss_finite

    @property
    def is_loss_finite(self) -> bool:
        """Whether the loss is finite, or not known."""
        return isfinite((self.logs or {}).get("loss", 0.0))


class Outcome(NamedTuple):
    """What running again has found.

    Attributes:
      step: The step; None if no step was like that.
      before: The state before it.
      difference: Where the replay differs from the run, as a sentence; "" if it does not.
      compared: Whether there was something to compare.
      is_loss_finite: Whether the loss of the step is finite: what is not, then, is what the step made of the state.
    """

    step: int | None
    before: Sequence[Tensor]
    difference: str
    compared: bool
    is_loss_finite: bool = False


def search(
    steps: range,
    run: Callable[[int], Ran],
    read: Callable[[], Sequence[Tensor]],
    calls: Sequence[Call],
    is_wanted: Callable[[Ran], bool],
    last: bool = False,
) -> Outcome:
    """Run steps again, from a state that was restored, up to the end of the call with the step that is wanted.

    A loss is computed before the update. If only the state is no longer finite, the logs of that call cannot show it:
    those of the next one have to agree too.

    Args:
      steps: Those since the snapshot.
      run: Runs a step.
      read: Returns the state.
      calls: Those of the run.
      is_wanted: Whether a step is the one.
      last: Whether to find the last such step, not the first.
    """
    ends = {call.end: call for call in calls if call.logs is not None}
    found: int | None = None
    before: Sequence[Tensor] = ()
    difference, compared, is_shown, is_loss_finite = "", False, False, False
    for step in steps:
        now = read()
        ran = run(step)
        if is_wanted(ran) and (found is None or last):
            found, before, is_loss_finite = step, now, ran.is_loss_finite
            is_shown = ran.is_finite or not is_loss_finite
        call = ends.get(step + 1)
        if call is not None and not difference:
            difference, compared = compare(step, ran, numbers(call.logs)), True
        if ran.error is not None:
            break
        if found is not None and not last and (not ends or (call is not None and (is_shown or call.first > found))):
            break
    return Outcome(found, before, difference, compared, is_loss_finite)


def compare(step: int, ran: Ran, expected: Mapping[str, float]) -> str:
    """Return how what a step returned differs from the run, as a sentence; "" if it does not."""
    if ran.logs is None:
        return f"the replay of step {step} raised {type(ran.error).__name__}, which the run did not"
    for name in expected.keys() & ran.logs.keys():
        if not np.isclose(ran.logs[name], expected[name], rtol=CLOSE, atol=1e-30, equal_nan=True):
            return f"the replay of step {step} gave {name} {ran.logs[name]:.6g} where the run had {expected[name]:.6g}"
    return ""


def numbers(logs: Any) -> dict[str, float]:
    """Return the numbers in the logs of a step, however nested.

    >>> numbers({"loss": tf.constant(2.0), "parts": {"a": 1}, "text": "x", "matrix": tf.eye(2)})
    {'loss': 2.0, 'a': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        if isinstance(value, Mapping):
            found.update(numbers(value))
        elif not isinstance(value, (str, bytes)) and np.ndim(value) == 0:
            try:
                found[name] = float(value)
            except (TypeError, ValueError):
                continue
    return found
