"""Gradients that TensorFlow makes of functions, one at a time.

While it makes one, it changes the graphs of the function and of those that it calls, and has no lock for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from retrotape._types import Tensor
from retrotape.tf.core import EagerTensor, gradients_util
from retrotape.tf.scopes import Scope

making_gradients = RLock()  # for all functions: two of them may call a third

_own_gradients: WeakKeyDictionary[Any, tuple[dict, dict]] = WeakKeyDictionary()
_lent: dict[int, tuple[set[Any], tuple[dict, dict]]] = {}  # by `id` of a function: to whom, and what it had before


class own_gradients(Scope):
    """Let a concrete function have other gradients than those that stock tapes have made and will use."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def enter(self) -> None:
        """Begin the block."""
        with making_gradients:
            users, _ = _lent.setdefault(id(self._function), (set(), _gradients_of(self._function)))
            users.add(self)
            _set_gradients(self._function, _own_gradients.setdefault(self._function, ({}, {})))

    def leave(self) -> None:
        """End the block."""
        with making_gradients:
            users, before = _lent.get(id(self._function), (set(), None))
            users.discard(self)
            if before is not None and not users:  # else another thread is still inside
                _set_gradients(self._function, before)
                _lent.pop(id(self._function), None)


def _gradients_of(function: Any) -> tuple[dict, dict]:
    return function._first_order_tape_functions, function._higher_order_tape_functions


def _set_gradients(function: Any, gradients: tuple[dict, dict]) -> None:
    function._first_order_tape_functions, function._higher_order_tape_functions = gradients


def build_gradient(function: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Let a function that is about to be called on a tape have its gradient, and return what user code in it reads.

    That are tensors, and handles of variables, besides what the function takes and gives. Building the gradient runs
    user code, which may raise.
    """
    kind = gradients_util.PossibleTapeGradientTypes(inputs)
    if kind == gradients_util.POSSIBLE_GRADIENT_TYPES_NONE:
        return []
    with making_gradients:
        call = function._select_forward_and_backward_functions(list(inputs), kind, True)
        call.forward()
    return [tensor for tensor in call._functions._backward.captured_inputs if isinstance(tensor, EagerTensor)]
