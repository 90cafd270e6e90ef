"""What is said about a crash in `fit`: which step, what happened there, and whether it could be reproduced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from retrotape.callbacks._draws import XLA
from retrotape.callbacks.flight._crash import Account
from retrotape.callbacks.flight._search import CAUSES, Call, Outcome, numbers

_LAST = 20  # calls that a report shows
# What TensorFlow and Keras write around the sentence that says what is wrong.
_AROUND = re.compile(r"Graph execution error|Exception encountered when|Detected at node|File |<stack|\(\d+\) |\[\[")
_MARKS = re.compile(r"\x1b\[\d*m|\{\{.*?\}\}|\[Op:.*")


class Epoch(NamedTuple):
    """An epoch: its number, and its first step."""

    number: int
    first: int


def place_of(step: int, epochs: Sequence[Epoch]) -> str:
    """Return where a step is in a training.

    >>> place_of(37, [Epoch(0, 0), Epoch(1, 30)])
    'step 37 (epoch 2, batch 7, counted from 0)'
    """
    epoch = max((epoch for epoch in epochs if epoch.first <= step), default=Epoch(0, 0))
    return f"step {step} (epoch {epoch.number + 1}, batch {step - epoch.first}, counted from 0)"


def account_of(what: str, snapshot: int, outcome: Outcome, calls: Sequence[Call], epochs: Sequence[Epoch]) -> Account:
    """Return what is known: a step only if it was reproduced.

    Args:
      what: What happened.
      snapshot: The step before which the state was known.
      outcome: What running again has found.
      calls: Those of the run since the snapshot.
      epochs: Those of the run.
    """
    history = [_line(call) for call in calls[-_LAST:]]
    if outcome.step is not None and not outcome.difference:
        remarks = () if outcome.compared else ("Nothing that the step returned could be compared with the run.",)
        return Account(outcome.step, f"{place_of(outcome.step, epochs)}: {what}", remarks, history)
    first, end = _span_of_bad(calls)
    span = place_of(first, epochs) if end - first == 1 else f"one of the steps {first} to {end - 1}"
    remark = (
        f"It could not be reproduced from the snapshot before step {snapshot}: "
        f"{outcome.difference or 'no step went wrong again'}. {CAUSES}"
    )
    return Account(None, f"{span}: {what}", [remark], history)


def recorded_remarks(remarks: Sequence[str], difference: str, drawn: str | None) -> list[str]:
    """Return what the reader has to know about a step that was recorded in eager code.

    Args:
      remarks: About its tape.
      difference: How its loss differs from the run, as a sentence; "" if it does not.
      drawn: The op that drew other numbers than in the run; None if none did.
    """
    instead = f"{XLA}, and {drawn} draws some. For a tape of what ran: `model.compile(..., jit_compile=False)`."
    if difference:
        cause = instead if drawn else "A tape has what eager code computes, so it would not show what happened."
        return [f"{difference}. {cause}"]
    return [*remarks, *([f"Its random numbers are not those of the run: {instead}"] if drawn else [])]


def _span_of_bad(calls: Sequence[Call]) -> tuple[int, int]:
    """Return the steps among which the first bad one was, as far as the run itself shows it."""
    for call in calls:
        if call.logs is None or not isfinite(numbers(call.logs).get("loss", 0.0)):
            return call.first, call.end
    return calls[0].first, calls[-1].end


def _line(call: Call) -> str:
    steps = f"step {call.first}" if call.end - call.first == 1 else f"steps {call.first} to {call.end - 1}"
    logs = "raised" if call.logs is None else ", ".join(f"{k} {v:.6g}" for k, v in numbers(call.logs).items())
    return f"  {steps}: {logs}"


def gist_of(error: BaseException) -> str:
    r"""Return what an exception says, in one line.

    >>> gist_of(ValueError("Graph execution error:\n\nDetected at node a\nindices[0] = 7 is not in [0, 5)\n\t [[a]]"))
    'ValueError: indices[0] = 7 is not in [0, 5)'
    """
    lines = [_MARKS.sub("", line).strip() for line in str(error).splitlines()]
    sentence = next((line for line in lines if line and not _AROUND.match(line)), "")
    return f"{type(error).__name__}: {sentence}".rstrip(".: ")
