"""The values that variables had when an equation ran, for backward functions that read them later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import finalize

from retrotape._types import Tensor
from retrotape.errors import TapeUseError
from retrotape.record import Trace, current_stack, same
from retrotape.tf import core, hooks, tangents
from retrotape.tf.buffers import share_buffer
from retrotape.tf.core import identity_of, tf

_stand_ins: set[int] = set()  # ids of handles of stand-ins, which hold recorded values already


class PastVariables:
    """The variables of a trace as they were when equation number `index` ran.

    A backward function may read a variable with any op, or inside a function that it calls. An op that reads the whole
    variable gets the recorded value. Every other op gets a stand-in: another variable that holds this value.
    """

    def __init__(self, trace: Trace, index: int, values: Callable[[int], Tensor]) -> None:
        self._trace, self._index, self._values = trace, index, values
        # An equation inside an inlined call ran when the call did, on stand-ins for the call's variables.
        inside = (body for body in trace.facts.bodies.values() if body.span[0] <= index < body.span[1])
        self._body = next(inside, None)
        self._variables: dict[int, Any] = {}  # stand-ins, by id of the original handle
        self._written: set[int] = set()

    def value(self, handle: Tensor) -> Tensor | None:
        """Return the value that the variable had; None if it is not known."""
        trace, body, index = self._trace, self._body, self._index
        if identity_of(handle) in self._written or identity_of(handle) in _stand_ins:
            return None
        if body is not None and identity_of(handle) in body.handles:
            handle = body.handles[identity_of(handle)]
        elif body is not None and identity_of(handle) not in [
            identity_of(stand_in) for stand_in in body.handles.values()
        ]:
            index = body.call
        history = trace.history(handle)
        return None if history is None else self._values(history.at(index))

    def stand_in(self, handle: Tensor) -> Tensor | None:
        """Return the handle of a stand-in that holds that value; None if it is not known."""
        found = None if identity_of(handle) in self._written else self._variables.get(identity_of(handle))
        if found is None:
            value = self.value(handle)
            if value is None:
                return None
            found = self._variables[identity_of(handle)] = variable_with(value, handle)
            _stand_ins.add(identity_of(found.handle))
            finalize(found, _stand_ins.discard, identity_of(found.handle))
        return found.handle

    def on_write(self, handles: Sequence[Tensor]) -> None:
        """Allow the backward function to assign the live variables, unless they have changed since."""
        for handle in handles:
            value = self.value(handle)
            if value is None:
                continue
            with current_stack().unrecorded():
                now = hooks.live_value(handle, value.dtype)
            if not (share_buffer(now, value) or same(now, value)):
                history = self._trace.facts.histories.get(identity_of(handle))
                name = "a variable" if history is None else self._trace.name_of(history)
                raise TapeUseError(
                    f"A backward function assigns {name}, which has changed since it was recorded, so its result would "
                    "depend on when it runs. Query the tape before the variable is updated, or assign it outside the "
                    "backward function."
                )
            self._written.add(identity_of(handle))
            self._variables.pop(identity_of(handle), None)


def variable_with(value: Tensor, original: Tensor | None = None) -> Any:
    """Return a variable that holds `value`, and record in every open trace that it does.

    `original` is the handle of the variable that had the value: an accumulator may have a tangent only for that one.
    """
    stack = current_stack()
    with stack.unrecorded():
        variable = tf.Variable(value, trainable=False)
    stack.adopt(variable.handle, value)
    if core.stock_tape_listens():
        known = original is not None and tangents.tangents_of([original]) is not None
        tangents.link(variable.handle, original if known else value)
    return variable
