"""Updates by an optimizer, played back once there have been enough to be worth recording."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from types import MethodType
from typing import Any

from retrotape._types import Gradient, Variable
from retrotape.grads import updater
from retrotape.playback._names import UPDATES
from retrotape.playback._step import Step, is_plain
from retrotape.playback._tree import Options
from retrotape.record import settings

AFTER = 8  # updates in eager code; recording one takes as long as several of them


class Updates:
    """What is known about the updates of one optimizer. It is kept with the optimizer, as it refers to it.

    A copy of an optimizer begins with nothing. An optimizer that several threads use stays in eager code: while one
    thread records an update, the others change what it reads. So does one that runs user code.
    """

    def __init__(self) -> None:
        self.count = 0
        self.step: Step | None = None
        self._apply: Any = None
        self._thread: int | None = get_ident()  # None if there are several

    def __reduce__(self) -> Any:
        return Updates, ()

    def step_for(self, apply: MethodType) -> Step | None:
        """Return the method `apply` of the optimizer as a step; None if it has not been called often enough."""
        if self._thread != get_ident():
            self._thread = self.step = None
            return None
        self.count += 1
        if self.count <= (0 if settings.mode == "always" else AFTER):
            return None
        if self.step is None or self._apply != apply:
            self.step, self._apply = Step(apply, Options(False, False), False, 8, of_library=True), apply
        return self.step


def apply_update(optimizer: Any, grads: Sequence[Gradient], variables: Sequence[Variable]) -> None:
    """Apply gradients: what `optimizer.apply(grads, variables)` does, faster in a loop."""
    step = None
    if settings.mode != "never" and isinstance(optimizer.apply, MethodType) and is_plain():
        step = vars(optimizer).setdefault(UPDATES, Updates()).step_for(optimizer.apply)
    if step is None:
        optimizer.apply(list(grads), list(variables))
        return
    step(list(grads), list(variables))
    step.drop_last()


updater.run = apply_update  # `Gradients.apply` runs updates by it
