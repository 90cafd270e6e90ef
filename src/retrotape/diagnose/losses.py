"""Which tensor of a tape is the loss where the user has not said so; `log` and `report` choose the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.nonfinite import results, scalars
from retrotape.record import Trace
from retrotape.tf.nests import has_derivative

NAMED = "the tensor of that name on the tape"
QUERIED = "the tensor whose gradient was computed last"
LAST = "the last scalar that no op used and that depends on a trainable variable"
ALONE = "the last scalar that no op used"


class Chosen(NamedTuple):
    """A loss.

    Attributes:
      name: Its name.
      target: What the user or the tape has for it; None if that is only its var.
      vars: Its vars.
      how: How it was chosen, in words.
      candidates: How many tensors could have been chosen in the same way.
    """

    name: str
    target: Any
    vars: tuple[int, ...]
    how: str
    candidates: int = 1


Find = Callable[[Any], tuple[int, ...]]


def choose_loss(trace: Trace, names: Mapping[str, Any], find: Find, queried: Sequence[int]) -> Chosen | None:
    """Return what is called a loss, or else was differentiated last, or else looks like one; None if nothing does.

    Args:
      trace: The trace.
      names: What names on the tape refer to.
      find: Returns the vars of what a name refers to.
      queried: The vars whose gradient was computed last.
    """
    return _named(names, find) or _queried(trace, queried) or _last(trace)


def _named(names: Mapping[str, Any], find: Find) -> Chosen | None:
    called = [name for name in names if name == "loss"] or [name for name in names if name.endswith("/loss")]
    if len(called) == 1 and has_derivative(names[called[0]]):
        return Chosen(called[0], names[called[0]], find(names[called[0]]), NAMED)
    return None


def _queried(trace: Trace, targets: Sequence[int]) -> Chosen | None:
    is_scalar = len(targets) == 1 and trace.program.types[targets[0]].shape == ()
    return Chosen("loss", None, tuple(targets), QUERIED) if is_scalar else None


def _last(trace: Trace) -> Chosen | None:
    made, updating = scalars(trace, results(trace)), _updating_lines(trace)
    made = [var for var in made if _line_of(trace, var) not in updating] or made
    reached = _dependent(trace)
    dependent = [var for var in made if var in reached]
    found = dependent or made
    return Chosen("loss", None, (found[-1],), LAST if dependent else ALONE, len(found)) if found else None


def _line_of(trace: Trace, var: int) -> int:
    return trace.program.eqns[trace.program.producers[var]].frame


def _updating_lines(trace: Trace) -> set[int]:
    """Return the lines that assign variables: what else is computed there belongs to an optimizer."""
    makers = {trace.program.producers[var] for var in trace.facts.assigned}
    return {trace.program.eqns[index].frame for index in makers if index >= 0}


def _dependent(trace: Trace) -> set[int]:
    """Return the vars from which a gradient flows to a trainable variable."""
    reached = {
        version
        for key, history in trace.facts.histories.items()
        if key in trace.variables and trace.is_trainable(trace.variables[key])
        for version in history.versions
    }
    ends = trace.facts.discrete | trace.facts.nondifferentiable
    for eqn in trace.program.eqns:
        if not reached.isdisjoint(eqn.inputs):
            reached.update(one for one in eqn.outputs if one not in ends)
    return reached
