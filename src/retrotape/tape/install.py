"""Installs this tape in place of `tf.GradientTape`, for code that cannot be changed."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType

from retrotape._locks import new_lock
from retrotape.tape.live import Tape
from retrotape.tf.core import StockTape, tf
from retrotape.tf.scopes import Scope

NAME = "GradientTape"
# `import tensorflow.compat.v2 as tf`, common in libraries, loads another module that has the stock tape.
_LATE = ("tensorflow.autodiff", "tensorflow.compat.v1", "tensorflow.compat.v2", "tensorflow.compat.v2.autodiff")
_PUBLIC = ("tensorflow._api.", "tensorflow.autodiff", "tensorflow.compat.")
_lock = new_lock()
_wanted = False  # set by `install`
_blocks: set[Scope] = set()  # open `installed` blocks of all threads
_replaced: dict[ModuleType, None] = {}


def install() -> None:
    """Replace `tf.GradientTape` by `rt.Tape` in every public module, until `uninstall`.

    Code that looks up `tf.GradientTape` when it needs a tape then uses this one: Keras' `fit`, and libraries on top of
    TensorFlow. Calling it again has no effect. It applies to the whole process and all its threads. A name imported
    earlier with `from tensorflow import GradientTape` stays the stock tape, as does TensorFlow's internal use.

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
        _replace()


def uninstall() -> None:
    """Undo `install`; inside an `installed` block, this takes effect at its end. Existing tapes keep working.

    >>> rt.uninstall()  # also where nothing was installed
    """
    global _wanted
    with _lock:
        _wanted = False
        _restore()


def installed() -> AbstractContextManager[None]:
    """Install this tape within a block, and restore the previous state at its end.

    Blocks can be nested, and open on several threads: the last one to end restores the stock tape. Until then,
    `tf.GradientTape` is this tape on all threads, including those without a block.

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
            _replace()

    def leave(self) -> None:
        with _lock:
            _blocks.discard(self)
            _restore()


def _replace() -> None:
    for module in _public_modules():
        if getattr(module, NAME, None) is StockTape:
            _replaced[module] = None  # first: an exception may interrupt between the two
            setattr(module, NAME, Tape)


def _restore() -> None:
    if _wanted or _blocks:
        return
    for module in _replaced:
        if getattr(module, NAME, None) is Tape:  # otherwise other code has replaced it in the meantime
            setattr(module, NAME, StockTape)
    _replaced.clear()


def _public_modules() -> list[ModuleType]:
    """Return the modules of TensorFlow's public API that have the name, each once."""
    for name in _LATE:
        import_module(name)
    found = [
        module
        for name, module in sys.modules.items()
        if (name == "tensorflow" or name.startswith(_PUBLIC)) and hasattr(module, NAME)
    ]
    return list({id(module): module for module in (tf, *found)}.values())
