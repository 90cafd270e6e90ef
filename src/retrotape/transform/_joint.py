"""A joined trace that longer joins continue, so that joining one trace after another takes linear time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from retrotape._types import Variable
from retrotape.errors import InterruptedTapeError
from retrotape.ir import FOREVER, Builder
from retrotape.record import TensorMap, Trace, new_trace
from retrotape.transform._join import Joiner, TraceVar
from retrotape.transform._known_joins import known_join, learn_join, sharing


class _Data(NamedTuple):
    """What a joined trace consists of."""

    builder: Builder
    values: dict[int, Any]
    tensors: TensorMap
    variables: dict[int, Variable]
    owners: dict[int, Any]
    wholes: dict[int, Any]
    guard: Any

    def trace(self) -> Trace:
        """Return a trace of these data."""
        trace = new_trace(self.builder, self.guard)
        trace.values, trace.tensors, trace.variables = self.values, self.tensors, self.variables
        trace.owners, trace.wholes = self.owners, self.wholes
        return trace


class Joint:
    """A joined trace as the beginning of longer ones.

    The data of a joined trace pass to a longer one if nothing else can use them any more: the trace no longer exists,
    and no other join is going to begin with it. Otherwise they are copied, so a trace never changes by being joined.

    Attributes:
      heirs: The objects for which `then` may still be called.
    """

    def __init__(self, joiner: Joiner, is_prefix: bool) -> None:
        trace, builder = joiner.joined, joiner.builder
        self.heirs: WeakSet[Any] = WeakSet()
        self._alive = ref(trace)
        self._data: _Data | None = _Data(
            builder, trace.values, trace.tensors, trace.variables, trace.owners, trace.wholes, trace.guard
        )
        self._sizes = builder.sizes() if is_prefix else None

    def then(self, traces: Sequence[Trace], heir: Any) -> tuple[Trace, Joint | None]:
        """Return the join of this trace and others, and its joint, for one of the `heirs`."""
        trace, data = self._alive(), self._data
        if data is None:
            raise InterruptedTapeError
        if trace is not None or set(self.heirs) != {heir}:
            return join_from([data.trace() if trace is None else trace, *traces])
        if not self._ends_before(data, traces):
            return join_from([data.trace(), *traces])
        self._data = None  # first: if an exception interrupts what follows, the data are of no use
        data.builder.facts.unrecorded_spans.clear()  # sessions add those of all traces
        return _finished(Joiner(traces, None, data.builder, data.trace()))

    def _ends_before(self, data: _Data, traces: Sequence[Trace]) -> bool:
        """Return whether other traces can be appended: nothing was added since, and they ran later."""
        times = data.builder.facts.times  # in order, as those of every joined trace
        later = not times or all(min(trace.facts.times, default=FOREVER) > times[-1] for trace in traces)
        return self._sizes == data.builder.sizes() and later


def join_from(traces: Sequence[Trace], links: Mapping[TraceVar, TraceVar] | None = None) -> tuple[Trace, Joint | None]:
    """Return the join of some traces, and its joint; None in place of the joint if the program was known."""
    given = None if links else sharing(traces)
    known = None if given is None else known_join(given)
    if known is not None:
        return known, None
    joiner = Joiner(traces, links)
    found = _finished(joiner)
    if given is not None:
        learn_join(given, joiner.joined, joiner.maps)
    return found


def _finished(joiner: Joiner) -> tuple[Trace, Joint]:
    is_prefix = joiner.add_all()
    return joiner.joined, Joint(joiner, is_prefix)
