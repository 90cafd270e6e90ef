"""Jacobians: one walk for each element of the target, side by side where that pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._tf import tf
from retrotape.execute._plan import Plan
from retrotape.execute._question import Question, answer
from retrotape.record import Recording

Tensor = Any
FEW = 16  # up to here separate walks cost less than tracing one for all


def rows(
    recording: Recording, question: Question, seeds: Tensor, operations: Sequence[Any] | None, vectorize: bool
) -> list[Tensor | None]:
    """Answer the question once for each row of `seeds` and stack the answers, for each source."""
    plan = question.plan(recording)

    def one(seed: Tensor) -> list[Any]:
        return answer(recording, question._replace(seeds=(seed,)), operations, plan)

    if vectorize and _can_vectorize(recording, plan, seeds):
        return _vectorized(one, seeds, len(question.sources))
    if seeds.shape[0] == 0:  # no element has a row, and only the shape of rows is left to tell
        none_of = one(tf.zeros(seeds.shape[1:], seeds.dtype))
        return [None if grad is None else tf.convert_to_tensor(grad)[tf.newaxis][:0] for grad in none_of]
    found = [one(seed) for seed in tf.unstack(seeds)]
    return [
        None if column[0] is None else tf.stack([tf.convert_to_tensor(grad) for grad in column])
        for column in zip(*found, strict=True)
    ]


def _can_vectorize(recording: Recording, plan: Plan, seeds: Tensor) -> bool:
    if not tf.executing_eagerly():
        return True
    # A custom backward function may look at variables, and only eager reads can be given their recorded values.
    by_code = any(index in recording.backwards or index in recording.calls for index in plan.indices)
    return len(seeds) > FEW and not by_code


def _vectorized(one: Any, seeds: Tensor, count: int) -> list[Tensor | None]:
    connected: list[bool] = [False] * count

    def dense(seed: Tensor) -> list[Tensor]:
        found = one(seed)
        connected[:] = [grad is not None for grad in found]
        return [tf.convert_to_tensor(grad) for grad in found if grad is not None]

    stacked = iter(tf.vectorized_map(dense, seeds) if count else [])
    return [next(stacked) if there else None for there in connected]
