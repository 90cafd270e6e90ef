"""Run a step plainly and compiled, side by side, and compare what they return and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt

Made = tuple[Callable[..., Any], dict[str, Any]]  # a step, and what it depends on; "vars" are compared at the end


def same(one: Any, other: Any) -> None:
    """Check that two nests have the same values, to the bit."""
    tf.nest.assert_same_structure(one, other, expand_composites=True)
    pairs = zip(*(tf.nest.flatten(nest, expand_composites=True) for nest in (one, other)), strict=True)
    for left, right in pairs:
        assert type(left) is type(right)
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


def alike(make: Callable[[], Made], calls: Iterable[Any], **options: Any) -> rt.CompiledStep:
    """Run calls on two steps, one of them compiled.

    Args:
      make: Makes a step, and what it depends on.
      calls: Tuples of arguments; or functions that change what the step depends on.
      options: Those of `rt.compile`.
    """
    (plain, state), (function, twin) = make(), make()
    compiled = rt.compile(function, **options)
    for call in calls:
        if callable(call):
            call(state)
            call(twin)
        else:
            same(plain(*call), compiled(*call))
    same([v.numpy() for v in state.get("vars", [])], [v.numpy() for v in twin.get("vars", [])])
    return compiled


def plays(step: rt.CompiledStep) -> list[int]:
    """Return how often each recording was played back."""
    return [entry.plays for entry in step.recordings()]
