"""A computation for each row of a tensor at once: Jacobians and Hessians."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from retrotape._types import Cotangent, Tensor
from retrotape.execute import FEW, run
from retrotape.ir import Program
from retrotape.lower._compare import check_same
from retrotape.lower._feeds import Feeds
from retrotape.lower._lower import guards_of, lower, small_values
from retrotape.lower._observed import Computation, NotCompilableError, value_bytes
from retrotape.lower._queries import find_query, observe
from retrotape.lower._simplify import Simplifier
from retrotape.lower._structures import QueryState
from retrotape.record import Trace
from retrotape.tf.core import tf, traced

_One = Callable[[Tensor], list[Cotangent | None]]


class Vectorized:
    """A computation of one row, as a function of many rows.

    Attributes:
      feeds: The vars of the trace whose values it takes.
      guards: Vars of the trace whose values it depends on, with the bytes of the values.
    """

    def __init__(self, computation: Computation, value_of: Callable[[int], Tensor]) -> None:
        self._computation = computation
        self._simple = Simplifier(computation, small_values(computation, value_of)).run()
        used = self._simple.used()
        if any(used.isdisjoint(eqn.outputs) for eqn in self._simple.eqns):
            raise NotCompilableError("an op that may fail runs, though nothing uses what it returns")
        self._fed = [(leaf, var) for leaf, var in computation.feeds if leaf in used]
        self.feeds = tuple(var for _, var in self._fed)
        self.guards = guards_of(computation, self._simple.assumed, value_of)
        self._function = traced(self._side_by_side)

    def fits(self, value_of: Callable[[int], Tensor]) -> bool:
        """Return whether it is right for the values of a trace."""
        return all(value_bytes(value_of(var)) == value for var, value in self.guards)

    def __call__(self, rows: Tensor, value_of: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the stacked results for all rows."""
        return list(self._function(rows, *map(value_of, self.feeds)))

    def _side_by_side(self, rows: Tensor, *fed: Tensor) -> list[Tensor]:
        return tf.vectorized_map(lambda row: self._one(row, fed), rows)

    def _one(self, row: Tensor, fed: Sequence[Tensor]) -> list[Tensor]:
        computation, simple = self._computation, self._simple
        used = simple.used()
        env: dict[int, Any] = {var: tf.constant(array) for var, array in simple.constants.items() if var in used}
        env[computation.inputs[0]] = row
        env.update((leaf, value) for (leaf, _), value in zip(self._fed, fed, strict=True))
        found = run(Program(computation.types, computation.producers, tuple(simple.eqns), ()), env)
        return [found[var] for (var,) in simple.results]


class _RowByRow:
    """The same for a few rows: one call of a function for each."""

    def __init__(self, computation: Computation, value_of: Callable[[int], Tensor]) -> None:
        self._lowered = lower(computation, value_of)
        self.feeds, self.guards, self.fits = self._lowered.feeds, self._lowered.guards, self._lowered.fits

    def __call__(self, rows: Tensor, value_of: Callable[[int], Tensor]) -> list[Tensor]:
        fed = [*map(value_of, self.feeds)]
        found = [self._lowered([row], fed) for row in tf.unstack(rows)]
        return [tf.stack(column) for column in zip(*found, strict=True)]


def compiled_rows(trace: Trace, kind: Hashable, rows: Tensor, one: _One) -> list[Tensor] | None:
    """Return the stacked results of `one` for each row, by a compiled function; None if there is none yet.

    Args:
      trace: The trace whose values `one` reads.
      kind: What it computes, given the trace.
      rows: The rows.
      one: Computes the results for one row, op by op.
    """
    found = find_query(trace, ("rows", kind), [rows])
    if found is None or rows.shape[0] == 0:
        return None
    query, structure = found
    value_of = Feeds(trace)
    for variant in query.variants:
        if variant.fits(value_of):
            trace.not_compiled = None
            try:
                return variant(rows, value_of)
            except tf.errors.OpError:  # computed op by op, the error says where
                return None
    if query.refused is not None:
        trace.not_compiled = query.refused
        trace.on_rules()
        return None
    row, stacked = rows[0], None
    results, computation = observe(query, trace, [row], lambda: _dense(one(row)))
    if computation is not None:
        try:
            last = rows[-1]
            stacked = _compile(query, computation, (results, _dense(one(last))), rows, value_of)
        except (NotCompilableError, tf.errors.OpError, ValueError) as error:
            query.refuse(str(error))
            trace.not_compiled = query.refused
    if trace.template is not None:
        trace.template.keep_only(structure.needs())
    return stacked


def _dense(found: list[Cotangent | None]) -> list[Tensor | None]:
    return [None if grad is None else tf.convert_to_tensor(grad) for grad in found]


def _compile(
    query: QueryState,
    computation: Computation,
    first_and_last: tuple[list[Any], list[Any]],
    rows: Tensor,
    value_of: Callable[[int], Tensor],
) -> list[Tensor]:
    first, last = first_and_last
    if any(grad is None for grad in first):
        raise NotCompilableError("a source is not connected to the target")
    few = rows.shape[0] <= FEW
    variant: Any = _RowByRow(computation, value_of) if few else Vectorized(computation, value_of)
    stacked = variant(rows, value_of)
    for one, other, column in zip(first, last, stacked, strict=True):
        check_same(one, column[0])
        check_same(other, column[-1])
    query.add(variant)
    return stacked
