"""Loads TensorFlow without the messages that it always logs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Newer versions log some of these before they read their own log level.
_CHATTER = re.compile(
    r"absl::InitializeLog|oneDNN custom operations|cpu_feature_guard|To enable the following instructions"
    r"|cuda_dnn|cuda_fft|cuda_blas|computation_placer|cudart_stub|cuda_diagnostics|Could not find cuda drivers"
    r"|TF-TRT Warning|Unable to register cu"
)


def start_tensorflow() -> None:
    """Load TensorFlow, which takes seconds, and leave out the messages that it always logs."""
    if os.environ.get(LEVEL):  # respect the user's setting
        from retrotape.tf import core  # noqa: F401

        return
    os.environ[LEVEL] = "3"  # TensorFlow reads it when it is loaded
    with _without_chatter():
        from retrotape.tf.core import tf

        tf.constant(0)  # initializes the devices, which logs too


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Capture the file descriptor of stderr, which C++ writes to as well; write all but chatter at the end."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        before = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            kept.seek(0)
            for line in kept.read().splitlines(keepends=True):
                if not is_chatter(line.decode(errors="replace")):
                    os.write(2, line)


def is_chatter(line: str) -> bool:
    """Return whether a line is one that TensorFlow writes whenever it starts.

    >>> is_chatter("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR")
    True
    >>> is_chatter("ImportError: libtensorflow_cc.so.2 is missing")
    False
    """
    return _CHATTER.search(line) is not None
