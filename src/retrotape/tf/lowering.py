"""Register a function with TensorFlow, and call it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import finalize

from retrotape._types import Tensor
from retrotape.tf import threads
from retrotape.tf.core import context, execute, tf
from retrotape.tf.hook_table import unhooked

FunctionDef = type(tf.compat.v1.GraphDef().library.function.add())


def _options() -> bytes:
    """Switch Grappler off: it takes longer than the first run, and may change the last bits."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config.SerializeToString()


_PLAIN = _options()


class LoweredFunction:
    """A registered function. It is removed from TensorFlow when this object is dropped.

    Attributes:
      name: Its name.
      size: The number of its nodes.
    """

    def __init__(self, definition: Any, single_threaded: bool) -> None:
        self.name, self.size = definition.signature.name, len(definition.node_def)
        self._count = len(definition.signature.output_arg)
        # The single-threaded executor starts faster, but runs independent ops one after the other.
        kind = "SINGLE_THREADED_EXECUTOR" if single_threaded else ""
        self._attrs = ("executor_type", kind, "config_proto", _PLAIN)
        if threads.gone:
            raise tf.errors.UnavailableError(None, None, threads.GONE)
        ctx = context.context()
        ctx.ensure_initialized()
        ctx.add_function_def(definition)
        finalize(self, _remove, self.name).atexit = False

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run it; nothing records it."""
        if threads.gone:
            raise tf.errors.UnavailableError(None, None, threads.GONE)
        return _run()(self.name, self._count, inputs, self._attrs, context.context())


def call_unrecorded(function: Any, arguments: list[Tensor]) -> Any:
    """Call a concrete function by its name, which is faster; no tape records it.

    It returns tensors, sparse gradients, and lists and tuples of them.
    """
    ctx = context.context()
    options = ctx.function_call_options
    attrs = ("executor_type", options.executor_type or "", "config_proto", options.config_proto_serialized)
    inputs = [*arguments, *function.captured_inputs]
    found = _run()(function.name, len(function.outputs), inputs, attrs, ctx)
    return _packed(function.structured_outputs, iter(found))


def _packed(structure: Any, flat: Iterator[Tensor]) -> Any:
    """Return tensors in a structure, faster than `tf.nest` does."""
    if isinstance(structure, (list, tuple)):
        return type(structure)([_packed(part, flat) for part in structure])
    if isinstance(structure, tf.IndexedSlices):
        return tf.IndexedSlices(next(flat), next(flat), None if structure.dense_shape is None else next(flat))
    return next(flat)


def _run() -> Callable[..., Any]:
    return unhooked(execute, "quick_execute")


def _remove(name: str) -> None:
    ctx = context.context()
    if ctx.has_function(name):  # another context, after a reset, does not have it
        ctx.remove_function(name)
