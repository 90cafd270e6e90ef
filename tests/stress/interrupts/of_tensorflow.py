"""What an interrupt breaks in TensorFlow itself, and how the programs that interrupt at random get past it."""

from __future__ import annotations

from operator import attrgetter

from tensorflow.python.eager import context


def read_context_in_c() -> None:
    """Let TensorFlow read a property of its context without running Python code, so that no interrupt comes there.

    Its C++ reads `Context._handle` wherever a value becomes a tensor, and goes on with a null pointer if that raises.
    """
    context.Context._handle = property(attrgetter("_context_handle"))


def leave_graph_mode() -> None:
    """Leave the graph mode of a block that was interrupted as it ended.

    `tf.Graph.as_default` is a generator. One inside another then ends after it, and restores what it found: graph mode.
    """
    context.context()._thread_local_data.is_eager = True


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error comes of an interrupt with which TensorFlow's C++ went on: Python says SystemError."""
    while error is not None and not isinstance(error, SystemError):
        error = error.__context__
    return error is not None and isinstance(error.__cause__, KeyboardInterrupt)
