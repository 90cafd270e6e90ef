"""Steps that come again, beside the same steps op by op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from retrotape.lower import cache
from retrotape.record._sites import forget_sites
from retrotape.transform._known_joins import forget_joins

FIRST = "it was seen for the first time; it is compiled when it comes again"
Step = Callable[..., tuple[Any, Any]]


@contextmanager
def forgetful(compile: bool | str = True) -> Iterator[None]:
    """Begin with no program and no structure known, and leave none behind."""
    _forget()
    try:
        with rt.config(compile=compile):
            yield
    finally:
        _forget()


def _forget() -> None:
    cache.clear()
    forget_sites()
    forget_joins()


def assert_same(ours: Any, theirs: Any) -> None:
    """Check that two nests of results are the same to the bit, and missing in the same places."""
    one, other = (tf.nest.flatten(nest, expand_composites=True) for nest in (ours, theirs))
    tf.nest.assert_same_structure(ours, theirs, expand_composites=True)
    for left, right in zip(one, other, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            np.testing.assert_array_equal(left, right)
            if left.dtype.is_floating:  # also the signs of zeros
                assert left.numpy().tobytes() == right.numpy().tobytes()


def reasons(step: Step, *cases: Any) -> list[str | None]:
    """Run a step for each case, and again op by op; return why each query was not compiled, None where it was.

    Args:
      step: Takes a case, records, and returns the tape and the results of a query.
      cases: What it is given, one after the other.
    """
    found = []
    for case in cases:
        tape, ours = step(case)
        found.append(tape.why_not_compiled())
        with rt.config(compile=False):
            _, theirs = step(case)
        assert_same(ours, theirs)
    return found


def refused(step: Step, case: Any = None) -> str:
    """Return why the query of a step is never compiled; the results are those of op by op."""
    *_, one, other = reasons(step, *[case] * 6)
    assert one is not None
    assert one == other
    return one
