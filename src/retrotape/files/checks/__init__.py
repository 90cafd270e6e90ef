"""What is checked before an op of a file runs."""

from retrotape.files.checks._budget import memory_limit
from retrotape.files.checks._guard import Guard
from retrotape.files.checks._op_guards import RECOMPUTED
from retrotape.files.checks._ops import OpCheck

__all__ = ["RECOMPUTED", "Guard", "OpCheck", "memory_limit"]
