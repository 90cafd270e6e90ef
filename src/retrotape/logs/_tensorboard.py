"""Writes the numbers of one step to TensorBoard.

A tag ends in `/norm`, `/nonfinite` or `/values`, which says whether it is a scalar or a histogram: with the name of a
layer as the last part, the histogram of a layer called "norm" would collide with the norm of the layer around it.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakSet

from retrotape._types import Tensor
from retrotape.diagnose.layers import Layers
from retrotape.errors import printable
from retrotape.execute import Values
from retrotape.grads import Gradients, count_nonfinite, distinct, elements, name_of
from retrotape.logs._graph import graph_of
from retrotape.record import Trace
from retrotape.tf.core import tf

_drawn: WeakSet[Any] = WeakSet()  # writers that have a graph


class Board:
    """Writes to the default writer of `tf.summary`, for its default step."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._layers = Layers(trace)
        self._finite = True

    def write_loss(self, loss: float, description: str | None) -> None:
        """Write the loss; a description says which tensor it is."""
        self._finite &= math.isfinite(loss)
        tf.summary.scalar("loss", loss, description=description)

    def write_gradients(self, grads: Gradients) -> bool:
        """Write the gradients, and return whether they or the loss are not finite."""
        numbers = grads.metrics()
        for name, number in numbers.items():
            _write_number(name, number)
        for name, grad in zip(distinct(map(name_of, grads.keys())), grads.values(), strict=True):
            if grad is not None:
                _write_values(f"gradients/{name}", elements(grad))
        return not self._finite or numbers["gradients/nonfinite"] > 0

    def write_activations(self) -> None:
        """Write what each call of a Keras layer returned, if it is one tensor."""
        values = Values(self._trace)
        for layer, scope in self._layers.called:
            var = self._trace.tensors.get(scope.returned) if layer.call else None
            dtype = None if var is None else tf.as_dtype(self._trace.program.types[var].dtype)
            if var is None or dtype is None or not (dtype.is_floating or dtype.is_complex):
                continue
            with self._trace.explained():
                found = elements(values(var))
            tag = f"activations/{layer.path}" if layer.call == 1 else f"activations/{layer.path}/call_{layer.call}"
            _write_number(f"{tag}/norm", float(tf.norm(found)))
            _write_values(tag, found)

    def write_findings(self, text: str) -> None:
        """Write what is wrong, if anything is."""
        if text:
            tf.summary.text("findings", text)

    def write_graph(self, writer: Any) -> None:
        """Draw what was recorded, unless this writer has a graph already."""
        if writer not in _drawn:
            _drawn.add(writer)
            tf.summary.graph(graph_of(self._trace, self._layers))


def _write_values(tag: str, found: Tensor) -> None:
    """Write the histogram of the finite elements, and how many are not."""
    count = count_nonfinite(found)
    _write_number(f"{tag}/nonfinite", float(count))
    if count < found.shape[0]:
        finite = tf.boolean_mask(found, tf.math.is_finite(found)) if count else found
        tf.summary.histogram(printable(f"{tag}/values"), finite)


def _write_number(tag: str, number: float) -> None:
    """Write a scalar; a name from a file may have what no tag can have."""
    tf.summary.scalar(printable(tag), number)
