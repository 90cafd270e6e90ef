"""Returns freed memory to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def trim() -> None:
    """Return freed memory to the system, if the C library supports it.

    Tensors are aligned blocks, which fragment glibc's heap: the hole that one leaves is too small for the next of the
    same size. Without this, a long walk takes twice the memory that it uses.
    """
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
