"""The backward pass as a program of its own: what a query computes, as data."""

from __future__ import annotations

from typing import NamedTuple

from retrotape._types import Cotangent, Tensor
from retrotape.errors import TapeUseError
from retrotape.execute import Query, differentiate
from retrotape.ir import LEAF, Builder, FunctionProgram, Program, slice_to
from retrotape.record import Trace, current_stack
from retrotape.tf.core import tf


class BackwardProgram(NamedTuple):
    """What a query computes, from the values of a forward program and the seeds of its targets.

    Attributes:
      function: The program: from seeds (`cotangents`) and recorded values (`captures`) to cotangents of the sources.
      values: For each of the captures, the var of the forward program whose value it takes.
      constants: By var of the program: values that the gradient functions made themselves, such as sizes.
    """

    function: FunctionProgram
    values: tuple[int, ...]
    constants: dict[int, Tensor]

    @property
    def program(self) -> Program:
        """The program."""
        return self.function.program


def backward_program(trace: Trace, query: Query) -> BackwardProgram:
    """Return the backward pass of a query as a program: run on other values, it gives the gradients there.

    Sizes that gradient functions looked up in Python are constants of it, so the values must have the same shapes.

    Args:
      trace: What was recorded, without calls of functions: see `flatten` and `portable`.
      query: The query; its seeds do not count.

    Raises:
      TapeUseError: If the trace has calls of functions: TensorFlow's derivative of one is no data.
    """
    if trace.facts.calls:
        raise TapeUseError(
            "A backward pass through calls of functions is no program. Take them apart: `flatten(trace)`."
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
            f"A backward function reads a value in Python at {where}: on other values it may run other ops."
        )
    results = [() if grad is None else tuple(map(fork.var_of, _tensors(grad))) for grad in found]
    return _Extraction(fork, known, [fork.var_of(seed) for seed in seeds]).extract(results)


def _tensors(grad: Cotangent) -> list[Tensor]:
    if isinstance(grad, tf.IndexedSlices):
        return [grad.values, grad.indices, grad.dense_shape]
    return [grad]


class _Extraction:
    """Copies what was recorded after the first `known` vars into a program of its own."""

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
        captures = tuple(self._values)
        function = FunctionProgram(builder.snapshot(), self._seeds, captures, vars_of)
        return BackwardProgram(function, tuple(self._values.values()), self._constants)

    def _var(self, var: int) -> int:
        """Return the var that stands for one of the fork: a value of the forward program, or a constant, is a leaf."""
        found = self._map.get(var)
        if found is None:
            found = self._map[var] = self._builder.leaf(self._fork.program.types[var])
            if var < self._known:
                self._values[found] = var
            else:
                assert self._fork.program.producers[var] == LEAF
                self._constants[found] = self._fork.values[var]
        return found
