"""Several targets with respect to the same sources, in one query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.aggregate.gramian import gramian_of
from retrotape.diagnose.missing import Explain, same_reasons, with_reasons
from retrotape.errors import ShapeMismatchError
from retrotape.execute import Request, differentiate_each
from retrotape.grads import Gradients, identities_of, name_of
from retrotape.lower import compiled
from retrotape.query._base import Results, op_by_op
from retrotape.query._request import fill_constants, make_request, solve
from retrotape.record import Session
from retrotape.tf.core import tf
from retrotape.tf.nests import Parts, TensorRef, has_derivative, take_apart, unwrap, zeros_like


def sources_of(session: Session, wrt: Any, value: Callable[[TensorRef], Tensor]) -> list[Any]:
    """Return the distinct sources of a query: two models may share a variable.

    Sources are keys of the result, so a reference is replaced by its tensor, which `value` returns.
    """
    given = tf.nest.flatten(wrt) if wrt is not None else session.trainable()
    keys = [value(source) if isinstance(source, TensorRef) else source for source in given]
    return list({id(unwrap(source)): source for source in keys[::-1]}.values())[::-1]


def losses_and_seeds(losses: Any, output_gradients: Any) -> list[tuple[Any, Any]]:
    """Return each loss with its seed; each element of a vector is a loss."""
    if not isinstance(losses, (tf.Tensor, tf.Variable, TensorRef)):
        return [(loss, output_gradients) for loss in losses]
    if losses.shape.rank != 1 or losses.shape[0] is None:
        raise ShapeMismatchError(
            f"backward_each takes a list of losses or a vector of them, got a tensor of shape {losses.shape}. "
            "For one loss use `tape.backward(loss)`; give several as a list: `[loss1, loss2]`."
        )
    if output_gradients is not None:
        raise ShapeMismatchError(
            "backward_each takes no output_gradients for a vector of losses: the gradient of each is one. "
            "Scale the result: `2.0 * grads`."
        )
    dtype = losses.dtype if has_derivative(losses) else tf.float32  # it has no gradient anyway
    return [(losses, seed) for seed in tf.unstack(tf.eye(losses.shape[0], dtype=dtype))]


def _make_requests(
    session: Session,
    results: Results,
    given: Sequence[tuple[Any, Any]],
    sources: Parts,
    through_updates: bool,
    since: int | None,
) -> list[Request]:
    """Return a request for each loss, all with respect to the same sources, which are resolved once."""
    if since is not None and not through_updates:
        raise ValueError("since= limits how far to go through updates; give through_updates=True with it.")
    nothing = take_apart([], "source")
    losses = [loss for loss, _ in given]
    whole = make_request(session, results, losses, sources, None, through_updates, since, ones=False, leave_out=True)
    each = [make_request(session, results, loss, nothing, seed, leave_out=True) for loss, seed in given]
    return [request._replace(sources=whole.sources, through=whole.through, since=since) for request in each]


class Together:
    """The results for several losses: computed together, but recomputed alone if one of them is differentiated."""

    def __init__(
        self,
        session: Session,
        results: Results,
        given: Sequence[tuple[Any, Any]],
        sources: Parts,
        through_updates: bool = False,
        since: int | None = None,
    ) -> None:
        self._session, self._sources = session, sources
        self.requests = _make_requests(session, results, given, sources, through_updates, since)
        self.kind = "each", tuple(request.key() for request in self.requests)
        self._found: dict[int, list[Any]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether no loss is a result of an earlier query, or has a dtype without derivative."""
        return not any(request.derived_from or request.left_out for request in self.requests)

    def run(self) -> None:
        """Compute them, by a compiled function where there is one."""
        session, requests, width = self._session, self.requests, len(self.requests[0].sources)
        if any(request.derived_from for request in requests):
            op_by_op(session, "a result of an earlier query is differentiated")
            found = self.solve_all()
        else:
            seeds = [seed for request in requests for seed in request.given_seeds()]
            found = compiled(session.trace, self.kind, seeds, self.solve_all)
        self._found = {number: found[number * width : (number + 1) * width] for number in range(len(requests))}

    def solve_all(self) -> list[Any]:
        """Return the gradients of all losses, one loss after the other."""
        session, requests = self._session, self.requests
        rows: list[list[Any]] = [[None] * len(request.sources) for request in requests]
        for queries in zip(*(request.queries() for request in requests), strict=True):
            positions = queries[0][0]
            with session.trace.explained():
                found = differentiate_each(session.trace, [query for _, query in queries], session.operations)
            for row, grads in zip(rows, found, strict=True):
                for position, grad in zip(positions, grads, strict=True):
                    row[position] = grad
        return [grad for row in rows for grad in row]

    def gramian(self) -> list[Tensor]:
        """Return the inner products of the gradients, as the only item of a list."""
        return [gramian_of(self.solve_all(), len(self.requests))]

    def run_gramian(self) -> Tensor:
        """Return them by a compiled function where there is one."""
        seeds = [seed for request in self.requests for seed in request.given_seeds()]
        return compiled(self._session.trace, ("gramian", self.kind), seeds, self.gramian)[0]

    def row(self, number: int) -> list[Any]:
        """Return the shared result for one request the first time; after that, compute it alone."""
        request, found = self.requests[number], self._found.pop(number, None)
        grads = solve(self._session, request) if found is None else found
        return fill_constants(self._session, request, self._sources, grads)

    def reasons(self, rows: Sequence[list[Any]]) -> list[dict[int, str]] | None:
        """Return why gradients are missing in each row, if that is the same on equal traces."""
        found = [
            same_reasons(self._session, one, self._sources, row) for one, row in zip(self.requests, rows, strict=True)
        ]
        return None if None in found else found  # type: ignore[return-value]

    def gradients(self, rows: Sequence[list[Any]], zeros: bool, explain: Sequence[Explain]) -> list[Gradients]:
        """Return the rows as vectors, with zeros or a reason where there is no gradient."""
        made, identities = [], identities_of(tf.nest.flatten(self._sources.nest))
        for request, row, one in zip(self.requests, rows, explain, strict=True):
            if zeros:
                pairs = zip(self._sources.flat, row, strict=True)
                row = [zeros_like(part) if grad is None else grad for part, grad in pairs]
            made.append(with_reasons(self._session, request, self._sources, self._sources.pack(row), one, identities))
        return made


def batch_statistics(session: Session) -> str | None:
    """Return the name of a variable by which the examples of a batch depend on each other; None if there is none.

    It is the moving average of a BatchNormalization that was updated, which means that it normalized by the batch.
    """
    for variable in session.variables():
        name = name_of(variable)
        history = session.history(variable)
        if name.endswith(("moving_mean", "moving_variance")) and history is not None and len(history.versions) > 1:
            return name
    return None
