"""Which layer an op belongs to.

While a tape records, the begin and end of every call of a Keras layer are recorded, so that the ops in between are
known to belong to it. This includes layers without weights, layers inside a model, and each call of a shared layer.

Ops outside Keras layers are attributed by variables with names like those of Keras (`dense/kernel`): from the first
read of such a variable to the first read of a variable of another layer, or until the line of user code changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple

from retrotape.errors import UnknownLayerError
from retrotape.ir import UNCOUNTED, LayerCall
from retrotape.record import Trace
from retrotape.tf.core import identity_of

_NEAR = 6  # names to suggest


class Layer(NamedTuple):
    """A layer, and which call of it; outside Keras, only a name."""

    path: str
    call: int = 0  # from 1 on; 0 if calls are not known, and for a call that failed or only built a model
    outer: Layer | None = None  # the layer that called it

    def chain(self) -> Iterator[Layer]:
        """Yield this layer and those that called it."""
        layer: Layer | None = self
        while layer is not None:
            yield layer
            layer = layer.outer

    def is_inside(self, name: str, call: int | None = None) -> bool:
        """Return whether it is, or was called by, a layer of that name, in that call of it."""
        if call is None:
            return is_part(name, self.path)
        return any(one.call == call and f"/{one.path}".endswith(f"/{name.strip('/')}") for one in self.chain())


NONE = Layer("")


class Layers:
    """The layers of a trace.

    Args:
      trace: The trace.
      guess: Whether ops outside Keras layers are attributed by the variables that they read.

    Attributes:
      of: For each equation, the innermost layer that it ran in; `NONE` if there is none.
      called: Every call of a Keras layer, in the order in which they began, with its record.
    """

    def __init__(self, trace: Trace, guess: bool = True) -> None:
        self.called: list[tuple[Layer, LayerCall]] = []
        self.of = self._within(trace)
        if guess:
            _guess(trace, self.of)

    def _within(self, trace: Trace) -> list[Layer]:
        scopes = sorted(trace.facts.layer_calls.values(), key=lambda scope: scope.begin)
        calls: Counter[str] = Counter()
        found, open_, at = [NONE] * len(trace.program.eqns), list[tuple[Layer, LayerCall]](), 0
        for time, index in sorted(zip(trace.facts.times, range(len(found)), strict=False)):
            while at < len(scopes) and scopes[at].begin < time:
                self._enter(scopes[at], open_, calls)
                at += 1
            _leave(open_, time)
            found[index] = open_[-1][0] if open_ else NONE
        for scope in scopes[at:]:  # after the last equation
            self._enter(scope, open_, calls)
        return found

    def _enter(self, scope: LayerCall, open_: list[tuple[Layer, LayerCall]], calls: Counter[str]) -> None:
        _leave(open_, scope.begin)
        counts = scope.returned != UNCOUNTED
        calls[scope.path] += counts
        layer = Layer(scope.path, calls[scope.path] * counts, open_[-1][0] if open_ else None)
        open_.append((layer, scope))
        self.called.append((layer, scope))

    def check(self, name: str, call: int | None) -> None:
        """Raise unless there is a layer of that name, and it was called at least that many times."""
        known = dict.fromkeys(layer.path for layer in (*(layer for layer, _ in self.called), *self.of) if layer.path)
        if not any(is_part(name, path) for path in known):
            raise UnknownLayerError(name, list(known), _near(name, known))
        times = max((one.call for one, _ in self.called if one.is_inside(name, one.call)), default=0)
        if call is not None and not 1 <= call <= times:
            counted = f"{times} time{'' if times == 1 else 's'}" if times else "outside Keras"
            raise ValueError(f"The layer {name!r} was called {counted} on this tape, got call={call}.")


def _leave(open_: list[tuple[Layer, LayerCall]], time: int) -> None:
    while open_ and open_[-1][1].end < time:
        open_.pop()


def _near(name: str, paths: dict[str, None]) -> list[str]:
    """Return paths that, in full or in their last part, are similar to a name."""
    ends = {path.rpartition("/")[2]: path for path in reversed(paths)} | {path: path for path in paths}
    wanted = name.strip("/")
    close = get_close_matches(wanted, ends, _NEAR, 0.6)
    close += [end for end in ends if wanted.lower() in end.lower()]
    return list(dict.fromkeys(ends[end] for end in close))[:_NEAR]


def _guess(trace: Trace, found: list[Layer]) -> None:
    """Attribute equations outside Keras layers to the layer whose variables were last read on their line."""
    layer, here = NONE, None
    program = trace.program
    for index, eqn in enumerate(program.eqns):
        if found[index] is not NONE or program.frames[eqn.frame] != here:
            layer, here = NONE, program.frames[eqn.frame]
        if found[index] is not NONE:
            continue
        for var in eqn.inputs:
            name = name_of(trace, var) if var in trace.facts.history_of else ""
            if "/" in name:
                layer = Layer(name.rpartition("/")[0])
        found[index] = layer


def name_of(trace: Trace, var: int) -> str:
    """Return the name of the variable that had this value; empty if it has none."""
    history = trace.facts.history_of.get(var)
    variable = None if history is None else trace.variables.get(identity_of(history.handle))
    return "" if variable is None else trace.path_of(variable)


def is_part(name: str, path: str) -> bool:
    """Return whether a name is a path, or consecutive parts of it.

    >>> is_part("block/conv", "model/block/conv"), is_part("con", "model/block/conv")
    (True, False)
    """
    return f"/{name.strip('/')}/" in f"/{path}/"
