"""Values that left TensorFlow: where Python read one, and the constants that Python made afterwards."""

from __future__ import annotations

import dis
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from retrotape.diagnose.why._explanation import Explanation, Step
from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.errors import RetrotapeError
from retrotape.execute import Values
from retrotape.ir import HostRead
from retrotape.record import EagerSession, python_constants
from retrotape.tf.core import EagerTensor, identity_of

COMPARED = 200  # results whose values are compared with a constant, latest first
_READS = 20  # host reads before a constant that are compared with it, latest first
LARGE = 1_000_000  # largest number of elements that is compared
_ORDERED = "is a monotonic function of the values that Python read"
_MANY = 6  # distinct values that make an order conclusive: by chance, 1 in 360 such pairs of orders agree
CONDITION = "a condition in a tf.function"
_DECISIONS = ("__bool__", CONDITION)  # they choose what runs, and their values are not used again
_SMOOTH = (
    "The condition of a branch or a loop has no gradient: blend both results, `g * a + (1 - g) * b` with a smooth `g`."
)


class _Constant(NamedTuple):
    var: int
    moment: float
    user: int  # the first equation that uses it
    where: Any  # its type


class Left:
    """What the trace shows about values that left TensorFlow."""

    def __init__(self, session: EagerSession, between: Between) -> None:
        self._between = between
        trace = between.trace
        self._constants = self._used(python_constants(trace, session.trace, between.needed))
        self._unrecorded = self._used(python_constants(trace, session.trace, between.needed, unrecorded_only=True))
        self._values, self._reached = Values(trace), between.reached()
        self._first = _first_made(session) if trace.python_constants is None else None
        seen = [(read, trace.tensors.get(read.identity)) for read in trace.facts.host_reads]
        mine = [(read, var) for read, var in seen if var is not None and var in self._reached]
        self._reads = [(read, var) for read, var in mine if read.method not in _DECISIONS]
        self._decision = next((read for read, _ in reversed(mine) if read.method in _DECISIONS), None)

    def _used(self, moments: Mapping[int, float]) -> list[_Constant]:
        """Return the constants that the target depends on, in order of use."""
        found: dict[int, _Constant] = {}
        types = self._between.trace.program.types
        for index in self._between.leading if moments else ():
            for var in self._between.eqns[index].inputs:
                if var in moments and var not in found:
                    found[var] = _Constant(var, moments[var], index, types[var])
        return list(found.values())

    def explain(self, said: tuple[str, str]) -> Explanation | None:
        """Return where a value left, if there is a witness: Python read it, or it was used again unchanged."""
        for witness, proof in ((self._same, "has the values that Python read"), (self._in_order, _ORDERED)):
            for constant, read, var in self._pairs():
                if constant.where.shape == self._shape(var) and witness(constant.var, var):
                    return self._explain_read(said, constant, read, var, f", and {proof}.")
        found = self._at_once()
        if found is not None:
            return self._explain_read(
                said, *found, ", right after Python read the value, and is equal to it.", sure=False
            )
        latest = next(self._pairs(), None)
        same = self._used_again()
        if same is not None and latest is not None and latest[0] is same[0]:
            return self._explain_read(said, *latest, f", and has the values of {self._between.name_of(same[1])}.")
        if same is not None:
            return self._unseen(said, *same)
        return self._explain_read(said, *latest, ".", sure=False) if latest is not None and self._is_alone() else None

    def _pairs(self) -> Iterator[tuple[_Constant, HostRead, int]]:
        """Yield constants with the host reads before them, latest first."""
        moments = [read.moment for read, _ in self._reads]  # in the order in which they were recorded
        for constant in self._constants:
            before = bisect_left(moments, constant.moment)
            for read, var in self._reads[max(0, before - _READS) : before][::-1]:
                yield constant, read, var

    def _is_alone(self) -> bool:
        """Return whether the target depends only on constants made by Python in the block.

        Programs are full of constants. Where the target also depends on variables or inputs, a constant made after a
        host read is no witness: the value may have been read for a log.
        """
        between, trace, made = self._between, self._between.trace, {one.var for one in self._constants}
        leaves = [var for var in between.needed if between.producers[var] < 0 and var not in made]
        if any(var in trace.facts.history_of for var in leaves):
            return False
        return not any(
            self._shape(var) != () and var not in trace.facts.discrete and self._is_given(var) for var in leaves
        )

    def _is_given(self, var: int) -> bool:
        """Return whether a tensor existed before the first op ran, or may have."""
        value = self._between.trace.values.get(var)
        return not isinstance(value, EagerTensor) or self._first is None or identity_of(value) < self._first

    def _shape(self, var: int) -> Any:
        return self._between.trace.program.types[var].shape

    def _at_once(self) -> tuple[_Constant, HostRead, int] | None:
        """Return a number used by the first op after a host read of the same value, on the same line.

        A literal on that line does not count: it may be equal by chance.
        """
        between, trace, leading = self._between, self._between.trace, set(self._between.leading)
        for read, var in reversed(self._reads[-COMPARED:]):
            index = between.first_work(bisect_left(trace.facts.times, read.time))
            if index not in leading or between.frame(between.eqns[index].frame) != between.frame(read.frame):
                continue
            written = _numbers_at(trace.frames.place(between.eqns[index].frame))
            for leaf in between.eqns[index].inputs:
                new = between.producers[leaf] < 0 and self._shape(leaf) == self._shape(var) == ()
                if new and written is not None and self._equal(leaf, var) and self._number(leaf) not in written:
                    where = trace.program.types[leaf]
                    return _Constant(leaf, read.moment, index, where), read, var
        return None

    def _same(self, constant: int, var: int) -> bool:
        return self._equal(constant, var, telling=True)

    def _equal(self, constant: int, var: int, telling: bool = False) -> bool:
        arrays = self._arrays(constant, var)
        if arrays is None or (telling and not is_telling(arrays[0])):
            return False
        return bool(np.array_equal(arrays[0].astype(arrays[1].dtype), arrays[1]))

    def _in_order(self, constant: int, var: int) -> bool:
        """Return whether a constant is a monotonic function of the values that were read, element by element."""
        arrays = self._arrays(constant, var)
        if arrays is None or any(array.dtype.kind != "f" for array in arrays):
            return False
        new, old = (array.ravel().astype(np.float64) for array in arrays)
        if min(np.unique(new).size, np.unique(old).size) < _MANY or _is_sorted(old):
            return False
        new = new[np.argsort(old, kind="stable")]
        return _is_sorted(new)

    def _arrays(self, *variables: int) -> list[Any] | None:
        try:
            arrays = [self._values(var).numpy() for var in variables]
        except RetrotapeError:
            return None
        return arrays if arrays[0].size <= LARGE else None

    def _number(self, var: int) -> float:
        return float(self._values(var).numpy())

    def _used_again(self) -> tuple[_Constant, int] | None:
        """Return a constant with the same values as a var that was computed from the source."""
        types = self._between.trace.program.types
        alike: dict[Any, list[int]] = {constant.where: [] for constant in self._constants}
        for var in sorted(self._reached, reverse=True):
            of_kind = alike.get(types[var])
            if of_kind is not None and len(of_kind) < COMPARED:
                of_kind.append(var)
        compared = 0
        for constant in self._constants:
            for var in alike[constant.where]:
                compared += 1
                if compared > COMPARED:
                    return None
                if self._same(constant.var, var):
                    return constant, var
        return None

    def _explain_read(
        self, said: tuple[str, str], constant: _Constant, read: HostRead, var: int, proof: str, sure: bool = True
    ) -> Explanation:
        between = self._between
        how = read.method.strip("_")
        saved = between.trace.frames.saved_code(read.frame) or ""
        cut = Step(how if how == "numpy_function" else f"{how}()", between.frame(read.frame), saved_code=saved)
        detail = f"That constant, a {constant.where}, is used by {between.step(constant.user)}{proof}"
        remedy = (
            ""
            if sure
            else f"If it was computed from the values that Python read, {_lower(Verdict.LEFT_TENSORFLOW.remedy)}"
        )
        before = between.steps(between.path_anywhere(var))
        after = between.steps(between.path([constant.var], between.targets))
        return Explanation(Verdict.LEFT_TENSORFLOW, *said, cut, before, after, detail, remedy)

    def _unseen(self, said: tuple[str, str], constant: _Constant, var: int) -> Explanation:
        """Explain a value that is used again without a host read: by the buffer protocol, or from another thread."""
        between = self._between
        detail = (
            f"No op on the tape made the {constant.where} that is used here, but it has the values of "
            f"{between.name_of(var)}, which was computed from the source."
        )
        remedy = (
            f"If NumPy read it (`np.array(tensor)`), {_lower(Verdict.LEFT_TENSORFLOW.remedy)} If another thread "
            "computed it, compute it on the thread that records."
        )
        before = between.steps(between.path_anywhere(var))
        after = between.steps(between.path([constant.var], between.targets))
        return Explanation(Verdict.NO_PATH, *said, between.step(constant.user), before, after, detail, remedy)

    def facts(self) -> Iterator[str]:
        """Yield further evidence: host reads of what the source leads to, constants that no op made."""
        between = self._between
        if self._decision is not None:
            how = "an `if` or a loop" if self._decision.method == "__bool__" else "a branch or a loop in a tf.function"
            where = between.frame(self._decision.frame)
            yield f"A value computed from the source decided what ran, in {how} at {where}."
        if self._reads:
            read = self._reads[-1][0]
            how = read.method.strip("_")
            yield f"Python read a value computed from the source, with `{how}`, at {between.frame(read.frame)}."
        yield from self.unmade()

    def unmade(self) -> Iterator[str]:
        """Yield what the target depends on that no op on the tape made."""
        for constant in self._unrecorded[:1]:
            where = self._between.step(constant.user)
            yield (
                f"The target depends on a {constant.where} that was made while the tape was not recording, "
                f"used by {where}."
            )
        relevant = self._reads or self._is_alone()  # otherwise: every program has scalar constants
        for constant in [one for one in self._constants if one.where.shape != () or relevant][:1]:
            where = self._between.step(constant.user)
            yield (
                f"The target depends on a {constant.where} that was made after recording began, but not by an op on "
                f"the tape, used by {where}. It was made by Python, by NumPy (`np.array(tensor)` leaves no trace), "
                "on another thread, outside the block, or before a `reset`."
            )

    def remedy(self) -> str:
        """Return the remedy where nothing is proven; "" for the default."""
        check = Verdict.NO_PATH.remedy
        if self._reads or any(True for _ in self.unmade()):
            return f"{check} If a value left TensorFlow on the way, keep the computation in TensorFlow."
        return f"{check} {_SMOOTH}" if self._decision is not None else ""


