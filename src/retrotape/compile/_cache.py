"""Which computations are compiled: those of a structure that comes again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from retrotape._types import Cotangent, Tensor
from retrotape.compile._lower import Lowered, lower
from retrotape.compile._observed import Computation, NotCompilableError, Observation
from retrotape.record import settings
from retrotape.compile._structure import described, structure_key
from retrotape.execute import Values
from retrotape.ir import bytes_of
from retrotape.record import Trace, current_stack
from retrotape.tf import core
from retrotape.tf.core import shape_of, tf

STRUCTURES = 256  # most that are remembered
VARIANTS = 4  # of one query, which differ in the values that gradient functions read
ATTEMPTS = 4  # to observe the same computation twice
HELD = 1 << 24  # bytes of the largest value that is kept for the next query on a tape from a file
CREDIT = 4  # structures observed when they first appear and not seen again, before new ones have to come twice
_Compute = Callable[[], list[Cotangent | None]]

_FIRST = "this structure was recorded for the first time; it is compiled when it comes again"
_NOT_ALONE = "another tape, or a forward accumulator, is recording while the query runs"


class _Query:
    """What is known about one query on traces of one structure."""

    def __init__(self) -> None:
        self.variants: list[Lowered] = []
        self.learned: Computation | None = None
        self.attempts = 0
        self.refused: str | None = None


class Structure:
    """What is known about traces of one structure: the queries, by what they ask for."""

    def __init__(self) -> None:
        self.queries: dict[Hashable, _Query] = {}
        self.sights = 0
        self.refused: str | None = None

    def needs(self) -> frozenset[int] | None:
        """Return the vars whose values its queries take; None if one of them is not compiled."""
        if self.refused is not None or not all(query.variants for query in self.queries.values()):
            return None
        variants = [lowered for query in self.queries.values() for lowered in query.variants]
        return frozenset(var for one in variants for var in (*one.feeds, *(var for var, _ in one.guards)))


class Cache:
    """Finds structures, and decides which are worth observing. The least recently used are forgotten."""

    def __init__(self) -> None:
        self._structures: OrderedDict[Hashable, Structure] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes of keys that appeared once
        self._credit = CREDIT
        self._lock = Lock()

    def structure_of(self, trace: Trace) -> Structure | None:
        """Return the structure of a trace; None if it is new and not worth remembering yet."""
        if trace.guard is not None:
            return self._own_structure(trace)
        template = trace.followed()
        try:
            if template is not None:
                found, functions = template.structure
                if found is not None and functions == described(trace):
                    return self._seen_again(found)
            size, found = trace.structure
            if found is not None and size == len(trace.program.eqns):
                return found
            found = self._find(structure_key(trace))
            template = trace.template
            if found is not None and template is not None and len(template.eqns) == len(trace.program.eqns):
                template.structure = found, described(trace)
        except NotCompilableError as error:
            found = Structure()
            found.refused = str(error)
        trace.structure = len(trace.program.eqns), found
        return found

    def _own_structure(self, trace: Trace) -> Structure:
        """Return the structure of a trace from a file: its ops are checked on its values, so it shares no functions."""
        size, found = trace.structure
        if found is None or size != len(trace.program.eqns):
            found = Structure()
            trace.structure = len(trace.program.eqns), found
        return found

    def _seen_again(self, found: Structure) -> Structure:
        found.sights += 1
        if found.sights == 2:
            self._credit = min(self._credit + 1, CREDIT)
        return found

    def _find(self, key: Hashable) -> Structure | None:
        with self._lock:
            found = self._structures.get(key)
            if found is None:
                mark = hash(key)
                if self._credit > 0 or settings.mode == "always":
                    self._credit -= 1
                elif mark not in self._seen:
                    self._seen[mark] = None
                    if len(self._seen) > 4 * STRUCTURES:
                        self._seen.popitem(last=False)
                    return None
                found = self._structures[key] = Structure()
                if len(self._structures) > STRUCTURES:
                    self._structures.popitem(last=False)
            else:
                self._structures.move_to_end(key)
            return self._seen_again(found)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._structures.clear()
            self._seen.clear()
            self._credit = CREDIT


cache = Cache()


def compiled(trace: Trace, kind: Hashable, inputs: Sequence[Tensor], compute: _Compute) -> list[Cotangent | None]:
    """Return what `compute` returns, by a compiled function where there is one.

    Args:
      trace: The trace whose values it reads.
      kind: What it computes, given the trace.
      inputs: What it reads besides.
      compute: Computes it op by op.
    """
    reason = _why_not(trace)
    structure = cache.structure_of(trace) if reason is None else None
    if structure is None or structure.refused is not None:
        trace.not_compiled = reason or (_FIRST if structure is None else structure.refused)
        if trace.not_compiled is not _FIRST:
            trace.on_rules()
        return compute()
    types = tuple([(core.eager_dtype(tensor), shape_of(tensor)) for tensor in inputs])
    query = structure.queries.setdefault((kind, types), _Query())
    found = _run(query, trace, inputs)
    if found is not None:
        trace.not_compiled = None
        return found
    trace.not_compiled = query.refused
    if query.refused is not None:
        trace.on_rules()
        return compute()
    found = _learn(query, trace, inputs, compute)
    if trace.template is not None:
        trace.template.keep_only(structure.needs())
    return found


def _why_not(trace: Trace) -> str | None:
    """Return why no query on a trace can be compiled now; None if it can be."""
    if settings.mode == "never":
        return "compilation is off: `rt.config(compile=True)` switches it on"
    if trace.symbolic or not tf.executing_eagerly():
        return "inside a tf.function, the gradient is part of the function's graph"
    if current_stack().observed() or core.stock_tape_listens():
        return _NOT_ALONE
    if trace.drops_values:
        return f"values are recomputed in segments: keep={trace.keep!r}"
    return None


def _run(query: _Query, trace: Trace, inputs: Sequence[Tensor]) -> list[Cotangent | None] | None:
    """Return the results by a compiled function; None if there is none for the values that Python would read."""
    if not query.variants:
        return None
    value_of = _Feeds(trace)
    for lowered in query.variants:
        if lowered.fits(value_of):
            try:
                return lowered(inputs, value_of)
            except tf.errors.OpError:  # an op that checks its inputs: computed op by op, the error says where
                return None
    return None


class _Feeds:
    """The values of a trace, recomputed where they were not kept."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._kept = trace, trace.values
        self._values: Values | None = None

    def __call__(self, var: int) -> Tensor:
        value = self._kept.get(var)
        if value.__class__ is core.EagerTensor:
            return value
        if self._values is None:
            self._values = Values(self._trace)
        value = self._values(var)
        if self._trace.guard is not None and bytes_of(self._trace.program.types[var]) <= HELD:
            self._kept[var] = value  # a file has only leaves, and the next query of this kind takes it again
        return value


