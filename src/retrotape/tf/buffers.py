"""The buffers of tensors: which tensors share one, and how to make NumPy read tensors without.

NumPy reads a tensor through the buffer protocol, of which nothing in Python is told. It does so from C too, as in
`array[0] = tensor` or `array + tensor`, which no profile function and no replacement of `numpy.asarray` sees. So the
protocol is switched off while a step is recorded, by a pointer that only C code can reach. From Python 3.12 on, an
assignment to `EagerTensor.__buffer__` would hide the memory as well, but for good: TensorFlow adds its procedures after
the type is made, so Python has nothing to restore them from, and a `__buffer__` in Python cannot export a bfloat16.

The pointer changes only in `enter` and `leave`, under the GIL, which the interpreter does not release between looking
at it and calling what it found there. An export that has begun does not look at it again, nor does its end.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from threading import get_ident
from typing import Any

import numpy as np

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.tf.core import EagerTensor, EagerTensorBase, pywrap_tfe, shape_of, tf
from retrotape.tf.hook_table import unhooked
from retrotape.tf.scopes import Scope

_AS_BUFFER = 160  # offset of `tp_as_buffer` in a type object, the same from Python 3.8 on
_lock = new_lock()
_users: dict[int, int] = {}  # the threads of blocks, by the `id` of the block
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
            _users[id(self)] = get_ident()
            if _before is None and is_supported():
                slot = _slot()
                _before = slot.value
                EagerTensorBase.__array__ = _array
                slot.value = None

    def leave(self) -> None:
        """End the block."""
        with _lock:
            _users.pop(id(self), None)
            _show_if_unused()


def _show_if_unused() -> None:
    global _before
    if not _users and _before is not None:
        _slot().value = _before
        EagerTensorBase.__array__ = _array_of_stock
        _before = None


def _after_fork() -> None:
    for block in [block for block, thread in _users.items() if thread != get_ident()]:
        del _users[block]
    _show_if_unused()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_array_of_stock = EagerTensorBase.__array__


def _array(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Do what TensorFlow's method does, which knows no `copy`: NumPy would warn of that."""
    found = np.asarray(_array_of_stock(self, dtype))
    return found.copy() if copy else found


_supported: bool | None = None


def is_supported() -> bool:
    """Return whether the buffer of a tensor can be hidden: tried once, on a tensor of its own."""
    global _supported
    if _supported is None:
        _supported = not sysconfig.get_config_var("Py_GIL_DISABLED") and _is_in_place() and _try()
    return _supported


def _is_in_place() -> bool:
    """Return whether Python itself finds, where we would write, what exports the memory of a tensor."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8 or hasattr(sys, "getobjects"):
        return False  # the last one: objects are two pointers longer
    found: int | None = _type_slot(EagerTensor, _BF_GETBUFFER)
    return found is not None and _slot().value == found


_BF_GETBUFFER = 1  # `Py_bf_getbuffer`
_type_slot = ctypes.pythonapi.PyType_GetSlot
_type_slot.restype, _type_slot.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_int)


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
    """Return the memory of a tensor as bytes, without a copy if it is on a CPU and not a scalar."""
    return np.asarray(unhooked(EagerTensorBase, "_numpy")(tensor)).reshape(-1).view(np.uint8)


def _buffer_of(tensor: Tensor) -> int | None:
    """Return the address of an eager tensor's buffer; None if it is not available."""
    dtype, on_cpu = tensor.dtype, "CPU" in tensor.backing_device
    try:
        if on_cpu:
            return np.frombuffer(tensor, np.uint8).__array_interface__["data"][0]
    except TypeError:  # it is hidden; shown for a moment, another thread that records could read it unseen
        on_cpu = dtype.is_integer or dtype.is_bool or dtype.is_complex
    if not (dtype.is_floating or on_cpu):
        return None
    try:
        capsule = unhooked(pywrap_tfe, "TFE_ToDlpackCapsule")(tensor)
    except tf.errors.InvalidArgumentError:  # DLPack does not have the dtype
        return None
    # The first field of a DLTensor is its data pointer. NumPy's `from_dlpack` knows neither bfloat16 nor other devices.
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
