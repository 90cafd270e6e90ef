"""This tape in the place of `tf.GradientTape`, for code that is not ours to change."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from importlib import import_module
from threading import RLock
from types import ModuleType

from retrotape.tape.live import Tape
from retrotape.tf.core import StockTape, tf
from retrotape.tf.scopes import Scope

NAME = "GradientTape"
# `import tensorflow.compat.v2 as tf`, which many libraries have, loads one more module, with the stock tape in it.
_LATE = ("tensorflow.autodiff", "tensorflow.compat.v1", "tensorflow.compat.v2", "tensorflow.compat.v2.autodiff")
_PUBLIC = ("tensorflow._api.", "tensorflow.autodiff", "tensorflow.compat.")
_lock = RLock()
_wanted = False  # by `install`
_blocks: set[Scope] = set()  # `installed` blocks that are open, of all threads
_replaced: dict[ModuleType, None] = {}


def install() -> None:
    """Let `tf.GradientTape` be `rt.Tape`, in every public place, until `uninstall`.

    Code that looks `tf.GradientTape` up when it needs a tape then records on this one: Keras' `fit`, and libraries on
    top of TensorFlow. Calling it again changes nothing. It holds for the whole process, on every thread. What was
    taken before by `from tensorflow import GradientTape` stays the stock tape, and so does what TensorFlow uses inside.

    >>> rt.install()
    >>> tf.GradientTape is rt.Tape
    True
    >>> rt.uninstall()
    >>> tf.GradientTape is rt.Tape
    False
    """
    global _wanted
    with _lock:
        _wanted = True
        _put()


def uninstall() -> None:
    """Undo `install`; inside of an `installed` block that takes effect at its end. Tapes that exist go on working.

    >>> rt.uninstall()  # also where nothing was installed
    """
    global _wanted
    with _lock:
        _wanted = False
        _take_back()


def installed() -> AbstractContextManager[None]:
    """Do as `install` within a block, and put back what was there at its end.

    Blocks can be nested, and be open on several threads: the last one to end puts the stock tape back. Meanwhile
    `tf.GradientTape` is this tape on all threads, also on those without a block.

    >>> v = tf.Variable(3.0)
    >>> def library_code():
    ...     with tf.GradientTape() as tape:
    ...         y = v * v
    ...     return tape
    >>> with rt.installed():
    ...     tape = library_code()
    >>> type(tape).__name__, type(library_code()).__name__
    ('Tape', 'GradientTape')
    """
    return _Installed()


class _Installed(Scope):
    def enter(self) -> None:
        with _lock:
            _blocks.add(self)
            _put()

    def leave(self) -> None:
        with _lock:
            _blocks.discard(self)
            _take_back()


def _put() -> None:
    for module in _public_places():
        if getattr(module, NAME, None) is StockTape:
            _replaced[module] = None  # first: an exception may come between the two
            setattr(module, NAME, Tape)


def _take_back() -> None:
    if _wanted or _blocks:
        return
    for module in _replaced:
        if getattr(module, NAME, None) is Tape:  # else somebody else has put something there meanwhile
            setattr(module, NAME, StockTape)
    _replaced.clear()


def _public_places() -> list[ModuleType]:
    """Return the modules of TensorFlow's public interface that have the name, each once."""
    for name in _LATE:
        import_module(name)
    found = [
        module
        for name, module in sys.modules.items()
        if (name == "tensorflow" or name.startswith(_PUBLIC)) and hasattr(module, NAME)
    ]
    return list({id(module): module for module in (tf, *found)}.values())
