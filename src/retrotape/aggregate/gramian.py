"""The Gramian of gradients that are only needed for it."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape._types import Gradient, Tensor
from retrotape.aggregate._columns import Column, block_of, exact_gramian
from retrotape.aggregate._shared import split


def gramian_of(gradients: Sequence[Gradient], losses: int) -> Tensor:
    """Return the inner products of the gradients of several losses, over the variables that they share.

    Args:
      gradients: The gradients of the first loss with respect to all variables, then those of the next.
      losses: How many losses there are.
    """
    width = len(gradients) // losses
    columns = [Column(None, tuple(gradients[place::width])) for place in range(width)]
    # The query is compiled, and what Python reads in it would keep it from that.
    return exact_gramian(map(block_of, split(columns, losses).shared), losses, branches=False)
