"""The backward pass of a query as a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from retrotape._types import Tensor
from retrotape.errors import TapeUseError
from retrotape.execute import Query, cotangent_tensors, differentiate
from retrotape.ir import LEAF, Builder, FunctionProgram, Program, slice_to
from retrotape.record import Trace, current_stack
from retrotape.tf.core import tf


class BackwardProgram(NamedTuple):
    """The backward pass of a query, as a function of forward values and of the seeds of its targets.

    Attributes:
      function: The program: from seeds (`cotangents`) and from `captures` to cotangents of the sources. It can be run,
        but not differentiated: it has no facts.
      values: For the first captures, the var of the forward program whose value each takes.
      constants: For the other captures, the constants that gradient functions made.
    """

    function: FunctionProgram
    values: tuple[int, ...]
    constants: tuple[Tensor, ...]

    @property
    def program(self) -> Program:
        """The program."""
        return self.function.program

    def captured(self, value_of: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the values of the captures, given the values of the forward program."""
        return [*map(value_of, self.values), *self.constants]


def backward_program(trace: Trace, query: Query) -> BackwardProgram:
    """Return the backward pass of a query as a program, which can run on other values.

    What TensorFlow's gradient functions read in Python, such as sizes and axes, becomes part of the program. So the
    other values must have the same shapes, and integers must be the same.

    Args:
      trace: A trace without function calls: see `flatten` and `portable`.
      query: The query; its seeds are ignored.

    Raises:
      TapeUseError: If the trace has function calls: TensorFlow's derivative of a call is not a program.
    """
    if trace.facts.calls:
        raise TapeUseError(
            "A backward pass through function calls is not a program. Inline the calls first: `flatten(trace)`."
        )
    fork = trace.fork()
    known, types = len(fork.program.types), fork.program.types
    with current_stack().unrecorded():
        seeds = [tf.ones(types[var].shape, types[var].dtype) for var in query.targets]
    with current_stack().only(fork):
        found = differentiate(fork, query._replace(seeds=tuple(seeds)))
    fork.flush()
    if len(fork.facts.host_reads) > len(trace.facts.host_reads):
        where = fork.program.frames[fork.facts.host_reads[-1].frame]
        raise TapeUseError(
            f"A backward function reads a value in Python at {where}: on other values it may run other ops. "
            "Use TensorFlow ops instead, such as `tf.where`."
        )
    kinds = [types[source[0]] for source in query.sources]
    results = [
        () if grad is None else tuple(map(fork.var_of, cotangent_tensors(grad, kind)))
        for grad, kind in zip(found, kinds, strict=True)
    ]
    return _Extraction(fork, known, [fork.var_of(seed) for seed in seeds]).extract(results)


class _Extraction:
    """Copies the equations recorded after the first `known` vars into a new program."""

    def __init__(self, fork: Trace, known: int, seeds: list[int]) -> None:
        self._fork, self._known = fork, known
        self._builder = Builder(frames=fork.frames)
        self._map = {var: self._builder.leaf(fork.program.types[var]) for var in dict.fromkeys(seeds)}
        self._seeds = tuple(self._map[var] for var in seeds)
        self._values: dict[int, int] = {}  # leaf → var of the forward program
        self._constants: dict[int, Tensor] = {}

    def extract(self, results: list[tuple[int, ...]]) -> BackwardProgram:
        """Return the program that computes the results."""
        program, builder = self._fork.program, self._builder
        wanted = [var for result in results for var in result]
        for index in slice_to(program, wanted, range(self._known)):
            eqn = program.eqns[index]
            inputs = tuple(map(self._var, eqn.inputs))
            outputs = builder.define([program.types[var] for var in eqn.outputs])
            self._map.update(zip(eqn.outputs, outputs, strict=True))
            builder.append(eqn.op, inputs, outputs, eqn.attrs, eqn.frame)
        vars_of = tuple(tuple(map(self._var, result)) for result in results)
        captures = (*self._values, *self._constants)
        function = FunctionProgram(builder.snapshot(), self._seeds, captures, vars_of)
        return BackwardProgram(function, tuple(self._values.values()), tuple(self._constants.values()))

    def _var(self, var: int) -> int:
        """Return the new var for one of the fork: forward values and constants become leaves."""
        found = self._map.get(var)
        if found is None:
            found = self._map[var] = self._builder.leaf(self._fork.program.types[var])
            if var < self._known:
                self._values[found] = var
            else:
                assert self._fork.program.producers[var] == LEAF
                self._constants[found] = self._fork.values[var]
        return found
