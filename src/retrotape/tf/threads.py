"""TensorFlow's own threads. They are not there in a process that was forked after TensorFlow had started.

Most ops in eager code run without them. A function of TensorFlow would wait for them for ever.
"""

from __future__ import annotations

import os

from retrotape.tf.core import context

GONE = (
    "this process was forked from one in which TensorFlow had run: its threads, which run functions, are not here. "
    "Start processes anew to have them: `multiprocessing.get_context('spawn')`"
)
gone = False  # whether they are; read as an attribute of this module


def _after_fork() -> None:
    global gone
    current = context.context_safe()
    gone = gone or (current is not None and current._initialized)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
