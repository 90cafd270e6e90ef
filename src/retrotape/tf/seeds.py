"""Random draws in eager code that leave no trace: later draws are those that would have come anyway."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from retrotape._locks import new_lock
from retrotape.tf.core import context
from retrotape.tf.scopes import Scope


class _Apart(Scope):
    """Draw from other numbers in one block.

    Another global seed, not only another state of the same: an op with a seed counts its draws in its kernel, and
    kernels are shared by ops with the same seeds.

    Blocks on several threads may overlap, and generators are shared by threads: the first block replaces them, and the
    last puts them back.
    """

    _lock = new_lock()
    _open: ClassVar[set[int]] = set()  # blocks, by id
    _before: ClassVar[dict[str, Any]] = {}
    _python: Any = None
    _numpy: Any = None

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def enter(self) -> None:
        """Begin the block."""
        shared, inside = _Apart, context.context()
        with self._lock:
            if not self._open:
                shared._before = {name: vars(inside).get(name) for name in ("_seed", "_rng")}
                shared._python, shared._numpy = random.getstate(), np.random.get_state()
            self._open.add(id(self))
            if len(self._open) == 1:
                inside._seed, inside._rng = self._seed, random.Random(self._seed)

    def leave(self) -> None:
        """End the block."""
        with self._lock:
            if self._open == {id(self)}:
                vars(context.context()).update(self._before)
                random.setstate(self._python)
                np.random.set_state(self._numpy)
            self._open.discard(id(self))


def apart(seed: int) -> AbstractContextManager[None]:
    """Draw with this seed in one block; afterwards TensorFlow, Python and NumPy draw as if it had not been there.

    With one exception: what *another* thread draws from the global generators of Python and NumPy during the block, for
    example to shuffle data, is undone too, and is drawn once more afterwards. Threads that load data should have
    generators of their own: `np.random.default_rng()`.

    >>> tf.random.set_seed(1)
    >>> first = tf.random.uniform([])
    >>> tf.random.set_seed(1)
    >>> with apart(7):
    ...     other = tf.random.uniform([])
    >>> bool(tf.random.uniform([]) == first), bool(other == first)
    (True, False)
    """
    return _Apart(seed)
