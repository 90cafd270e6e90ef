"""What farms return: the sum of many gradients, and results that are kept in files."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from retrotape.distribute._codec import decode
from retrotape.distribute._drive import Done, Failures, Work, content
from retrotape.distribute._named import NamedGradients, Pairs


class Total(NamedGradients):
    """The sum or mean of the gradients of many tapes, in double precision; `rt.farm.backward` makes it.

    A name without a path on any tape is among `missing`, `get` returns None for it, and `why` says why.

    Attributes:
      count: How many tapes it is from.
      failed: The error of each tape that was left out, by path.
    """

    __slots__ = ("count", "failed")

    def __init__(
        self, gradients: Pairs, reasons: Iterable[tuple[Any, str]], count: int, failed: Mapping[str, str]
    ) -> None:
        super().__init__(gradients, reasons)
        self.count, self.failed = count, dict(failed)


class Failure(NamedTuple):
    """Stands in `Results` for an item that failed: which one, and its error.

    >>> rt.farm.Failure("a.tape", "CorruptTapeError: ...").name
    'a.tape'
    """

    name: str
    error: str


def _failed(done: Done) -> dict[str, str]:
    failures = Failures()
    for task, path in zip(done.tasks, done.paths, strict=True):
        failures.add(task, content(path)["failed"] if path != task.path else {})
    failures.raise_if_all(done.what)
    return failures.texts


class Results(Sequence[Any]):
    """Results of many tapes or inputs, in their order; `rt.farm.map`, `replay` and `backward` make it.

    They are in files, and each is read when it is used. A `Failure` stands for one that failed.

    Attributes:
      failed: The error of each item that failed, by name.
    """

    def __init__(self, done: Done, size: int, work: Work) -> None:
        self._paths, self._size, self.failed = done.paths, size, _failed(done)
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
        last, found = self._last  # read once: another thread may replace it
        if last != chunk:
            found = content(self._paths[chunk])
            self._last = chunk, found
        if place in found["failed"]:
            return Failure(self._names[number], found["failed"][place])
        return decode(found["items"][place].tobytes())

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} of them failed" if self.failed else ""
        return f"<{len(self)} results in files{failed}>"
