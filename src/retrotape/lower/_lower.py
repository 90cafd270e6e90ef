"""Lower a computation to a function of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrotape._types import Cotangent, Tensor
from retrotape.ir import Eqn
from retrotape.lower._builder import FunctionBuilder
from retrotape.lower._observed import Computation, value_bytes
from retrotape.lower._shapes import size_of
from retrotape.lower._simplify import ASSUMABLE, Simplifier
from retrotape.tf.core import tf
from retrotape.tf.lowering import LoweredFunction

_INTEGERS = (3, 9)  # int32, int64
_WITHOUT_VALUE = (7, 20, 21)  # strings, resources, variants
ONE_BY_ONE = 8  # terms
SINGLE_THREADED = (
    65_536  # elements in the largest tensor, up to which threads for independent ops cost more than they gain
)


class Lowered(NamedTuple):
    """A computation as a function that is called directly.

    Attributes:
      function: The function: from used inputs and feeds to all tensors of the results.
      inputs: The positions of the inputs that it takes.
      feeds: The vars of the trace whose values it takes, after the inputs.
      results: How many of its tensors each result has: none, one, or those of `tf.IndexedSlices`.
      sparse: Whether a result is `tf.IndexedSlices`.
      guards: Vars of the trace that it does not take, but whose values it depends on, with the bytes of the values.
      picks: The positions of the results among its tensors and its arguments; None if they are its tensors.
    """

    function: LoweredFunction
    inputs: tuple[int, ...]
    feeds: tuple[int, ...]
    results: tuple[int, ...]
    sparse: bool
    guards: tuple[tuple[int, bytes], ...]
    picks: tuple[int, ...] | None = None

    def fits(self, value_of: Callable[[int], Tensor]) -> bool:
        """Return whether it is right for the values of a trace."""
        for var, value in self.guards:  # noqa: SIM110 - a loop is faster
            if value_bytes(value_of(var)) != value:
                return False
        return True

    def __call__(self, inputs: Sequence[Tensor], feeds: Iterable[Tensor]) -> list[Cotangent | None]:
        """Run it on inputs and on values of a trace, those of the vars `feeds`."""
        given = [*[inputs[position] for position in self.inputs], *feeds]
        flat = self.function(given)
        if self.picks is not None:
            pool = [*flat, *given]
            flat = [pool[position] for position in self.picks]
        if not self.sparse:
            rest = iter(flat)
            return [next(rest) if count else None for count in self.results]
        found: list[Cotangent | None] = []
        position = 0
        for count in self.results:
            own = flat[position : position + count]
            found.append(None if not own else own[0] if count == 1 else tf.IndexedSlices(*own))
            position += count
        return found


def lower(
    computation: Computation,
    value_of: Callable[[int], Tensor],
    specialize: bool = False,
    forward: Iterable[Eqn] = (),
    in_order: bool = False,
) -> Lowered:
    """Return a computation as a function.

    Args:
      computation: The computation.
      value_of: The values of the trace on which it was observed.
      specialize: Whether scalars may be assumed to have the same values later, and be guarded.
      forward: The equations of that trace.
      in_order: Whether ops run one after the other, which takes as little memory as computing op by op.

    Raises:
      NotCompilableError: If it cannot be one.
    """
    simple = Simplifier(computation, small_values(computation, value_of), specialize, forward).run()
    used = simple.used()
    builder, types = FunctionBuilder(in_order), computation.types
    inputs = [position for position, var in enumerate(computation.inputs) if var in used]
    feeds = [(leaf, var) for leaf, var in computation.feeds if leaf in used]
    references: dict[int, str] = {}
    constants: dict[Hashable, str] = {}
    arguments = [*(computation.inputs[position] for position in inputs), *(leaf for leaf, _ in feeds)]
    for leaf in arguments:
        references[leaf] = builder.argument(types[leaf])

    def reference(var: int) -> str:
        if var not in references:
            value = np.asarray(simple.constants[var])
            key = value.dtype, value.shape, tuple(value.flat) if value.dtype == object else value.tobytes()
            if key not in constants:
                constants[key] = builder.constant(value)
            references[var] = constants[key]
        return references[var]

    for eqn in simple.eqns:
        made = add_node(builder, eqn, [reference(var) for var in eqn.inputs])
        references.update(zip(eqn.outputs, made, strict=True))
        if made and used.isdisjoint(eqn.outputs):
            builder.run_always(made[0])
    picks, made_vars = _picks(computation, arguments)
    same = dict(zip(_flat(computation.results), _flat(simple.results), strict=True))
    for var in made_vars:
        builder.result(reference(same[var]), types[var].dtype)
    made_here = (types[var] for eqn in simple.eqns for var in eqn.outputs if var < len(types))
    function = builder.build(single_threaded=max(map(size_of, made_here), default=0) <= SINGLE_THREADED)
    guards = guards_of(computation, simple.assumed, value_of)
    counts = tuple(map(len, simple.results))
    fed = tuple(var for _, var in feeds)
    return Lowered(function, tuple(inputs), fed, counts, max(counts, default=0) > 1, guards, picks)


def _picks(computation: Computation, arguments: Sequence[int]) -> tuple[tuple[int, ...] | None, list[int]]:
    """Return which tensor each of the results is, among those that a function returns and its arguments.

    Results that are one tensor op by op are one tensor; and a result that is given, or on the trace, is that tensor.

    Returns:
      The positions, None if they are all those that the function returns; and the vars that it returns.
    """
    flat = _flat(computation.results)
    made = list(dict.fromkeys(var for var in flat if var not in arguments))
    at = {var: position for position, var in enumerate([*made, *arguments])}
    picks = tuple(at[var] for var in flat)
    return (None if picks == tuple(range(len(made))) else picks), made


def _flat(rows: Iterable[tuple[int, ...]]) -> list[int]:
    return [var for row in rows for var in row]


def small_values(computation: Computation, value_of: Callable[[int], Tensor]) -> dict[int, Any]:
    """Return the values of the feeds that are scalars or a few integers, which shapes may depend on."""
    kinds = computation.types
    small = [
        (leaf, var)
        for leaf, var in computation.feeds
        if kinds[leaf].shape == () or (kinds[leaf].dtype in _INTEGERS and size_of(kinds[leaf]) <= ASSUMABLE)
    ]
    return {leaf: value_of(var).numpy() for leaf, var in small if kinds[leaf].dtype not in _WITHOUT_VALUE}


def guards_of(
    computation: Computation, assumed: Sequence[int], value_of: Callable[[int], Tensor]
) -> tuple[tuple[int, bytes], ...]:
    """Return the vars of the trace that a function depends on without taking them, with the bytes of their values."""
    var_of = dict(computation.feeds)
    more = [(var_of[leaf], value_bytes(value_of(var_of[leaf]))) for leaf in assumed]
    return tuple(dict([*computation.read, *more]).items())


def add_node(builder: FunctionBuilder, eqn: Eqn, inputs: list[str]) -> list[str]:
    """Add an equation, and return the references of its outputs.

    In a function, the kernel of AddN may begin with another term than the first, which changes the last bits; up to
    eight terms, it otherwise adds them one by one.
    """
    if eqn.op != "AddN" or not 2 < len(inputs) <= ONE_BY_ONE:
        return builder.node(eqn.op, inputs, eqn.attrs)
    attrs = tuple((name, value) for name, value in eqn.attrs if name == "T")
    total = inputs[0]
    for term in inputs[1:]:
        (total,) = builder.node("AddV2", [total, term], attrs)
    return [total]
