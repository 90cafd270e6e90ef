"""The base of all queries: the session they run on, and the results returned so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from threading import RLock
from typing import Any, NoReturn, TypeVar
from weakref import ref

from retrotape._types import Nest, Tensor
from retrotape.diagnose.missing import with_reasons
from retrotape.diagnose.why import Explanation, explain
from retrotape.errors import MissingGradientError
from retrotape.execute import Request
from retrotape.lower import compiled
from retrotape.record import EagerSession, Session, Trace
from retrotape.tf import core
from retrotape.tf.core import as_is, identity_of, tf
from retrotape.tf.nests import Parts, TensorRef, describe, has_derivative, is_variable, take_apart
from retrotape.tf.scopes import setting

_MANY = 1024  # results, before those that were garbage-collected are forgotten
_EAGER = frozenset((core.EagerTensor, type(None)))
_NO_TEXT = frozenset((core.EagerTensor, core.PlainVariable))
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


def current(session: Session, request: Request, made_for: Trace) -> Request:
    """Return a request in the vars that its tensors and variables have now.

    A graph is read anew where TensorFlow has changed operations, as it does to a loop that it differentiates; they then
    have other vars.
    """
    now = session.trace
    if now is made_for:
        return request
    moved = {var: now.tensors.get(identity) for identity, var in made_for.tensors.items()}
    for handle, history in made_for.facts.histories.items():
        if handle in now.facts.histories:
            moved.update(zip(history.versions, now.facts.histories[handle].versions, strict=False))

    def renumbered(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(var for var in map(moved.get, old) if var is not None)  # no operation uses the others

    return request._replace(
        targets=renumbered(request.targets),
        sources=tuple(map(renumbered, request.sources)),
        derived_from=tuple(current(session, each, made_for) for each in request.derived_from),
    )


def op_by_op(session: Session, reason: str) -> None:
    """Note that a query is not compiled, and why."""
    session.trace.not_compiled = reason
    session.trace.on_rules()


def has_text(nest: Any) -> bool:
    """Return whether a nest contains a string. Every query calls this, so it must be fast."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, (list, tuple)):
        return not _NO_TEXT.issuperset(map(type, nest)) and any(map(has_text, nest))
    return isinstance(nest, str)


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

    def _solve(
        self,
        session: Session,
        request: Request,
        compute: Callable[[], list[Any]],
        kind: Hashable = None,
        inputs: Sequence[Tensor] = (),
    ) -> list[Any]:
        """Compute a result and remember how. `compute` must not refer to the tape: that would be a reference cycle.

        Args:
          session: The session to query.
          request: What is requested.
          compute: Computes it op by op.
          kind: What is computed, besides the request, if it may be compiled.
          inputs: The tensors that it depends on, besides those of the trace.
        """
        if session.trace.guard is not None:
            compute = _explaining(session, compute)
        if request.derived_from:
            op_by_op(session, "a result of an earlier query is differentiated")
        if kind is None or request.derived_from or request.outside:
            found = compute()
        else:
            found = compiled(session.trace, (kind, request.key()), [*request.given_seeds(), *inputs], compute)
        remembered, recorded = session.remembers()
        if remembered:
            again = partial(current, session, request, session.trace)
            self._results.remember(again, None if recorded else compute, found, request.seeds)
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


class _Computed:
    """The results of one query, and how to recompute them."""

    __slots__ = ("alive", "compute", "request")

    def __init__(
        self, request: Callable[[], Request], compute: Callable[[], list[Any]] | None, alive: list[Any]
    ) -> None:
        self.request = request
        self.compute = compute  # None if it was recorded when it was computed
        self.alive = alive  # by position: a weak reference; None where there is no result to remember


