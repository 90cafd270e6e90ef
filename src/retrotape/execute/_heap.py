"""Giving freed memory back to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def trim() -> None:
    """Give back what was freed, where the C library can.

    Tensors are aligned blocks, and these leave holes in glibc's heap that the next tensor of the same size does not
    fit: without this, a long walk takes twice the memory that it uses.
    """
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
