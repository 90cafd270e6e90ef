"""Random draws in eager code that leave no trace: later draws are those that would have come anyway."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from retrotape.tf.core import context
from retrotape.tf.scopes import Scope


class _Apart(Scope):
    """Draw from other numbers in one block.

    Another global seed, not only another state of the same: an op with a seed counts its draws in its kernel, and
    kernels are shared by ops with the same seeds.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._context = seed, context.context()
        self._before: dict[str, Any] = {name: vars(self._context).get(name) for name in ("_seed", "_rng")}
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def enter(self) -> None:
        """Begin the block."""
        self._context._seed, self._context._rng = self._seed, random.Random(self._seed)

    def leave(self) -> None:
        """End the block."""
        vars(self._context).update(self._before)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def apart(seed: int) -> AbstractContextManager[None]:
    """Draw with this seed in one block; afterwards TensorFlow, Python and NumPy draw as if it had not been there.

    >>> tf.random.set_seed(1)
    >>> first = tf.random.uniform([])
    >>> tf.random.set_seed(1)
    >>> with apart(7):
    ...     other = tf.random.uniform([])
    >>> bool(tf.random.uniform([]) == first), bool(other == first)
    (True, False)
    """
    return _Apart(seed)
