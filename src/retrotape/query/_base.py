"""What all queries share: the session that they are about, and the results that were handed out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, NoReturn

from retrotape._types import Nest, Tensor
from retrotape.diagnose.missing import with_reasons
from retrotape.diagnose.why import Explanation, explain
from retrotape.errors import MissingGradientError
from retrotape.execute import Request
from retrotape.query._results import Results
from retrotape.record import EagerSession, Session
from retrotape.tf.core import identity_of, tf
from retrotape.tf.nests import Parts, TensorRef, describe, has_derivative, is_variable, take_apart


class QueryBase(ABC):
    """Something that was recorded, and can be queried."""

    _results: Results
    _lock: RLock

    @abstractmethod
    def _recorded(self) -> Session:
        """Return what was recorded, up to date, or raise where there is nothing to query."""

    @abstractmethod
    def _resolve_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        """Put tensors and variables in the place of names, in the arguments of a query."""

    @abstractmethod
    def _tensor(self, reference: TensorRef) -> Tensor:
        """Return the tensor that a reference stands for, the same one each time."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("A tape is not pickled or copied. Save it: `tape.save(path)`, and elsewhere `rt.load(path)`.")

    def _solve(self, session: Session, request: Request, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute a result and remember how, without `compute` holding on to the tape: that would be a cycle."""
        if session.trace.guard is not None:
            compute = _explaining(session, compute)
        found = compute()
        # In a pause a result is a constant, like everything else that runs then.
        recording = session.is_recording()
        if recording or not session.is_open:
            self._results.remember(request, None if recording else compute, found)
        return found

    def _record_result(self, part: Any, session: EagerSession) -> bool:
        """Let a result of this tape be known as what it was computed from; return whether it is one."""
        var = None if is_variable(part) else self._results.var(part, session)
        if var is not None:
            session.trace.tensors.alias(identity_of(part), var)
        return var is not None

    def _explain(self, session: Session, target: Nest, source: Any, **options: Any) -> Explanation | None:
        """Return why a source has no gradient; None in a graph, which knows no values."""
        if not isinstance(session, EagerSession):
            return None
        given = take_apart(target, "target").flat()
        targets = [part for part in given if has_derivative(part)] or given
        for part in targets:
            self._record_result(part, session)
        return explain(session, targets, source, **options)

    def _raise_missing(
        self, session: Session, target: Nest, sources: Parts, request: Request, found: Sequence[Any]
    ) -> None:
        """Raise an error that says why the first of the sources without gradient has none."""
        missing = [part for part, grad in zip(sources.flat(), found, strict=True) if grad is None]
        options = {"through_updates": any(request.through), "since": request.since}
        explanation = self._explain(session, target, missing[0], **options)
        if explanation is None:
            reasons = with_reasons(session, request, sources, tf.nest.flatten(sources.pack(found)))
            text = f"gradient with respect to {describe(missing[0])}: {reasons.why(reasons.missing[0])}"
        else:
            text = str(explanation)
        raise MissingGradientError(describe(missing[0]), text, len(missing) - 1)


def _explaining(session: Session, compute: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Return the same computation, whose errors name the file that the ops came from."""

    def explained() -> list[Any]:
        with session.trace.explained():
            return compute()

    return explained
