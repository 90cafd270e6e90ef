"""The buffers of tensors: which tensors share one, and how to make NumPy read tensors without."""

from __future__ import annotations

import ctypes
import sysconfig
from threading import RLock

import numpy as np

from retrotape._types import Tensor
from retrotape.tf.core import EagerTensor, shape_of, tf
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
    """Tensors have no buffer in this block: NumPy then reads them by `__array__`, which is hooked."""

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


def memory_of(tensor: Tensor) -> np.ndarray:
    """Return the memory of a tensor on a CPU as bytes, without a copy."""
    try:
        return np.frombuffer(tensor, np.uint8)
    except TypeError:
        if _before is None:
            raise
    with _lock:  # it is hidden, while a step is recorded
        slot = _slot()
        hidden, slot.value = slot.value, _before
        try:
            return np.frombuffer(tensor, np.uint8)
        finally:
            slot.value = hidden


def _buffer_of(tensor: Tensor) -> int | None:
    """Return the address of an eager tensor's buffer; None if it is not available."""
    if "CPU" in tensor.backing_device:
        return memory_of(tensor).__array_interface__["data"][0]
    if not tensor.dtype.is_floating:
        return None
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    # The first field of a DLTensor is its data pointer.
    return ctypes.c_void_p.from_address(_capsule_pointer(capsule, b"dltensor")).value


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def share_buffer(left: Tensor, right: Tensor) -> bool:
    """Return whether two eager tensors share a buffer.

    Reading a variable returns its own buffer, and a write copies it first if it is referenced elsewhere. So two reads
    return the same buffer if and only if nothing was assigned in between, as long as the first result is held.
    """
    if left is right or 0 in shape_of(left):
        return shape_of(left) == shape_of(right)
    place = _buffer_of(left)
    return place is not None and place == _buffer_of(right)
