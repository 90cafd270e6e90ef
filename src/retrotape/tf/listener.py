"""The interfaces that the hooks call while tapes record on a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from retrotape._types import Tensor


class Listener(Protocol):
    """Is notified of what runs on a thread while tapes record there.

    Attributes:
      implicit_reads: The variables that the op about to run will read: positions among its inputs, and handles.
    """

    implicit_reads: Sequence[tuple[int, Tensor]]

    def on_op(self, op: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
        """An eager op, or a function, has run. This is TensorFlow's callback signature, which saves a call per op."""

    def on_tangents(self, op: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """A forward accumulator is about to compute the tangents of an op, possibly before its `on_op`."""

    def passes_tangents(self) -> bool:
        """Return whether the running `tf.stop_gradient` lets tangents pass."""

    def on_backward(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """`backward` is the backward function from `outputs` to `inputs`, whatever ops produced them."""

    def on_read(self, handle: Tensor) -> None:
        """The value behind a handle is about to be read."""

    def forget(self) -> None:
        """A read failed: the values of variables are no longer known."""

    def on_gather(self, handles: Sequence[Tensor]) -> None:
        """Slices of the values behind these handles are about to be read."""

    def on_update(self, op: str, handles: Sequence[Tensor]) -> None:
        """The values behind these handles are about to be updated."""

    def on_updated(self, stamp: Any) -> None:
        """Variables were updated at the time of `stamp`, by an op that succeeded."""

    def recording(self) -> bool:
        """Return whether anything is being recorded now."""

    def on_variable(self, variable: Any) -> None:
        """`variable` was read."""

    def on_call(self, call: Any) -> Any:
        """A `tf.function` is about to run: run it."""

    def on_custom_gradient(self, recomputes: bool, run: Callable[[], Any]) -> Any:
        """The body of a `tf.custom_gradient` (or of a `tf.recompute_grad`) is about to run: run it."""

    def on_py_function(self, outer: Sequence[Tensor], inner: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        """The body of a `tf.py_function` is about to run: run it."""

    def on_host_read(self, tensor: Tensor, how: str, only_shown: bool = False) -> None:
        """Python is about to read the value of `tensor` with the method `how`, perhaps only to display it."""

    def in_replica(self) -> Listener:
        """A replica begins on this thread, started from the listener's: return the listener for this thread."""

    def on_merge_call(self, given: Sequence[Any], run: Callable[[], Any]) -> Any:
        """A replica is about to run a merge call, which waits for the others: run it."""

    def on_reduction(self, single: bool, has_backward: bool, run: Callable[[], Any]) -> Any:
        """A replica is about to run `all_reduce` or `all_gather`, which may record a backward function: run it."""

    def on_all_reduce(self, op: str, size: int, values: Sequence[Any], run: Callable[[], Any]) -> Any:
        """The values of `size` replicas are about to be added, or averaged: run it."""

    def on_all_gather(self, axis: int, size: int, values: Sequence[Any], run: Callable[[], Any]) -> Any:
        """The values of `size` replicas are about to be concatenated: run it."""

    def on_keras_variable(self, variable: Any) -> None:
        """A Keras variable is about to be read, and with it the `tf.Variable` inside."""

    def on_layer(self, name: str, run: Callable[[], Any]) -> Any:
        """A Keras layer is about to be called: run it."""


class Past(Protocol):
    """What variables held at an earlier time, for a backward function that reads them."""

    def value(self, handle: Tensor) -> Tensor | None:
        """Return the past value of the variable; None if it is not known."""

    def stand_in(self, handle: Tensor) -> Tensor | None:
        """Return the handle of a variable that holds that value; None if it is not known."""

    def on_write(self, handles: Sequence[Tensor]) -> None:
        """These variables are about to be written: from now on they have their current values."""
