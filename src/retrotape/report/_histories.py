"""Variables over time: every value that one had, and by how much it changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retrotape.ir import VariableHistory, bytes_of
from retrotape.record import Trace
from retrotape.report._data import History, Line, Update
from retrotape.report._flow import Forward

_LAST = 60  # updates of a variable that are shown
_LARGEST = 2**30  # bytes of all values that are compared


def changing(trace: Trace) -> list[Sequence[int]]:
    """Return the values of variables that were assigned, as far as they are shown; none if they are too large."""
    found = [_shown(history) for history in _assigned(trace)]
    types = trace.program.types
    return found if sum(bytes_of(types[var]) for one in found for var in one) <= _LARGEST else []


def _assigned(trace: Trace) -> list[VariableHistory]:
    return [history for history in trace.facts.histories.values() if len(history.versions) > 1]


def _shown(history: VariableHistory) -> Sequence[int]:
    return history.versions[-_LAST - 1 :]


def described_histories(trace: Trace, seen: Forward, line_at: Callable[[int], Line]) -> tuple[History, ...]:
    """Return the variables that were assigned, trainable ones first."""
    found = []
    for number, history in enumerate(_assigned(trace)):
        variable = trace.variables.get(history.key)
        shown = _shown(history)
        made_by = history.made_by[-len(shown) :]
        found.append(
            History(
                name=f"variable_{number}" if variable is None else trace.path_of(variable),
                shape=str(trace.program.types[shown[-1]]),
                trainable=variable is not None and trace.is_trainable(variable),
                first=seen.stats.get(shown[0]),
                updates=tuple(
                    _update(trace, seen, line_at, *pair) for pair in zip(shown[1:], made_by[1:], strict=True)
                ),
                count=len(history.versions) - 1,
            )
        )
    return tuple(sorted(found, key=lambda one: not one.trainable))


def _update(trace: Trace, seen: Forward, line_at: Callable[[int], Line], var: int, index: int) -> Update:
    value, change = seen.stats.get(var), seen.changes.get(var)
    if index < 0 or var in trace.facts.unrecorded_updates:
        return Update("", None, value, change)
    return Update(trace.program.eqns[index].op, line_at(index), value, change)
