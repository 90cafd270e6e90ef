"""Decorators for methods of tapes: locked, and not converted by AutoGraph inside a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from retrotape.tf.core import as_is

_Method = TypeVar("_Method", bound=Callable[..., Any])


def locked(method: _Method) -> _Method:
    """Hold the lock of the tape while a method runs, and exclude the method from AutoGraph."""

    @wraps(method)
    def wrapper(self: Any, *args: Any, **options: Any) -> Any:
        with self._lock:  # a query may record what an earlier result was computed from
            return method(self, *args, **options)

    return as_is(wrapper)  # type: ignore[return-value]


def locked_with_names(method: _Method) -> _Method:
    """As `locked`; and names of tensors and variables are accepted in their place."""

    @wraps(method)
    def with_names(self: Any, *args: Any, **options: Any) -> Any:
        with self._lock:
            args, options = self._resolve_names(args, options)
            return method(self, *args, **options)

    return as_is(with_names)  # type: ignore[return-value]
