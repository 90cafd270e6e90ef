"""What farms return: the sum of many gradients, and results that are kept in files."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from retrotape._types import Gradient
from retrotape.distribute._codec import decode
from retrotape.distribute._drive import Done, Work, content
from retrotape.grads import Gradients, NamedSource, name_of
from retrotape.tf.core import tf


class Total(Gradients):
    """The sum or mean of the gradients of many tapes, keyed by name; `rt.farm.backward` makes it.

    It is a `Gradients` in double precision, whose keys are names on the tapes. Arithmetic with it gives plain
    `Gradients`. A name without a path on any tape is among `missing`, `get` returns None for it, and `why` says why.

    Attributes:
      count: How many tapes it is from.
      failed: The error of each tape that was left out, by path.
    """

    __slots__ = ("count", "failed")

    def __init__(
        self,
        gradients: Iterable[tuple[Any, Gradient]],
        reasons: Iterable[tuple[Any, str]] | None = None,
        count: int = 0,
        failed: dict[str, str] | None = None,
    ) -> None:
        super().__init__(gradients, reasons)
        self.count, self.failed = count, dict(failed or {})

    def _like(self, gradients: Iterable[tuple[Any, Gradient]]) -> Any:
        return Gradients(gradients, self._why())

    def for_variables(self, variables: Iterable[Any]) -> Gradients:
        """Return the gradients of these variables, in their dtypes, as `apply` needs them.

        Args:
          variables: Variables of a model; each is found by its name, which for Keras is its path.

        Raises:
          UnknownSourceError: If a name is not among the keys.

        >>> import os, tempfile
        >>> w = tf.Variable(2.0, name="w")
        >>> with rt.Tape() as tape:
        ...     loss = w ** 3
        >>> folder = tempfile.mkdtemp()
        >>> _ = tape.save(os.path.join(folder, "cube.tape"), {"loss": loss})
        >>> total = rt.farm.backward(os.path.join(folder, "*.tape"), "loss")
        >>> total.for_variables([w]).apply(tf.keras.optimizers.SGD(0.125))
        >>> float(w)
        0.5
        """
        pairs, reasons = [], []
        for variable in variables:
            name = name_of(variable)
            self._known(name)  # raises
            grad = self.get(name)
            pairs.append((variable, None if grad is None else _cast(grad, variable.dtype)))
            reasons.append((variable, self.why(name) if grad is None else ""))
        return Gradients(pairs, reasons)


def _cast(grad: Gradient, dtype: Any) -> Gradient:
    dtype = tf.as_dtype(dtype)
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(grad.values, dtype), grad.indices, grad.dense_shape)
    return tf.cast(grad, dtype)


class Failure(NamedTuple):
    """Stands in `Results` for an item that failed: which one, and its error.

    >>> rt.farm.Failure("a.tape", "CorruptTapeError: ...").name
    'a.tape'
    """

    name: str
    error: str


class Results(Sequence[Any]):
    """Results of many tapes or inputs, in their order; `rt.farm.map`, `replay` and `backward` make it.

    They are in files, and each is read when it is used. A `Failure` stands for one that failed.

    Attributes:
      failed: The error of each item that failed, by name.
    """

    def __init__(self, done: Done, size: int, work: Work) -> None:
        self._tasks, self._size, self.failed = done.tasks, size, done.failed
        self._last: tuple[int, Any] = (-1, None)
        self._names = [item.name for task in done.tasks for item in task.items]
        self._finalizer = weakref.finalize(self, work.remove)

    @property
    def names(self) -> list[str]:
        """What each result is of: the path of a tape, or the number of an input."""
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        """Return one result, or a list of some."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]  # raises IndexError, and takes negative ones
        chunk, place = divmod(number, self._size)
        if self._last[0] != chunk:
            self._last = chunk, content(self._tasks[chunk].path)
        found = self._last[1]
        if place in found["failed"]:
            return Failure(self._names[number], found["failed"][place])
        return decode(found["items"][place].tobytes())

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} of them failed" if self.failed else ""
        return f"<{len(self)} results in files{failed}>"


__all__ = ["Failure", "NamedSource", "Results", "Total"]
