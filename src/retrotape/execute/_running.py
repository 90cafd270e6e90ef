"""Which op is about to run, told to whoever has to say so if the process dies of it."""

from __future__ import annotations

from collections.abc import Callable

from retrotape.ir import Eqn

Observer = Callable[[Eqn, bool], None]

_observer: Observer | None = None


def observe_ops(observer: Observer | None) -> None:
    """Let `observer` be called with each equation before it runs, and whether its gradient is what runs.

    There is one observer in a process: the process of an isolated tape has one.
    """
    global _observer
    _observer = observer


def announce(eqn: Eqn, backward: bool = False) -> None:
    """Say that an equation, or its gradient, is about to run."""
    if _observer is not None:
        _observer(eqn, backward)
