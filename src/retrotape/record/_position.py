"""Where a run is that follows a template, and what takes the place of ops that do not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from retrotape._types import Tensor


class Position(NamedTuple):
    """Where a run is that follows a template.

    Attributes:
      eqns: How many equations have run.
      size: How many vars exist.
      stopped: The vars whose gradient `tf.nn.moments` stopped.
      layer_calls: How many layers were called.
      host_reads: How often Python has read a value.
    """

    eqns: int
    size: int
    stopped: frozenset[int | None]
    layer_calls: int
    host_reads: int


class Passed(NamedTuple):
    """What a compiled function computed in place of some equations of a template.

    Attributes:
      eqns: The number of equations up to their end.
      size: The number of vars.
      tensors: The tensors that it returned, by var.
      values: The values to keep: some of these, and constants.
      times: When the equations would have run.
    """

    eqns: int
    size: int
    tensors: Mapping[int, Tensor]
    values: Mapping[int, Any]
    times: Sequence[int]