class Results:
    """The live tensors that were returned as results, and how to recompute each.

    A result is not recorded when it is returned. If it is differentiated later, it is recomputed and recorded then:
    most results never are, and recording them all would double the size of a tape.
    """

    def __init__(self) -> None:
        self._results: dict[int, tuple[_Computed, int]] = {}  # by identity, with the position
        self._new: list[_Computed] = []  # not among them yet: most results are never looked up
        self._vars: dict[int, int] = {}  # of results that have been recorded since
        self._asked: dict[tuple[int, ...], set[int]] = {}  # by targets, the sources of all queries
        self._is_quiet = False
        self._count, self._limit = 0, _MANY

    def remember(
        self, request: Callable[[], Request], compute: Callable[[], list[Any]] | None, found: Sequence[Any], seeds: Any
    ) -> None:
        """Remember the results of a request; a seed that is returned unchanged is none."""
        if not seeds and _EAGER.issuperset(map(type, found)):
            alive = [None if grad is None else ref(grad) for grad in found]
            self._new.append(_Computed(request, compute, alive))
        else:
            self._index(_Computed(request, compute, [None] * len(found)), found, set(map(id, seeds)))
        self._count += len(found)
        if self._count > self._limit:
            self._forget_dead()

    def _index(self, computed: _Computed, found: Sequence[Any], given: Collection[int]) -> None:
        """Add results of any kind, but not those with a given `id`."""
        known = self._known()
        self._note(computed.request())
        for position, grad in enumerate(found):
            if grad is not None and id(grad) not in given:
                tensor = _main(grad)
                # A graph keeps its tensors alive, and they cannot be weakly referenced.
                if isinstance(tensor, core.EagerTensor):
                    computed.alive[position] = ref(tensor)
                known[identity_of(tensor)] = computed, position

    def _known(self) -> dict[int, tuple[_Computed, int]]:
        """Return the results by identity."""
        if self._new:
            for computed in self._new:
                self._note(computed.request())
                for position, alive in enumerate(computed.alive):
                    tensor = None if alive is None else alive()
                    if tensor is not None:
                        self._results[identity_of(tensor)] = computed, position
            self._new = []
        return self._results

    def _note(self, request: Request) -> None:
        if self._is_quiet:
            return
        sources = {var for source in request.sources for var in source}
        self._asked.setdefault(request.targets, set()).update(sources)

    def sources_for(self, targets: tuple[int, ...]) -> Set[int]:
        """Return the vars of all sources for which these targets alone were differentiated."""
        self._known()
        return self._asked.get(targets, frozenset())

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Do not count the queries in the block among those of the user."""
        self._known()
        with setting(self, _is_quiet=True):
            try:
                yield
            finally:
                self._known()

    def _forget_dead(self) -> None:
        for identity, (computed, position) in list(self._known().items()):
            alive = computed.alive[position]
            if alive is not None and alive() is None:
                self._results.pop(identity, None)
                self._vars.pop(identity, None)
        self._count = len(self._results)
        self._limit = max(_MANY, 2 * self._count)

    def request_of(self, tensor: Tensor) -> Request | None:
        """Return the request that a tensor is a result of."""
        found = self._known().get(identity_of(tensor))
        return None if found is None else found[0].request()

    def last_targets(self) -> tuple[int, ...]:
        """Return the vars whose derivative was computed last, as far as a result of it is still in use."""
        for computed, _ in reversed(self._known().values()):
            if any(alive is not None and alive() is not None for alive in computed.alive):
                return computed.request().targets
        return ()

    def var(self, tensor: Tensor, session: Session) -> int | None:
        """Return the var of a result to differentiate; recompute and record it if necessary."""
        computed, _ = self._known().get(identity_of(tensor), (None, 0))
        if computed is None or computed.compute is None or not isinstance(session, EagerSession):
            return None
        if identity_of(tensor) not in self._vars:
            with session.extended():
                grads = computed.compute()
            session.flush()
            for identity, (other, position) in list(self._results.items()):
                if other is computed and grads[position] is not None:
                    self._vars[identity] = session.trace.var_of(_main(grads[position]))
        return self._vars.get(identity_of(tensor))

    def forget_recorded(self) -> None:
        """Record results again that are differentiated from now on."""
        self._vars.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._results.clear()
        self._new.clear()
        self._vars.clear()
        self._asked.clear()
        self._count = 0


def _main(grad: Any) -> Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad
