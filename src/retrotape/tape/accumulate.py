"""The gradient of a batch that is too large for memory, accumulated over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from retrotape import _html
from retrotape._types import Gradient, Tensor
from retrotape.errors import ShapeMismatchError, TapeUseError
from retrotape.grads import Gradients
from retrotape.tape.live import Tape
from retrotape.tf.core import as_is, as_rewritten, tf

Batch = Any
Size = Any  # a number, or a tensor inside a tf.function with an unknown dimension

_END = object()


class Accumulated(NamedTuple):
    """The result of `rt.accumulate`: means over all micro-batches, weighted by size.

    Attributes:
      loss: The mean loss.
      gradients: Its gradient.
      size: The sum of the sizes of the micro-batches.
    """

    loss: Tensor
    gradients: Gradients
    size: Size

    def __repr__(self) -> str:
        return f"{self._title()}\n{self.gradients!r}"

    def _repr_html_(self) -> str:
        return _html.text(self._title()) + self.gradients._repr_html_()

    def _title(self) -> str:
        loss, size = (f"{float(value):.6g}" if _is_known(value) else "symbolic" for value in (self.loss, self.size))
        return f"loss {loss}, size {size}"


def accumulate(
    loss: Callable[..., Tensor],
    batches: Iterable[Batch],
    *,
    wrt: Any = None,
    sizes: Iterable[Any] | None = None,
    progress: bool = False,
) -> Accumulated:
    """Return the loss and the gradient of a large batch, holding only one micro-batch in memory at a time.

    Every micro-batch has its own tape, which is freed before the next one begins. Micro-batches may differ in size:
    each is weighted by its size, so the result is that of one large batch. Empty ones are skipped.

    Args:
      loss: Returns the mean loss of one micro-batch, a scalar. Called as `loss(*batch)` if the batch is a tuple or
        list, else as `loss(batch)`.
      batches: The micro-batches: a list, a generator, a `tf.data.Dataset`. Inside a tf.function, a list.
      wrt: As for `backward`; every trainable variable that a micro-batch reads if None.
      sizes: The weight of each micro-batch, for example its number of tokens. If None, the first dimension of its
        first tensor.
      progress: Show a progress bar on stderr, if that is a terminal; it disappears at the end.

    Raises:
      ValueError: If there is no micro-batch, or all are empty.
      ShapeMismatchError: If a loss is not a scalar, a size cannot be determined, or there is not one size for each.

    >>> w = tf.Variable(1.0)
    >>> batches = [tf.constant([1.0, 2.0, 3.0]), tf.constant([6.0])]
    >>> loss, grads, size = rt.accumulate(lambda x: tf.reduce_mean(w * x), batches)
    >>> float(loss), float(grads[w]), size
    (3.0, 3.0, 4)
    """
    if not tf.executing_eagerly():  # AutoGraph must convert the user's code, and does not find it behind ours
        loss = as_rewritten(loss)
    return _accumulate(loss, batches, wrt, sizes, progress)


@as_is
def _accumulate(loss: Any, batches: Any, wrt: Any, sizes: Any, progress: bool) -> Accumulated:
    if isinstance(batches, (tf.Tensor, tf.data.Dataset)) and not tf.executing_eagerly():
        got = "a tensor" if isinstance(batches, tf.Tensor) else "a dataset"
        raise TapeUseError(
            f"Inside a tf.function the micro-batches must be a list, got {got}. "
            "Cut a tensor up: `tf.split(x, parts)`; or call `accumulate` in eager code."
        )
    if progress:
        known, console = length_hint(batches) or None, Console(stderr=True)
        batches = track(
            batches, "micro-batches", known, console=console, transient=True, disable=not console.is_terminal
        )
    sums, number = _Sums(), 0
    for number, (batch, size) in enumerate(_sized(batches, sizes), start=1):
        if isinstance(size, tf.Tensor) or size > 0:  # the mean of an empty batch is NaN, and would make the sum NaN
            sums.add(*_differentiate(loss, batch, wrt, number), size)
    if sums.loss is None:
        got = f"{number} micro-batches of size zero" if number else "no micro-batches"
        raise ValueError(f"Got {got}; give at least one that is not empty. A generator can be used only once.")
    return sums.mean()


def _differentiate(loss: Callable[..., Tensor], batch: Batch, wrt: Any, number: int) -> tuple[Tensor, Gradients]:
    """Return loss and gradient of one micro-batch; its tape is freed when this function returns."""
    with Tape() as tape:
        value = loss(*batch) if isinstance(batch, (tuple, list)) else loss(batch)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tf.TensorShape) and shape.rank:
        raise ShapeMismatchError(
            f"Got a loss of shape {tuple(shape)} for micro-batch {number}, expected a scalar, the mean over the "
            "micro-batch: `tf.reduce_mean(losses)`."
        )
    return value, tape.backward(value, wrt)


class _Sums:
    """Sums weighted by size, in float32 at least: in half precision they would overflow."""

    def __init__(self) -> None:
        self.loss: Tensor = None
        self._dtype: Any = None
        self._gradients = Gradients([])
        self._size: Size = 0

    def add(self, loss: Tensor, gradients: Gradients, size: Size) -> None:
        """Add one micro-batch."""
        weight = _exact(size)
        if isinstance(size, tf.Tensor):  # an empty one has mean NaN, and zero times NaN is NaN
            loss = tf.where(size > 0, loss, tf.zeros_like(loss))
            gradients = gradients.map(lambda grad: _if_any(size, grad))
        share = _wide(loss) * tf.cast(weight, _wide(loss).dtype)
        self.loss = share if self.loss is None else self.loss + share
        self._dtype = loss.dtype
        self._gradients = (self._gradients + gradients.map(_wide) * weight).map(_merged)
        self._size = self._size + size

    def mean(self) -> Accumulated:
        """Return the means, in the dtypes of the losses and gradients."""
        size = _exact(self._size)
        means = self._gradients / size
        reasons = [(key, means.why(key)) for key in means.missing]
        pairs = [(key, None if grad is None else tf.cast(grad, key.dtype)) for key, grad in means.items()]
        gradients = Gradients(pairs, reasons)
        return Accumulated(tf.cast(self.loss / tf.cast(size, self.loss.dtype), self._dtype), gradients, self._size)


def _is_known(value: Any) -> bool:
    return not isinstance(value, tf.Tensor) or hasattr(value, "numpy")


def _if_any(size: Tensor, grad: Gradient) -> Gradient:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_if_any(size, grad.values), grad.indices, grad.dense_shape)
    return tf.where(size > 0, grad, tf.zeros_like(grad))


def _exact(size: Size) -> Tensor:
    return tf.cast(size if isinstance(size, tf.Tensor) else np.float64(size), tf.float64)


def _wide(grad: Gradient) -> Gradient:
    return tf.cast(grad, tf.float32) if grad.dtype in (tf.float16, tf.bfloat16) else grad


def _merged(grad: Gradient) -> Gradient:
    """Merge repeated rows of a sparse gradient, or it would grow with every micro-batch."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    rows, places = tf.unique(grad.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows)), rows, grad.dense_shape)


def _sized(batches: Iterable[Batch], sizes: Iterable[Any] | None) -> Iterator[tuple[Batch, Size]]:
    """Yield each micro-batch with its size."""
    given = None if sizes is None else iter(sizes)
    number = 0
    for number, batch in enumerate(batches, start=1):
        size = _first_dimension(batch, number) if given is None else next(given, _END)
        if size is _END:
            raise ShapeMismatchError(f"Got {number - 1} sizes for more micro-batches than that; give one for each.")
        yield batch, size if given is None else _number(size)
    if given is not None and next(given, _END) is not _END:
        raise ShapeMismatchError(f"Got more sizes than the {number} micro-batches; give one for each.")


def _first_dimension(batch: Batch, number: int) -> Size:
    items = tf.nest.flatten(batch)
    first = next(iter(items), None)
    shape = getattr(first, "shape", None)
    if shape is None or (isinstance(shape, tf.TensorShape) and shape.rank is None) or not len(shape):
        got = f"{type(first).__name__} without dimensions" if first is not None else "nothing"
        raise ShapeMismatchError(
            f"Cannot determine the size of micro-batch {number}: its first item is {got}, expected a tensor of shape "
            "[size, ...]. Give the sizes: `sizes=[...]`."
        )
    sizes = {int(item.shape[0]) for item in items if len(getattr(item, "shape", None) or ()) and item.shape[0]}
    if len(sizes) > 1:
        raise ShapeMismatchError(
            f"Cannot determine the size of micro-batch {number}: its tensors have first dimensions {sorted(sizes)}. "
            "Give the sizes: `sizes=[...]`."
        )
    return tf.shape(first)[0] if shape[0] is None else int(shape[0])


def _number(size: Any) -> Size:
    if isinstance(size, tf.Tensor) and not tf.executing_eagerly():
        return size
    value = np.asarray(size)
    if value.shape != () or not value >= 0:
        raise ShapeMismatchError(f"Got {size!r} as a size; expected a nonnegative number.")
    return value.item()
