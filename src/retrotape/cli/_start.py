"""Loading TensorFlow without the messages that it always logs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Newer versions write some of it before they read their own setting.
_CHATTER = re.compile(
    r"absl::InitializeLog|oneDNN custom operations|cpu_feature_guard|To enable the following instructions"
    r"|cuda_dnn|cuda_fft|cuda_blas|computation_placer|cudart_stub|cuda_diagnostics|Could not find cuda drivers"
    r"|TF-TRT Warning|Unable to register cu"
)


def start_tensorflow() -> None:
    """Load TensorFlow, which takes seconds, and leave out the messages that it always logs."""
    if os.environ.get(LEVEL):  # whoever sets it wants to decide
        from retrotape.tf import core  # noqa: F401

        return
    os.environ[LEVEL] = "3"  # TensorFlow reads it when it is loaded
    with _without_chatter():
        from retrotape.tf.core import tf

        tf.constant(0)  # it initializes its devices now


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Keep what is written to the file of stderr, also by C++, and write all but chatter at the end."""
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
