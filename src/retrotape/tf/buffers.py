"""Make NumPy read tensors by `__array__`, which is hooked, and not by the buffer protocol, which cannot be."""

from __future__ import annotations

import ctypes
import sysconfig
from threading import RLock

import numpy as np

from retrotape._types import Tensor
from retrotape.tf.core import EagerTensor, tf
from retrotape.tf.scopes import Scope

_AS_BUFFER = 160  # offset of `tp_as_buffer` in a type object, the same from Python 3.8 on
_lock = RLock()
_users: set[int] = set()  # blocks, by `id`
_before: int | None = None


def _slot() -> ctypes.c_void_p:
    """Return the pointer by which TensorFlow exports the memory of a tensor: the first one of its buffer procedures."""
    procedures = ctypes.c_void_p.from_address(id(EagerTensor) + _AS_BUFFER).value
    assert procedures is not None
    return ctypes.c_void_p.from_address(procedures)


class arrays_by_method(Scope):
    """Tensors have no buffer in this block, so that whatever reads one calls a method."""

    def enter(self) -> None:
        """Begin the block."""
        global _before
        with _lock:
            _users.add(id(self))
            if _before is None and is_supported():
                slot = _slot()
                _before = slot.value
                slot.value = None

    def leave(self) -> None:
        """End the block."""
        global _before
        with _lock:
            _users.discard(id(self))
            if not _users and _before is not None:
                _slot().value = _before
                _before = None


def read_memory(tensor: Tensor) -> np.ndarray:
    """Return the memory of a tensor as bytes, without a copy, also while it is hidden."""
    with _lock:
        if _before is not None:
            _slot().value = _before
        try:
            return np.frombuffer(tensor, np.uint8)
        finally:
            if _before is not None:
                _slot().value = None


_supported: bool | None = None


def is_supported() -> bool:
    """Return whether the buffer of a tensor can be hidden: tried once, on a tensor of its own."""
    global _supported
    if _supported is None:
        _supported = not sysconfig.get_config_var("Py_GIL_DISABLED") and _try()
    return _supported


def _try() -> bool:
    tensor = tf.constant([1.0, 2.0])
    if memoryview(tensor).tolist() != [1.0, 2.0]:
        return False
    slot = _slot()
    before, slot.value = slot.value, None
    try:
        memoryview(tensor)
    except TypeError:
        return bool(np.asarray(tensor).tolist() == [1.0, 2.0])
    else:
        return False
    finally:
        slot.value = before
