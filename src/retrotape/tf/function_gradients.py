"""Build gradients of TensorFlow functions, one at a time.

Building one modifies the graphs of the function and of the functions it calls, and TensorFlow does not lock them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.tf.after_replicas import after_replicas
from retrotape.tf.core import EagerTensor, gradients_util
from retrotape.tf.scopes import Scope

making_gradients = new_lock()  # one for all functions: two of them may call a third

_own_gradients: WeakKeyDictionary[Any, tuple[dict, dict]] = WeakKeyDictionary()
_lent: dict[
    int, tuple[set[Any], tuple[dict, dict]]
] = {}  # by `id` of a function: current users, and its original gradients


class own_gradients(Scope):
    """Give a concrete function gradients of its own in the block, separate from those that stock tapes use."""

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
    """Build the gradient of a function that is about to be called, and return what user code in the gradient captures.

    These are tensors and handles of variables other than the function's inputs and outputs. Building the gradient
    runs user code, which may raise.
    """
    kind = gradients_util.PossibleTapeGradientTypes(inputs)
    if kind == gradients_util.POSSIBLE_GRADIENT_TYPES_NONE:
        return []
    with making_gradients, after_replicas(function._func_graph):
        call = function._select_forward_and_backward_functions(list(inputs), kind, True)
        call.forward()
    return [tensor for tensor in call._functions._backward.captured_inputs if isinstance(tensor, EagerTensor)]
