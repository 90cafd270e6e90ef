"""Equations of a template that a query inside the block recorded, as a function that takes their place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape._types import Cotangent, Place, Tensor
from retrotape.ir import LEAF
from retrotape.lower._compare import check_same
from retrotape.lower._feeds import Feeds
from retrotape.lower._lower import Lowered, lower
from retrotape.lower._observed import Computation, NotCompilableError, array_of, value_bytes
from retrotape.record import PLAIN, Constant, Passed, Position, Template, Trace, next_times, settings
from retrotape.tf.core import tf

VARIANTS = 4  # of one query, which differ in the values that gradient functions read
ATTEMPTS = 4  # to observe the same computation twice
REBUILT = 4  # times, because later queries take other values


class Extent(NamedTuple):
    """Which part of a template a query recorded, and what it depends on besides values.

    Attributes:
      eqns: The number of equations before.
      size: The number of vars before.
      stopped: The vars whose gradient `tf.nn.moments` stopped.
      place: The place in user code that asked.
      functions: What backward functions depend on.
      events: For how many ops a place was looked up.
      end: The number of equations, and of vars, after.
      own: For each var of the part, its var in the computation.
    """

    eqns: int
    size: int
    stopped: frozenset[int | None]
    place: Place
    functions: Hashable
    events: int
    end: tuple[int, int]
    own: tuple[int, ...]


class Span:
    """What is known about one query inside a block.

    Attributes:
      extent: What it recorded, the last time.
      computation: What it computed, the last time.
      variants: Functions that take its place; they differ in the values that they are right for.
      refused: Why it is not compiled; None if it is, or will be.
      is_empty: Whether it computes nothing.
    """

    def __init__(self) -> None:
        self.extent: Extent | None = None
        self.computation: Computation | None = None
        self.variants: list[Variant] = []
        self.refused: str | None = None
        self.is_empty = False
        self._attempts = self._rebuilt = 0
        self._has_all_of: Any = None

    def learn(self, extent: Extent, computation: Computation) -> bool:
        """Return whether a query did what it did the last time; remember it."""
        if self.variants and extent != self.extent:
            raise NotCompilableError("gradient functions run other ops, or use other constants, each time")
        is_same = (extent, computation) == (self.extent, self.computation)
        self.extent, self.computation = extent, computation
        if is_same or settings.mode == "always":
            return True
        self._attempts += 1
        if self._attempts >= ATTEMPTS:
            raise NotCompilableError("gradient functions run other ops, or use other constants, each time")
        return False

    def add(self, variant: Variant) -> None:
        """Add a function."""
        if len(self.variants) >= VARIANTS:
            raise NotCompilableError("gradient functions read values in Python that change each time")
        self.variants = [*self.variants, variant]
        self._attempts = 0

    def refuse(self, reason: str) -> None:
        """Never compile it."""
        self.refused, self.variants, self.computation = reason, [], None

    def takes(self) -> frozenset[int]:
        """Return the vars whose values its functions take, or will probably take."""
        if self.variants:
            return frozenset(var for one in self.variants for var in one.takes)
        return frozenset(var for _, var in self.computation.feeds) if self.computation else frozenset()

    def matches(self, position: Position, place: Place, functions: Hashable) -> bool:
        """Return whether a run is where this query was asked, in all that it depends on but values."""
        extent = self.extent
        assert extent is not None
        return (
            extent.size == position.size
            and extent.stopped == position.stopped
            and extent.place == place
            and extent.functions == functions
        )

    def has_all(self, taken: frozenset[int]) -> bool:
        """Return whether its functions return all values that later queries take; drop them if not."""
        if self._has_all_of is taken or self._rebuilt >= REBUILT:
            return True
        assert self.extent is not None
        made = range(self.extent.size, self.extent.end[1])
        if all(var not in taken or var in one.kept or var in one.given for var in made for one in self.variants):
            self._has_all_of = taken
            return True
        self.variants, self._rebuilt = [], self._rebuilt + 1
        return False


class Variant(NamedTuple):
    """A function that takes the place of the equations of an extent.

    Attributes:
      lowered: The function: each of its results is one tensor.
      rows: For each result of the query, the positions of its tensors among those of the function; None if it has none.
      names: For each tensor of the function, its var in the template, if it has one.
      kept: The positions of tensors whose values are kept, by var.
      given: The positions of inputs that are leaves of the extent, by var.
      constants: The other leaves.
      assumed: Constants of earlier queries that the function depends on without taking them, with their bytes.
      extent: The extent.
    """

    lowered: Lowered
    rows: tuple[tuple[int, ...], ...]
    names: tuple[int | None, ...]
    kept: Mapping[int, int]
    given: Mapping[int, int]
    constants: Mapping[int, Constant]
    assumed: Mapping[int, bytes]
    extent: Extent

    @property
    def takes(self) -> list[int]:
        """The vars whose values it takes, or compares."""
        return [*self.lowered.feeds, *(var for var, _ in self.lowered.guards)]

    def fits(self, trace: Trace, value_of: Feeds) -> bool:
        """Return whether it is right for the values of a trace."""
        kept = trace.values.get
        return all(_data(kept(var)) == data for var, data in self.assumed.items()) and self.lowered.fits(value_of)

    def __call__(self, inputs: Sequence[Tensor], value_of: Feeds) -> tuple[list[Cotangent | None], Passed]:
        """Return the results, and what the trace gets in place of the equations."""
        flat: list[Any] = self.lowered(inputs, value_of.all(self.lowered.feeds))
        given = {var: inputs[position] for var, position in self.given.items()}
        tensors = {var: tensor for var, tensor in zip(self.names, flat, strict=True) if var is not None}
        values = {**self.constants, **{var: flat[position] for var, position in self.kept.items()}, **given}
        eqns, size = self.extent.end
        passed = Passed(eqns, size, {**tensors, **given}, values, next_times(eqns - self.extent.eqns))
        return [_result([flat[position] for position in row]) for row in self.rows], passed


def _data(value: Any) -> bytes | None:
    if isinstance(value, Constant):
        return value.data
    return None if value is None else value_bytes(value)


def _result(tensors: list[Tensor]) -> Cotangent | None:
    return None if not tensors else tensors[0] if len(tensors) == 1 else tf.IndexedSlices(*tensors)


def own_vars(
    template: Template, computation: Computation, before: Position, after: Position, pairs: Iterable[tuple[int, int]]
) -> tuple[int, ...]:
    """Return the var of a computation for each var that its equations have in the template.

    Args:
      template: The template.
      computation: What was observed beside the recorder that follows the template.
      before: Where the recorder was before.
      after: Where it is now.
      pairs: Vars of the computation and of the template that are known by the same tensor.

    Raises:
      NotCompilableError: If the equations are not the same, or there is more than equations.
    """
    if before[2:] != after[2:]:
        raise NotCompilableError("a backward function calls a layer, or reads a value in Python")
    theirs: dict[int, int] = {}
    is_same = all(theirs.setdefault(own, var) == var for own, var in pairs)
    eqns, made = template.eqns[before.eqns : after.eqns], range(before.size, after.size)
    for number, eqn in enumerate(eqns):
        if template.step(before.eqns + number)[0] != PLAIN:
            raise NotCompilableError(f"it records {eqn.op}, which is more than an op")
    observed = [
        (eqn.op, tuple(map(theirs.get, eqn.inputs)), tuple(map(theirs.get, eqn.outputs)), eqn.attrs)
        for eqn in computation.eqns
    ]
    own = {var: one for one, var in theirs.items()}
    if not is_same or [eqn[:4] for eqn in eqns] != observed or not all(var in own for var in made):
        raise NotCompilableError("part of the derivative is computed by ops that cannot be observed")
    return tuple(own[var] for var in made)


def constants_in(template: Template, extent: Extent, computation: Computation) -> dict[int, bytes]:
    """Return the leaves of an extent that are no inputs, with their values."""
    data, vars_of = dict(computation.constants), range(extent.size, extent.end[1])
    own = zip(vars_of, extent.own, strict=True)
    return {var: data[one] for var, one in own if template.producers[var] == LEAF and one in data}


def lower_span(
    trace: Trace,
    template: Template,
    span: Span,
    inputs: Sequence[Tensor],
    found: Sequence[Cotangent | None],
    assumed: Iterable[int],
) -> Variant:
    """Return a function that takes the place of an observed query.

    Args:
      trace: The trace on which it was observed.
      template: The template.
      span: What is known about it.
      inputs: Its inputs.
      found: What it returned, op by op.
      assumed: The vars of the trace that were taken for constants.

    Raises:
      NotCompilableError: If there is none.
    """
    extent, computation, value_of = span.extent, span.computation, Feeds(trace)
    assert extent is not None
    assert computation is not None
    numbers = range(extent.size, extent.end[1])
    leaves = [var for var in numbers if template.producers[var] == LEAF]
    own = dict(zip(numbers, extent.own, strict=True))
    at = {leaf: position for position, leaf in enumerate(computation.inputs)}
    given = {var: at[own[var]] for var in leaves if own[var] in at}
    taken = template.taken()
    kept = [var for var in numbers if var in taken and var not in given]
    if any(var in at or var in dict(computation.feeds) for row in computation.results for var in row):
        raise NotCompilableError("a result is a value of the tape, or one that was given")
    flat = list(dict.fromkeys([*(var for row in computation.results for var in row), *(own[var] for var in kept)]))
    position = {var: number for number, var in enumerate(flat)}
    whole = computation._replace(results=tuple((var,) for var in flat))
    lowered = lower(whole, value_of, not span.variants, template.eqns[: extent.eqns])
    names, constants = {one: var for var, one in own.items()}, constants_in(template, extent, computation)
    variant = Variant(
        lowered,
        tuple(tuple(position[var] for var in row) for row in computation.results),
        tuple(names.get(var) for var in flat),
        {var: position[own[var]] for var in kept},
        given,
        {var: Constant(array_of(template.types[var], data), data) for var, data in constants.items()},
        {var: value_bytes(value_of(var)) for var in assumed},
        extent,
    )
    again, passed = variant(inputs, value_of)
    for one, other in zip(found, again, strict=True):
        check_same(one, other)
    for var in kept:
        if isinstance(trace.values.get(var), tf.Tensor):
            check_same(trace.values[var], passed.values[var])
    return variant
