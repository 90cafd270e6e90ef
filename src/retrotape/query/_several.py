"""Several targets by the same sources, asked in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape.diagnose.missing import Look, with_reasons
from retrotape.errors import ShapeMismatchError
from retrotape.execute import answer_each
from retrotape.grads import Gradients
from retrotape.query._request import Answers, Log, Request, fill_constants, pose, solve
from retrotape.tf.core import tf
from retrotape.tf.nests import Parts, has_derivative, take_apart, unwrap, zeros_like


def sources_of(log: Log, wrt: Any) -> list[Any]:
    """Return the sources of a query, each once: the same variable from two models is still one."""
    given = tf.nest.flatten(wrt) if wrt is not None else log.trainable()
    return list({id(unwrap(source)): source for source in given[::-1]}.values())[::-1]


def losses_and_seeds(losses: Any, output_gradients: Any) -> list[tuple[Any, Any]]:
    """Return each loss with what flows into it; the elements of a vector are losses of their own."""
    if not isinstance(losses, (tf.Tensor, tf.Variable)):
        return [(loss, output_gradients) for loss in losses]
    if losses.shape.rank != 1 or losses.shape[0] is None:
        raise ShapeMismatchError(
            f"backward_each takes a list of losses or a vector of them, got a tensor of shape {losses.shape}. "
            "For one loss use `tape.backward(loss)`; give several as a list: `[loss1, loss2]`."
        )
    if output_gradients is not None:
        raise ShapeMismatchError(
            "backward_each takes no output_gradients for a vector of losses: what flows into each is a one in its "
            "place. Scale what comes back: `2.0 * grads`."
        )
    dtype = losses.dtype if has_derivative(losses) else tf.float32  # of which nothing comes
    return [(losses, seed) for seed in tf.unstack(tf.eye(losses.shape[0], dtype=dtype))]


def _pose_each(
    log: Log,
    answers: Answers,
    given: Sequence[tuple[Any, Any]],
    sources: Parts,
    through_updates: bool,
    since: int | None,
) -> list[Request]:
    """Return a request for each loss, all by the same sources, which are looked up once."""
    if since is not None and not through_updates:
        raise ValueError("since= says how far to go through updates; give through_updates=True with it.")
    nothing = take_apart([], "source")
    losses = [loss for loss, _ in given]
    whole = pose(log, answers, losses, sources, None, through_updates, since, ones=False, leave_out=True)
    each = [pose(log, answers, loss, nothing, seed, leave_out=True) for loss, seed in given]
    return [request._replace(sources=whole.sources, through=whole.through, since=since) for request in each]


class Together:
    """The answers for several losses: found together, and one by one where somebody asks for a derivative of one."""

    def __init__(
        self,
        log: Log,
        answers: Answers,
        given: Sequence[tuple[Any, Any]],
        sources: Parts,
        through_updates: bool,
        since: int | None,
    ) -> None:
        self._log, self._sources = log, sources
        self.requests = requests = _pose_each(log, answers, given, sources, through_updates, since)
        rows: list[list[Any]] = [[None] * len(request.sources) for request in requests]
        for asked in zip(*(request.questions() for request in requests), strict=True):
            positions = asked[0][0]
            found = answer_each(log.recording, [question for _, question in asked], log.operations)
            for row, grads in zip(rows, found, strict=True):
                for position, grad in zip(positions, grads, strict=True):
                    row[position] = grad
        self._found = dict(enumerate(rows))

    def row(self, number: int) -> list[Any]:
        """Return what was found for one request, the first time; after that, compute it alone."""
        request, found = self.requests[number], self._found.pop(number, None)
        grads = solve(self._log, request) if found is None else found
        return fill_constants(self._log, request, self._sources, grads)

    def gradients(self, rows: Sequence[list[Any]], zeros: bool, looks: Sequence[Look]) -> list[Gradients]:
        """Return the rows as vectors, with zeros or with a reason where there is no gradient."""
        made = []
        for request, row, look in zip(self.requests, rows, looks, strict=True):
            if zeros:
                pairs = zip(self._sources.flat(), row, strict=True)
                row = [zeros_like(part) if grad is None else grad for part, grad in pairs]
            made.append(with_reasons(self._log, request, self._sources, self._sources.pack(row), look))
        return made
