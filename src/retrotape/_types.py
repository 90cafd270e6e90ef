"""The types that have no type information of their own, each named once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Tensor: TypeAlias = Any  # tf.Tensor: eager, or symbolic inside a tf.function
Variable: TypeAlias = Any  # tf.Variable, or what stands for one on a loaded tape
Cotangent: TypeAlias = Any  # a tensor, or tf.IndexedSlices
Gradient: TypeAlias = Any  # the same, as users see it
Handle: TypeAlias = Any  # the resource tensor of a variable
Json: TypeAlias = Any  # what the json module returns
Nest: TypeAlias = Any  # a nest of tensors and variables, as tf.nest has it
Place: TypeAlias = Any  # where an op ran: code and instruction, a graph operation, or a Frame

# Applies the backward rule of one equation: index, cotangents of the outputs, plan → cotangents of the inputs.
Vjp: TypeAlias = Callable[[int, list[Cotangent | None], Any], Sequence[Cotangent | None]]
