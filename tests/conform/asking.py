"""What is asked of a tape about a case, and its answers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from conform.table import Ask

# AutoGraph converts what a function calls, and anew for each function: these have nothing to convert.
_as_is = tf.autograph.experimental.do_not_convert


@_as_is
def tensors_in(nest: Any) -> list[Any]:
    return [item for item in tf.nest.flatten(nest) if not is_variable(item)]


@_as_is
def is_variable(item: Any) -> bool:
    return hasattr(item, "assign")


def _weights(target: Any) -> Any:
    """Return an output gradient without symmetry: ones would hide a mistake in anything that sums to one."""
    steps = tf.range(1.0, tf.cast(tf.size(target), tf.float32) + 1.0)
    weights = tf.cast(tf.cos(3.0 * steps) + 0.3 * steps, target.dtype)
    return tf.reshape(weights, tf.shape(target))


@_as_is
def questions_about(outcome: Any, sources: list[Any]) -> list[Ask]:
    ask = outcome if isinstance(outcome, Ask) else Ask(outcome)
    ask = ask._replace(sources=sources if ask.sources is None else ask.sources)
    parts = tf.nest.flatten(ask.target)
    if ask.output_gradients is not None or not all(isinstance(part, tf.Tensor) for part in parts):
        return [ask]
    weighted = tf.nest.pack_sequence_as(ask.target, [_weights(part) for part in parts])
    return [ask, ask._replace(output_gradients=weighted)]


@_as_is
def answers_of(tape: Any, questions: list[Ask]) -> list[list[Any]]:
    return [
        tf.nest.flatten(tape.gradient(ask.target, ask.sources, ask.output_gradients, ask.unconnected))
        for ask in questions
    ]


@_as_is
def inputs_of(given: list[Any], sources: list[Any]) -> list[Any]:
    """Return the arguments of a function, and the sources that are variables where None was given."""
    return [source if tensor is None else tensor for tensor, source in zip(given, sources, strict=True)]
