"""Values that left TensorFlow: where Python saw one, and the constants that it made after that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from retrotape.errors import RetrotapeError
from retrotape.execute import Values
from retrotape.record import EagerLog, Look
from retrotape.saving import born
from retrotape.why._explanation import Explanation, Step
from retrotape.why._graph import Between
from retrotape.why._verdicts import Verdict

_COMPARED = 200  # results whose values are compared with a constant, latest first
_LARGE = 1_000_000  # elements up to which they are


class _Constant(NamedTuple):
    var: int
    moment: float
    user: int  # the equation that uses it first
    where: Any  # its type


class Left:
    """What is known of values that left."""

    def __init__(self, log: EagerLog, between: Between) -> None:
        self._between = between
        recording = between.recording
        self._constants = self._used(born(recording, log.recording, between.needed))
        self._silent = self._used(born(recording, log.recording, between.needed, silent=True))
        self._values, self._reached = Values(recording), between.reached()
        self._alone = between.needed.isdisjoint(recording.cell_of)

    def _used(self, moments: Mapping[int, float]) -> list[_Constant]:
        """Return those of some constants that the target depends on, in the order in which they are used."""
        found: dict[int, _Constant] = {}
        types = self._between.recording.builder.types
        for index in self._between.leading if moments else ():
            for var in self._between.eqns[index].inputs:
                if var in moments and var not in found:
                    found[var] = _Constant(var, moments[var], index, types[var])
        return list(found.values())

    def explain(self, said: tuple[str, str]) -> Explanation | None:
        """Return where a value left, if there are witnesses: that Python saw it, or that it came back as it was."""
        looks = [(look, var) for look in self._between.recording.looks if (var := self._seen(look)) is not None]
        moments = [look.moment for look, _ in looks]  # in order, as they were noted
        best: tuple[int, _Constant, Look, int] | None = None
        for constant in self._constants:
            before = bisect_left(moments, constant.moment)
            if before:
                look, var = looks[before - 1]
                rank = self._rank(constant, var)
                if rank is not None and (best is None or rank < best[0]):
                    best = rank, constant, look, var
                    if rank == 0:
                        break
        if best is not None and best[0] == 0:
            return self._told(said, *best[1:], ", and has the values that were seen.")
        same = self._came_back()
        if same is not None and best is not None and best[1] is same[0]:
            return self._told(said, *best[1:], f", and has the values of {self._between.name_of(same[1])}.")
        if same is not None:
            return self._unseen(said, *same)
        return None if best is None else self._told(said, *best[1:], "")

    def _seen(self, look: Look) -> int | None:
        var = self._between.recording.known(look.identity)
        if var is None or look.how == "__bool__":  # which decides what runs, but is no value that comes back
            return None
        return var if var in self._reached else None

    def _rank(self, constant: _Constant, var: int) -> int | None:
        """Say how good a witness a constant is: 0 if it has the values that were seen, then 1, then 2.

        Programs are full of numbers. Where the target also comes from variables, one that Python made after a look
        is no witness: the look may have been for a log.
        """
        shape = self._between.recording.builder.types[var].shape
        if constant.where.shape == shape and self._same(constant.var, var):
            return 0
        if constant.where.shape == shape != ():
            return 1
        return 2 if self._alone else None

    def _same(self, constant: int, var: int) -> bool:
        try:
            left, right = (self._values(item).numpy() for item in (constant, var))
        except RetrotapeError:
            return False
        if left.size > _LARGE or not _is_telling(left):
            return False
        return bool(np.array_equal(left.astype(right.dtype), right))

    def _came_back(self) -> tuple[_Constant, int] | None:
        """Return a constant with the same values as something that was computed from the source."""
        types = self._between.recording.builder.types
        alike: dict[Any, list[int]] = {constant.where: [] for constant in self._constants}
        for var in sorted(self._reached, reverse=True):
            of_kind = alike.get(types[var])
            if of_kind is not None and len(of_kind) < _COMPARED:
                of_kind.append(var)
        compared = 0
        for constant in self._constants:
            for var in alike[constant.where]:
                compared += 1
                if compared > _COMPARED:
                    return None
                if self._same(constant.var, var):
                    return constant, var
        return None

    def _told(self, said: tuple[str, str], constant: _Constant, look: Look, var: int, proof: str) -> Explanation:
        between = self._between
        how = look.how.strip("_")
        cut = Step(how if how == "numpy_function" else f"{how}()", between.frame(look.frame))
        detail = f"That constant, a {constant.where}, is used by {between.step(constant.user)}{proof or '.'}"
        remedy = "" if proof else f"If it was computed from what was seen, {_lower(Verdict.LEFT_TENSORFLOW.remedy)}"
        before = between.steps(between.path_anywhere(var))
        after = between.steps(between.path([constant.var], between.targets))
        return Explanation(Verdict.LEFT_TENSORFLOW, *said, cut, before, after, detail, remedy)

    def _unseen(self, said: tuple[str, str], constant: _Constant, var: int) -> Explanation:
        """Say that a value is back though nobody saw it leave: by the buffer protocol, or from another thread."""
        between = self._between
        detail = (
            f"No op on the tape made the {constant.where} that goes in below, but it has the values of "
            f"{between.name_of(var)}, which comes from the source."
        )
        remedy = (
            f"If NumPy took it out (`np.array(tensor)`), {_lower(Verdict.LEFT_TENSORFLOW.remedy)} If another thread "
            "computed it, do that on the thread that records."
        )
        before = between.steps(between.path_anywhere(var))
        after = between.steps(between.path([constant.var], between.targets))
        return Explanation(Verdict.NO_PATH, *said, between.step(constant.user), before, after, detail, remedy)

    def facts(self) -> Iterator[str]:
        """Yield what else is known: a look at something from the source, what the target has that no op made."""
        look = next((look for look in reversed(self._between.recording.looks) if self._seen(look) is not None), None)
        if look is not None:
            yield f"Python looked at what comes from the source at {self._between.frame(look.frame)}."
        for constant in self._silent[:1]:
            where = self._between.step(constant.user)
            yield f"The target depends on a {constant.where} that was made while nothing was recorded, used by {where}."
        for constant in self._constants[:1]:
            yield (
                f"The target depends on a {constant.where} that was made while recording, but by no op that the tape "
                f"heard, used by {self._between.step(constant.user)}: Python made it, NumPy (`np.array(tensor)` "
                "leaves no trace), or another thread."
            )


def _is_telling(array: Any) -> bool:
    """Say whether values are not such as turn up everywhere."""
    if array.size == 1:
        return bool(array != np.round(array))
    return bool(array.size) and bool(np.any(array != array.flat[0]))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
