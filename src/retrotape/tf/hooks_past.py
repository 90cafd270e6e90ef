"""Substitute past values of variables while a backward function runs."""

from __future__ import annotations

from typing import Any

from retrotape.errors import TapeUseError
from retrotape.tf import hook_table
from retrotape.tf.core import python_tokens
from retrotape.tf.hooks_ops import thread
from retrotape.tf.listener import Past
from retrotape.tf.scopes import Scope

_pasts: dict[bytes, dict[Any, Past]] = {}  # by token of a `tf.py_function` in a function that runs with past values


class variables_as(Scope):
    """Substitute the values of `past` for reads of variables in the block."""

    def __init__(self, past: Past) -> None:
        self._past, self._before = past, thread.past

    def is_idle(self) -> bool:
        """Return whether the block has ended."""
        return not self._inside

    def enter(self) -> None:
        """Begin the block."""
        hook_table.need(self)
        thread.past = self._past

    def leave(self) -> None:
        """End the block."""
        thread.past = self._before
        hook_table.release(self)


class python_in(Scope):
    """Substitute past values in Python code of a function too, which may run on any thread."""

    def __init__(self, function: Any, past: Past) -> None:
        self._tokens, self._past = python_tokens(function), past

    def enter(self) -> None:
        """Begin the block."""
        for token in self._tokens:
            _pasts.setdefault(token, {})[self] = self._past

    def leave(self) -> None:
        """End the block."""
        for token in self._tokens:
            _pasts.get(token, {}).pop(self, None)


def _only(pasts: tuple[Past, ...]) -> Past:
    if any(past is not pasts[0] for past in pasts):
        text = "Python code in a tf.function runs for several backward functions at once. Query one tape at a time."
        raise TapeUseError(text)
    return pasts[0]


def past_of(token: bytes | str) -> Past | None:
    """Return the past values for the Python code with a token, on whatever thread it runs."""
    pasts = _pasts.get(token if isinstance(token, bytes) else token.encode())
    return _only(tuple(pasts.values())) if pasts else None
