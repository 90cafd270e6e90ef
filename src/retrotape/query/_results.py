"""The results that were handed out, and how to compute each again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

from retrotape._types import Tensor
from retrotape.execute import Request
from retrotape.record import EagerSession, Session
from retrotape.tf import core
from retrotape.tf.core import identity_of, tf


class _Result(NamedTuple):
    alive: ReferenceType[Any] | None
    request: Request
    compute: Callable[[], list[Any]] | None  # None where it was recorded when it was made
    position: int


class Results:
    """The tensors that were handed out as results, for as long as they live, and how to compute each again.

    A result is not recorded when it is handed out. If it is differentiated, it is computed again and recorded then:
    most results never are, and they would double what a tape holds.
    """

    def __init__(self) -> None:
        self._results: dict[int, _Result] = {}
        self._vars: dict[int, int] = {}  # of those that were recorded meanwhile

    def remember(self, request: Request, compute: Callable[[], list[Any]] | None, found: Sequence[Any]) -> None:
        """Note what was handed out."""
        for position, grad in enumerate(found):
            given = any(grad is seed for seed in request.seeds)  # handed back as it was handed in
            if grad is not None and not given:
                tensor = _main(grad)
                # A graph keeps its tensors anyway, and they cannot be referred to weakly.
                eager = isinstance(tensor, core.EagerTensor)
                alive = ref(tensor, partial(_forget, ref(self), identity_of(tensor))) if eager else None
                self._results[identity_of(tensor)] = _Result(alive, request, compute, position)

    def request_of(self, tensor: Tensor) -> Request | None:
        """Return the request that a tensor was the result of."""
        found = self._results.get(identity_of(tensor))
        return None if found is None else found.request

    def var(self, tensor: Tensor, session: Session) -> int | None:
        """Return the var of a result that is differentiated, computing it again and recording it if need be."""
        found = self._results.get(identity_of(tensor))
        if found is None or found.compute is None or not isinstance(session, EagerSession):
            return None
        if identity_of(tensor) not in self._vars:
            with session.extended():
                grads = found.compute()
            session.flush()
            for identity, other in list(self._results.items()):  # any thread may drop one meanwhile
                if other.compute is found.compute and grads[other.position] is not None:
                    self._vars[identity] = session.trace.var_of(_main(grads[other.position]))
        return self._vars.get(identity_of(tensor))

    def drop(self, identity: int) -> None:
        """Forget a result that is gone."""
        self._results.pop(identity, None)
        self._vars.pop(identity, None)

    def clear(self) -> None:
        """Forget everything."""
        self._results.clear()
        self._vars.clear()


def _forget(owner: ReferenceType[Results], identity: int, _: Any) -> None:
    results = owner()  # weakly, or a tape would live until the garbage is collected
    if results is not None:
        results.drop(identity)


def _main(grad: Any) -> Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad
