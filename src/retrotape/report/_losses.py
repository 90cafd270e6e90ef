"""What a report takes gradients of: what the user gave, what is called a loss, or what looks like one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.nonfinite import results, scalars
from retrotape.record import TRAINABLE, Trace

GIVEN = "given to `report`"
NAMED = "the tensor of that name on the tape"
QUERIED = "the tensor whose gradient was computed last"
LAST = "the last scalar that no op used and that depends on a trainable variable"
ALONE = "the last scalar that no op used"
ADVICE = (
    "The gradient flow is missing: no tensor is called 'loss', and no op made a floating-point scalar that no other op "
    "used. Say what to differentiate: `tape.report(path, loss=loss)`, or `losses={'a': a, 'b': b}`."
)


class Chosen(NamedTuple):
    """A loss: its name, what the user or the tape has for it, its vars, and how it was chosen."""

    name: str
    target: Any
    vars: tuple[int, ...]
    how: str


Find = Callable[[Any], tuple[int, ...]]


def given_losses(loss: Any, losses: Any, resolve: Callable[[Any], Any], find: Find) -> list[Chosen]:
    """Return the losses that the user gave.

    Args:
      loss: One of them, or None.
      losses: Several, or None.
      resolve: Returns what a name refers to, and anything else unchanged.
      find: Returns the vars of a loss.
    """
    if loss is not None and losses is not None:
        raise TypeError("report takes loss= or losses=, got both; give several as `losses={'a': a, 'b': b}`.")
    if loss is not None:
        target = resolve(loss)
        return [Chosen(loss if isinstance(loss, str) else "loss", target, find(target), GIVEN)]
    if losses is None:
        return []
    if not isinstance(losses, (Mapping, list, tuple)) or not losses:
        raise TypeError(f"losses= takes names and losses, `{{'a': a, 'b': b}}`, or a list of them; got {losses!r:.60}.")
    named = losses if isinstance(losses, Mapping) else {_name(one, n): one for n, one in enumerate(losses)}
    targets = {str(name): resolve(one) for name, one in named.items()}
    return [Chosen(name, one, find(one), GIVEN) for name, one in targets.items()]


def _name(loss: Any, number: int) -> str:
    return loss if isinstance(loss, str) else f"loss {number}"


def named_loss(trace: Trace, names: Mapping[str, Any], find: Find) -> list[Chosen]:
    """Return what is called a loss on a tape with names."""
    called = [name for name in names if name == "loss"] or [name for name in names if name.endswith("/loss")]
    for name in called if len(called) == 1 else []:
        found = find(names[name])
        if all(trace.program.types[var].dtype in TRAINABLE for var in found):
            return [Chosen(name, names[name], found, NAMED)]
    return []


def found_loss(trace: Trace) -> list[Chosen]:
    """Return a scalar that looks like a loss; its target is None."""
    made = scalars(trace, results(trace))
    for var in reversed([var for var in made if _line_of(trace, var) not in _updating_lines(trace)] or made):
        if _depends(trace, var):
            return [Chosen("loss", None, (var,), LAST)]
    return [Chosen("loss", None, (made[-1],), ALONE)] if made else []


def queried_loss(trace: Trace, targets: Sequence[int]) -> list[Chosen]:
    """Return the loss whose gradient the user has computed last, if it is a scalar."""
    is_scalar = len(targets) == 1 and trace.program.types[targets[0]].shape == ()
    return [Chosen("loss", None, tuple(targets), QUERIED)] if is_scalar else []


def _line_of(trace: Trace, var: int) -> int:
    return trace.program.eqns[trace.program.producers[var]].frame


def _updating_lines(trace: Trace) -> set[int]:
    """Return the lines that assign variables: what else is computed there belongs to an optimizer."""
    makers = {trace.program.producers[var] for var in trace.facts.assigned}
    return {trace.program.eqns[index].frame for index in makers if index >= 0}


def _depends(trace: Trace, var: int) -> bool:
    """Return whether a gradient flows from a var to a trainable variable."""
    sources = [
        version
        for key, history in trace.facts.histories.items()
        if key in trace.variables and trace.is_trainable(trace.variables[key])
        for version in history.versions
    ]
    ends, reached = trace.facts.discrete | trace.facts.nondifferentiable, set(sources)
    for eqn in trace.program.eqns:
        if not reached.isdisjoint(eqn.inputs):
            reached.update(one for one in eqn.outputs if one not in ends)
    return var in reached
