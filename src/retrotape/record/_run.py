"""What a trace that equals a template has besides the template: all that differs between two runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrotape._types import Handle, Tensor
from retrotape.ir import BackwardFunction, LayerCall
from retrotape.record._template import Template


class Run(NamedTuple):
    """One run of the program of a template, to the end.

    Attributes:
      template: The template.
      values: The values that were kept, by var.
      tensors: The vars, by identity of the tensor.
      slots: Which of the template's variables each variable stands for, by identity of the handle, in order of use.
      handles: The handles, by slot.
      times: When each equation ran.
      host_reads: What Python has read, as arguments of `Recorder.add_host_read`.
      backward_functions: By equation.
      moments: Identities of tensors whose gradient `tf.nn.moments` stopped.
      layer_calls: Calls of Keras layers, by when they began.
    """

    template: Template
    values: dict[int, Tensor]
    tensors: dict[int, int]
    slots: dict[int, int]
    handles: dict[int, Handle]
    times: list[int]
    host_reads: list[tuple[Any, ...]]
    backward_functions: dict[int, BackwardFunction]
    moments: set[int]
    layer_calls: dict[int, LayerCall]
