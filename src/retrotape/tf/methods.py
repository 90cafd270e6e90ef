"""Methods of tapes: one at a time, and not rewritten by AutoGraph inside a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from retrotape.tf.core import as_is

_Method = TypeVar("_Method", bound=Callable[..., Any])


def locked(method: _Method) -> _Method:
    """Let a method run one at a time on one tape, and keep AutoGraph from rewriting it."""

    @wraps(method)
    def alone(self: Any, *args: Any, **options: Any) -> Any:
        with self._lock:  # a query may record what an earlier result was computed from
            return method(self, *args, **options)

    return as_is(alone)  # type: ignore[return-value]


def query(method: _Method) -> _Method:
    """Mark a method as a query: `locked`, and names can stand for tensors and variables."""

    @wraps(method)
    def with_names(self: Any, *args: Any, **options: Any) -> Any:
        with self._lock:
            args, options = self._resolve_names(args, options)
            return method(self, *args, **options)

    return as_is(with_names)  # type: ignore[return-value]
