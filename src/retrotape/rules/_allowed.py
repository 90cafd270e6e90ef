"""The ops that a saved tape may contain."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from retrotape.ir import OWN_OPS


@cache
def allowed() -> frozenset[str]:
    """Return the names of the ops that a tape may have, as reviewed (`tools/allowed_ops.toml`)."""
    names = Path(__file__).with_name("allowed_ops.txt").read_text().split()
    return frozenset(names) | OWN_OPS