def _numbers_at(place: Any) -> set[float] | None:
    """Return the literals on a line of code; None if the code is not known."""
    if type(place) is not tuple:
        return None
    code, at = place[:2]
    lines = list(code.co_lines())
    here = next((line for begin, end, line in lines if begin <= at < end), None)
    spans = [range(begin, end) for begin, end, line in lines if line == here]
    loaded = (row.argval for row in dis.get_instructions(code) if "LOAD_" in row.opname and _is_in(row.offset, spans))
    return {float(number) for number in loaded if isinstance(number, (int, float))}


def _is_in(offset: int, spans: list[range]) -> bool:
    return any(offset in span for span in spans)


def _is_sorted(array: Any) -> bool:
    steps = np.diff(array)
    return bool((steps >= 0).all() or (steps <= 0).all())


def _first_made(session: EagerSession) -> int | None:
    """Return the identity of the first tensor that an op made."""
    producers = session.trace.program.producers
    return min((identity for identity, var in session.trace.tensors.items() if producers[var] >= 0), default=None)


def is_telling(array: Any) -> bool:
    """Return whether values are distinctive, unlike zeros, ones or whole numbers."""
    if array.size == 1:
        return bool(array != np.round(array))
    return bool(array.size) and bool(np.any(array != array.flat[0]))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