def _learn(query: _Query, trace: Trace, inputs: Sequence[Tensor], compute: _Compute) -> list[Cotangent | None]:
    """Compute op by op, and compile what ran if it ran twice."""
    observation = Observation(trace, inputs)
    found = observation.run(compute)
    try:
        computation = observation.computation(found)
        always = settings.mode == "always"
        if computation == query.learned or always:
            return _compile(query, trace, inputs, computation, found)
        query.learned, query.attempts = computation, query.attempts + 1
        trace.not_compiled = _FIRST
        if query.attempts >= ATTEMPTS:
            raise NotCompilableError("gradient functions run other ops, or use other constants, each time")
    except NotCompilableError as error:
        query.refused, query.learned = str(error), None
        trace.not_compiled = query.refused
    return found


def _compile(
    query: _Query, trace: Trace, inputs: Sequence[Tensor], computation: Computation, found: list[Cotangent | None]
) -> list[Cotangent | None]:
    """Add a compiled function, if it returns what was found op by op."""
    if len(query.variants) >= VARIANTS:
        raise NotCompilableError("gradient functions read values in Python that change each time")
    value_of = _Feeds(trace)
    if trace.guard is not None:  # the function is used on this trace only, whose values do not change
        computation = computation._replace(read=())
    lowered = lower(computation, value_of, specialize=not query.variants)
    try:
        again = lowered(inputs, value_of)
    except tf.errors.OpError as error:
        raise NotCompilableError(f"TensorFlow cannot run it as a function: {error.message}") from None
    for one, other in zip(found, again, strict=True):
        _check_same(one, other)
    query.variants.append(lowered)
    query.learned, query.attempts = None, 0
    return again if settings.mode == "always" else found


def _check_same(one: Cotangent | None, other: Cotangent | None) -> None:
    pairs: list[tuple[Any, Any]] = [(one, other)]
    if isinstance(one, tf.IndexedSlices):
        pairs = [(one.values, other.values), (one.indices, other.indices)]  # type: ignore[union-attr]
    for left, right in pairs:
        if left is not None and left.dtype.is_numeric and not left.dtype.is_integer:
            a, b = (tf.cast(tensor, tf.complex128).numpy() for tensor in (left, right))
            if not np.allclose(a, b, rtol=1e-6, atol=1e-6 * _scale(a), equal_nan=True):
                raise NotCompilableError("as a function of TensorFlow, it gives other numbers")


def _scale(array: Any) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
