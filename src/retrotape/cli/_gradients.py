"""Gradients of a saved tape by name; loads TensorFlow."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import numpy as np

from retrotape.cli._tape import Named, SavedTape
from retrotape.cli._text import number, printable, show_lines
from retrotape.errors import NotDifferentiableWarning
from retrotape.grads import Gradients, NamedSource
from retrotape.tape.loaded import load
from retrotape.tf.core import is_trainable, tf

Options = dict[str, Any]


class Key:
    """The source of a gradient; a key of `Gradients`.

    Attributes:
      on_tape: Its name on the tape.
      name: The same name, safe to print.
      shape: Its shape.
      dtype: Its dtype.
    """

    def __init__(self, tape: SavedTape, named: Named) -> None:
        dtype, shape = tape.type_of(named.var)
        self.on_tape, self.name = named.name, printable(named.name)
        self.shape, self.dtype = tf.TensorShape(shape), tf.as_dtype(dtype)


def gradients_of(
    saved: SavedTape, target: str, sources: list[Named], order: int, isolate: bool, options: Options
) -> Gradients:
    """Return the gradients of a target with respect to each of the sources.

    Args:
      saved: The tape as data.
      target: The name of the target.
      sources: The sources.
      order: How often to differentiate.
      isolate: Whether to use a separate process.
      options: For `tape.gradient`.
    """
    path, found, reasons = saved.container.path, [], []
    dtype = next(tf.as_dtype(saved.type_of(named.var).dtype) for named in saved.names if named.name == target)
    no_derivative = "" if is_trainable(dtype) else f"the target is {dtype.name}, which has no derivative"
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", NotDifferentiableWarning)  # the table says so for each source
        tape: Any = stack.enter_context(load(path, isolate=True)) if isolate else load(path)
        first = tape.gradient(target, [named.name for named in sources], **options)
        for named, grad in zip(sources, first, strict=True):
            key = Key(saved, named)
            reason = (no_derivative or _reason(tape, target, named.name, options)) if grad is None else ""
            for done in range(1, order):
                if grad is not None:
                    grad = tape.gradient(grad, named.name, **options)
                    reason = f"the derivative of order {done} does not depend on it"
            found.append((key, grad))
            reasons.append((key, reason))
    return Gradients(found, reasons)


def _reason(tape: Any, target: str, source: str, options: Options) -> str:
    """Return why there is no gradient."""
    grads = tape.backward(target, [source], **options)
    (key,) = grads.keys()
    return grads.why(key)


def row_of(gradients: Gradients, key: Key | NamedSource) -> dict[str, Any]:
    """Return a gradient's properties as JSON; with its value, if that is a scalar."""
    value = gradients.get(key)
    row: dict[str, Any] = {"name": getattr(key, "on_tape", key.name), "shape": [*key.shape], "dtype": key.dtype.name}
    if value is None:
        return {**row, "missing": gradients.why(key)}
    ((_, norm),) = gradients.only(key).norms()
    row.update(norm=number(norm), sparse=isinstance(value, tf.IndexedSlices))
    if key.shape.num_elements() == 1 and not key.dtype.is_complex:
        row["value"] = number(float(dense(value).reshape(())))
    return row


def with_printable_names(gradients: Gradients) -> Gradients:
    """Return gradients that are keyed by names, with names that are safe to print."""
    keys = {key: NamedSource(printable(key), key.shape, key.dtype) for key in gradients.keys()}
    reasons = [(keys[key], gradients.why(key)) for key in gradients.missing]
    return Gradients([(keys[key], grad) for key, grad in gradients.items()], reasons)


def print_gradients(gradients: Gradients, target: str, rows: list[dict[str, Any]]) -> None:
    """Print the table of gradients, and the values of those that are scalars."""
    table: Any = gradients.__rich__()
    for column in table.columns:
        column.no_wrap = column.justify == "right"  # a wrapped number would look like two
        column.overflow = "fold"
    values = [row for row in rows if "value" in row]
    show_lines(table, *(f"d {printable(target)} / d {printable(row['name'])} = {row['value']}" for row in values))


def dense(value: Any) -> np.ndarray:
    """Return a gradient as an array."""
    if not isinstance(value, tf.IndexedSlices):
        return value.numpy()
    whole = np.zeros([int(size) for size in value.dense_shape], value.dtype.as_numpy_dtype)
    np.add.at(whole, value.indices.numpy(), value.values.numpy())
    return whole
