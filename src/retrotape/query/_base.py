"""The base of all queries: the session they run on, and the results returned so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from threading import RLock
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import ReferenceType, ref

from retrotape._types import Nest, Tensor
from retrotape.diagnose.missing import with_reasons
from retrotape.diagnose.why import Explanation, explain
from retrotape.errors import MissingGradientError
from retrotape.execute import Request
from retrotape.record import EagerSession, Session
from retrotape.tf import core
from retrotape.tf.core import as_is, identity_of, tf
from retrotape.tf.nests import Parts, TensorRef, describe, has_derivative, is_variable, take_apart

_Method = TypeVar("_Method", bound=Callable[..., Any])


def query(method: _Method) -> _Method:
    """Mark a method as a query: it is locked, not rewritten by AutoGraph, and accepts names in place of tensors."""

    @wraps(method)
    def with_names(self: Any, *args: Any, **options: Any) -> Any:
        with self._lock:  # a query may record how an earlier result was computed
            if has_text(args) or (options and has_text(list(options.values()))):
                args, options = self._resolve_names(args, options)
            return method(self, *args, **options)

    return as_is(with_names)  # type: ignore[return-value]


def recorded_in_graph(session: Session) -> AbstractContextManager[None]:
    """Record results on a tape in a graph, where that costs nothing; do nothing in eager code."""
    return nullcontext() if session.graph is None else session.extended()


def has_text(nest: Any) -> bool:
    """Return whether a nest contains a string. Every query calls this, so it must be fast."""
    if isinstance(nest, (list, tuple)):
        return any(map(has_text, nest))
    return any(map(has_text, nest.values())) if isinstance(nest, dict) else isinstance(nest, str)


class QueryBase(ABC):
    """A recorded session that can be queried."""

    _results: Results
    _lock: RLock

    @abstractmethod
    def _recorded(self) -> Session:
        """Return the flushed session, or raise if there is nothing to query."""

    @abstractmethod
    def _resolve_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        """Replace names by tensors and variables in the arguments of a query."""

    @abstractmethod
    def _tensor(self, reference: TensorRef) -> Tensor:
        """Return the tensor of a reference, the same one each time."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("A tape is not pickled or copied. Save it: `tape.save(path)`, and elsewhere `rt.load(path)`.")

    def _solve(self, session: Session, request: Request, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute a result and remember how. `compute` must not refer to the tape: that would be a reference cycle."""
        if session.trace.guard is not None:
            compute = _explaining(session, compute)
        found = compute()
        remembered, recorded = session.remembers()
        if remembered:
            self._results.remember(request, None if recorded else compute, found)
        return found

    def _record_result(self, part: Any, session: EagerSession) -> bool:
        """Record how a tensor was computed, if it is a result of this tape; return whether it is."""
        var = None if is_variable(part) else self._results.var(part, session)
        if var is not None:
            session.trace.tensors.alias(identity_of(part), var)
        return var is not None

    def _explain(self, session: Session, target: Nest, source: Any, **options: Any) -> Explanation | None:
        """Return why a source has no gradient; None in a graph, which has no values."""
        if not isinstance(session, EagerSession):
            return None
        given = take_apart(target, "target").flat
        targets = [part for part in given if has_derivative(part)] or given
        for part in targets:
            self._record_result(part, session)
        return explain(session, targets, source, **options)

    def _raise_missing(
        self, session: Session, target: Nest, sources: Parts, request: Request, found: Sequence[Any]
    ) -> None:
        """Raise an error that explains the first missing gradient."""
        missing = [part for part, grad in zip(sources.flat, found, strict=True) if grad is None]
        options = {"through_updates": any(request.through), "since": request.since}
        explanation = self._explain(session, target, missing[0], **options)
        if explanation is None:
            reasons = with_reasons(session, request, sources, tf.nest.flatten(sources.pack(found)))
            text = f"gradient with respect to {describe(missing[0])}: {reasons.why(reasons.missing[0])}"
        else:
            text = str(explanation)
        raise MissingGradientError(describe(missing[0]), text, len(missing) - 1)


def _explaining(session: Session, compute: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Wrap a computation so that its errors name the file that the ops came from."""

    def explained() -> list[Any]:
        with session.trace.explained():
            return compute()

    return explained


class _Result(NamedTuple):
    alive: ReferenceType[Any] | None
    request: Request
    compute: Callable[[], list[Any]] | None  # None if it was recorded when it was computed
    position: int


class Results:
    """The live tensors that were returned as results, and how to recompute each.

    A result is not recorded when it is returned. If it is differentiated later, it is recomputed and recorded then:
    most results never are, and recording them all would double the size of a tape.
    """

    def __init__(self) -> None:
        self._results: dict[int, _Result] = {}
        self._vars: dict[int, int] = {}  # of results that have been recorded since

    def remember(self, request: Request, compute: Callable[[], list[Any]] | None, found: Sequence[Any]) -> None:
        """Remember the results of a request."""
        given = set(map(id, request.seeds))  # a seed may be returned unchanged
        for position, grad in enumerate(found):
            if grad is not None and id(grad) not in given:
                tensor = _main(grad)
                # A graph keeps its tensors alive, and they cannot be weakly referenced.
                eager = isinstance(tensor, core.EagerTensor)
                alive = ref(tensor, partial(_forget, ref(self), identity_of(tensor))) if eager else None
                self._results[identity_of(tensor)] = _Result(alive, request, compute, position)

    def request_of(self, tensor: Tensor) -> Request | None:
        """Return the request that a tensor is a result of."""
        found = self._results.get(identity_of(tensor))
        return None if found is None else found.request

    def var(self, tensor: Tensor, session: Session) -> int | None:
        """Return the var of a result to differentiate; recompute and record it if necessary."""
        found = self._results.get(identity_of(tensor))
        if found is None or found.compute is None or not isinstance(session, EagerSession):
            return None
        if identity_of(tensor) not in self._vars:
            with session.extended():
                grads = found.compute()
            session.flush()
            for identity, other in list(self._results.items()):  # another thread may drop one in the meantime
                if other.compute is found.compute and grads[other.position] is not None:
                    self._vars[identity] = session.trace.var_of(_main(grads[other.position]))
        return self._vars.get(identity_of(tensor))

    def drop(self, identity: int) -> None:
        """Forget a result that was garbage-collected."""
        self._results.pop(identity, None)
        self._vars.pop(identity, None)

    def clear(self) -> None:
        """Forget everything."""
        self._results.clear()
        self._vars.clear()


def _forget(owner: ReferenceType[Results], identity: int, _: Any) -> None:
    results = owner()  # weak, or a tape would live until the next garbage collection
    if results is not None:
        results.drop(identity)


def _main(grad: Any) -> Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad
